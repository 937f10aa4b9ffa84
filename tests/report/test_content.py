"""The data side of a report: tables, curves, budgets, and what is escaped."""

import json
import re

import numpy as np
import pytest
import torch

from tests.report.subjects import EVIL, make_evaluation, make_subject
from vit_rpe.report import LIMIT, Subject, colors
from vit_rpe.report.answers import CLASSES, _cells, answers, class_rows, shown_classes
from vit_rpe.report.content import as_json, content_of, plain
from vit_rpe.report.curves import thinned
from vit_rpe.report.explorer import Choice, _seen, chosen, explorer
from vit_rpe.report.masks import masks, spread
from vit_rpe.report.page import page
from vit_rpe.report.pictures import Album, fitted
from vit_rpe.report.subject import check_labels
from vit_rpe.training import Evaluation


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    torch.manual_seed(0)
    return make_subject("prefix", tmp_path_factory.mktemp("report") / "data")


def test_the_answers_are_those_of_the_evaluation(subject):
    result, album = subject.evaluation, Album(100_000)
    found = answers(subject, album)
    table = result.confusion()
    assert {(t, p): n for t, p, n, _ in found["cells"]} == {
        (int(t), int(p)): int(table[t, p]) for t, p in zip(*np.nonzero(table), strict=True)
    }
    losses = [found["samples"][i][5] for i in found["worst"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(result.losses.max(), rel=1e-4)
    for t, p, n, listed in found["cells"]:
        rows = [found["samples"][i] for i in listed]
        assert len(rows) == n and all((row[2], row[3]) == (t, p) for row in rows)
        for row in rows:
            assert result.labels[row[0]] == t and album.addresses[row[6]].startswith("data:image/")


def test_pictures_end_where_the_budget_ends(subject):
    album = Album(1500)
    found = answers(subject, album)
    assert sum(map(len, album.addresses)) <= 1500 and album.refused
    assert any(row[6] is None for row in found["samples"])


def test_other_data_than_those_of_the_answers_are_noticed(subject):
    batch = subject.loader.pick([0, 1])
    wrong = make_evaluation((subject.evaluation.labels + 1) % 4)
    with pytest.raises(ValueError, match="other data lie there now"):
        check_labels(wrong, batch)


def test_of_many_classes_those_taken_for_each_other_are_shown():
    count, classes = 3000, 200
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, count)
    predicted = labels.copy()
    predicted[labels < 10] = 150
    rank = (labels != predicted).astype(int)
    half = np.full(count, 0.5)
    result = Evaluation(np.arange(count), labels, predicted, half, rank, half, classes, 0, 1.0)
    shown = shown_classes(result)
    assert len(shown) == CLASSES and {*range(10), 150} <= {*shown}
    labels = np.repeat(np.arange(classes), 15)
    predicted = (labels + np.tile(np.arange(15), classes)) % classes  # each class has 14 errors
    predicted[(labels == 7) | (labels == 100)] = 107 - labels[(labels == 7) | (labels == 100)]
    rank = (labels != predicted).astype(int)
    result = Evaluation(np.arange(count), labels, predicted, half, rank, half, classes, 0, 1.0)
    assert {7, 100} <= {*shown_classes(result)}
    assert _cells(result, [0, 100]) == ([(0, 0, 1, [0])], [0]) and _cells(result, [100]) == ([], [])


def test_rows_of_classes_are_those_of_the_matrix(subject):
    result = subject.evaluation
    table, accuracy = result.confusion(), result.per_class()
    for number, (count, right, other, times) in enumerate(class_rows(result)):
        assert count == table[number].sum() and right == pytest.approx(accuracy[number], abs=0.01)
        row = np.delete(table[number], number)
        assert times == row.max() and (other is None) == (times == 0)
        assert other is None or (other != number and table[number, other] == times)


def test_chosen_samples_are_the_worst_and_some_of_all_losses(subject):
    losses, labels = subject.evaluation.losses, subject.evaluation.labels
    numbers = chosen(subject)
    order = np.argsort(-losses)
    assert numbers[:2] == order[:2].tolist() and len(numbers) == len({*numbers}) == 6
    assert losses[numbers[2]] < losses[order[-6]] and losses[numbers[5]] > losses[order[6]]
    assert np.all(np.diff(losses[numbers[2:]]) > 0) and len({*labels[numbers]}) == 4


def test_masks_are_thinned_to_their_budget(subject):
    assert len(masks(subject, 1 << 20)["layers"]) == 2
    before = list(subject.notes)
    assert len(masks(subject, 200)["layers"]) == 1
    assert masks(subject, 10) is None
    assert [note for note in subject.notes[len(before) :] if "masks" in note]
    subject.notes[:] = before


@pytest.mark.parametrize("limit", [10_000_000, 1_000_000, 480_000])
def test_a_page_keeps_to_its_limit(subject, limit):
    content = content_of([subject, subject], limit)
    text = page(content)
    assert len(text.encode()) <= limit
    if limit == 10_000_000:
        assert all(run["explorer"] and run["masks"] and run["answers"] for run in content["runs"])
        assert content["runs"][0]["notes"] == []


def test_an_explorer_says_what_it_leaves_out(subject):
    before = list(subject.notes)
    one = _seen(subject.model, subject.pick([0])[0].images)[0][0]
    whole, bytes_ = Choice(6, "half", 2, 2), Choice(2, "byte", 2, 2)
    assert len(explorer(subject, whole.bytes(one) + 6 * 40_000)["samples"]) == 6
    assert subject.notes == before
    assert len(explorer(subject, bytes_.bytes(one) + 2 * 40_000)["samples"]) == 2
    left_out = "explorer: 2 of 6 samples, features of 8 instead of 16 bits, to save space"
    assert subject.notes == [*before, left_out]
    subject.notes[:] = before


def test_names_of_many_classes_are_cut_to_the_limit():
    """As many classes as ImageNet-21k, of names that take six bytes a character in a page."""
    count = 21_841
    labels = np.arange(count)
    half, rank = np.full(count, 0.5), np.zeros(count, int)
    result = Evaluation(labels, labels, labels[::-1], half, rank, half, count, 0, 1.0)
    subject = Subject("many", evaluation=result, classes=["<" * 300] * count)
    content = content_of([subject])
    assert len(page(content).encode()) <= LIMIT
    shown = content["runs"][0]
    assert len(shown["classes"]) == count and 12 <= len(shown["classes"][0]) < 100
    assert shown["answers"]["cells"]  # the one class that is right
    assert len(shown["notes"]) == 1 and "classes: names are cut to at most" in shown["notes"][0]


def test_nothing_of_the_data_becomes_markup(subject):
    content = content_of([subject])
    text = page(content)
    assert text.count("</script>") == 2 and "<script>alert" not in text
    assert "<b>bold" not in text and "<title>a &lt;b&gt;name" in text
    block = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    assert json.loads(block[1])["runs"][0]["classes"] == EVIL
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(""", text)


def test_json_in_a_page():
    value = ["</script>", "<!--", "&amp;", "\u2028", 1.5, None]
    text = as_json(value)
    assert json.loads(text) == value and not set("<>&\u2028") & {*text}
    assert plain({"a": [float("nan"), (float("inf"), 1)]}) == {"a": [None, [None, 1]]}


def test_thinned_curves_keep_ends_and_extremes():
    draw = np.random.default_rng(0)
    points = [(float(i), float(y)) for i, y in enumerate(draw.random(10_000))]
    points[4321] = (4321.0, 99.0)
    shown = thinned(points, 500)
    assert len(shown) <= 500 and shown[0] == points[0] and shown[-1] == points[-1]
    assert (4321.0, 99.0) in shown and {*shown} <= {*points}
    assert thinned(points[:7], 500) == points[:7]


def test_a_spread_keeps_the_ends():
    assert spread(range(10), 4) == [0, 3, 6, 9] and spread(range(10), 1) == [9]
    assert spread([1, 2], 5) == [1, 2]


def test_pictures_are_shrunk_not_enlarged():
    wide = torch.randint(0, 256, (1, 3, 100, 200), dtype=torch.uint8)
    assert fitted(wide, 50).shape == (1, 3, 25, 50)
    assert fitted(wide, 300) is wide


def test_colors_of_pages_are_those_of_figures():
    pytest.importorskip("matplotlib")
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    found = [to_hex(colormaps[colors.WEIGHTS](i / 9)) for i in range(10)]
    assert found == list(colors.ANCHORS)
