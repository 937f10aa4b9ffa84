"""Marks for keys that may differ when a run is resumed; a field has them in its type."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic.fields import FieldInfo

T = TypeVar("T")


class OnResume(Enum):
    """The ways in which a key may differ from what the run started with; others may not."""

    ANY = "any value"  # it says where files are or how fast a run is, and changes no result
    LARGER = "a larger value"


MayChange = Annotated[T, OnResume.ANY]
MayGrow = Annotated[T, OnResume.LARGER]


def may_follow(field: FieldInfo, before: Any, now: Any) -> bool:
    """Return whether a run that started with one value of a key may be resumed with another."""
    if before == now or OnResume.ANY in field.metadata:
        return True
    return OnResume.LARGER in field.metadata and now > before
