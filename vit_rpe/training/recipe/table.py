"""The keys of a recipe as Markdown tables, for `--help-recipe` and docs/recipes.md."""

from __future__ import annotations

import json
from typing import Any

from .schema import Recipe

# The groups of the schema, each by its first key.
GROUPS = {
    "model": "Model",
    "data_dir": "Data",
    "batch_size": "Batches and length",
    "no_aug": "Augmentation",
    "mixup": "Loss",
    "opt": "Optimizer",
    "sched": "Schedule",
    "model_ema": "Averaging, precision",
    "output": "The run",
}


def table() -> str:
    """Return all keys as Markdown: a heading and a table for each group."""
    lines: list[str] = []
    for name, schema in Recipe.model_json_schema()["properties"].items():
        if name in GROUPS:
            lines += ["", f"## {GROUPS[name]}", ""]
            lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        default = "**required**" if "default" not in schema else f"`{_shown(schema['default'])}`"
        lines.append(f"| `{name}` | {_kind(schema)} | {default} | {schema['description']} |")
    return "\n".join(lines).strip()


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


def _kind(schema: dict[str, Any]) -> str:
    """Say a JSON schema in a word or two."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}"
    kind = str(schema["type"])
    return {"object": "mapping", "boolean": "true, false"}.get(kind, kind)
