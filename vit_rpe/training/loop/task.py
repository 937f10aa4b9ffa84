"""The task of a model: labels, mixed and smoothed, and perhaps a teacher.

A loss is the sum over the good samples of a part of the batch, divided by the number of samples,
good or bad, that one process has in the whole batch. So neither the number of processes nor that of
parts changes the gradient, and a bad sample counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.task.distillation import DistillationTeacher
from torch import Tensor, nn

from vit_rpe.data import Batch, Mixing

from ..recipe.schema import Recipe

# B samples, K classes


class Task:
    """Targets and loss of a recipe."""

    def __init__(self, recipe: Recipe, num_classes: int, teacher: Teacher | None = None):
        self.recipe, self.num_classes, self.teacher = recipe, num_classes, teacher
        options = {
            "mixup_alpha": recipe.mixup,
            "cutmix_alpha": recipe.cutmix,
            "prob": recipe.mixup_prob,
            "switch_prob": recipe.mixup_switch_prob,
            "label_smoothing": recipe.smoothing,
        }
        self._mixing = (
            Mixing(num_classes, recipe.seed, recipe.mixup_mode, options) if recipe.mixes else None
        )

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return images, mixed if it is time, and targets (B, K); rows of bad samples are zero."""
        off = self.recipe.mixup_off_epoch
        if self._mixing is not None and not (off and batch.epoch >= off):
            return self._mixing(batch, batch.images, batch.labels)
        return batch.images, smoothed(batch.labels, self.num_classes, self.recipe.smoothing)

    def loss(self, model: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of all samples."""
        logits = model(images).float()
        loss = self._label_loss(logits, targets)
        if self.teacher is None:
            return loss.sum()
        good = targets.any(-1)
        weight = self.recipe.task_loss_weight
        taught = self.teacher.loss(logits, images)
        return (weight * loss + (1 - weight) * torch.where(good, taught, 0.0)).sum()

    def _label_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (B,); timm's losses are means, which bad samples bend."""
        recipe = self.recipe
        if not recipe.bce_loss:
            return -(targets * F.log_softmax(logits, -1)).sum(-1)
        good = targets.any(-1)
        if recipe.bce_target_thresh is not None:
            targets = (targets > recipe.bce_target_thresh).to(targets.dtype)
        positive = recipe.bce_pos_weight
        weight = None if positive is None else torch.tensor(positive, device=logits.device)
        loss = F.binary_cross_entropy_with_logits(
            logits, targets, reduction="none", pos_weight=weight
        )
        loss = loss.sum(-1) if recipe.bce_sum else loss.mean(-1)
        return torch.where(good, loss, 0.0)


class Teacher:
    """Distillation from a timm model, which gets the images normalized in its own way."""

    def __init__(self, recipe: Recipe, model: nn.Module, student: nn.Module, device: torch.device):
        self.model = DistillationTeacher(model, device=device).to(device)
        config: dict = student.pretrained_cfg  # pyright: ignore
        self.normalization = [
            torch.tensor(config[k], device=device).view(1, -1, 1, 1) for k in ("mean", "std")
        ]
        self.hard, self.temperature = recipe.kd_type == "hard", recipe.kd_temperature

    def loss(self, logits: Tensor, images: Tensor) -> Tensor:
        """Return the loss of each sample, (B,)."""
        with torch.no_grad():
            planes = images.flatten(2, -2)  # timm's normalization knows images only
            planes = self.model.normalize_input(planes, *self.normalization)
            taught = self.model(planes.view(images.shape)).float()
        if self.hard:
            return F.cross_entropy(logits, taught.argmax(-1), reduction="none")
        t = self.temperature
        student, teacher = F.log_softmax(logits / t, -1), F.log_softmax(taught / t, -1)
        return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1) * t**2


def smoothed(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Return targets (B, K): 1 - s + s / K for the label, s / K for others, 0 for a bad sample."""
    good = (labels >= 0)[:, None]
    targets = F.one_hot(labels.clamp(min=0), num_classes).float()
    return (targets * (1 - smoothing) + smoothing / num_classes) * good
