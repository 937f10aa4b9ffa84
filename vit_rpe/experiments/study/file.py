"""The file of a study: a recipe, factors with their levels, blocks of trials, comparisons.

recipe: cifar10_performer_rpe2d     # what all trials share
seeds: [0, 1, 2]
split: test
factors:
  mask:                             # a factor, its levels, and what each changes in the recipe
    none: {model_kwargs.rpe: none}
    offset: {model_kwargs.rpe: offset}
blocks:
  - levels: {mask: [none, offset]}
comparisons:
  - {name: what the mask gains, this: {mask: offset}, minus: {mask: none}}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from vit_rpe.messages import cut, nearest, shown
from vit_rpe.shipped import find_recipe
from vit_rpe.training import RecipeError, read_mapping

from .errors import StudyError

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Metric = Literal[
    "eval_top1", "eval_top5", "eval_loss", "ema_top1", "ema_top5", "ema_loss", "train_loss"
]
NAME = re.compile(r"[A-Za-z0-9_.+]+")  # so that those of a trial, joined by hyphens, name a folder


def _is_once(values: list[Any]) -> list[Any]:
    repeated = [value for number, value in enumerate(values) if value in values[:number]]
    if repeated:
        raise ValueError(f"{shown(repeated[0])} is there twice")
    return values


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"a name has letters, digits and _ . + only, got {shown(text)}")
    return text


Name = Annotated[str, AfterValidator(_name)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_is_once)]
Names = Annotated[list[Name], Field(min_length=1), AfterValidator(_is_once)]
Levels = dict[Name, Names]
Changes = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Block(_Part):
    """Some trials: all combinations of these levels; a factor not named has its first level."""

    levels: Levels
    seeds: Seeds | None = None
    leave_out: list[Levels] = []


class Comparison(_Part):
    """A difference of trials that share a seed, and all factors that it does not name.

    `where` restricts it, `by` gives each combination of these factors a row; it is averaged over
    the levels of all other factors.
    """

    name: str
    this: dict[Name, Name]
    minus: dict[Name, Name]
    where: Levels = {}
    by: list[Name] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.this.keys() != self.minus.keys() or not self.this:
            raise ValueError("this and minus name the same factors")
        if self.this == self.minus:
            raise ValueError("this and minus are the same")
        twice = self.this.keys() & {*self.where, *self.by}
        if twice:
            raise ValueError(f"{min(twice)} is compared, so it cannot be in where or by")
        return self


class Study(_Part):
    """A study as its file says it; `path` is where that is."""

    path: Path
    recipe: str
    overrides: Changes = {}
    seeds: Seeds
    split: str
    val_fraction: float = Field(0.0, ge=0, lt=1)
    metric: Metric = "eval_top1"
    sizes: Annotated[list[Annotated[int, Field(gt=0)]], AfterValidator(_is_once)] = []
    factors: dict[Name, Annotated[dict[Name, Changes], Field(min_length=1)]] = Field(min_length=1)
    blocks: list[Block] = Field(min_length=1)
    comparisons: list[Comparison] = []

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def base(self) -> Path:
        """The file of the recipe that all trials share."""
        return find_recipe(self.recipe, self.path.parent).absolute()

    @property
    def title(self) -> str:
        """The first line of the file's header."""
        return self.path.read_text().partition("\n")[0].lstrip("# ").rstrip()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for number, block in enumerate(self.blocks, 1):
            for levels in (block.levels, *block.leave_out):
                self._check_levels(levels, f"block {number}")
        for each in self.comparisons:
            where = f"comparison {shown(each.name)}"
            for pair in (each.this, each.minus):
                self._check_levels({factor: [level] for factor, level in pair.items()}, where)
            self._check_levels(each.where, where)
            self._check_levels({factor: [] for factor in each.by}, where)
        _is_once([each.name for each in self.comparisons])
        return self

    def _check_levels(self, levels: dict[str, list[str]], where: str) -> None:
        for factor, names in levels.items():
            if factor not in self.factors:
                close = nearest(factor, self.factors)
                raise ValueError(f"{where}: no factor {shown(factor)}{close}")
            for name in names:
                if name not in self.factors[factor]:
                    close = nearest(name, self.factors[factor])
                    raise ValueError(f"{where}: {factor} has no level {shown(name)}{close}")


def load_study(path: str | Path) -> Study:
    """Read the file of a study: a path, or the name of one that is shipped."""
    found = find_recipe(path, kind="study")
    try:
        values = _as_texts(read_mapping(found, "study"))
        return Study(**values, path=found)
    except RecipeError as error:
        raise StudyError(str(error)) from None
    except ValidationError as error:
        raise StudyError(f"{found}: {_message(error)}") from None
    except TypeError:
        raise StudyError(f"{found}: path: no such key") from None


def _as_texts(values: dict[str, Any]) -> dict[str, Any]:
    """Let names of levels be numbers, and a level that changes nothing be empty."""
    factors = values.get("factors")
    if isinstance(factors, dict):
        values["factors"] = {f: _levels(levels) for f, levels in factors.items()}
    for block in _mappings(values.get("blocks")):
        block["levels"] = _lists(block.get("levels", {}))
        if isinstance(block.get("leave_out"), list):
            block["leave_out"] = [_lists(each) for each in block["leave_out"]]
    for each in _mappings(values.get("comparisons")):
        for key in ("this", "minus"):
            if isinstance(each.get(key), dict):
                each[key] = {factor: _text(name) for factor, name in each[key].items()}
        each["where"] = _lists(each.get("where", {}))
    return values


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _levels(levels: Any) -> Any:
    if not isinstance(levels, dict):
        return levels
    return {_text(name): {} if changes is None else changes for name, changes in levels.items()}


def _lists(levels: Any) -> Any:
    if not isinstance(levels, dict):
        return levels
    return {
        factor: [_text(name) for name in (names if isinstance(names, list) else [names])]
        for factor, names in levels.items()
    }


def _text(name: Any) -> Any:
    is_number = isinstance(name, int | float) and not isinstance(name, bool)
    return str(name) if is_number else name


def _message(error: ValidationError) -> str:
    """Say the first error in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    text = cut(first["msg"].removeprefix("Value error, "))
    text = text[0].lower() + text[1:]
    if first["type"] == "missing":
        return f"{where}: is required"
    if first["type"] == "extra_forbidden":
        return f"{where}: no such key{nearest(str(first['loc'][-1]), Study.model_fields)}"
    if isinstance(first.get("input"), bool):
        text += " (in YAML yes, no, on and off are true and false: put quotes around such a name)"
    got = "" if first["type"] == "value_error" else f", got {shown(first['input'])}"
    return f"{where}: {text}{got}" if where else text
