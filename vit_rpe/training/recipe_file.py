"""From YAML files and key=value overrides to a checked recipe; errors name file and key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from .errors import RecipeError
from .nearest import nearest
from .recipe import Recipe

COMMAND_LINE = "command line"
MERGED = ("model_kwargs", "opt_kwargs", "kd_model_kwargs")  # by files key by key; null removes one

Values = dict[str, Any]
Origins = dict[str, str]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-3 for a string, because it has no dot; people do not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, with what it extends, and `key=value` on top."""
    values, origins = _read(Path(path), ())
    for override in overrides:
        _override(values, origins, override)
    if values.get("experiment") is None:
        values["experiment"] = Path(path).stem
    return check(values, origins, str(path))


def check(values: Values, origins: Origins, where: str) -> Recipe:
    for name in values:
        if name not in Recipe.model_fields:
            file = origins.get(name, where)
            raise RecipeError(f"{file}: no key {name!r}{nearest(name, Recipe.model_fields)}")
    try:
        return Recipe(**values)
    except ValidationError as error:
        raise RecipeError(_message(error, origins, where)) from None


def as_yaml(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)


def _read(path: Path, seen: tuple[Path, ...]) -> tuple[Values, Origins]:
    """The values of a file over those that it extends, and the file that each came from."""
    if path.resolve() in seen:
        chain = " -> ".join(each.name for each in (*seen, path))
        raise RecipeError(f"{path}: a recipe cannot extend itself ({chain})")
    own = _parse(path)
    base = own.pop("extends", None)
    if base is None:
        values, origins = {}, {}
    elif isinstance(base, str):
        values, origins = _read(path.parent / base, (*seen, path.resolve()))
    else:
        raise RecipeError(f"{path}: extends: one path of a recipe, got {base!r}")
    for name, value in own.items():
        _set(values, name, value)
        origins[name] = str(path)
    return values, origins


def _parse(path: Path) -> Values:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader: no objects
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys to values, got {data!r}")
    return {str(name): value for name, value in data.items()}


def _set(values: Values, name: str, value: Any) -> None:
    if name in MERGED and isinstance(value, dict):
        merged = {**(values.get(name) or {}), **value}
        value = {key: each for key, each in merged.items() if each is not None}
    values[name] = value


def _override(values: Values, origins: Origins, text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RecipeError(f"{COMMAND_LINE}: an override is key=value, got {text!r}")
    if name == "extends":
        raise RecipeError(f"{COMMAND_LINE}: extends belongs into a file")
    try:
        parsed = yaml.load(value, _Loader)
    except yaml.YAMLError:
        raise RecipeError(f"{COMMAND_LINE}: {name}: not a YAML value: {value!r}") from None
    outer, dot, inner = name.partition(".")
    if dot and outer in MERGED:
        name, parsed = outer, {inner: parsed}
        _set(values, name, parsed)
    else:
        values[name] = parsed
    origins[name] = COMMAND_LINE


def _message(error: ValidationError, origins: Origins, where: str) -> str:
    """The first thing that is wrong, in one line: file, key, what was expected, what came."""
    first = error.errors()[0]
    text = first["msg"].removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    if not first["loc"]:
        return f"{where}: {text}"
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return f"{where}: {name}: is required"
    got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    return f"{origins.get(name, where)}: {name}: {text}{got}"
