"""Sets of motif graphs and of cycles, their batches and their cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install vit_rpe[graph]")
nx = pytest.importorskip("networkx")

from torch_geometric.data import Batch, Data  # noqa: E402

from vit_rpe.experiments.graphs import MOTIFS, GraphSet, cycle_set, motif_set  # noqa: E402
from vit_rpe.experiments.graphs.data import GraphBatch, graph_set, motifs  # noqa: E402
from vit_rpe.experiments.graphs.masks import Matrices, Spanned, Walked  # noqa: E402
from vit_rpe.graph import RWGNK  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_RPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "graphs"


def graph_of(graphs: GraphSet, number: int) -> nx.Graph:
    data = graphs.batch(torch.tensor([number]))
    graph = nx.Graph()
    graph.add_nodes_from(range(data.num_nodes))
    graph.add_edges_from(data.edge_index.T.tolist())
    assert data.edge_index.shape[1] == 2 * graph.number_of_edges()  # each in both directions, once
    return graph


def three_caves() -> nx.Graph:
    graph = nx.disjoint_union_all([nx.complete_graph(3)] * 3)
    graph.add_edges_from([(2, 3), (5, 6), (8, 0)])
    return graph


REFERENCE = {
    "caveman": three_caves(),
    "cycle": nx.cycle_graph(10),
    "grid": nx.grid_2d_graph(3, 3),
    "ladder": nx.ladder_graph(5),
    "circular ladder": nx.circular_ladder_graph(5),
}


@pytest.mark.parametrize("name", list(MOTIFS))
def test_motif_sets_have_the_structure_of_the_paper(name):
    pairs, motif = 12, REFERENCE[name]
    graphs = motif_set(name, pairs, seed=5)
    assert len(graphs) == 2 * pairs and graphs.y.tolist() == [1, 0] * pairs
    same = 0
    for pair in range(pairs):
        with_motif, without = (graph_of(graphs, 2 * pair + k) for k in (0, 1))
        bases, ends = [], []
        for graph in (with_motif, without):
            left = len(graph) - len(motif)
            ends.append(graph.subgraph(range(left, len(graph))))
            bases.append(graph.subgraph(range(left)))
            assert min(d for _, d in bases[-1].degree) >= 1  # no isolated node
            joined = graph.number_of_edges() - bases[-1].number_of_edges()
            assert joined - ends[-1].number_of_edges() >= 1
        assert nx.is_isomorphic(ends[0], motif)
        assert ends[1].number_of_edges() == motif.number_of_edges()
        assert nx.utils.graphs_equal(nx.Graph(bases[0]), nx.Graph(bases[1]))
        same += nx.is_isomorphic(ends[1], motif)
    assert same < pairs


def test_motif_features_are_the_largest_degrees_of_neighbors():
    graphs = motif_set("grid", 2, seed=0)
    x = graphs.batch(torch.tensor([1])).x
    graph = graph_of(graphs, 1)
    for node in graph:
        degrees = sorted((graph.degree[j] for j in graph[node]), reverse=True)[:5]
        assert x[node].tolist() == degrees + [0] * (5 - len(degrees))


def test_base_graphs_have_the_edges_of_the_paper_on_average():
    graphs = motif_set("cycle", 400, seed=1)
    own = 10 + motifs.JOIN * 10 * 84  # the motif and its joins; about 84 nodes are not isolated
    edges = graphs.edge_index.shape[1] / 2 / len(graphs) - own
    assert edges == pytest.approx(0.018 * 4950, rel=0.03)


def test_large_graphs_keep_degrees_and_joins():
    graphs = motif_set("ladder", 1, seed=0, nodes=20_000)
    nodes = graphs.node_ptr.diff()
    degree = graphs.edge_ptr.diff() / nodes
    usual = 0.026 * 99 / (1 - np.exp(-0.026 * 99))  # of nodes that are not isolated
    assert (abs(degree - usual) < 0.05).all() and (nodes > 18_000).all()


def test_seeds_and_sets_differ_and_one_seed_does_not(own_cache):
    first = motif_set("grid", 3, seed=0)
    (file,) = own_cache.iterdir()
    file.unlink()
    again = motif_set("grid", 3, seed=0)
    assert all(a.equal(b) for a, b in zip(vars(first).values(), vars(again).values(), strict=True))
    assert not first.x.equal(motif_set("grid", 3, seed=1).x)
    with pytest.raises(ValueError, match="motif must be one of caveman, .*, got 'star'"):
        motif_set("star", 3, seed=0)


def test_the_cache_is_read_and_a_broken_file_is_made_again(own_cache, monkeypatch):
    first = cycle_set(2, seed=0)
    (file,) = own_cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("vit_rpe.experiments.graphs.data.cycles._draw", None)  # not called
        assert cycle_set(2, seed=0).edge_index.equal(first.edge_index)
    file.write_bytes(file.read_bytes()[:100])
    assert cycle_set(2, seed=0).edge_index.equal(first.edge_index)
    assert graph_set._read(file) is not None


def test_a_pair_has_one_tree_and_the_longer_cycle_first():
    graphs = cycle_set(40, seed=0, nodes=15)
    for pair in range(40):
        first, second = (graph_of(graphs, 2 * pair + k) for k in (0, 1))
        lengths = [len(nx.cycle_basis(g)[0]) for g in (first, second)]
        assert lengths[0] > lengths[1] >= 3
        common = nx.intersection(first, second)
        assert common.number_of_edges() == 14 and nx.is_tree(common)
        assert nx.diameter(common) == lengths[0] - 1
        degree = [d for _, d in second.degree]
        assert graphs.batch(torch.tensor([2 * pair + 1])).x.flatten().tolist() == degree
    with pytest.raises(ValueError, match="at least 8 nodes"):
        cycle_set(1, seed=0, nodes=5)


def singles(graphs: GraphSet, index: list[int]) -> list[GraphBatch]:
    return [graphs.batch(torch.tensor([i])) for i in index]


def test_batches_are_those_of_pyg():
    graphs = motif_set("ladder", 3, seed=0)
    index = [4, 0, 4, 5]
    batch = graphs.batch(torch.tensor(index))
    parts = [Data(x=d.x, edge_index=d.edge_index, y=d.y) for d in singles(graphs, index)]
    slow = Batch.from_data_list(parts)
    for name in ("x", "edge_index", "y", "batch", "ptr"):
        assert getattr(batch, name).equal(slow[name]), name
    chosen = graphs.select(torch.tensor([4, 2]))
    assert chosen.batch(torch.tensor([1])).edge_index.equal(parts_of(graphs, 2))


def parts_of(graphs: GraphSet, number: int) -> torch.Tensor:
    return graphs.batch(torch.tensor([number])).edge_index


def test_walks_of_a_batch_are_those_of_its_graphs():
    graphs = cycle_set(4, seed=0, nodes=9)
    walked = Walked(graphs, RWGNK(num_walks=7, num_steps=4, lam=0.6, alpha=0.5))
    index = torch.tensor([5, 2, 7])
    together = walked.batch(index).mask.dense()
    for place, number in enumerate(index.tolist()):
        own = slice(9 * place, 9 * place + 9)
        single = walked.batch(torch.tensor([number])).mask.dense()
        torch.testing.assert_close(together[own, own], single)
        together[own, own] = 0
        assert single.diagonal().gt(0).all()
    assert not together.any()
    assert walked.select(index).batch(torch.tensor([2])).y == graphs.y[7]


def test_matrices_are_those_of_the_walks():
    walked = Walked(motif_set("grid", 3, seed=0), RWGNK(num_walks=7))
    index = torch.tensor([4, 0, 3])
    mask, formed = walked.batch(index).mask, Matrices(walked).batch(index).mask
    assert formed.part_sizes == mask.part_sizes and formed.nonnegative
    torch.testing.assert_close(formed.dense(), mask.dense())
    starts = torch.tensor((0, *mask.part_sizes[:-1])).cumsum(0).tolist()
    joined = [starts[0], starts[2]], [starts[2], mask.part_sizes[2]]
    for begin, size in ((starts, mask.part_sizes), joined):
        blocks = (each.diagonal_blocks(begin, size) for each in (formed, mask))
        torch.testing.assert_close(*blocks)


def test_walks_of_a_set_follow_its_edges():
    graphs = cycle_set(2, seed=0, nodes=9)
    walked = Walked(graphs, RWGNK(num_walks=200, num_steps=1))
    data = walked.batch(torch.tensor([3]))
    own = slice(walked.pair_ptr[3], walked.pair_ptr[4])
    seen = {tuple(pair) for pair in walked.pairs[:, own].T.tolist()}
    assert seen == {*map(tuple, data.edge_index.T.tolist()), *((i, i) for i in range(9))}


def test_trees_span_each_graph_and_masks_decay_along_them():
    graphs = cycle_set(3, seed=0, nodes=9)
    spanned = Spanned(graphs, seed=0)
    index = torch.tensor([4, 1])
    mask = spanned.batch(index).tree.dense()
    for place, number in enumerate(index.tolist()):
        own = spanned.edges[:, spanned.ptr[number] : spanned.ptr[number + 1]]
        tree = nx.Graph(own.T.tolist())
        assert nx.is_tree(tree) and len(tree) == 9
        assert all(graph_of(graphs, number).has_edge(*edge) for edge in tree.edges)
        block = mask[9 * place : 9 * place + 9, 9 * place : 9 * place + 9]
        for i, row in nx.all_pairs_shortest_path_length(tree):
            for j, distance in row.items():
                assert block[i, j] == pytest.approx(np.exp(-distance), rel=1e-5)
    assert not mask[:9, 9:].any()
