"""Shards to batches: exact on any number of ranks and workers, and resumed from one integer."""

from __future__ import annotations

import pickle
from inspect import signature

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image
from timm.data.transforms_factory import create_transform

from tests.data.samples import make_set, pixels
from vit_rpe.data import (
    IGNORED,
    PADDING,
    Batches,
    ImageDecoder,
    Images,
    ImageTransform,
    Loader,
    Mixing,
    Plan,
    Resolution,
    SampleReader,
)
from vit_rpe.data.images.transform import OPTIONS

LENGTHS = (7, 1, 12, 4, 9)  # 33 samples
AUGMENTED = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.5, "re_mode": "pixel"}


class Exact:
    """The pixels themselves: what was put into the shard must come out."""

    def __call__(self, epoch):
        return lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def shape(self, epoch):
        return 3, 9, 14

    def normalize(self, images, draws):
        return images.float()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_set(tmp_path_factory.mktemp("set"), LENGTHS)


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in zip(a, b, strict=True))
        for a, b in zip(one, other, strict=True)
    )


def test_images_and_labels_are_those_of_the_shards(shards):
    plan = Plan(shards.lengths, 8, seed=5, window=2)
    for batch in Loader(shards, plan, Exact(), num_classes=10).batches(0, 9):
        for image, label, number, key in zip(
            batch.images, batch.labels, batch.sample_index.tolist(), batch.keys, strict=True
        ):
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), pixels(number))
            assert label == number % 10 and key == f"k{number:04d}"


def test_order_and_keys_are_those_of_webdataset(shards):
    dataset = wds.WebDataset(list(shards.urls), shardshuffle=False)  # pyright: ignore
    keys = [sample["__key__"] for sample in dataset]
    assert [row.decode() for row in shards.rows["key"]] == keys


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_evaluation_counts_every_sample_once(shards, world, workers):
    plan = Plan(shards.lengths, 6 * world, shuffle=False, drop_last=False)
    seen, steps = [], set()
    for rank in range(world):
        loader = Loader(shards, plan, Exact(), rank=rank, world_size=world, workers=workers)
        batches = list(loader.epoch(0))
        steps.add(len(batches))
        for batch in batches:
            assert batch.images.shape == (6, 3, 9, 14)
            assert (batch.labels[~batch.valid] == IGNORED).all()
            assert (batch.images[~batch.valid] == 0).all()
            assert torch.equal(batch.valid, batch.sample_index != PADDING)
            seen += batch.sample_index[batch.valid].tolist()
    assert sorted(seen) == list(range(33)) and len(steps) == 1


@pytest.mark.parametrize(
    "policy", ["rand-m9-mstd0.5-inc1", "original", "v0", "3a", "augmix-m5-w3-d2", "trivial", None]
)
def test_draws_do_not_depend_on_workers(shards, policy):
    options = {"auto_augment": policy, "re_prob": 0.5, "re_mode": "pixel", "re_count": 2}
    transform = ImageTransform(16, training=True, options=options)
    plan = Plan(shards.lengths, 8, seed=2, window=2, repeats=2)
    runs = [
        list(Loader(shards, plan, transform, workers=workers).batches(5, 12))
        for workers in (0, 1, 3)
    ]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])
    assert [batch.step for batch in runs[2]] == list(range(5, 12))
    assert {batch.epoch for batch in runs[2]} == {0, 1}  # over the end of an epoch


def test_a_draw_belongs_to_sample_epoch_and_copy(shards):
    """The same sample gets the same image wherever it stands; another copy or epoch, another."""
    transform = ImageTransform(16, training=True, options=AUGMENTED)
    found = {}
    for batch_size, world in ((6, 1), (22, 2)):
        plan = Plan(shards.lengths, batch_size, seed=2, repeats=2, drop_last=False)
        for rank in range(world):
            loader = Loader(shards, plan, transform, rank=rank, world_size=world)
            for batch in loader.batches(0, 2 * plan.steps):
                for place in batch.valid.nonzero().flatten().tolist():
                    key = batch.epoch, int(batch.sample_index[place]), int(batch.repeat[place])
                    image = batch.images[place]
                    assert torch.equal(found.setdefault(key, image), image)
    assert len(found) == 2 * 2 * 33
    distinct = {tuple(image.flatten()[::7].tolist()) for image in found.values()}
    assert len(distinct) > 0.95 * len(found)


def test_resuming_at_any_step_gives_the_same_batches(shards):
    transform = ImageTransform(16, training=True, options=AUGMENTED)
    loader = Loader(shards, Plan(shards.lengths, 8, seed=4), transform)
    whole = list(loader.batches(0, 9))
    for start in (1, 4, 6):
        assert same(list(loader.batches(start, 9)), whole[start:])


def test_the_generators_of_the_model_are_left_alone(shards):
    plan = Plan(shards.lengths, 8)
    transform = ImageTransform(16, training=True, options=AUGMENTED)
    mixing = Mixing(10, seed=0)
    for workers in (0, 2):
        torch.manual_seed(3)
        state = torch.get_rng_state(), np.random.get_state()[1].copy()
        for batch in Loader(shards, plan, transform, workers=workers).batches(0, 3):
            mixing(batch, batch.images, batch.labels)
        assert torch.equal(torch.get_rng_state(), state[0])
        np.testing.assert_array_equal(np.random.get_state()[1], state[1])


def test_images_are_those_of_timms_own_transform(shards):
    """Bytes that are normalised later are what ToTensor and Normalize give, but for round-off."""
    from timm.data.transforms_factory import create_transform

    options = {"crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.3, 0.4, 0.5)}
    plan = Plan(shards.lengths, 11, shuffle=False)
    batch = next(iter(Loader(shards, plan, ImageTransform(12, options=options)).epoch(0)))
    timms = create_transform(12, **options)
    for number, image in zip(batch.sample_index.tolist(), batch.images, strict=True):
        torch.testing.assert_close(image, timms(Image.fromarray(pixels(number))))  # pyright: ignore


def test_progressive_resolution(shards):
    resolution = Resolution(first=16, last=48, epochs=4, multiple=16)
    assert [resolution(epoch) for epoch in range(6)] == [16, 32, 32, 48, 48, 48]
    loader = Loader(shards, Plan(shards.lengths, 16), ImageTransform(resolution, training=True))
    sides = [tuple(batch.images.shape[2:]) for batch in loader.batches(0, 10)]
    assert sides == [(16, 16)] * 2 + [(32, 32)] * 4 + [(48, 48)] * 4
    with pytest.raises(ValueError, match="positive multiples of 16, got 40"):
        Resolution(first=40, last=48, epochs=4)


def test_picked_samples_are_those_of_an_evaluation(shards):
    transform = ImageTransform(16)
    plan = Plan(shards.lengths, 8, shuffle=False, drop_last=False)
    loader = Loader(shards, plan, transform)
    whole = torch.cat([batch.images for batch in loader.epoch(0)])
    picked = loader.pick([5, 0, 17])
    assert (picked.images == whole[[5, 0, 17]]).all()
    assert picked.sample_index.tolist() == [5, 0, 17] and len(picked.keys) == 3


def test_grey_images(shards):
    options = {"mean": (0.5,), "std": (0.25,)}
    loader = Loader(
        shards,
        Plan(shards.lengths, 20, drop_last=False),
        ImageTransform(8, options=options),
        modality=Images(ImageDecoder("L")),
    )
    assert [batch.images.shape for batch in loader.epoch(0)] == [(20, 1, 8, 8)] * 2


def test_a_worker_reads_its_own_bytes_alone(shards, monkeypatch):
    reader = SampleReader(shards)
    asked = []
    read = shards.storage.read
    monkeypatch.setattr(shards.storage, "read", lambda spans: asked.extend(spans) or read(spans))
    samples = reader.read(np.array([3, 30, 8]))
    assert [len(sample.data) for sample in samples] == [span.size for span in asked]
    from pathlib import Path

    for sample, span in zip(samples, asked, strict=True):
        whole = Path(span.url).read_bytes()
        assert whole[span.offset : span.offset + span.size] == sample.data


def test_what_workers_get_is_small(shards):
    plan = Plan(shards.lengths, 8)
    plan.batch(0)
    assert len(shards.rows) == 33
    assert len(pickle.dumps(Batches(shards, plan, ImageTransform(16)))) < 5000


def test_wrong_settings_are_refused(shards):
    with pytest.raises(ValueError, match="the plan is for 2 shards with 5 samples, the set has 5"):
        Loader(shards, Plan((2, 3), 5), Exact())
    with pytest.raises(ValueError, match="no equal parts for 3 ranks"):
        Loader(shards, Plan(shards.lengths, 8), Exact(), world_size=3)
    with pytest.raises(ValueError, match="got 4 to 2"):
        next(iter(Loader(shards, Plan(shards.lengths, 8), Exact()).batches(4, 2)))
    assert OPTIONS < set(signature(create_transform).parameters)  # each is one of timm's
    with pytest.raises(ValueError, match="no option 'flip'; there are .*hflip"):
        ImageTransform(16, options={"flip": 1})
