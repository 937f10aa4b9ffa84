"""What the documentation site has beyond docs/; `make docs` builds it (mkdocs.yml)."""
