"""The collector of exhibits: what the trainer calls, on the main process, at its moments.

Nothing here draws, or changes a tensor of the run: a run with exhibits makes the same numbers. A
run never fails for want of one: the first error ends the collecting, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vit_rpe.data import Batch
from vit_rpe.messages import cut

from ..distributed import is_sharded, warn
from ..evaluation import Evaluation
from ..record.log import RunLog
from ..run import Run
from .answers import answers_exhibit
from .batches import batch_exhibit, contact_sheet
from .files import Exhibit, remove_exhibits, write_exhibit
from .masks import as_bytes, offset_tables, picture, shown_epochs

SNAPSHOTS = 12  # of the masks


class Collector:
    """The exhibits of one run, for its folder and for TensorBoard; `epochs` is its length."""

    def __init__(self, run: Run, net: nn.Module, log: RunLog, steps_per_epoch: int, epochs: int):
        self.folder, self.net, self.log = run.folder, net, log
        self.config: dict[str, Any] = net.pretrained_cfg  # pyright: ignore
        self.epochs = epochs
        self.active = run.is_main
        shown = {0, epochs // 2, epochs - 1} if self.active else set()
        self.batch_steps = {epoch * steps_per_epoch for epoch in shown}
        self.has_masks = run.is_main and not is_sharded(run.accelerator)

    def begin(self, epoch: int, step: int) -> None:
        """Forget what an earlier process kept of later epochs; look at the masks of the start."""
        if not self.active:
            return
        with self._spared():
            for kind in ("masks", "answers"):
                remove_exhibits(self.folder, kind, range(epoch + 1))
        if step == 0:
            self.masks(0, 0)

    def batch(self, batch: Batch, images: Tensor, targets: Tensor) -> None:
        """Keep a batch of `batch_steps`: the first of the first, the middle and the last epoch."""
        if not self.active:
            return
        with self._spared():
            exhibit = batch_exhibit(batch, images, targets, self.config)
            remove_exhibits(self.folder, "batch", {0, self.epochs // 2, self.epochs - 1})
            write_exhibit(self.folder, exhibit)
            sheet = contact_sheet(exhibit.tensors["images"])
            self.log.picture("batches/augmented", sheet, batch.step)

    def masks(self, epoch: int, step: int) -> None:
        """Keep the masks, if those of this epoch are to be shown."""
        shown = shown_epochs(self.epochs, SNAPSHOTS)
        if not self.has_masks or epoch not in shown:
            return
        with self._spared():
            tables = offset_tables(self.net)
            tensors = {}
            for name, table in tables.items():
                tensors[name], tensors[f"{name}:range"] = as_bytes(table)
                self.log.picture(f"masks/{name}", picture(table), step)
            remove_exhibits(self.folder, "masks", {*shown})
            if tensors:
                write_exhibit(self.folder, Exhibit("masks", epoch, tensors, {"step": step}))

    def answers(
        self, epoch: int, results: dict[str, Evaluation], prefix: str, best: Sequence[Any]
    ) -> None:
        """Keep the answers of this epoch and of the best, of the model that decides."""
        if not self.active or prefix not in results:
            return
        with self._spared():
            write_exhibit(self.folder, answers_exhibit(epoch, prefix, results[prefix]))
            found = re.match(r"epoch-(\d+)", str(best[0][0])) if best else None
            remove_exhibits(self.folder, "answers", {epoch, int(found[1]) if found else epoch})

    @contextmanager
    def _spared(self) -> Iterator[None]:
        """Spare the run the errors of what is only to be looked at."""
        try:
            yield
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            self.active = self.has_masks = False
            warn(f"no more exhibits for the report: {cut(error)}")
