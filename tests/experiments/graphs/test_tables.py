"""Cells: which there are, in which order, and what becomes of their lines."""

from __future__ import annotations

import json
from itertools import count

import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")

from vit_rpe.experiments.graphs import TABLES, section  # noqa: E402
from vit_rpe.experiments.graphs.cells import Cell, Results, results_of, run_cells  # noqa: E402
from vit_rpe.experiments.graphs.data import Fold  # noqa: E402
from vit_rpe.experiments.graphs.reports.figures import Series, draw_lines  # noqa: E402
from vit_rpe.experiments.graphs.run import every_cell, insert_sections  # noqa: E402
from vit_rpe.experiments.graphs.tables import citation, cycles, motifs, tu, wallclock  # noqa: E402
from vit_rpe.experiments.study.statistics import estimate  # noqa: E402

ABOUT = {
    "machine": "a machine",
    "versions": {"torch": "2", "torch_geometric": "3"},
    "revision": None,
    "modified": None,
}


def a_cell(number, rank=0, run=None, **settings):
    run = run or (lambda: {"test": number / 10})
    return Cell("motifs", {"part": "accuracy", "seed": number}, settings, run, rank)


def test_cells_run_by_rank_and_only_once(tmp_path):
    said: list[str] = []
    plan = [a_cell(0, rank=2), a_cell(1, rank=0), a_cell(2, rank=1)]
    run_cells(lambda: plan, tmp_path, said.append, ABOUT)
    lines = [json.loads(x) for x in (tmp_path / "graphs_motifs.jsonl").read_text().splitlines()]
    assert [line["levels"]["seed"] for line in lines] == [1, 2, 0]
    assert lines[0]["result"] == {"test": 0.1} and lines[0]["machine"] == "a machine"
    assert "seed=1: test 0.1" in said[0] and "2 left" in said[0]
    more = [*plan, a_cell(3, run=lambda: {"test": 1})]
    for cell in plan:
        assert results_of(tmp_path, "motifs").find(cell)
    said.clear()
    run_cells(lambda: more, tmp_path, said.append, ABOUT)
    assert len(said) == 1 and "seed=3" in said[0]


def test_a_plan_grows_with_its_results(tmp_path):
    def plan():
        done = results_of(tmp_path, "motifs").records
        return [a_cell(number) for number in range(min(len(done) + 1, 3))]

    run_cells(plan, tmp_path, lambda _: None, ABOUT)
    assert len(results_of(tmp_path, "motifs").records) == 3


def test_a_cell_that_fails_leaves_the_finished_ones(tmp_path):
    def fails():
        raise RuntimeError("no memory")

    plan = [a_cell(0), a_cell(1, rank=1, run=fails)]
    with pytest.raises(RuntimeError, match="no memory"):
        run_cells(lambda: plan, tmp_path, lambda _: None, ABOUT)
    assert len(results_of(tmp_path, "motifs").records) == 1


def test_lines_of_other_settings_are_refused(tmp_path):
    run_cells(lambda: [a_cell(0, lr=0.1)], tmp_path, lambda _: None, ABOUT)
    with pytest.raises(ValueError, match=r"graphs_motifs.jsonl: .*0.1.*now it is .*0.2"):
        run_cells(lambda: [a_cell(0, lr=0.2)], tmp_path, lambda _: None, ABOUT)


def test_odd_lines_are_named(tmp_path):
    file = tmp_path / "x.jsonl"
    for text, message in [
        ("{", "x.jsonl:1: not a line of JSON"),
        ("[]", "x.jsonl:1: not a finished cell: no levels"),
        ('{"levels": {}, "settings": {}}', "x.jsonl:1: not a finished cell: no result"),
        ('{"levels": {}, "settings": {}, "result": {}}', "not a finished cell: no cpu_seconds"),
    ]:
        file.write_text(text + "\n")
        with pytest.raises(ValueError, match=message):
            Results(file)


# --- the cells of the paper ----------------------------------------------------------------------


def play(table, result):
    """Play a table through: pretend to run each cell as soon as it is there."""
    done = []
    while True:
        known = [each["levels"] for each in done]
        new = [cell for cell in table.cells(done) if cell.levels not in known]
        if not new:
            return table.cells(done)
        done += [{"levels": cell.levels, "result": result(cell)} for cell in new]


@pytest.mark.parametrize("name", list(TABLES))
def test_no_two_cells_are_the_same(name):
    cells = every_cell(name)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    assert all(cell.table == name for cell in cells)
    assert len(TABLES[name][0].cells([], quick=True)) < len(cells)


def test_motifs_and_cycles_have_all_rows_of_the_paper():
    found = {(c.levels["set"], c.levels["model"]) for c in motifs.cells([]) if c.rank < 30}
    assert len(found) == 5 * 6
    mains = [c for c in motifs.cells([]) if c.levels.get("model") in motifs.MAIN and c.rank < 30]
    assert len(mains) == 5 * 5 * 3
    depths = [c for c in cycles.cells([]) if c.levels["part"] == "accuracy"]
    assert len(depths) == 3 * (2 + 4 * 5)
    assert len(wallclock.cells([])) == 12


def test_citation_settings_follow_from_validation():
    first = citation.cells([])
    assert {c.levels["part"] for c in first} == {"choice"}
    assert not {c.levels["seed"] for c in first} & set(citation.SEEDS)

    def result(cell):
        good = cell.levels["part"] == "choice" and cell.levels["setting"] == 1
        return {"val": 0.9 if good else 0.4, "val_loss": 1.0}

    cells = play(citation, result)
    chosen = [
        c for c in cells if c.levels["part"] == "accuracy" and c.levels["graph"] == "citeseer"
    ]
    by_model = {m: [c for c in chosen if c.levels["model"] == m] for m in ("GKAT", "GAT")}
    assert {c.settings["num_steps"] for c in by_model["GKAT"]} == {2}  # the second of its choices
    assert {c.settings["out_heads"] for c in by_model["GAT"]} == {8}
    assert all(c.settings["jointly"] for c in cells)
    assert [c.levels["seed"] for c in by_model["GKAT"]] == list(citation.SEEDS)
    lengths = {c.settings["num_steps"] for c in cells if c.levels["part"] == "walk length"}
    assert lengths == set(range(1, 8))


def test_the_mean_of_all_seeds_chooses():
    values = count()

    def result(cell):  # setting 2 is best once, setting 0 on average
        table = {(0, 100): 0.8, (0, 101): 0.8, (2, 100): 0.9, (2, 101): 0.3}
        place = cell.levels.get("setting"), cell.levels["seed"]
        return {"val": table.get(place, 0.1), "val_loss": next(values)}

    cells = play(citation, result)
    chosen = [c.settings for c in cells if c.levels["part"] == "accuracy"]
    wanted = citation.CHOICES["cora"]["GKAT"][0]
    assert chosen[0]["lr"] == wanted[0].lr and chosen[0]["alpha"] == wanted[1].alpha


def test_tu_rows_are_chosen_in_each_fold():
    def result(cell):
        levels = cell.levels
        if levels["part"] == "rate":
            return {"val": 0.5, "val_loss": 1.0 if levels["lr"] == 1e-3 else 2.0}
        return {"val": 0.9 if levels.get("row") == levels["fold"] % 2 else 0.5, "val_loss": 1.0}

    cells = play(tu, result)
    finals = [c for c in cells if c.levels["part"] == "accuracy"]
    assert len(finals) == 4 * 3 * 10 * 3
    enzymes = [c for c in finals if (c.levels["set"], c.levels["model"]) == ("ENZYMES", "GKAT")]
    assert {c.settings["lr"] for c in enzymes} == {1e-3}
    for cell in enzymes:
        assert cell.settings["heads"] == (4, 8)[cell.levels["fold"] % 2]
    first = [c for c in finals if c.levels["run"] == 0]
    assert max(c.rank for c in first) < min(c.rank for c in finals if c.levels["run"] > 0)


def test_folds_of_another_set_are_refused(monkeypatch):
    fold = Fold(torch.arange(2), torch.arange(2, 4), torch.arange(4, 5))
    monkeypatch.setattr(tu, "tu_set", lambda name: range(6))
    monkeypatch.setattr(tu, "tu_folds", lambda name: [fold])
    with pytest.raises(ValueError, match="a set has 6 graphs, its file of splits is for 5"):
        tu._set("a set")


def test_tu_runs_hold_out_a_tenth_of_the_rest_and_never_test_graphs():
    fold = Fold(torch.arange(10), torch.arange(10, 91), torch.arange(91, 100))
    train, val, test = tu._parts(fold, "accuracy", 3)
    assert (len(train), len(val)) == (81, 9) and test.equal(fold.test)
    assert torch.cat([train, val]).sort().values.equal(torch.arange(10, 100))
    assert not val.equal(tu._parts(fold, "accuracy", 4)[1])
    assert tu._parts(fold, "choice", 3)[1].equal(fold.val)


# --- reports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(TABLES))
def test_reports_say_what_is_there_and_what_is_missing(name, tmp_path):
    assert "No cell is finished yet" in section(name, tmp_path)


def lines_of(name, cells, result):
    every = {"table": name, "seconds": 1.0, "cpu_seconds": 3600.0, "finished": "2026-01-01 x"}
    return [
        {**every, "levels": c.levels, "settings": c.settings, "result": result(c), **ABOUT}
        for c in cells
    ]


def written(folder, name, cells, result):
    lines = lines_of(name, cells, result)
    (folder / f"graphs_{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_means_stand_beside_the_paper(tmp_path):
    def result(cell):
        shift = cell.levels["seed"] / 100
        base = 0.8 if cell.levels.get("model") == "GKAT" else 0.7
        return {"test": base + shift, "val": 0.9, "parameters": 1234, "epochs": 9}

    cells = [c for c in motifs.cells([]) if not (c.levels["seed"] == 2 and c.rank < 30)]
    written(tmp_path, "motifs", cells, result)
    text = section("motifs", tmp_path)
    assert "80.5 ± 0.7 (2 of 3) [85.1]" in text and "1,234" in text
    assert "| GAT | +10.0 (+10.0 to +10.0)" in text
    assert "of 107 cells" in text
    assert "four of five sets: 0 of 0, not finished" in text  # a seed is missing
    written(tmp_path, "motifs", motifs.cells([]), result)
    text = section("motifs", tmp_path)
    assert "four of five sets: 5 of 5, met" in text
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- graphs: motifs -->\nOUTDATED\n<!-- end of graphs: motifs -->\nafter\n"
    )
    insert_sections(["motifs"], tmp_path, page)
    new = page.read_text()
    assert "OUTDATED" not in new and text in new and new.startswith("before") and "after" in new
    with pytest.raises(ValueError, match="wanted the lines"):
        insert_sections(["tu"], tmp_path, page)


def test_tu_deviations_are_those_of_fold_means(tmp_path):
    cells = [c for c in every_cell("tu") if c.levels["part"] == "accuracy"]
    cells = [c for c in cells if c.levels["set"] == "NCI1" and c.levels["model"] == "GKAT"]

    def result(cell):  # folds at 70 and 80, runs around them
        fold = 0.7 + 0.1 * (cell.levels["fold"] % 2)
        test = fold + (cell.levels["run"] - 1) / 50
        return {"test": test, "val": 1.0, "parameters": 9, "epochs": 3}

    written(tmp_path, "tu", cells, result)
    text = section("tu", tmp_path)
    assert "| NCI1 | GKAT | 75.0 ± 5.3 | 30 of 30 | 75.2 ± 2.4 | 72.8 |" in text
    assert "NCI1, GKAT, at least 72.8: 75.0 ± 5.3, met" in text
    assert "ENZYMES, GKAT, at least 63.7: -, not finished" in text


def test_a_bar_that_is_missed_is_said(tmp_path):
    cells = [c for c in every_cell("citation") if c.levels["part"] == "accuracy"]
    result = lambda cell: {"test": 0.79, "val": 0.8, "parameters": 1, "epochs": 1}  # noqa: E731
    written(tmp_path, "citation", cells, result)
    text = section("citation", tmp_path)
    assert "cora, GKAT, at least 82.0: 79.0 ± 0.0, **missed**" in text
    assert "pubmed, GKAT, at least 78.0: 79.0 ± 0.0, met" in text


def test_depths_that_pass_gkat_are_said(tmp_path):
    def result(cell):
        deep = cell.levels.get("model") == "GAT" and cell.levels["depth"] >= 4
        base = 0.8 if cell.levels.get("model") == "GKAT" else 0.9 if deep else 0.6
        return {"test": base, "val": 0.9, "parameters": 242, "epochs": 9}

    written(tmp_path, "cycles", cycles.cells([]), result)
    text = section("cycles", tmp_path)
    assert "GAT is ahead of two-layer GKAT from 4 layers on" in text
    assert (
        "GCN is ahead of two-layer GKAT at no depth" in text and "ChebNet 60.0 ± 0.0, met" in text
    )


def test_lines_have_a_tick_at_each_place():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    series = [
        Series("GKAT", (2, 3), (estimate([50.0]), estimate([60.0]))),
        Series("GAT", (6,), (estimate([55.0, 57.0]),)),
    ]
    draw_lines(axes, series, "layers", "accuracy", "cycles")
    assert axes.get_xticks().tolist() == [2, 3, 6]
