"""One example of every mask: unequal sides, no symmetry, some signs, per-head and per-sample dims.

Each entry makes a mask for `BATCH` samples and `HEADS` heads in float64.
"""

from collections.abc import Callable

import torch

from vit_rpe.masks import (
    BlockDiagonal,
    Bordered,
    Causal,
    Dense,
    Exponential,
    LowRank,
    Mask,
    Ones,
    Packing,
    Padding,
    Scaled,
    Sparse,
    Sum,
    Toeplitz,
)

BATCH, HEADS = 2, 3


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64) + 0.05


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def toeplitz(*grid: int) -> Toeplitz:
    return Toeplitz(rand(HEADS, *(2 * n - 1 for n in grid)), grid)


def exponential(*grid: int, one_sided: tuple[int, ...] = (), terms: int = 2) -> Exponential:
    return Exponential(rand(HEADS, terms, len(grid)), rand(HEADS, terms), grid, one_sided)


def keep(length: int) -> torch.Tensor:
    kept = torch.rand(BATCH, 1, length) < 0.7
    kept[..., 1] = True
    return kept


def sparse_factor(rows: int, columns: int) -> torch.Tensor:
    return rand(rows, columns) * (torch.rand(rows, columns) < 0.5)


ZOO: dict[str, Callable[[], Mask]] = {
    "ones": lambda: Ones(7),
    "causal": lambda: Causal(9),
    "padding": lambda: Padding(keep(11)),
    "packing": lambda: Packing(torch.tensor([[[5, 5, -2, 5, 9, -2, 7]], [[0, 0, 0, 1, 1, 1, 1]]])),
    "dense": lambda: Dense(rand(HEADS, 6, 6)),
    "dense_signed": lambda: Dense(randn(HEADS, 6, 6)),
    "sparse": lambda: Sparse(torch.randint(0, 8, (2, 40)), rand(HEADS, 40), 8),
    "toeplitz_1d": lambda: toeplitz(9),
    "toeplitz_2d": lambda: toeplitz(4, 5),
    "toeplitz_2d_per_sample": lambda: Toeplitz(rand(BATCH, 1, 7, 3), (4, 2)),
    "toeplitz_3d": lambda: toeplitz(2, 3, 4),
    "toeplitz_4d": lambda: toeplitz(2, 1, 3, 2),
    "toeplitz_one_token": lambda: toeplitz(1, 1),
    "toeplitz_one_row": lambda: toeplitz(1, 6),
    "exponential_1d": lambda: exponential(11),
    "exponential_2d": lambda: exponential(4, 5),
    "exponential_2d_shared": lambda: Exponential(rand(HEADS, 1), rand(HEADS, 1), (5, 3)),
    "exponential_2d_causal": lambda: exponential(5, 4, one_sided=(0,)),
    "exponential_2d_causal_last": lambda: exponential(5, 4, one_sided=(-1,)),
    "exponential_3d": lambda: exponential(3, 2, 4, one_sided=(0, 2)),
    "exponential_one_token": lambda: exponential(1, 1),
    "low_rank": lambda: LowRank(rand(HEADS, 8, 3), rand(HEADS, 8, 3)),
    "low_rank_signed": lambda: LowRank(randn(HEADS, 8, 3), randn(HEADS, 8, 3)),
    "bordered": lambda: Bordered(
        toeplitz(3, 5), 2, rand(HEADS, 2), rand(HEADS, 2), rand(HEADS, 2, 2)
    ),
    "bordered_ones": lambda: Bordered(exponential(3, 4), 1),
    "bordered_nothing": lambda: Bordered(toeplitz(3, 2), 0),
    "bordered_padding": lambda: Bordered(Padding(keep(8)), 1, row=rand(HEADS, 1)),
    "sum": lambda: Sum([toeplitz(3, 4), Causal(12)]),
    "sum_scannable": lambda: Sum([exponential(3, 4), Causal(12)]),
    "scaled": lambda: Scaled(toeplitz(3, 4), left=rand(HEADS, 12), right=rand(BATCH, 1, 12)),
    "scaled_keep": lambda: Scaled(exponential(3, 4), right=keep(12)),
    "blocks": lambda: BlockDiagonal([toeplitz(2, 3), Bordered(toeplitz(3, 1), 2), Causal(4)]),
    "blocks_scannable": lambda: BlockDiagonal([exponential(2, 3), Ones(1), Scaled(Causal(5))]),
}

SCANNABLE = [
    "ones",
    "causal",
    "padding",
    "exponential_1d",
    "exponential_2d",
    "exponential_2d_shared",
    "exponential_2d_causal",
    "exponential_2d_causal_last",
    "exponential_3d",
    "exponential_one_token",
    "bordered_ones",
    "bordered_padding",
    "sum_scannable",
    "scaled_keep",
    "blocks_scannable",
]


def float_tensors(mask: Mask) -> list[tuple[Mask, str]]:
    """Where the mask, and those that it wraps, keep tensors that can have a gradient."""
    places = [(mask, name) for name, t in mask.tensors().items() if t.is_floating_point()]
    inner = [mask.inner] if isinstance(mask, Bordered | Scaled) else []
    inner += mask.masks if isinstance(mask, Sum | BlockDiagonal) else []
    return places + [place for part in inner for place in float_tensors(part)]


def with_tensors(mask: Mask, tensors: tuple[torch.Tensor, ...]) -> Mask:
    """The mask itself, its tensors replaced in the order of `float_tensors`."""
    for (owner, name), tensor in zip(float_tensors(mask), tensors, strict=True):
        setattr(owner, name, tensor)
    return mask


def own_tensors(mask: Mask) -> tuple[torch.Tensor, ...]:
    """Fresh leaves with the values of the mask's tensors."""
    return tuple(
        getattr(owner, name).detach().clone().requires_grad_()
        for owner, name in float_tensors(mask)
    )
