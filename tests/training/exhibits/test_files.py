import numpy as np
import pytest
import torch

from vit_rpe.training.evaluation import Evaluation
from vit_rpe.training.exhibits.answers import answers_exhibit, evaluation_of
from vit_rpe.training.exhibits.batches import contact_sheet, visible
from vit_rpe.training.exhibits.files import Exhibit, read_exhibits, remove_exhibits, write_exhibit


def test_exhibits_are_read_as_they_were_written(tmp_path):
    for epoch in (3, 0, 12):
        write_exhibit(
            tmp_path, Exhibit("masks", epoch, {"a": torch.arange(epoch)}, {"step": epoch})
        )
    write_exhibit(tmp_path, Exhibit("batch", 1, {"b": torch.ones(2)}, {"keys": ["</script>"]}))
    found, wrong = read_exhibits(tmp_path, "masks")
    assert [each.epoch for each in found] == [0, 3, 12] and not wrong
    assert found[2].values == {"step": 12} and len(found[2].tensors["a"]) == 12
    remove_exhibits(tmp_path, "masks", {3})
    assert [each.epoch for each in read_exhibits(tmp_path, "masks")[0]] == [3]
    assert len(read_exhibits(tmp_path, "batch")[0]) == 1


def test_a_damaged_exhibit_is_named(tmp_path):
    write_exhibit(tmp_path, Exhibit("masks", 1, {"a": torch.ones(3)}, {}))
    (tmp_path / "exhibits" / "masks-0001.safetensors").write_bytes(b"{" * 20)
    found, wrong = read_exhibits(tmp_path, "masks")
    assert not found and "masks-0001.safetensors cannot be read" in wrong[0]


def an_evaluation(count=50, classes=4) -> Evaluation:
    draw = np.random.default_rng(0)
    rank = draw.integers(0, classes, count)
    labels = draw.integers(0, classes, count)
    predicted = np.where(rank == 0, labels, (labels + 1) % classes)
    confidence, losses = draw.random(count), draw.random(count) * 5
    samples = np.arange(count)[::-1].copy()
    return Evaluation(samples, labels, predicted, confidence, rank, losses, classes, 2, 1.5)


def test_answers_give_the_same_evaluation_again(tmp_path):
    result = an_evaluation()
    write_exhibit(tmp_path, answers_exhibit(7, "ema", result))
    [exhibit] = read_exhibits(tmp_path, "answers")[0]
    again = evaluation_of(exhibit)
    assert again.metrics == result.metrics and again.bad == 2
    assert again.calibration_error() == result.calibration_error()
    assert (again.samples == result.samples).all()


@pytest.mark.parametrize("column", ["labels", "losses", "samples"])
def test_damaged_answers_are_refused(column):
    exhibit = answers_exhibit(7, "ema", an_evaluation())
    del exhibit.tensors[column]
    with pytest.raises(ValueError, match="epoch 7 are damaged"):
        evaluation_of(exhibit)


def test_answers_with_classes_that_are_not_there_are_refused():
    exhibit = answers_exhibit(7, "ema", an_evaluation())
    exhibit.tensors["labels"][0] = 99
    with pytest.raises(ValueError, match="classes that are not there"):
        evaluation_of(exhibit)


def test_calibration_sums_are_those_of_the_definition():
    result = an_evaluation(count=200)
    count, confidence, right = result.calibration().T
    for i in range(15):
        inside = (result.confidence >= i / 15) & (result.confidence < (i + 1) / 15)
        assert count[i] == inside.sum()
        assert confidence[i] == pytest.approx(result.confidence[inside].sum())
        assert right[i] == (result.label_rank[inside] == 0).sum()


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (2, 3, 4, 5, 6)])
def test_what_was_normalized_becomes_visible_again(shape):
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    config = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    each = (-1, *[1] * (len(shape) - 2))
    mean, std = (torch.tensor(config[name]).view(each) for name in ("mean", "std"))
    assert (visible((pixels / 255 - mean) / std, config) == pixels).all()


def test_a_contact_sheet_has_samples_in_columns():
    clips = torch.randint(0, 256, (5, 3, 2, 6, 7), dtype=torch.uint8)
    sheet = contact_sheet(clips)
    assert sheet.shape == (3, 12, 35)
    assert (sheet[:, 6:12, 7:14] == clips[1, :, 1]).all()
