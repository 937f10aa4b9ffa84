"""The state of attention layers in a clip that comes frame by frame."""

from .key_memory import Scratch
from .layer_state import LayerState, LinearState, SoftmaxState

__all__ = ["LayerState", "LinearState", "Scratch", "SoftmaxState"]
