"""From YAML files and key=value overrides to a checked recipe; errors name file and key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vit_rpe import messages
from vit_rpe.files import read_regular
from vit_rpe.messages import cut, shown
from vit_rpe.program import typed
from vit_rpe.shipped import ENDING, find_recipe, shipped

from ..errors import RecipeError
from .nearest import nearest
from .schema import Recipe

COMMAND_LINE = "command line"
_NOT_TOLD = ("experiment", "output", "resume", "report")  # where a run is, not what it does
MERGED = ("model_kwargs", "opt_kwargs", "kd_model_kwargs")  # by files key by key; null removes one
# far more than any recipe has; a few lines of YAML can stand for any number of values
MOST_BYTES, MOST_VALUES, DEEPEST, MOST_FILES = 1_000_000, 10_000, 20, 16
TOO_MANY = f"more than {MOST_VALUES} values, with those that aliases (*) repeat"

Values = dict[str, Any]
Origins = dict[str, str]


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that takes 1e-3 for a number, which YAML 1.1 does not."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse a key that is there twice: PyYAML silently takes the last one."""
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in names.items():
            if count > 1 and name != "<<":
                raise yaml.YAMLError(f"the key {shown(name)} is there twice")
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge mappings (<<), up to a number of values."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_VALUES:
            raise yaml.YAMLError(TOO_MANY)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, what it extends, and overrides (`key=value`) on top.

    A recipe is a path, or the name of one that is shipped (`quickstart`).
    """
    path = find_recipe(path)
    values, origins = _read(path, ())
    for override in overrides:
        _override(values, origins, override)
    if values.get("experiment") is None:
        values["experiment"] = path.stem
    return check(values, origins, str(path))


def provenance(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the file of a recipe, the one that it extends, and the keys in which they differ.

    `changed` has for each key the value of the base, or the default, and the value of the recipe.
    """
    path = find_recipe(path)
    base = read_mapping(path).get("extends")
    before = _read(find_recipe(base, path.parent), ())[0] if isinstance(base, str) else {}
    own = load_recipe(path, overrides)
    required: Values = {"model": own.model, "data_dir": own.data_dir}
    try:
        compared = Recipe(**{**required, **before})
    except ValidationError:  # a base need not be whole
        compared = Recipe(**required)
    pairs = {name: [getattr(compared, name), getattr(own, name)] for name in Recipe.model_fields}
    changed = {k: pair for k, pair in pairs.items() if pair[0] != pair[1] and k not in _NOT_TOLD}
    return {"file": str(path), "base": base, "overrides": list(overrides), "changed": changed}


def check(values: Values, origins: Origins, where: str) -> Recipe:
    """Make a recipe of values; an error names the file that the wrong one came from."""
    for name in values:
        if name not in Recipe.model_fields:
            file = origins.get(name, where)
            close = nearest(name, Recipe.model_fields)
            raise RecipeError(f"{file}: no key {shown(name)}{close}")
    try:
        return Recipe(**values)
    except ValidationError as error:
        raise RecipeError(_message(error, origins, where)) from None


def as_yaml(recipe: Recipe) -> str:
    """Return a recipe as YAML, with all its keys."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)


def _read(path: Path, seen: tuple[Path, ...]) -> tuple[Values, Origins]:
    """Return the values of a file over those that it extends, and the file of each."""
    own = read_mapping(path)
    if path.resolve() in seen:
        chain = " -> ".join(each.name for each in (*seen, path))
        raise RecipeError(f"{path}: a recipe cannot extend itself ({chain})")
    if len(seen) == MOST_FILES:
        raise RecipeError(f"{path}: more than {MOST_FILES} recipes extend one another")
    base = own.pop("extends", None)
    if base is None:
        values, origins = {}, {}
    elif isinstance(base, str):
        values, origins = _read(find_recipe(base, path.parent), (*seen, path.resolve()))
    else:
        raise RecipeError(f"{path}: extends: one path of a recipe, got {shown(base)}")
    for name, value in own.items():
        _set(values, name, value)
        origins[name] = str(path)
    return values, origins


def read_mapping(path: Path, kind: str = "recipe") -> Values:
    """Read a YAML file that maps names to values; `kind` is what it should be, in messages."""
    try:
        text = read_regular(path, MOST_BYTES).decode()
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such {kind}{_instead(path, kind)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{_text(str(path))} cannot be read: {cut(error)}") from None
    try:
        data = _load(text)
    except ValueError as error:
        raise RecipeError(cut(f"{path} is not YAML: {error}")) from None
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a {kind} is a mapping of keys to values, got {shown(data)}")
    _check_bounds(data, str(path))
    return {str(name): value for name, value in data.items()}


def _instead(path: Path, kind: str) -> str:
    """Name the shipped file that a wrong path was probably meant to be."""
    close = messages.nearest(path.name.removesuffix(ENDING), shipped(kind))
    return f"{close}; {typed('recipes', 'list')} prints those that are shipped"


def _load(text: str) -> Any:
    """Parse YAML; a SafeLoader makes no objects."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _check_bounds(values: Values, where: str) -> None:
    """Refuse numbers, texts and collections of a size that no program can work with."""
    left, found = MOST_VALUES, [(name, each, 1) for name in values for each in (name, values[name])]
    while found:
        name, value, depth = found.pop()
        inner = [*chain(*value.items())] if isinstance(value, dict) else value
        if isinstance(inner, list | tuple | set):
            left -= 1 + len(inner)
            if left < 0:
                raise RecipeError(f"{where}: {TOO_MANY}")
            if depth > DEEPEST:
                raise RecipeError(f"{where}: {shown(name)}: nested more than {DEEPEST} deep")
            found += [(name, each, depth + 1) for each in inner]
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise RecipeError(f"{where}: {_text(name)}: a number that is too large, {shown(value)}")
        elif isinstance(value, str) and not _is_sound(value):
            raise RecipeError(
                f"{where}: {_text(name)}: a text with a NUL or half a character in it, "
                f"{shown(value)}"
            )


def _text(name: Any) -> str:
    is_short = isinstance(name, str) and len(name) < 500 and _is_sound(name)
    return name if is_short else shown(name)


def _is_sound(text: str) -> bool:
    return "\0" not in text and text.encode(errors="ignore").decode() == text


def _set(values: Values, name: str, value: Any) -> None:
    if name in MERGED and isinstance(value, dict):
        merged = {**(values.get(name) or {}), **value}
        value = {key: each for key, each in merged.items() if each is not None}
    values[name] = value


def _override(values: Values, origins: Origins, text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RecipeError(f"{COMMAND_LINE}: an override is key=value, got {shown(text)}")
    if name == "extends":
        raise RecipeError(f"{COMMAND_LINE}: extends belongs in a file")
    try:
        parsed = _load(value)
    except ValueError:
        raise RecipeError(f"{COMMAND_LINE}: {name}: not a YAML value: {shown(value)}") from None
    _check_bounds({name: parsed}, COMMAND_LINE)
    outer, dot, inner = name.partition(".")
    if dot and outer in MERGED:
        name, parsed = outer, {inner: parsed}
        _set(values, name, parsed)
    else:
        values[name] = parsed
    origins[name] = COMMAND_LINE


def _message(error: ValidationError, origins: Origins, where: str) -> str:
    """Say the first error in one line: file, key, what was expected, what came."""
    first = error.errors()[0]
    text = cut(first["msg"].removeprefix("Value error, "))
    text = text[0].lower() + text[1:]
    if not first["loc"]:
        return f"{where}: {text}"
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return f"{where}: {name}: is required"
    got = "" if first["type"] == "value_error" else f", got {shown(first['input'])}"
    return f"{origins.get(name, where)}: {name}: {text}{got}"
