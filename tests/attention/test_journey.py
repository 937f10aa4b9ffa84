"""The way of a mask, from its parameters to its product and back, passes through few files."""

import ast
from pathlib import Path

import pytest
import torch

from tests.tracing import PACKAGE, files_of
from vit_rpe import masks
from vit_rpe.attention import masked_linear_attention, masked_softmax_attention
from vit_rpe.features import ReLUFeatures
from vit_rpe.rpe import Border, ExponentialRPE, OffsetRPE

MOST_FILES = 18
MOST_FILES_OF_A_SCAN = 19  # tables.py is shared by the C++ and the Triton forms


@pytest.mark.parametrize(
    ("rpe", "path", "grid"),
    [
        (OffsetRPE, "auto", (6, 5)),
        (OffsetRPE, "explicit", (6, 5)),
        (OffsetRPE, "product", (6, 5)),
        (ExponentialRPE, "auto", (6, 5)),
        (ExponentialRPE, "scan", (150, 9)),  # long enough to be cut into blocks
    ],
)
def test_from_a_parameter_to_a_product_and_back(rpe, path, grid):
    module, border, features = rpe(grid, 3), Border(1, 3), ReLUFeatures()
    length = 1 + grid[0] * grid[1]
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3))

    def work() -> None:
        mask = border(module())
        masked_linear_attention(q, k, v, mask, features=features, path=path).sum().backward()

    work()  # kernels are built, and the plan is made
    files = files_of(work)
    most = MOST_FILES_OF_A_SCAN if path == "scan" else MOST_FILES
    assert len(files) <= most, files


def test_from_a_parameter_to_softmax_and_back():
    module, border = OffsetRPE((6, 5), 3), Border(1, 3)
    q, k, v = (torch.randn(2, 3, 31, 8, requires_grad=True) for _ in range(3))

    def work() -> None:
        masked_softmax_attention(q, k, v, border(module())).sum().backward()

    work()
    files = files_of(work)
    assert len(files) <= MOST_FILES, files


MASKS = {name for name in masks.__all__ if isinstance(getattr(masks, name), type)} - {"Mask"}
# Masks know each other; structure.py takes them apart; a form says which of them it serves.
MAY_ASK = (
    "masks/",
    "attention/structure.py",
    "attention/paths/",
    "attention/cpu/",
    "attention/gpu/",
)
# The mask of a layer that streams is taken apart once, when the stream starts.
MAY_ASK += ("attention/streaming/",)


def questions(file: Path) -> list[str]:
    """The masks that a file asks for by `isinstance`."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    asked = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "isinstance"]
    names = [n.id for c in asked for n in ast.walk(c.args[1]) if isinstance(n, ast.Name)]
    return [name for name in names if name in MASKS]


def test_only_structure_and_forms_ask_what_a_mask_is():
    asking = {
        str(file.relative_to(PACKAGE)): found
        for file in PACKAGE.rglob("*.py")
        if (found := questions(file))
    }
    assert "attention/structure.py" in asking  # the test sees questions
    assert not [file for file in asking if not file.startswith(MAY_ASK)], asking
