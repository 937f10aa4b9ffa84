"""Linear layers of GKAT, whose width may be found in the first forward pass."""

from __future__ import annotations

from torch import nn


class Projection(nn.Linear):
    """A linear layer without bias that begins as PyG's attention layers do (Glorot)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)


class LazyProjection(nn.LazyLinear):
    """A `Projection` that learns its number of inputs from the first of them."""

    cls_to_become = Projection  # pyright: ignore[reportAssignmentType]

    def __init__(self, out_features: int):
        super().__init__(out_features, bias=False)

    def reset_parameters(self) -> None:
        if self.in_features and not nn.parameter.is_lazy(self.weight):
            nn.init.xavier_uniform_(self.weight)


def projection(in_features: int, out_features: int) -> Projection | LazyProjection:
    """Make a projection of that many inputs; -1: as many as come first."""
    if in_features == -1:
        return LazyProjection(out_features)
    return Projection(in_features, out_features)
