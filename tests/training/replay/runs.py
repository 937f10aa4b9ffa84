"""Commands in processes of their own, and what a training run really did in a step."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from tests.training.launch import launch


def replay(*args: object, world: int = 1) -> tuple[int, str]:
    """The exit code of `vit-rpe replay`, and all that the main process printed."""
    words = tuple(map(str, args))
    return _replay(words) if world == 1 else launch(_replay, words, world=world)[0]


def _replay(args: tuple[str, ...]) -> tuple[int, str]:
    import vit_rpe.models  # noqa: F401
    from vit_rpe.cli.replay import main

    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        try:
            code = main(args)
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return code, shown.getvalue()


def train_and_watch(recipe: str, step: int, *overrides: str) -> dict[str, Any]:
    """Train, and keep the images, targets and gradients of a step, without our observer."""
    from vit_rpe.cli.train import main
    from vit_rpe.training.loop.learner import Learner

    kept: dict[str, Any] = {}
    backward = Learner.backward

    def watched(self: Any, task: Any, images: Any, targets: Any, at: int) -> Any:
        loss = backward(self, task, images, targets, at)
        if at + 1 == step:
            grads = {n: p.grad.double().norm().item() for n, p in self.net.named_parameters()}
            kept.update(images=images.numpy().copy(), gradients=grads)
            kept["targets"] = targets.numpy().copy()
        return loss

    Learner.backward = watched
    kept["code"] = main(["--recipe", recipe, *overrides])
    return kept


def replay_and_keep(run: str, step: int) -> dict[str, Any]:
    """Replay a step, and give what was seen as plain values."""
    import vit_rpe.models  # noqa: F401
    from vit_rpe.training import replay_step

    made = replay_step(run, step, say=lambda _: None)
    assert made is not None
    seen = made.seen
    return {
        "outcome": tuple(seen.outcome),
        "gradients": seen.gradients,
        "pictures": seen.pictures.tensors["images"].numpy().copy(),
        "keys": [sample.key for sample in seen.samples],
        "classes": [sample.classes for sample in seen.samples],
        "route": made.route.text(),
        "compared": made.compared,
        "ranges": {n: (r.low, r.high, r.finite) for n, r in seen.activations.ranges.items()},
    }


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run by name, besides those of replays."""
    files = (file for file in run.rglob("*") if file.is_file() and "replay" not in file.parts)
    return {str(file.relative_to(run)): file.read_bytes() for file in files}
