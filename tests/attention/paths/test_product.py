"""Keys that differ in size by many orders of magnitude: every row is right, whatever the path."""

from math import inf, prod

import pytest
import torch

from tests.attention.requests import estimates
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.reference import masked_attention
from vit_rpe.features import (
    ELUFeatures,
    FeatureMap,
    PositiveRandomFeatures,
    ReLUFeatures,
    SquareFeatures,
)
from vit_rpe.graph import Diffusion, grid_edges
from vit_rpe.masks import BlockDiagonal, Bordered, Dense, Exponential, Mask, Scaled, Sum, Toeplitz

DIM = 16
MAPS = {
    "favor": lambda: PositiveRandomFeatures(DIM),
    "relu": ReLUFeatures,
    "elu": ELUFeatures,
    "square": SquareFeatures,
}
SLOPES = torch.tensor([[0.0], [0.5]])  # a head that sees all tokens alike, and one that does not


def exponential(grid: tuple[int, ...]) -> Exponential:
    return Exponential(SLOPES[:, None].expand(2, 1, len(grid)), torch.ones(2, 1), grid)


MASKS = {
    "toeplitz": lambda grid: exponential(grid).toeplitz(),
    "exponential": exponential,
    "diffusion": lambda grid: Diffusion(grid_edges(grid), lam=torch.tensor([0.5, 2.0])),
}


def wrong_rows(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error of a row, relative to the row."""
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(error.max())


def inputs(length: int, sigma: float) -> list[torch.Tensor]:
    q, k = sigma * torch.randn(2, 2, length, DIM)
    return [q, k, torch.randn(2, length, 4)]


def check(mask: Mask, phi: FeatureMap, sigma: float, definition: Mask | None = None) -> None:
    """Raw q and k with a map, and mapped ones of which nothing is known, on `auto` and `product`.

    `definition` is the same mask, where it has a faster `dense`.
    """
    q, k, v = inputs(mask.length, sigma)
    definition = mask.precise() if definition is None else definition
    exact = masked_attention(*phi(q.double(), k.double()), v.double(), definition)
    mapped = phi(q, k)
    for path in ("auto", "product"):
        out = masked_linear_attention(q, k, v, mask, features=phi, path=path)
        assert wrong_rows(out, exact) < 1e-4, path
        out = masked_linear_attention(*mapped, v, mask, path=path)
        assert wrong_rows(out, exact) < 1e-4, path


@pytest.mark.parametrize("grid", [(14, 14), (512,)], ids=["196", "512"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("phi", MAPS)
def test_every_row(phi, name, grid):
    mask = MASKS[name](grid)
    for sigma in (1, 2, 3, 4):
        check(mask, MAPS[phi](), sigma)


@pytest.mark.parametrize("name", ["toeplitz", "exponential"])
@pytest.mark.parametrize("phi", MAPS)
def test_every_row_of_many(phi, name):
    check(MASKS[name]((4096,) if phi == "favor" else (64, 64)), MAPS[phi](), 4)


@pytest.mark.parametrize("phi", MAPS)
def test_every_row_of_many_graphs(phi):
    """One product for all graphs of a batch: the keys of one must not drown those of another."""
    edges, count = grid_edges((4, 32)), 32
    batch = torch.cat([edges + 128 * i for i in range(count)], 1)
    lam = torch.tensor([0.5, 2.0])
    definition = BlockDiagonal([Dense(Diffusion(edges, lam=lam.double()).dense())] * count)
    check(Diffusion(batch, lam=lam), MAPS[phi](), 4, definition)


def test_gradients_of_small_keys():
    phi, mask = PositiveRandomFeatures(DIM).double(), MASKS["toeplitz"]((512,)).precise()
    leaves = [x.double().requires_grad_() for x in inputs(512, 4)]
    outs = [
        masked_attention(*phi(*leaves[:2]), leaves[2], mask),
        masked_linear_attention(*leaves, mask, features=phi, path="product"),
    ]
    expected, ours = (torch.autograd.grad(out, leaves, torch.ones_like(out)) for out in outs)
    for a, b in zip(ours, expected, strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


def composed(grid: tuple[int, ...]) -> list[Mask]:
    """Masks of three times as many tokens as the grid, of which a part is multiplied by FFT."""
    table = exponential((3 * grid[0], *grid[1:])).toeplitz()
    length = table.length
    return [
        Sum([table, exponential((length,))]),
        Scaled(table, left=torch.rand(length) + 0.1, right=torch.rand(2, length) + 0.1),
        Bordered(exponential((length - 2,)).toeplitz(), 2),
        BlockDiagonal([exponential(grid).toeplitz()] * 3),
    ]


@pytest.mark.parametrize("index", range(4), ids=["sum", "scaled", "bordered", "blocks"])
def test_masks_made_of_masks(index):
    mask = composed((5, 30))[index]
    assert mask.normwise and mask.precise().normwise
    check(mask, PositiveRandomFeatures(DIM), 3)


def test_a_promise_that_is_broken_gives_no_zeros():
    """Rows that float32 cannot tell from round-off are computed again, promise or not."""
    mask = MASKS["toeplitz"]((512,))
    phi = PositiveRandomFeatures(DIM)
    q, k, v = inputs(512, 4)
    exact = masked_attention(*phi(q.double(), k.double()), v.double(), mask.precise())
    out = masked_linear_attention(*phi(q, k), v, mask, path="product", wide_range=False)
    assert (out != 0).any(-1).all()
    lost = (out.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert lost.median() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_faint_in_the_table_itself(dtype):
    table = torch.ones(23, dtype=dtype)
    table[:11] = 0.0  # causal
    table[11] = 1e-15  # and hardly anything of the token itself: the first row is faint
    mask = Toeplitz(table, (12,))
    q, k, v = (torch.rand(12, 3, dtype=dtype) + 0.1 for _ in range(3))
    out = masked_linear_attention(q, k, v, mask, path="product")
    assert wrong_rows(out, masked_attention(q.double(), k.double(), v.double(), mask)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_rows_stay_empty(dtype):
    table = torch.ones(23, dtype=dtype)
    table[:12] = 0.0  # strictly causal: the first token sees nothing
    q, k, v = (torch.rand(12, 3, dtype=dtype) + 0.1 for _ in range(3))
    q[5] = 0.0
    for wide_range in (True, False):
        out = masked_linear_attention(
            q, k, v, Toeplitz(table, (12,)), path="product", wide_range=wide_range
        )
        assert (out[[0, 5]] == 0).all() and (out[1:5] != 0).all()


def test_auto_counts_the_price_of_float64_and_never_takes_it_on_a_gpu():
    table, decay = exponential((64, 64)).toeplitz(), exponential((64, 64))
    narrow, wide = (estimates(table, 2, 16, 16, wide_range=wide) for wide in (False, True))
    assert wide["product"] > 1.5 * narrow["product"] and wide["explicit"] == narrow["explicit"]
    assert estimates(table, 2, 16, 16, wide_range=True, device="cuda")["product"] == inf
    assert estimates(table, 2, 16, 16, wide_range=False, device="cuda")["product"] < inf
    assert estimates(decay, 2, 16, 16) == estimates(decay, 2, 16, 16, wide_range=True)


def test_maps_say_whether_their_values_have_a_wide_range():
    class Users(ReLUFeatures):
        wide_range = True

    assert PositiveRandomFeatures(4).wide_range and Users().wide_range
    assert not any(phi().wide_range for name, phi in MAPS.items() if name != "favor")
    assert FeatureMap.wide_range, "of a map of others nothing is known"


@pytest.mark.parametrize("grid", [(7, 9)])
def test_nothing_is_read_on_other_devices(grid):
    mask = Toeplitz(torch.ones(2, *(2 * n - 1 for n in grid), device="meta"), grid)
    q = torch.ones(2, prod(grid), 4, device="meta")
    assert masked_linear_attention(q, q, q, mask, path="product").shape == q.shape
