"""What is wrong with a graph is said by name."""

from inspect import signature

import pytest
import torch

from tests.graph.graphs import EMPTY, random_forest
from tests.zoo import rand
from vit_rpe.graph import (
    RWGNK,
    Diffusion,
    DynamicWalks,
    TreeExponential,
    TreeFunction,
    as_graph,
    expected_walk_kernel,
    grid_edges,
    random_walks,
    shortest_path_mask,
    shortest_paths,
)
from vit_rpe.graph import edges as edges_module
from vit_rpe.graph.edges import connected_components
from vit_rpe.graph.trees.forest import Forest

MAKERS = {
    "TreeExponential": lambda e, n, w: TreeExponential(e, w, num_nodes=n),
    "TreeFunction": lambda e, n, w: TreeFunction(e, rand(9), num_nodes=n),
    "Diffusion": lambda e, n, w: Diffusion(e, w, num_nodes=n),
    "random_walks": lambda e, n, w: random_walks(e, w, num_nodes=n, num_walks=2, num_steps=3),
    "expected_walk_kernel": lambda e, n, w: expected_walk_kernel(e, w, num_nodes=n, num_steps=3),
    "shortest_paths": lambda e, n, w: shortest_paths(e, w, num_nodes=n),
}
PATH = grid_edges((3,))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_bad_indices(make):
    for edges, n, message in [
        (torch.tensor([[0, 5], [5, 0]]), 3, r"edge 0 joins \[0, 5\], but nodes go from 0 to 2"),
        (torch.tensor([[0, -1], [-1, 0]]), 3, r"edge 0 joins \[0, -1\]"),
        (PATH.int(), 3, "edge_index must be int64 of shape"),
        (PATH.mT, 3, r"edge_index must be int64 of shape \(2, E\), got torch.int64 \(4, 2\)"),
        (PATH.tolist(), 3, "edge_index must be a tensor, got list"),
        (EMPTY, 0, "at least one token, got length 0"),
        (EMPTY, None, "at least one token, got length 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(edges, n, None)


@pytest.mark.parametrize("make", [m for name, m in MAKERS.items() if name != "TreeFunction"])
def test_bad_weights(make):
    for weight, message in [
        (torch.tensor([1.0, torch.nan, 1.0, torch.nan]), "edge_weight must be .*finite.* got nan"),
        (torch.tensor([1.0, torch.inf, 1.0, 1.0]), "got inf for edge 1"),
        (torch.ones(3), r"4 edges need a real edge_weight of shape \(4,\), got"),
        (torch.ones(4, dtype=torch.int64), "real edge_weight"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(PATH, 3, weight)


@pytest.mark.parametrize("name", ["Diffusion", "random_walks", "shortest_paths"])
def test_negative_weights(name):
    weight = torch.tensor([1.0, -2.0, 1.0, -2.0])
    with pytest.raises(ValueError, match="not negative, got -2.0 for edge 1"):
        MAKERS[name](PATH, 3, weight)


@pytest.mark.parametrize("name", ["TreeExponential", "Diffusion"])
def test_uneven_weights(name):
    weight = torch.tensor([1.0, 2.0, 1.0, 3.0])
    with pytest.raises(ValueError, match=r"same in both directions, got 2.0 for \(1, 2\) and 3.0"):
        MAKERS[name](PATH, 3, weight)


def test_the_last_node_is_found():
    assert Diffusion(PATH).length == 3
    assert TreeFunction(PATH, rand(3)).length == 3


@pytest.mark.parametrize("sizes", [(1,), (500,), (7, 4, 1, 30), (64, 64, 64, 64, 64)])
def test_connected_components_are_the_trees_of_a_forest(sizes):
    forest = random_forest(*sizes)
    tree = Forest(forest, num_nodes=sum(sizes)).tree
    once = forest[:, forest[0] < forest[1]]
    assert connected_components(*once, sum(sizes)).equal(tree)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_gradient_to_the_weights_is_given_or_refused(make):
    weight = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        make(PATH, 3, weight)
    made = make(PATH, 3, weight.detach())
    if isinstance(made, TreeFunction):  # has no use for weights
        return
    if isinstance(made, TreeExponential):
        make(PATH, 3, weight).matmul(torch.rand(3, 1)).sum().backward()
        assert weight.grad is not None and (weight.grad != 0).all()
    else:
        with pytest.raises(ValueError, match="edge_weight requires a gradient, but this mask"):
            make(PATH, 3, weight)


def test_a_checked_graph_takes_the_place_of_its_edges(monkeypatch):
    weight = torch.tensor([1.0, 2.0, 1.0, 2.0])
    graph = as_graph(PATH, weight, num_nodes=4)
    checks = []
    for name in ("_check_index", "_check_weight", "_check_undirected"):
        check = getattr(edges_module, name)
        monkeypatch.setattr(
            edges_module, name, lambda *a, c=check, name=name: (checks.append(name), c(*a))
        )
    x = rand(4, 2)
    for make in (TreeExponential, Diffusion):
        checked, plain = make(graph), make(PATH, weight, num_nodes=4)
        assert checks == ["_check_index", "_check_weight", "_check_undirected"]
        torch.testing.assert_close(checked.matmul(x), plain.matmul(x))
        checks.clear()
    options = {"num_walks": 2, "num_steps": 3}
    assert random_walks(graph, **options).nodes.shape == (4, 2, 4)
    assert shortest_paths(graph).shape == (4, 4) and not checks
    assert TreeFunction(graph, rand(4)).length == 4 and not checks
    assert expected_walk_kernel(graph, num_steps=3).length == 4 and not checks


def test_a_graph_is_checked_for_what_it_was_not():
    directed = as_graph(torch.tensor([[0], [1]]), undirected=False)
    random_walks(directed, num_walks=1, num_steps=1)
    with pytest.raises(ValueError, match=r"got edge \(0, 1\) without \(1, 0\)"):
        Diffusion(directed)
    signed = as_graph(PATH, -torch.ones(4), nonnegative=False)
    assert TreeExponential(signed).length == 3
    with pytest.raises(ValueError, match="not negative, got -1.0 for edge 0"):
        Diffusion(signed)
    learned = as_graph(PATH, torch.ones(4, requires_grad=True), learnable=True)
    with pytest.raises(ValueError, match="edge_weight requires a gradient"):
        Diffusion(learned)
    with pytest.raises(ValueError, match="the Graph has 3 nodes, got num_nodes=5"):
        Diffusion(as_graph(PATH), num_nodes=5)
    with pytest.raises(ValueError, match="has its own edge_weight"):
        Diffusion(as_graph(PATH), torch.ones(4))


@pytest.mark.parametrize(
    "function",
    [
        TreeExponential,
        TreeFunction,
        Diffusion,
        DynamicWalks,
        RWGNK.__call__,
        as_graph,
        random_walks,
        expected_walk_kernel,
        shortest_paths,
        shortest_path_mask,
    ],
)
def test_one_order_of_arguments(function):
    """edge_index, edge_weight (or values); the rest by name, num_nodes first."""
    names = [p for name, p in signature(function).parameters.items() if name != "self"]
    assert [p.name for p in names[:3]] in (
        ["edge_index", "edge_weight", "num_nodes"],
        ["edge_index", "values", "num_nodes"],
    )
    assert all(p.kind is p.KEYWORD_ONLY for p in names[2:])


# --- sparse adjacency matrices -----------------------------------------------------------------


class SparseTensor:
    """What is used of torch-sparse's."""

    def __init__(self, row: torch.Tensor, column: torch.Tensor, value, size: int):
        self._coo, self._size = (row, column, value), size

    def coo(self):
        return self._coo

    def sparse_sizes(self):
        return self._size, self._size


LAYOUTS = {
    "coo": lambda i, w, n: torch.sparse_coo_tensor(i, w, (n, n)),
    "csr": lambda i, w, n: torch.sparse_coo_tensor(i, w, (n, n)).to_sparse_csr(),
    "csc": lambda i, w, n: torch.sparse_coo_tensor(i, w, (n, n)).to_sparse_csc(),
    "SparseTensor": lambda i, w, n: SparseTensor(*i, w, n),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse CS")
def test_adjacency_matrices(layout):
    """Row i of adj_t has the edges that lead to i, as in PyG; their values are the weights."""
    edges, weight = torch.tensor([[0, 1, 3], [2, 0, 0]]), torch.tensor([0.5, 2.0, 3.0])
    adj_t = LAYOUTS[layout](edges.flip(0), weight, 6)
    graph = as_graph(adj_t, undirected=False)
    assert graph.num_nodes == 6
    assert graph.edge_weight is not None
    source, target = graph.edge_index.tolist()
    pairs = set(zip(source, target, graph.edge_weight.tolist(), strict=True))
    assert pairs == {(0, 2, 0.5), (1, 0, 2.0), (3, 0, 3.0)}
    with pytest.raises(ValueError, match="has its own weights"):
        as_graph(adj_t, weight)
    with pytest.raises(ValueError, match="has 6 nodes, got num_nodes=7"):
        as_graph(adj_t, num_nodes=7)


def test_adjacency_matrices_that_are_not_square():
    matrix = torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (2, 3))
    with pytest.raises(ValueError, match=r"must be square, got \(2, 3\): .* not for bipartite"):
        as_graph(matrix)
    whole = torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1).int(), (2, 2))
    graph = as_graph(whole, undirected=False)
    assert graph.edge_weight is not None and graph.edge_weight.dtype == torch.float32
    bare = SparseTensor(torch.tensor([0]), torch.tensor([1]), None, 2)
    assert as_graph(bare, undirected=False).edge_weight is None  # type: ignore[arg-type]
