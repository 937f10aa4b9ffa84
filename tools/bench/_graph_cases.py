"""What `graph.py` compares: graphs, masks, and what they are measured against."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log2
from typing import Any

import torch
from torch import Tensor

from vit_rpe.cli.command_line import fail
from vit_rpe.graph import (
    Diffusion,
    Hypercube,
    TreeExponential,
    TreeFunction,
    WalkKernel,
    both_directions,
    random_walks,
)
from vit_rpe.masks import Mask

try:
    import networkx
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import expm_multiply
except ModuleNotFoundError as error:
    fail("bench/graph", f"{error}; pip install vit_rpe[graph]")

# Larger matrices take more memory than a benchmark should.
LARGEST_DENSE = 10_000
DOUBLE = 2.0**-53  # the tolerance of scipy's expm_multiply


@dataclass
class Case:
    """Calls by name, the first of which is the mask that is on trial."""

    nodes: int
    edges: int
    columns: int
    note: str
    calls: dict[str, Callable[[], object]]

    @property
    def mask(self) -> str:
        return next(iter(self.calls))


@dataclass(frozen=True)
class Bar:
    """The rival takes at least `ratio` times as long on so many nodes."""

    family: str
    rival: str
    nodes: int
    ratio: float


BARS = (
    Bar("tree_exponential", "brute force", 10_000, 50.0),
    Bar("tree_function", "brute force", 10_000, 50.0),
    Bar("tree_function/shallow", "brute force", 10_000, 50.0),
    *(
        Bar(f"diffusion/{kind}", "expm_multiply", 20_000, 2.0)
        for kind in ("laplacian", "normalized", "adjacency", "small_world")
    ),
    Bar("walks", "networkx loop", 10_000, 50.0),
)


class Tree:
    """A tree by the parents of its nodes, which come before them."""

    def __init__(self, parent: Tensor):
        self.parent = parent.tolist()
        self.edges = both_directions(torch.stack([parent, torch.arange(1, len(parent) + 1)]))

    @classmethod
    def deep(cls, nodes: int) -> Tree:
        """A node hangs from one of the sqrt(nodes) before it."""
        later = torch.arange(1, nodes)
        return cls(later - 1 - (torch.rand(nodes - 1) * later.clamp(max=nodes**0.5)).long())

    @classmethod
    def shallow(cls, nodes: int) -> Tree:
        """Every node has eight children, as long as there are nodes."""
        return cls(torch.arange(nodes - 1) // 8)

    def distances(self, weight: Tensor) -> Tensor:
        """All of them, row by row: a node is one edge further away than its parent. O(L^2)."""
        nodes = len(self.parent) + 1
        matrix = weight.new_zeros(nodes, nodes)
        for v, p in enumerate(self.parent, 1):
            matrix[v, :v] = matrix[:v, v] = matrix[p, :v] + weight[v - 1]
        return matrix


def small_world(nodes: int) -> Tensor:
    """A ring whose nodes know the three next to them on either side; a tenth lead anywhere.

    Most neighbours are close, which is easier on a cache than `random_graph`.
    """
    i = torch.arange(nodes).repeat(3)
    j = (i + torch.arange(1, 4).repeat_interleave(nodes)) % nodes
    j = torch.where(torch.rand(len(j)) < 0.1, torch.randint(nodes, j.shape), j)
    return _simple(torch.stack([i, j]))


def random_graph(nodes: int) -> Tensor:
    """Five neighbours each, on average, anywhere: no order of the nodes keeps them close."""
    return _simple(torch.randint(nodes, (2, nodes * 5 // 2)))


def _simple(pairs: Tensor) -> Tensor:
    pairs = pairs[:, pairs[0] != pairs[1]].sort(0).values.unique(dim=1)
    return both_directions(pairs)


def tree_exponential(nodes: int) -> Case:
    tree = Tree.deep(nodes)
    weight = torch.rand(nodes - 1)
    rate, shift = torch.tensor(-0.3), torch.tensor(0.0)
    make = partial(TreeExponential, tree.edges, weight.repeat(2), num_nodes=nodes, a=rate, b=shift)

    def brute() -> Tensor:
        return tree.distances(weight).mul_(rate).exp_()

    return _product_case(nodes, tree, make, brute, "weighted tree")


def tree_function(nodes: int, shallow: bool = False) -> Case:
    tree = Tree.shallow(nodes) if shallow else Tree.deep(nodes)
    values = torch.rand(nodes)
    make = partial(TreeFunction, tree.edges, values, num_nodes=nodes)

    def brute() -> Tensor:
        return values[tree.distances(torch.ones(nodes - 1, dtype=torch.int32))]

    mask = make()
    algorithm = "histogram" if mask.by_histogram else "centroid"
    return _product_case(nodes, tree, make, brute, f"diameter {mask.forest.diameter}: {algorithm}")


def _product_case(
    nodes: int, tree: Tree, make: Callable[[], Mask], brute: Callable[[], Tensor], note: str
) -> Case:
    """A mask's product, the same with its construction, and brute force with and without it."""
    x = torch.randn(nodes, 64)
    mask = make()
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: mask.matmul(x),
        "product and construction": lambda: make().matmul(x),
    }
    if nodes <= LARGEST_DENSE:
        matrix = brute()
        calls["brute force"] = lambda: brute() @ x
        calls["dense product alone"] = lambda: matrix @ x
    return Case(nodes, tree.edges.shape[1], 64, note, calls)


def diffusion(nodes: int, kind: str, make: Callable[[int], Tensor] = random_graph) -> Case:
    edges = make(nodes)
    x = torch.randn(nodes, 256, dtype=torch.float64)
    build = partial(Diffusion, edges, num_nodes=nodes, kind=kind)
    exact, default = (build(tol=tol) for tol in (DOUBLE, 1e-8))
    single, generator, columns = x.float(), -_generator(edges, nodes, kind), x.numpy()
    calls: dict[str, Callable[[], object]] = {
        "Chebyshev, tol 2^-53": lambda: exact.matmul(x),
        "Chebyshev, tol 1e-8": lambda: default.matmul(x),
        "Chebyshev, tol 1e-8, float32": lambda: default.matmul(single),
        "construction": build,
        # how much of the growth is the machine's: the memory behind its caches
        "one product of scipy's": lambda: generator @ columns,
    }
    if nodes <= 20_000:
        calls["expm_multiply"] = lambda: expm_multiply(generator, columns)
    return Case(nodes, edges.shape[1], 256, "lam = 1", calls)


def _generator(edges: Tensor, nodes: int, kind: str) -> Any:
    """T as scipy's matrix."""
    ones = torch.ones(edges.shape[1], dtype=torch.float64).numpy()
    adjacency = csr_array((ones, tuple(edges.numpy())), shape=(nodes, nodes))
    degree = adjacency.sum(1)
    laplacian = csr_array(diags_array(degree) - adjacency)
    normalized = csr_array(laplacian @ diags_array(1 / degree.clip(1)))
    return {"laplacian": laplacian, "normalized": normalized, "adjacency": -adjacency}[kind]


def _as_scipy(matrix: Tensor) -> Any:
    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    return csr_array(tuple(part.numpy() for part in parts), shape=matrix.shape)


def walks(nodes: int) -> Case:
    edges = random_graph(nodes)
    plain = networkx.Graph()
    plain.add_nodes_from(range(nodes))
    plain.add_edges_from(edges.mT.tolist())
    calls: dict[str, Callable[[], object]] = {
        "random_walks": lambda: random_walks(edges, num_nodes=nodes, num_walks=20, num_steps=3),
    }
    if nodes <= 20_000:
        calls["networkx loop"] = lambda: networkx_walks(plain, 20, 3)
    return Case(nodes, edges.shape[1], 0, "20 walks of 3 steps from each node", calls)


def networkx_walks(plain: Any, num_walks: int, num_steps: int) -> list[list[int]]:
    """One walk after the other, as in the authors' code."""
    drawn = []
    for start in plain.nodes():
        for _ in range(num_walks):
            walk = [start]
            while len(walk) <= num_steps:
                neighbours = list(plain.neighbors(walk[-1]))
                if not neighbours:
                    break
                walk.append(random.choice(neighbours))
            drawn.append(walk)
    return drawn


def walk_kernel(nodes: int) -> Case:
    edges = random_graph(nodes)
    x = torch.randn(nodes, 64)
    drawn = random_walks(edges, num_nodes=nodes, num_walks=20, num_steps=3)
    mask = WalkKernel(drawn, torch.tensor(0.5))
    features = _as_scipy(mask.low_rank().u)
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: mask.matmul(x),
        "construction": lambda: WalkKernel(drawn, torch.tensor(0.5)),
        "two products of scipy's": lambda: features @ (features.T @ x.numpy()),
    }
    if nodes <= LARGEST_DENSE:
        psi = mask.low_rank().u.to_dense()
        calls["brute force"] = lambda: (psi @ psi.mT) @ x
    return Case(nodes, edges.shape[1], 64, "20 walks of 3 steps, alpha = 1", calls)


def hypercube(nodes: int) -> Case:
    """The largest hypercube of at most so many nodes."""
    dim = int(log2(nodes))
    size, mask, x = 2**dim, Hypercube(dim, torch.tensor(0.5)), torch.randn(2**dim, 64)
    calls: dict[str, Callable[[], object]] = {"product": lambda: mask.matmul(x)}
    if size <= LARGEST_DENSE:
        calls["brute force"] = lambda: mask.dense() @ x
    return Case(size, size * dim, 64, f"dimension {dim}", calls)


FAMILIES: dict[str, Callable[[int], Case]] = {
    "tree_exponential": tree_exponential,
    "tree_function": tree_function,
    "tree_function/shallow": partial(tree_function, shallow=True),
    "diffusion/laplacian": partial(diffusion, kind="laplacian"),
    "diffusion/normalized": partial(diffusion, kind="normalized"),
    "diffusion/adjacency": partial(diffusion, kind="adjacency"),
    "diffusion/small_world": partial(diffusion, kind="laplacian", make=small_world),
    "hypercube": hypercube,
    "walks": walks,
    "walk_kernel": walk_kernel,
}
