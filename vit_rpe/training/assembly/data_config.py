"""timm's data config of a model, checked: it may come from anybody's config.json."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import RecipeError
from ..recipe.values import CropFraction, PositiveTriple, Side, Triple


class DataConfig(BaseModel):
    """The part of timm's data config that evaluation uses."""

    input_size: tuple[int, Side, Side]
    mean: Triple
    std: PositiveTriple
    interpolation: str | None = None
    crop_pct: CropFraction | None = None


def check_data_config(config: dict[str, Any]) -> None:
    """Refuse what would enlarge images without bound, or cannot be computed."""
    values = {name: config.get(name) for name in DataConfig.model_fields}
    listed = {"mean": list, "std": list}
    try:
        DataConfig(**{name: _as(listed.get(name), value) for name, value in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecipeError(f"{where}: {first['msg']}, got {first['input']!r:.60}") from None


def _as(kind: type | None, value: Any) -> Any:
    return kind(value) if kind is not None and isinstance(value, tuple) else value
