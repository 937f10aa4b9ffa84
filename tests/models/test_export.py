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

from tests.attention.requests import request
from vit_rpe.attention import plan_attention
from vit_rpe.masks import Toeplitz
from vit_rpe.models import MaskedVideo

SIZE = (48, 64)  # a grid of 3 x 4: unequal sides, so that swapped axes show
FRAMES = 4
CLIPS = {"num_frames": FRAMES, "tubelet_size": 2, "causal_time": True}
MODELS: dict[str, dict[str, Any]] = {
    "performer_rpe2d_tiny_patch16_224": {"path": "explicit"},
    "vit_rpe2d_tiny_patch16_224": {},
    "performer_rpe3d_tiny_patch16_224": {"path": "explicit", **CLIPS},
    "vit_rpe3d_tiny_patch16_224": CLIPS,
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


def inputs(model: nn.Module, count: int) -> Tensor:
    """Images, or clips of 2 x 3 x 4 tubelets."""
    return torch.randn(count, 3, *([FRAMES] if isinstance(model, MaskedVideo) else []), *SIZE)


def batches(model: nn.Module, batch: str) -> list[Tensor]:
    return [inputs(model, n) for n in ([2] if batch == "fixed" else [1, 2, 5])]


def export(model: nn.Module, batch: str) -> torch.export.ExportedProgram:
    return torch.export.export(model, (inputs(model, 2),), dynamic_shapes=BATCHES[batch])


@pytest.mark.parametrize("name", MODELS)
def test_the_output_depends_on_the_mask(name):
    """Otherwise nothing below would say anything about masks."""
    model = build(name, **MODELS[name])
    x = inputs(model, 2)
    with torch.no_grad():
        before = model(x)
        for attn in (block.attn for block in model.blocks):  # pyright: ignore
            attn.rpe.table.zero_()
        assert (model(x) - before).abs().max() > 0.02  # tolerances below are 1e-4


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_torch_export(name, batch):
    model = build(name, **MODELS[name])
    assert_exports(model, batch)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rpe", ["exponential", "factorized", "none"])
def test_torch_export_of_other_clips(rpe, causal):
    options = {**CLIPS, "path": "explicit", "rpe": rpe, "causal_time": causal}
    assert_exports(build("performer_rpe3d_tiny_patch16_224", **options), "dynamic")


def assert_exports(model: nn.Module, batch: str) -> None:
    exported = export(model, batch).module()
    with torch.no_grad():
        for x in batches(model, batch):
            torch.testing.assert_close(exported(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer_rpe3d_tiny_patch16_224", {"path": "explicit"}),
        ("performer_rpe3d_tiny_patch16_224", {"path": "product"}),
        ("performer_rpe3d_tiny_patch16_224", {"path": "scan", "rpe": "exponential"}),
        ("performer3d_tiny_patch16_224", {"path": "explicit"}),
        ("vit_rpe3d_tiny_patch16_224", {}),
    ],
    ids=str,
)
def test_torch_compile(name, options):
    """Forward and backward of clips; aot_eager traces as inductor does, and compiles no C++."""
    model = build(name, **CLIPS, **options)
    whole = options.get("path", "explicit") == "explicit"
    compiled = torch.compile(model, backend="aot_eager", fullgraph=whole)
    x = inputs(model, 2)
    results = []
    for forward in (model, compiled):
        out = forward(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for ours, expected in zip(*reversed(results), strict=True):
        atol = 1e-4 * max(expected.abs().max().item(), 1)
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=atol)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_onnx(name, batch, tmp_path):
    session_of = onnx_session()
    model = build(name, **MODELS[name])
    file = tmp_path / "model.onnx"
    program = torch.onnx.export(
        model, (inputs(model, 2),), dynamo=True, dynamic_shapes=BATCHES[batch], verbose=False
    )
    assert program is not None
    program.save(file)
    session = session_of(file)
    (given,) = session.get_inputs()
    sides = list(inputs(model, 2).shape[1:])
    assert given.shape == ["batch" if batch == "dynamic" else 2, *sides]
    with torch.no_grad():
        for x in batches(model, batch):
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
        calls = [request(mask, heads, 64, 64, tracing="export") for heads in (1, 3, 96, 768)]
        assert {plan_attention(call).path for call in calls} == {"explicit"}

    @pytest.mark.parametrize("batch", BATCHES)
    def test_exports_without_a_transform(self, batch):
        model = build("performer_rpe2d_tiny_patch16_224", path="auto")
        program = export(model, batch)
        assert not [node for node in program.graph.nodes if "fft" in str(node.target)]
        with torch.no_grad():
            for x in batches(model, batch):
                torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("rpe", ["exponential", "none"])
    @pytest.mark.parametrize(
        ("name", "options"),
        [("performer_rpe2d_tiny_patch16_224", {}), ("performer_rpe3d_tiny_patch16_224", CLIPS)],
    )
    def test_masks_with_a_scan_export_with_an_open_batch(self, name, options, rpe):
        assert_exports(build(name, path="auto", rpe=rpe, **options), "dynamic")
