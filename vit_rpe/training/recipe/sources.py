"""Data sources that need no network: the one place where `data_source` gets its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from vit_rpe.data.making import ImagePreparation, VideoPreparation, digits, moving_digits


@dataclass(frozen=True)
class DataSource:
    """A maker of the splits of a data set, and how their samples are prepared for shards."""

    splits: Callable[[], Mapping[str, Any]]
    preparation: Any

    @property
    def has_videos(self) -> bool:
        """Whether the samples are videos, not images."""
        return isinstance(self.preparation, VideoPreparation)


SOURCES = {
    "digits": DataSource(digits, ImagePreparation()),
    "moving_digits": DataSource(moving_digits, VideoPreparation()),
}


def _known(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(f"no data source {name!r}; there are {', '.join(SOURCES)}")
    return name


SourceName = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": [*SOURCES]})
]
