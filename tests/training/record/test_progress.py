"""Runs are resumed only with the data that they began with."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.data.samples import sample, write_shard
from tests.training.launch import train
from tests.training.runs import make_data


def again(run: Path, copy: Path, *overrides: str) -> tuple[int, str]:
    recipe = ["--recipe", str(run.parent / "a.yaml"), f"output={copy.parent}"]
    return train(*recipe, *overrides)


def test_shards_of_another_set_are_refused(run, copy, tmp_path):
    data = make_data(tmp_path / "other", train=50)
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 2 and "was made with shards of other lengths than those at" in shown


def test_other_samples_in_shards_of_the_same_lengths_are_refused(run, copy, tmp_path):
    data = Path(make_data(tmp_path / "other"))
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 0, shown  # a copy of the data in another place
    write_shard(data / "x-train-000.tar", (sample(i, label=1) for i in range(14)))
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 2 and "was made with other data than those at" in shown, shown
    state = copy / "checkpoints" / "last" / "state.json"
    before = json.loads(state.read_text())
    assert re.fullmatch("[0-9a-f]{64}", before["progress"].pop("data"))
    del before["checksum"]
    state.write_text(json.dumps(before))  # as checkpoints were before
    code, shown = again(run, copy, "resume=auto", f"data_dir={data}")
    assert code == 0, shown


def test_a_finished_run_is_left_as_it_is(run, copy):
    code, shown = again(run, copy, "resume=auto")
    assert code == 0 and "finished    2 epochs, 10 steps, before" in shown
    assert (run / "summary.csv").read_bytes() == (copy / "summary.csv").read_bytes()
