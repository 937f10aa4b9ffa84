"""Vision Transformers whose linear attention knows where tokens are, registered with timm.

Importing the package registers its models with timm, which is therefore a dependency. Its parts are
imported when they are touched: `vit_rpe.masks.Toeplitz` needs no further import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .startup import is_program, is_training, stop_at_signals, yield_cores

if TYPE_CHECKING:
    from . import attention, data, features, graph, inference, layers, masks, models, rpe, training

__version__ = "0.2.0"

__all__ = [
    "__version__",
    "attention",
    "data",
    "features",
    "graph",
    "inference",
    "layers",
    "masks",
    "models",
    "rpe",
    "training",
]

if is_training():
    stop_at_signals()  # before the imports, which take seconds
    yield_cores()
if not is_program():  # commands register the models when they need them, so that --help is quick
    from . import models as models


def __getattr__(name: str) -> Any:
    """Import a part of the package when it is touched."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
