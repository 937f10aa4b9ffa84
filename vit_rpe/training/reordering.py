"""Classes of shards and of a model by their names, where they are not in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit_rpe.data import Shards


def class_order(
    names: Sequence[str], num_classes: int, shards: Shards, by_name: bool
) -> list[int] | None:
    """Return the model's output for each class of the shards, then the others; None: in order."""
    wanted = list(shards.classes)
    if not names or not wanted or list(names) == wanted:
        return None
    if not by_name:
        raise ValueError(
            f"the shards have {_few(wanted)}, the checkpoint was trained on {_few(names)}; "
            "--map-classes goes by the names"
        )
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(f"the checkpoint was not trained on {_few(unknown)} of the shards")
    first = [names.index(name) for name in wanted]
    return first + [output for output in range(num_classes) if output not in first]


class Reordered(nn.Module):
    """A model with its outputs in another order."""

    def __init__(self, model: nn.Module, order: list[int]):
        super().__init__()
        self.model = model
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[:, self.order]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} classes ({shown})" if len(names) > 1 else f"the class {shown}"
