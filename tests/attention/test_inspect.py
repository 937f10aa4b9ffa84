import pytest
import torch

from tests.zoo import BATCH, HEADS, ZOO, rand, randn
from vit_rpe.attention import attention_columns, attention_rows, attention_topk, masked_softmax
from vit_rpe.masks import Mask, Padding, Toeplitz


def example(mask: Mask) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and the whole normalised attention matrix."""
    q, k = rand(BATCH, HEADS, mask.length, 5), rand(BATCH, HEADS, mask.length, 5)
    weights = mask.dense().double() * (q @ k.mT)
    total = weights.sum(-1, keepdim=True)
    return q, k, torch.where(total == 0, 0.0, weights / total)


@pytest.mark.parametrize("name", [name for name in ZOO if "signed" not in name])
def test_parts_equal_the_whole(name):
    mask = ZOO[name]()
    q, k, matrix = example(mask)
    index = [0, -1, mask.length // 2]
    torch.testing.assert_close(attention_rows(q, k, mask, index), matrix[..., index, :])
    torch.testing.assert_close(attention_rows(q, k, mask, 0), matrix[..., :1, :])
    torch.testing.assert_close(
        attention_columns(q, k, mask, torch.tensor(index)), matrix[..., index]
    )
    values, keys = attention_topk(q, k, mask, min(3, mask.length))
    torch.testing.assert_close(values, matrix.sort(-1, descending=True)[0][..., : values.shape[-1]])
    torch.testing.assert_close(matrix.gather(-1, keys), values)


def test_rows_of_a_long_sequence():
    grid = (200, 150)  # the whole matrix would take 7 GB
    mask = Toeplitz(torch.rand(399, 299), grid)
    q, k = torch.rand(30_000, 4), torch.rand(30_000, 4)
    rows = attention_rows(q, k, mask, [7, 29_999])
    assert rows.shape == (2, 30_000)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2))


def test_empty_rows_are_zero():
    mask = Padding(torch.zeros(6, dtype=torch.bool))
    q, k = randn(6, 3), randn(6, 3)
    assert (attention_rows(q, k, mask, 2) == 0).all()
    assert (attention_columns(q, k, mask, 2) == 0).all()


@pytest.mark.parametrize("index", [9, [0, -10]])
def test_index_outside_is_refused(index):
    q = torch.rand(9, 2)
    for part in (attention_rows, attention_columns):
        with pytest.raises(ValueError, match="within 9 tokens"):
            part(q, q, Toeplitz(torch.ones(17), (9,)), index)
    with pytest.raises(ValueError, match="between 1 and 9"):
        attention_topk(q, q, Toeplitz(torch.ones(17), (9,)), 10)


def test_rows_of_softmax_attention_are_what_it_makes_of_one_hot_values():
    table = rand(HEADS, 5, 7)
    table[0, :2] = 0.0  # some queries of the first head see nothing
    mask = Toeplitz(table, (3, 4), nonnegative=True)
    q, k = randn(BATCH, HEADS, 12, 5), randn(BATCH, HEADS, 12, 5)
    eye = torch.eye(12, dtype=q.dtype).expand(BATCH, HEADS, 12, 12)
    rows = attention_rows(q, k, mask, [0, 7, -1], "softmax")
    torch.testing.assert_close(rows, masked_softmax(q, k, eye, mask)[..., [0, 7, 11], :])
