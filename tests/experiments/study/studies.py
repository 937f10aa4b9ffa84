"""Small studies for the tests, and a trial that trains nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from vit_rpe.experiments import Planned, Setting, load_study, plan_study
from vit_rpe.experiments.study.trials import Trial

SMALL: dict[str, Any] = {
    "recipe": "quickstart",
    "overrides": {
        "epochs": 1,
        "warmup_epochs": 0,
        "batch_size": 256,
        "model_kwargs": {"depth": 1, "embed_dim": 16, "num_heads": 2},
    },
    "seeds": [0, 1],
    "split": "val",
    "factors": {
        "kernel": {"relu": None, "square": {"model_kwargs": {"feature_map": "square"}}},
        "mask": {"none": {"model_kwargs.rpe": "none"}, "offset": None},
    },
    "blocks": [{"levels": {"kernel": ["relu", "square"], "mask": ["none", "offset"]}}],
    "comparisons": [
        {"name": "gain", "this": {"mask": "offset"}, "minus": {"mask": "none"}, "by": ["kernel"]},
        {"name": "mean gain", "this": {"mask": "offset"}, "minus": {"mask": "none"}},
    ],
}


def write(folder: Path, **changes: Any) -> Path:
    """Write the file of the small study, with other values under some keys."""
    path = folder / "small.yaml"
    path.write_text("# A small study.\n" + yaml.safe_dump({**copy.deepcopy(SMALL), **changes}))
    return path


def plan(folder: Path, *overrides: str, **changes: Any) -> Planned:
    study = load_study(write(folder, **changes))
    data = f"data_dir={folder / 'digits'}"
    return plan_study(study, folder / "small.jsonl", folder / "runs", (data, *overrides))


SETTING = Setting(parameters=1234, steps=5)


def known_settings(_: object, recipes: dict[Trial, Any]) -> dict[str, Setting]:
    """Stand in for `check_settings`, which assembles every trainer."""
    return dict.fromkeys((trial.setting for trial in recipes), SETTING)


class Stub:
    """A trial that ends at the second look; what it leaves is what a run leaves."""

    def __init__(self, folder: Path, value: float, code: int = 0, lasts: int = 1):
        self.folder, self.value, self.code, self.left = folder, value, code, lasts
        self.log = folder / "output.log"
        self.stops: list[bool] = []
        folder.mkdir(parents=True, exist_ok=True)

    def poll(self) -> int | None:
        if self.stops:
            return 75
        self.left -= 1
        if self.left >= 0:
            return None
        if self.code == 0:
            best = self.value + 7  # an epoch before the last is better
            text = f"epoch,train_loss,eval_top1,evaluated\n1,2.5,{best},\n2,1.5,{self.value},\n"
            (self.folder / "summary.csv").write_text(text)
            line = json.dumps({"seconds": 60.0, "cpu_seconds": 30.0, "code": 0})
            (self.folder / "attempts.jsonl").write_text(line + "\n")
        return self.code

    def stop(self, kill: bool = False) -> None:
        self.stops.append(kill)

    def tail(self) -> str:
        return "what went wrong"


def value_of(trial: Trial) -> float:
    """Make up a metric: the mask gains 3 with relu and 5 with square, less for the second seed."""
    levels = dict(trial.levels)
    gain = {"relu": 3.0, "square": 5.0}[levels["kernel"]] - trial.seed
    return 50 + 10 * trial.seed + gain * (levels["mask"] == "offset")
