"""The formats that a model is exported to: each makes the bytes of a file, and runs them."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vit_rpe.extras import import_extra
from vit_rpe.messages import cut

LARGEST_ONNX = 2**31 - 2**20  # bytes of a protobuf message
MOST_BATCH = 2**16  # samples of an open batch, in torch.export's terms
OPEN_BATCH = ({0: Dim("batch", min=1, max=MOST_BATCH)},)

Shapes = tuple[dict[int, Dim]] | None  # which axes of the input are open
Run = Callable[[Tensor], Tensor]


def traced(source: nn.Module, inputs: Tensor, shapes: Shapes) -> ExportedProgram:
    """Trace a copy of a model on its explicit path: complex numbers do not leave PyTorch."""
    model: Any = copy.deepcopy(source)
    try:
        with _quiet():
            if isinstance(getattr(type(model), "path", None), property):
                model.path = "explicit"
            return torch.export.export(model, (inputs,), dynamic_shapes=shapes)
    except Exception as error:  # torch raises many kinds
        raise ValueError(f"it cannot be exported: {_first_line(error)}") from None


def as_pt2(
    program: ExportedProgram, inputs: Tensor, shapes: Shapes, described: Mapping[str, str]
) -> tuple[bytes, Run]:
    """Make a file for torch.export.load, with the metadata as extra files."""
    stream = io.BytesIO()
    with _quiet():
        torch.export.save(program, stream, extra_files=dict(described))
        data = stream.getvalue()
        return data, torch.export.load(io.BytesIO(data)).module()


def as_onnx(
    program: ExportedProgram, inputs: Tensor, shapes: Shapes, described: Mapping[str, str]
) -> tuple[bytes, Run]:
    """Make an ONNX file, by torch's exporter that traces (dynamo)."""
    for package in ("onnx", "onnxscript"):
        import_extra(package, "export", "writing ONNX")
    runtime = import_extra("onnxruntime", "export", "checking ONNX")
    size = sum(x.numel() * x.element_size() for x in program.state_dict.values())
    if size > LARGEST_ONNX:
        raise ValueError(
            f"its weights have {size / 2**30:.1f} GiB, ONNX takes 2: write a .pt2 file"
        )
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                (inputs,),
                input_names=["images"],
                output_names=["logits"],
                dynamo=True,
                dynamic_shapes=shapes,
                verbose=False,
            )
            assert made is not None
            made.model.metadata_props.update(described)
            data = made.model_proto.SerializeToString()
    except Exception as error:  # torch, onnx and onnxscript raise many kinds
        raise ValueError(f"ONNX cannot hold this model: {_first_line(error)}") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return data, partial(_run_session, session)


def _run_session(session: Any, images: Tensor) -> Tensor:
    (logits,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(logits)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return cut(f"{type(error).__name__}: {lines[0]}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's notes about its own exporter from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


FORMATS = {".onnx": as_onnx, ".pt2": as_pt2}
