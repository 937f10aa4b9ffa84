"""Data sets in our files and in PyG's: both say the same; what is missing or odd is one line."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")

from scipy.sparse import csr_matrix  # noqa: E402
from torch_geometric.datasets import Planetoid, TUDataset  # noqa: E402
from torch_geometric.utils import coalesce  # noqa: E402

from vit_rpe.experiments.graphs import CITATION, TU, citation, download, tu_set  # noqa: E402
from vit_rpe.experiments.graphs.data import places, tu_folds  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_RPE_DATA", str(tmp_path))
    return tmp_path


# --- citation graphs -----------------------------------------------------------------------------

NODES, KNOWN, LABELED, WORDS, CLASSES = 620, 560, 6, 12, 3
TEST = [600, 560, 619, 611]  # with gaps, as Citeseer's; not sorted


def raw_planetoid(raw: Path, name: str) -> None:
    """Write files as those of Planetoid, with random contents."""
    draw = np.random.default_rng(0)
    raw.mkdir(parents=True)
    x = (draw.random((KNOWN + len(TEST), WORDS)) < 0.3).astype(np.float32)
    y = np.eye(CLASSES, dtype=np.int32)[draw.integers(CLASSES, size=KNOWN + len(TEST))]
    graph = defaultdict(list)
    for a, b in draw.integers(NODES, size=(900, 2)).tolist():
        graph[a].append(b)
        graph[b].append(a)
    graph[NODES - 1].append(NODES - 1)  # a loop
    graph.default_factory = None
    parts = {
        "x": csr_matrix(x[:LABELED]), "allx": csr_matrix(x[:KNOWN]), "tx": csr_matrix(x[KNOWN:]),
        "y": y[:LABELED], "ally": y[:KNOWN], "ty": y[KNOWN:], "graph": defaultdict(list, graph),
    }  # fmt: skip
    for part, value in parts.items():
        (raw / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (raw / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in TEST))


@pytest.mark.filterwarnings("ignore")
def test_raw_files_are_read_as_pyg_reads_them(folder):
    raw_planetoid(folder / "Citeseer" / "raw", "citeseer")
    theirs = Planetoid(str(folder), "Citeseer")[0]
    ours = citation("citeseer")
    assert ours.edge_index.equal(coalesce(theirs.edge_index)) and ours.y.equal(theirs.y)
    for part in ("train", "val", "test"):
        assert getattr(ours, part).equal(theirs[f"{part}_mask"].nonzero().flatten())
    wanted = theirs.x / theirs.x.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(ours.x.to_dense(), wanted)
    assert not ours.x.to_dense()[570].any()  # a gap


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


def test_a_pickle_that_would_run_something_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    raw_planetoid(folder / "Cora" / "raw", "cora")
    (folder / "Cora" / "raw" / "ind.cora.graph").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"ind.cora.graph is no file of Planetoid: .*system"):
        citation("cora")
    assert not (folder / "attacked").exists()
    (folder / "Cora" / "raw" / "ind.cora.graph").write_bytes(b"")
    with pytest.raises(ValueError, match=r"ind.cora.graph is no file of Planetoid"):
        citation("cora")


def test_missing_citation_graphs_are_one_clear_line(folder, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        citation("cora")
    text = str(error.value)
    assert "cora is not there" in text and "planetoid/cora.npz" in text and "--download" in text
    assert str(folder) in text and "\n" not in text and "VIT_RPE_DATA" not in text
    monkeypatch.delenv("VIT_RPE_DATA")
    with pytest.raises(FileNotFoundError, match="VIT_RPE_DATA names another folder"):
        citation("pubmed")
    with pytest.raises(ValueError, match="must be one of cora, citeseer, pubmed, got 'reddit'"):
        citation("reddit")


def test_broken_npz_files_are_named(folder):
    (folder / "planetoid").mkdir()
    file = folder / "planetoid" / "cora.npz"
    np.savez(file, y=np.arange(3))
    with pytest.raises(ValueError, match=r"cora.npz is no citation graph: .*x_data"):
        citation("cora")
    np.savez(file, x_data=np.array([Attack()], dtype=object))
    with pytest.raises(ValueError, match=r"cora.npz is no citation graph"):
        citation("cora")
    np.savez(file, y=np.arange(3_000))
    for content in (b"PK", file.read_bytes()[:2000], b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"cora.npz is no citation graph"):
            citation("cora")


GOOD = {
    "x_data": np.ones(4), "x_indices": np.arange(4), "x_indptr": np.arange(5), "x_shape": (4, 5),
    "y": np.array([0, 1, 0, 1]), "edge_index": np.array([[0, 1, 2, 3], [1, 0, 3, 2]]),
    "train_idx": np.array([0]), "val_idx": np.array([1]), "test_idx": np.array([2, 3]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"x_data": np.full(4, np.nan)}, "wanted finite features of its 4 nodes"),
        ({"y": np.arange(3)}, "wanted finite features of its 3 nodes, got .4, 5."),
        ({"y": np.full(4, 0.5)}, "y has numbers that are no classes"),
        ({"edge_index": np.array([[0, 4], [4, 0]])}, "edge_index has numbers that none of its 4"),
        ({"edge_index": np.zeros((4, 2), int)}, "edge_index must be .2, E., got .4, 2."),
        ({"val_idx": np.array([-1])}, "val has numbers that none of its 4 nodes has"),
        ({"val_idx": np.array([3])}, "train, val and test have nodes in common"),
        ({"x_indices": np.arange(4) + 2}, "5"),
    ],
)
def test_parts_that_do_not_fit_are_named(folder, part, message):
    (folder / "planetoid").mkdir()
    np.savez(folder / "planetoid" / "cora.npz", **GOOD)
    assert citation("cora").num_nodes == 4
    np.savez(folder / "planetoid" / "cora.npz", **{**GOOD, **part})
    with pytest.raises(ValueError, match=rf"cora.npz is no citation graph: .*{message}"):
        citation("cora")


def test_a_raw_file_of_words_is_named(folder):
    raw_planetoid(folder / "Cora" / "raw", "cora")
    (folder / "Cora" / "raw" / "ind.cora.test.index").write_text("one\n")
    with pytest.raises(ValueError, match=r"Cora/raw is no citation graph: .*'one'"):
        citation("cora")


# --- TU sets -------------------------------------------------------------------------------------


def raw_tu(raw: Path, name: str, attributes: bool, labels: bool) -> None:
    """Write a set as TUDataset has it: three graphs, numbers from 1, labels from 4."""
    raw.mkdir(parents=True)

    def write(part: str, lines: list[str]) -> None:
        (raw / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")

    edges = [(1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (5, 4), (7, 6), (6, 7), (6, 8), (8, 6)]
    write("A", [f"{a}, {b}" for a, b in edges])
    write("graph_indicator", ["1"] * 3 + ["2"] * 2 + ["3"] * 3)
    write("graph_labels", ["-1", "3", "-1"])
    if labels:
        write("node_labels", [*"46545644"])
    if attributes:
        write("node_attributes", [f"{n / 2}, {n}" for n in range(8)])


@pytest.mark.parametrize("name", ["ENZYMES", "NCI1", "IMDB-BINARY"])
def test_raw_sets_are_read_as_pyg_reads_them(folder, name):
    source = TU[name]
    raw_tu(folder / name / "raw", name, source.attributes, source.labels)
    ours = tu_set(name)
    theirs = TUDataset(str(folder), name, use_node_attr=True)
    assert len(ours) == len(theirs) == 3
    for number, graph in enumerate(theirs):
        own = ours.batch(torch.tensor([number]))
        assert own.edge_index.equal(graph.edge_index) and own.y == graph.y
        if source.attributes:  # theirs come before the labels, ours after
            assert own.x.equal(torch.cat([graph.x[:, 2:], graph.x[:, :2]], 1))
        elif source.labels:
            assert own.x.equal(graph.x)
        else:
            degree = torch.bincount(graph.edge_index[0], minlength=own.num_nodes)
            assert own.x.flatten().equal(degree.float())


def test_our_files_of_tu_sets_say_the_same(folder):
    raw_tu(folder / "ENZYMES" / "raw", "ENZYMES", True, True)
    raw = tu_set("ENZYMES")
    (folder / "tu").mkdir()
    every = raw.batch(torch.arange(3))
    mixed = every.edge_index[:, torch.randperm(every.edge_index.shape[1])]
    np.savez(
        folder / "tu" / "ENZYMES.npz", edge_index=mixed.numpy(), graph_ptr=raw.node_ptr.numpy(),
        graph_label=raw.y.numpy(), node_label=np.array([4, 6, 5, 4, 5, 6, 4, 4]),
        node_attr=raw.x[:, 3:].numpy(),
    )  # fmt: skip
    ours = tu_set("ENZYMES")
    assert all(a.equal(b) for a, b in zip(vars(raw).values(), vars(ours).values(), strict=True))
    np.savez(folder / "tu" / "NCI1.npz", edge_index=mixed.numpy())
    with pytest.raises(ValueError, match=r"NCI1.npz is no TU set: .*graph_ptr"):
        tu_set("NCI1")
    good = {"edge_index": mixed, "graph_ptr": raw.node_ptr, "graph_label": raw.y,
            "node_label": torch.zeros(8)}  # fmt: skip
    for part, message in (
        ({"graph_label": raw.y[:2]}, "it has 3 graphs, but classes of 2"),
        ({"node_label": torch.zeros(7)}, "it has 8 nodes, but labels of 7"),
        ({"graph_ptr": raw.node_ptr + torch.tensor([0, 1, 0, 0])}, "an edge joins two graphs"),
        ({"edge_index": mixed + 9}, "out of bounds"),
    ):
        np.savez(folder / "tu" / "NCI1.npz", **{k: v.numpy() for k, v in {**good, **part}.items()})
        with pytest.raises(ValueError, match=rf"NCI1.npz is no TU set: .*{message}"):
            tu_set("NCI1")


def test_folds_are_read_and_odd_files_named(folder):
    entry = {"test": [3, 1], "model_selection": [{"train": [0, 2], "validation": [4]}]}
    file = folder / "splits" / "PROTEINS_full_splits.json"
    file.parent.mkdir()
    file.write_text(json.dumps([entry] * 10))
    folds = tu_folds("PROTEINS")
    assert len(folds) == 10 and folds[0].test.tolist() == [3, 1]
    assert folds[0].train.tolist() == [0, 2] and folds[0].val.tolist() == [4]
    entry["test"] = [3, 0]
    twice = json.dumps([entry] * 10)
    for text, message in (
        ("{}", "0 folds, wanted 10"),
        ("[{}]", "model_selection"),
        ("no", "Expecting value"),
        (twice, "does not have every graph once"),
    ):
        file.write_text(text)
        wanted = rf"PROTEINS_full_splits.json is no file of the folds of Errica et al.: .*{message}"
        with pytest.raises(ValueError, match=wanted):
            tu_folds("PROTEINS")
    with pytest.raises(FileNotFoundError, match=r"NCI1_splits.json"):
        tu_folds("NCI1")
    with pytest.raises(ValueError, match="TU set must be one of ENZYMES"):
        tu_set("MUTAG")


# --- downloads, from files instead of the net ----------------------------------------------------


def test_downloads_go_where_they_are_then_found(folder, tmp_path, monkeypatch):
    remote = tmp_path / "remote"
    raw_planetoid(remote, "cora")
    raw_tu(remote / "zip" / "NCI1", "NCI1", False, True)
    with zipfile.ZipFile(remote / "NCI1.zip", "w") as archive:
        for file in (remote / "zip" / "NCI1").iterdir():
            archive.write(file, f"NCI1/{file.name}")
    (remote / "CHEMICAL").mkdir()
    entry = {"test": [0], "model_selection": [{"train": [1], "validation": [2]}]}
    (remote / "CHEMICAL" / "NCI1_splits.json").write_text(json.dumps([entry] * 10))
    monkeypatch.setattr(Planetoid, "url", remote.as_uri())
    monkeypatch.setattr(TUDataset, "url", remote.as_uri())
    monkeypatch.setattr(places, "SPLITS", remote.as_uri())
    monkeypatch.setattr("vit_rpe.experiments.graphs.data.CITATION", ("cora",))
    monkeypatch.setattr("vit_rpe.experiments.graphs.data.TU", {"NCI1": TU["NCI1"]})
    download(("citation", "tu", "motifs"))
    assert len(citation("cora").y) == NODES and len(tu_set("NCI1")) == 3
    assert tu_folds("NCI1")[9].val.tolist() == [2]
    (remote / "NCI1.zip").unlink()
    download(("citation", "tu"))  # everything is there


# --- the real ones -------------------------------------------------------------------------------


def real_folder() -> Path:
    path = Path(os.environ.get("VIT_RPE_DATA", ""))
    if "VIT_RPE_DATA" not in os.environ or not (path / "tu" / "splits").is_dir():
        pytest.skip("needs planetoid/ and tu/ in the folder that VIT_RPE_DATA names")
    return path


def test_real_data_have_their_known_sizes():
    real_folder()
    sizes = {"cora": (2708, 5278, 7), "citeseer": (3327, 4552, 6), "pubmed": (19717, 44324, 3)}
    for name in CITATION:
        task = citation(name)
        assert (len(task.y), task.edge_index.shape[1] // 2, task.num_classes) == sizes[name]
        assert not {*task.train.tolist()} & {*task.val.tolist(), *task.test.tolist()}
    features = {"ENZYMES": 21, "PROTEINS": 3, "NCI1": 37, "IMDB-BINARY": 1}
    for name in TU:
        graphs, folds = tu_set(name), tu_folds(name)
        assert graphs.num_features == features[name] and len(folds) == 10
        tested = torch.cat([fold.test for fold in folds]).sort().values
        assert tested.equal(torch.arange(len(graphs)))  # every graph is tested once
        for fold in folds:
            every = torch.cat([fold.test, fold.train, fold.val]).sort().values
            assert every.equal(torch.arange(len(graphs)))
