import sys

sys.exit(
    "Training comes next: see CHANGELOG.md. Until then, `make quickstart` runs the self-check."
)
