"""The moments of a step at which somebody may look on."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from vit_rpe.data import Batch

from ..record.steps import Outcome


class Observer(Protocol):
    """An onlooker of the steps of one rank, who draws nothing and changes no tensor of the run."""

    def batch(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """See what the model is about to be given: images and targets are mixed."""
        ...

    def gradients(self) -> None:
        """See the gradients of the step, before they are clipped."""
        ...

    def outcome(self, outcome: Outcome) -> None:
        """Hear what the step came to, after the update."""
        ...
