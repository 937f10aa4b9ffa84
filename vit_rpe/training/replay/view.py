"""A view of one step: its batch, its gradients, the ranges of its activations."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vit_rpe.data import Batch, seed_model

from ..distributed import gather_objects
from ..exhibits.batches import batch_exhibit
from ..exhibits.files import Exhibit
from ..loop.trainer import Trainer
from ..record.steps import Outcome
from .activations import Activations, measured
from .layers import layers_of

PICTURES = 64  # samples that are shown


@dataclass(frozen=True)
class Sample:
    """A sample of a batch: its key, and its classes with the shares that mixing gave them."""

    key: str
    classes: list[tuple[str, float]]


@dataclass(frozen=True)
class Seen:
    """A step as it was seen, of all ranks together; `pictures` are those of the main process.

    Gradients are norms by parameter, before clipping. `bad_gradients` are the parameters whose
    gradient is not finite, the one next to the output first.
    """

    layers: list[str]

    outcome: Outcome
    epoch: int
    samples: list[Sample]
    pictures: Exhibit
    gradients: dict[str, float]
    bad_gradients: list[str]
    activations: Activations
    second_pass: bool  # activations were measured beside the compiled model


class Ears:
    """An observer that only hears what a step came to."""

    made: Outcome

    def batch(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """See nothing of the batch."""

    def gradients(self) -> None:
        """See nothing of the gradients."""

    def outcome(self, outcome: Outcome) -> None:
        """Keep what the step came to."""
        self.made = outcome


class View(Ears):
    """An observer that keeps what it sees of the last step."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.net = trainer, trainer.learner.net
        self.compiled = trainer.recipe.torchcompile is not None
        self._stack = ExitStack()
        self._activations = Activations()

    def batch(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """Keep the batch; watch the model from here on, or a copy of a compiled one."""
        config: dict[str, Any] = self.net.pretrained_cfg  # pyright: ignore
        self._epoch = batch.epoch + 1
        self._pictures = batch_exhibit(batch, images, targets, config, PICTURES)
        self._samples = self._samples_of(batch, targets)
        if self.compiled:
            self._activations = self._beside(images, batch.step)
        else:
            self._activations = self._stack.enter_context(measured(self.net))

    def gradients(self) -> None:
        """Keep the gradients, as they are without the scale of float16."""
        self._stack.close()
        scaler = self.trainer.accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        found = {n: p.grad for n, p in self.net.named_parameters() if p.grad is not None}
        self._norms = {name: float(grad.double().norm()) / scale for name, grad in found.items()}
        self._bad = [n for n, grad in reversed(found.items()) if not grad.isfinite().all()]

    def seen(self) -> Seen:
        """Return what was seen of the last step; call it on all ranks."""
        accelerator = self.trainer.accelerator
        samples = gather_objects(accelerator, self._samples)
        return Seen(
            layers_of(self.net),
            self.made,
            self._epoch,
            [sample for part in samples for sample in part],
            self._pictures,
            self._norms,
            self._bad,
            Activations.joined(gather_objects(accelerator, self._activations)),
            self.compiled,
        )

    def _samples_of(self, batch: Batch, targets: Tensor) -> list[Sample]:
        names = self.trainer.loader.shards.classes
        smoothing = self.trainer.recipe.smoothing
        shares = (targets.float().cpu() - smoothing / targets.shape[1]) / (1 - smoothing)
        found = []
        for key, row in zip(batch.keys, shares, strict=True):
            mixed = [(int(i), float(row[i])) for i in (row > 1e-3).nonzero().flatten()]
            known = [(names[i] if i < len(names) else str(i), share) for i, share in mixed]
            found.append(Sample(key, sorted(known, key=lambda each: -each[1])))
        return found

    @torch.no_grad()
    def _beside(self, images: Tensor, step: int) -> Activations:
        """Measure a copy of the model, because hooks would change what a compiler makes of it."""
        recipe, accelerator = self.trainer.recipe, self.trainer.accelerator
        twin: nn.Module = copy.deepcopy(self.net).train()
        with measured(twin) as found, accelerator.autocast():
            for piece, part in enumerate(images.chunk(recipe.grad_accum_steps), 1):
                seed_model(recipe.seed, step, piece, self.trainer.run.rank)
                twin(part)
        return found
