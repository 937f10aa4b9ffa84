"""Mixup and CutMix: labels follow the mixed area, and ranks do not matter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vit_rpe.data import (
    IGNORED,
    Batch,
    Mixing,
)

CLASSES = 7


def batch(size: int = 12, step: int = 5, first: int = 0, invalid: tuple[int, ...] = ()) -> Batch:
    """Sample i is a grey image of value i + 1 and has the label i % 7."""
    place = torch.arange(first, first + size)
    valid = torch.tensor([i not in invalid for i in place.tolist()])
    images = (place + 1.0).view(-1, 1, 1, 1).expand(-1, 3, 10, 17) * valid.view(-1, 1, 1, 1)
    labels = torch.where(valid, place % CLASSES, IGNORED)
    return Batch(0, step, first, images, labels, valid, place, place * 0, [], [])


def mixed(mixing: Mixing, b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return mixing(b, b.images, b.labels)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_labels_sum_to_one_and_match_the_mixed_area(mode, kind):
    options = {"mixup_alpha": float(kind == "mixup"), "cutmix_alpha": float(kind == "cutmix")}
    mixing = Mixing(CLASSES, seed=3, mode=mode, options={**options, "label_smoothing": 0.0})
    b = batch()
    images, targets = mixed(mixing, b)
    torch.testing.assert_close(targets.sum(1), torch.ones(12))
    shares = []
    for i in range(12):
        own, other = i + 1.0, (i ^ 1) + 1.0
        if kind == "cutmix":  # every pixel is from one of the two
            assert set(images[i].unique().tolist()) <= {own, other}
        share = float((images[i].mean() - other) / (own - other))  # of its own in the image
        assert float(targets[i, i % CLASSES]) == pytest.approx(share, abs=1e-4)
        assert float(targets[i, (i ^ 1) % CLASSES]) == pytest.approx(1 - share, abs=1e-4)
        shares.append(round(share, 4))
    distinct = {"batch": 1, "pair": 6, "elem": 12}[mode]
    assert 0 < min(shares) and distinct / 2 < len(set(shares)) <= distinct


def test_smoothed_labels_sum_to_one():
    _, targets = mixed(Mixing(CLASSES, seed=0, options={"label_smoothing": 0.2}), batch())
    torch.testing.assert_close(targets.sum(1), torch.ones(12))
    assert targets.min() == pytest.approx(0.2 / CLASSES)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_ranks_mix_what_one_process_would(mode):
    options = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    mixing = Mixing(CLASSES, seed=1, mode=mode, options=options)
    for step in range(6):
        whole = mixed(mixing, batch(12, step))
        parts = [mixed(mixing, batch(4, step, first)) for first in (0, 4, 8)]
        for a, b in zip(whole, zip(*parts, strict=True), strict=True):
            torch.testing.assert_close(a, torch.cat(b))


def test_draws_follow_from_seed_and_step_alone():
    def targets(seed: int, step: int) -> torch.Tensor:
        return mixed(Mixing(CLASSES, seed=seed), batch(step=step))[1]

    assert torch.equal(targets(1, 5), targets(1, 5))
    assert not torch.equal(targets(1, 5), targets(1, 6))
    assert not torch.equal(targets(1, 5), targets(2, 5))


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_places_without_a_sample_have_no_target_and_spoil_no_other(mode):
    mixing = Mixing(CLASSES, seed=0, mode=mode, options={"label_smoothing": 0.0})
    images, targets = mixed(mixing, batch(invalid=(3, 6, 7)))
    assert targets.sum(1).tolist() == pytest.approx([1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1])
    torch.testing.assert_close(images[2], torch.full((3, 10, 17), 3.0))  # with itself
    assert float(targets[2, 2]) == pytest.approx(1)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="even number of samples on every rank, got 5"):
        mixed(Mixing(CLASSES, seed=0), batch(5))
    with pytest.raises(ValueError, match="got 'half'"):
        Mixing(CLASSES, seed=0, mode="half")


CUTMIX = {"mixup_alpha": 0.0, "cutmix_alpha": 1.0, "label_smoothing": 0.0}


MIXUP = {"mixup_alpha": 1.0, "cutmix_alpha": 0.0, "label_smoothing": 0.0}


def batch_of(clips: Tensor, step: int) -> Batch:
    count = len(clips)
    labels = torch.arange(count)
    about = {"valid": labels >= 0, "sample_index": labels, "repeat": labels * 0}
    return Batch(0, step, 0, clips, labels, keys=[""] * count, bad=[], **about)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
class TestMixing:
    clips = torch.arange(1.0, 5).view(4, 1, 1, 1, 1) * torch.ones(4, 3, 5, 8, 14)

    def test_cutmix_cuts_a_box_of_space_through_all_frames(self, mode):
        mixing = Mixing(4, seed=0, mode=mode, options=CUTMIX)
        shares = set()
        for step in range(6):
            mixed, targets = mixing(batch_of(self.clips, step), self.clips, torch.arange(4))
            assert mixed.shape == self.clips.shape
            for i, clip in enumerate(mixed):
                assert (clip == clip[:1, :1]).all()  # the same box in all frames
                own = float((clip == i + 1).float().mean())
                assert targets[i, i].item() == pytest.approx(own, abs=1e-6)
                assert targets[i, i ^ 1].item() == pytest.approx(1 - own, abs=1e-6)
                shares.add(round(own, 3))
        assert len(shares) > 3

    def test_mixup_is_a_mean_of_two_clips(self, mode):
        mixing = Mixing(4, seed=0, mode=mode, options=MIXUP)
        mixed, targets = mixing(batch_of(self.clips, 3), self.clips, torch.arange(4))
        for i in range(4):
            own = targets[i, i]
            expected = own * (i + 1) + (1 - own) * ((i ^ 1) + 1)
            torch.testing.assert_close(mixed[i], expected.expand(3, 5, 8, 14))
