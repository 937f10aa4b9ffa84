"""The guard against divergence, and its report on a loss or gradients that are not finite."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.data import Batch
from vit_rpe.program import typed

from ..distributed import barrier, gather_objects, is_sharded
from ..errors import Diverged
from ..record.log import json_number
from ..run import Run
from .watch import watched_attention

REPORT = "divergence.json"
ROWS = 256  # rows of a mask that are looked at together


class Guard:
    """A guard that tolerates a few steps that are not finite, then stops with a report."""

    def __init__(self, run: Run):
        self.run, self.budget, self.path = run, run.recipe.max_skipped_steps, run.folder / REPORT

    def check(self, skipped: int, net: nn.Module, batch: Batch, loss: float) -> None:
        """Stop if too many steps were skipped; call it on all ranks, each with its own loss."""
        if skipped <= self.budget:
            return
        accelerator = self.run.accelerator
        layers = [] if is_sharded(accelerator) else layer_figures(net, batch.images)
        mine = {
            "rank": self.run.rank,
            "step": batch.step + 1,
            "epoch": batch.epoch + 1,
            "loss": json_number(loss),
            "keys": batch.keys,
            "layers": layers,
        }
        everyone = gather_objects(accelerator, mine)
        if self.run.is_main:
            self.path.write_text(json.dumps(everyone, indent=1) + "\n")
        barrier(accelerator)
        again = typed("replay", self.run.folder, "--first", "nonfinite")
        raise Diverged(
            f"loss or gradient of {skipped} steps of epoch {batch.epoch + 1} was not finite, "
            f"max_skipped_steps is {self.budget}; samples and layers are in {self.path}; to see "
            f"the first such step: {again}"
        )


@torch.no_grad()
def layer_figures(model: nn.Module, images: Tensor) -> list[dict[str, Any]]:
    """Measure each attention layer on these images, and find where it stops being finite.

    Layers like ours (with `mask`, `features` and `attend`) give the smallest denominator, the range
    of the mask, and the largest query, key and value.
    """
    figures: list[dict[str, Any]] = []
    with _watched(model, figures):
        model(images)
    return figures


@contextmanager
def _watched(model: nn.Module, figures: list[dict[str, Any]]) -> Iterator[None]:
    hooks = []
    found = False

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            nonlocal found
            if isinstance(output, Tensor) and not found and not output.isfinite().all():
                found = True
                figures.append({"first_not_finite": name, "kind": type(module).__name__})

        return hook

    def measure(name: str, layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> None:
        figures.append({"layer": name, **attention_figures(layer, q, k, v, mask)})

    with watched_attention(model, measure):
        for name, module in model.named_modules():
            hooks.append(module.register_forward_hook(watch(name or "model")))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def attention_figures(layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> dict[str, Any]:
    """Measure one layer; q, k, v are (batch, heads, tokens, channels)."""
    slabs = [mask.rows(i, min(i + ROWS, mask.length)) for i in range(0, mask.length, ROWS)]
    result = {
        "mask_min": json_number(min(float(slab.min()) for slab in slabs)),
        "mask_max": json_number(max(float(slab.max()) for slab in slabs)),
        **{
            f"{n}_max": json_number(float(x.abs().max())) for n, x in (("q", q), ("k", k), ("v", v))
        },
    }
    if callable(getattr(layer, "features", None)):  # linear attention divides by this
        phi_q, phi_k = layer.features(q, k)
        denominators = (phi_q * mask.matmul(phi_k)).sum(-1)
        result["smallest_denominator"] = json_number(float(denominators.abs().min()))
        result["denominators_not_finite"] = int((~denominators.isfinite()).sum())
    return result
