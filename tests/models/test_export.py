"""Exported models compute what the model computes: torch.export, and ONNX in onnxruntime.

The path to export is `explicit`: complex numbers do not leave PyTorch, and the batch may stay open.
"""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.export import Dim

from vit_rpe.attention import choose_path
from vit_rpe.masks import Toeplitz

SIZE = (48, 64)  # a grid of 3 x 4: unequal sides, so that swapped axes show
MODELS: dict[str, dict[str, Any]] = {
    "performer_rpe2d_tiny_patch16_224": {"path": "explicit"},
    "vit_rpe2d_tiny_patch16_224": {},
}
BATCHES = {"fixed": None, "dynamic": {"x": {0: Dim("batch", min=1, max=64)}}}


def build(name: str, **options: Any) -> nn.Module:
    """Two blocks, because the class token sees no mask in the first; strong attention in both."""
    model = timm.create_model(
        name, depth=2, img_size=SIZE, num_classes=10, rpe_init="decay", **options
    )
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".attn." in parameter_name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def images(count: int) -> Tensor:
    return torch.randn(count, 3, *SIZE)


def batches(batch: str) -> list[Tensor]:
    return [images(2)] if batch == "fixed" else [images(n) for n in (1, 2, 5)]


def export(model: nn.Module, batch: str) -> torch.export.ExportedProgram:
    return torch.export.export(model, (images(2),), dynamic_shapes=BATCHES[batch])


@pytest.mark.parametrize("name", MODELS)
def test_the_output_depends_on_the_mask(name):
    """Otherwise nothing below would say anything about masks."""
    model, x = build(name, **MODELS[name]), images(2)
    with torch.no_grad():
        before = model(x)
        for attn in (block.attn for block in model.blocks):  # pyright: ignore
            attn.rpe.table.zero_()
        assert (model(x) - before).abs().max() > 0.1


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_torch_export(name, batch):
    model = build(name, **MODELS[name])
    exported = export(model, batch).module()
    with torch.no_grad():
        for x in batches(batch):
            torch.testing.assert_close(exported(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_onnx(name, batch, tmp_path):
    session_of = onnx_session()
    model = build(name, **MODELS[name])
    file = tmp_path / "model.onnx"
    program = torch.onnx.export(
        model, (images(2),), dynamo=True, dynamic_shapes=BATCHES[batch], verbose=False
    )
    assert program is not None
    program.save(file)
    session = session_of(file)
    (given,) = session.get_inputs()
    assert given.shape == ["batch" if batch == "dynamic" else 2, 3, *SIZE]
    with torch.no_grad():
        for x in batches(batch):
            (out,) = session.run(None, {given.name: x.numpy()})
            torch.testing.assert_close(torch.from_numpy(out), model(x), rtol=1e-4, atol=1e-4)


def onnx_session():
    """A function from a file to a session on one CPU thread; skips where ONNX is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(
            package, reason=f"no {package}: pip install onnx onnxscript onnxruntime"
        )
    import onnxruntime

    def session(file: Path) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    return session


class TestAuto:
    """`path="auto"` chooses when it is traced."""

    @pytest.mark.parametrize("grid", [(3, 4), (14, 14), (28, 28), (56, 56)])
    def test_tables_of_offsets_take_the_explicit_path(self, grid):
        mask = Toeplitz(torch.ones(3, *(2 * n - 1 for n in grid)), grid)
        assert {choose_path(mask, lead, 64, 65) for lead in (1, 3, 96, 768)} == {"explicit"}

    @pytest.mark.parametrize("batch", BATCHES)
    def test_exports_without_a_transform(self, batch):
        model = build("performer_rpe2d_tiny_patch16_224", path="auto")
        program = export(model, batch)
        assert not [node for node in program.graph.nodes if "fft" in str(node.target)]
        with torch.no_grad():
            for x in batches(batch):
                torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("rpe", ["exponential", "none"])
    def test_masks_with_a_scan_export_with_an_open_batch(self, rpe):
        model = build("performer_rpe2d_tiny_patch16_224", path="auto", rpe=rpe)
        exported = export(model, "dynamic").module()
        with torch.no_grad():
            for x in batches("dynamic"):
                torch.testing.assert_close(exported(x), model(x), rtol=1e-4, atol=1e-5)
