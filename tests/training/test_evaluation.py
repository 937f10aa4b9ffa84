"""Every sample is counted once, however they are dealt out; figures are the definition's."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.data.samples import sample, write_shard
from tests.training.launch import launch
from vit_rpe.training.errors import Miscounted
from vit_rpe.training.evaluation import Evaluation, check_counted

SAMPLES, WORKERS, SHARDS = 201, (0, 1, 3), (1, 7, 16)


class Told(nn.Module):
    """Logits that follow from the pixels of the image alone, whatever else is in the batch."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seeds = [zlib.crc32(image.numpy().tobytes()) for image in images]
        rows = [np.random.default_rng(seed).standard_normal(12) for seed in seeds]
        return torch.from_numpy(np.stack(rows)).float() * 3


def make_grid(folder: Path) -> None:
    for shards in SHARDS:
        for number, numbers in enumerate(np.array_split(np.arange(SAMPLES), shards)):
            samples = (sample(int(i), int(i * 7 % 11)) for i in numbers)
            write_shard(folder / str(shards) / f"x-val-{number:03d}.tar", samples)


def evaluate_grid(folder: str) -> dict[tuple[int, int], Evaluation]:
    """All workers x shards in one go, on whatever number of processes."""
    from vit_rpe.data import open_shards
    from vit_rpe.training import evaluation_loader
    from vit_rpe.training.distributed import main_first, make_accelerator
    from vit_rpe.training.evaluation import evaluate

    accelerator = make_accelerator("cpu", None)
    config = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    results = {}
    for shards in SHARDS:
        opened = main_first(accelerator, lambda n=shards: open_shards(f"{folder}/{n}", "val"))
        for workers in WORKERS:
            loader = evaluation_loader(opened, 12, config, 8, workers=workers, **place)
            results[workers, shards] = evaluate(Told(), loader, accelerator, 12)
    return results


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RPE_CACHE", str(folder / "cache"))
        make_grid(folder)
    return folder


@pytest.fixture(scope="module")
def definition() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all samples, one by one, without shards, loaders or processes."""
    from vit_rpe.data import ImageDecoder, ImageTransform

    transform = ImageTransform(8, options={"mean": (0.5,) * 3, "std": (0.5,) * 3})
    images = [transform(0)(ImageDecoder()(sample(i)["png"])) for i in range(SAMPLES)]
    return Told()(transform.normalize(torch.stack(images), [])), torch.arange(SAMPLES) * 7 % 11


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_once_on_any_world_workers_and_shards(grid, definition, world):
    logits, labels = definition
    for results in launch(evaluate_grid, str(grid), world=world):
        assert len(results) == len(WORKERS) * len(SHARDS)
        for result in results.values():
            assert result.count == SAMPLES and result.bad == 0
            np.testing.assert_array_equal(result.labels, labels)
            np.testing.assert_array_equal(result.predicted, logits.argmax(1))
            expected = nn.functional.cross_entropy(logits, labels, reduction="none")
            np.testing.assert_allclose(result.losses, expected, rtol=1e-6)
            assert result.metrics == next(iter(results.values())).metrics


def test_figures_are_those_of_the_definition(grid, definition):
    logits, labels = definition
    result = launch(evaluate_grid, str(grid))[0][0, 7]
    order = logits.argsort(1, descending=True)
    hits = order == labels[:, None]
    assert result.metrics["top1"] == pytest.approx(100 * hits[:, 0].double().mean().item())
    assert result.metrics["top5"] == pytest.approx(100 * hits[:, :5].any(1).double().mean().item())
    table = np.zeros((12, 12), int)
    for label, predicted in zip(labels, order[:, 0], strict=True):
        table[label, predicted] += 1
    np.testing.assert_array_equal(result.confusion(), table)
    per_class = result.per_class()
    assert np.isnan(per_class[11]) and per_class[3] == 100 * table[3, 3] / table[3].sum()
    confidence, right = logits.softmax(1).amax(1).double().numpy(), hits[:, 0].numpy()
    edges, error = np.linspace(0, 1, 16), 0.0
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        here = (confidence >= low) & (confidence < high)
        if here.any():
            error += here.mean() * abs(confidence[here].mean() - right[here].mean())
    assert result.calibration_error() == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([0, 1, 3], "of 4 samples 1 were missed and 0 counted more than once"),
        ([0, 1, 2, 3, 3], "0 were missed and 1 counted more than once"),
        ([0, 1, 2, 2], "1 were missed and 1 counted more than once"),
    ],
)
def test_a_wrong_count_is_an_error(samples, message):
    with pytest.raises(Miscounted, match=message):
        check_counted(np.array(samples), 4)
    check_counted(np.array([2, 0, 1, 3]), 4)


def test_bad_samples_are_left_out_and_counted(tmp_path):
    from vit_rpe.data import BadSamples, open_shards
    from vit_rpe.training import evaluation_loader
    from vit_rpe.training.distributed import make_accelerator
    from vit_rpe.training.evaluation import evaluate

    samples = [sample(i) for i in range(11)]
    samples[4]["png"] = b"no image"
    write_shard(tmp_path / "x-val-000.tar", samples)
    shards = open_shards(str(tmp_path), "val")
    config = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    loader = evaluation_loader(shards, 12, config, 4, bad=BadSamples(11, limit=0.5))
    result = evaluate(Told(), loader, make_accelerator("cpu", None), 12)
    assert (result.count, result.bad) == (10, 1)
    assert result.labels.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 0]


def _rows_of(logits: list[list[float]], labels: list[int]) -> Any:
    from vit_rpe.data import Batch
    from vit_rpe.training.evaluation import _rows

    count = len(labels)
    batch = Batch(
        epoch=0,
        step=0,
        global_offset=0,
        images=torch.zeros(count, 3, 2, 2),
        labels=torch.tensor(labels),
        valid=torch.tensor(labels) >= 0,
        sample_index=torch.arange(count),
        repeat=torch.zeros(count),
        keys=[""] * count,
        bad=[],
    )
    return _rows(torch.tensor(logits), batch)


def test_a_model_that_says_nothing_is_wrong():
    """Ties and NaN must not count as hits: argmax takes the first of equals."""
    nan = float("nan")
    rows = _rows_of([[1.0, 1.0, 1.0], [nan, nan, nan], [2.0, 1.0, 2.0]], [2, 1, 2])
    assert rows["label_rank"].tolist() == [2, 1, 1] and rows["predicted"].tolist() == [0, 0, 0]
