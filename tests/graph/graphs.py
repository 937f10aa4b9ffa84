"""Graphs for tests, and one example of every graph mask: weighted, disconnected, shuffled.

Each mask of `GRAPH_ZOO` is made for `HEADS` heads in float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.zoo import HEADS, rand, randn
from vit_rpe.graph import (
    Diffusion,
    Hypercube,
    SeriesKernel,
    TreeExponential,
    TreeFunction,
    WalkKernel,
    Walks,
    both_directions,
    expected_walk_kernel,
    grid_edges,
    random_walks,
    shortest_path_mask,
)
from vit_rpe.masks import Mask

EMPTY = torch.empty(2, 0, dtype=torch.int64)


def random_tree(n: int, kind: str = "recursive") -> Tensor:
    """The edges of a random tree of n nodes, in both directions and in random order."""
    later = torch.arange(1, n)
    parent = {
        "recursive": (torch.rand(n - 1) * later).long(),
        "path": later - 1,
        "star": torch.zeros_like(later),
        "caterpillar": torch.where(later % 3 == 0, later - 3, later - 1 - (later % 3 == 2).long()),
        "binary": (later - 1) // 2,
    }[kind].clamp(min=0)
    names = torch.randperm(n)
    edges = both_directions(torch.stack([names[parent], names[later]]))
    return edges[:, torch.randperm(edges.shape[1])]


TREES = ("recursive", "path", "star", "caterpillar", "binary")


def random_forest(*sizes: int) -> Tensor:
    """Trees of these sizes, their nodes mixed; the nodes beyond the edges' own are isolated."""
    parts, offset = [EMPTY], 0
    for i, size in enumerate(sizes):
        parts.append(random_tree(size, TREES[i % len(TREES)]) + offset)
        offset += size
    return torch.randperm(offset)[torch.cat(parts, 1)]


def random_graph(n: int, edges: int, loops: bool = False) -> Tensor:
    """Random pairs in both directions; parallel edges may occur, self-loops if wanted."""
    i, j = torch.randint(n, (2, edges))
    keep = (i != j) | loops
    # a loop is its own counterpart
    once = torch.stack([i, j])[:, keep]
    return torch.cat([once, once[:, once[0] != once[1]].flip(0)], 1)


def rings(*sizes: int) -> Tensor:
    """Rings one after the other, as PyG joins graphs."""
    begin = [sum(sizes[:i]) for i in range(len(sizes))]
    once = [torch.stack([torch.arange(n), torch.arange(1, n + 1) % n]) + b
            for n, b in zip(sizes, begin, strict=True)]  # fmt: skip
    return both_directions(torch.cat(once, 1))


def symmetric_weights(edge_index: Tensor) -> Tensor:
    """Random weights that are the same in both directions, parallel edges included."""
    low, high = edge_index.min(0).values, edge_index.max(0).values
    return rand(int(edge_index.max()) + 1 if edge_index.numel() else 1, 2)[low, 0] * (1 + high % 3)


def signed_weights(edge_index: Tensor) -> Tensor:
    """The same with signs, so that a path may lead back to where it came from."""
    return symmetric_weights(edge_index) * (1 - 2 * (edge_index.sum(0) % 2))


def undirected(*pairs: tuple[int, int]) -> Tensor:
    return both_directions(torch.tensor(pairs).mT)


def draw_walks(edges: Tensor, num_walks: int, num_steps: int | None, n: int, **options) -> Walks:
    return random_walks(edges, num_nodes=n, num_walks=num_walks, num_steps=num_steps, **options)


STAR = both_directions(torch.tensor([[0, 0, 0], [1, 2, 3]]))
# The same in every process, whatever was drawn before this module was imported.
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(2)
    FOREST = random_forest(7, 4, 1, 3)
    GRAPH = random_graph(9, 14)  # of 11 nodes: two have no edge at least


def diffusion(kind: str, weighted: bool = True) -> Diffusion:
    weight = symmetric_weights(GRAPH) if weighted else None
    return Diffusion(GRAPH, weight, num_nodes=11, lam=rand(HEADS), kind=kind, tol=1e-13)


def walks(num_walks: int, **options) -> Walks:
    return draw_walks(GRAPH, num_walks, 3, 11, **options)


def walk_kernel(**options: float) -> WalkKernel:
    weight = symmetric_weights(GRAPH)
    return WalkKernel(walks(5, edge_weight=weight), rand(HEADS), **options)


def series_kernel() -> SeriesKernel:
    first, second = (walks(4, stop=0.2, seed=seed) for seed in (1, 2))
    return SeriesKernel(first, second, randn(HEADS, 4))


# The exponents stay within what float32 holds, also where a test takes fourth powers of values.
GRAPH_ZOO: dict[str, Callable[[], Mask]] = {
    "tree_exponential": lambda: TreeExponential(
        FOREST, symmetric_weights(FOREST), num_nodes=17, a=-rand(HEADS), b=rand(HEADS) - 0.5
    ),
    "tree_exponential_growing": lambda: TreeExponential(
        FOREST, symmetric_weights(FOREST), num_nodes=17, a=rand(HEADS) / 4, b=rand(HEADS) - 0.5
    ),
    "tree_exponential_signed": lambda: TreeExponential(
        FOREST, signed_weights(FOREST), num_nodes=17, a=-rand(HEADS) / 4, b=rand(HEADS) - 0.5
    ),
    "tree_exponential_one_head": lambda: TreeExponential(FOREST, num_nodes=15, a=-0.3, b=0.1),
    "tree_function_centroid": lambda: TreeFunction(
        FOREST, randn(HEADS, 9), num_nodes=17, algorithm="centroid"
    ),
    "tree_function_histogram": lambda: TreeFunction(
        FOREST, randn(HEADS, 9), num_nodes=17, algorithm="histogram"
    ),
    "tree_function_path": lambda: TreeFunction(random_tree(9, "path"), randn(HEADS, 11)),
    "tree_function_one_node": lambda: TreeFunction(EMPTY, randn(HEADS, 2), num_nodes=1),
    "diffusion_laplacian": lambda: diffusion("laplacian"),
    "diffusion_normalized": lambda: diffusion("normalized"),
    "diffusion_adjacency": lambda: diffusion("adjacency", weighted=False),
    "diffusion_no_edges": lambda: Diffusion(EMPTY, num_nodes=4, lam=rand(HEADS), kind="normalized"),
    "hypercube": lambda: Hypercube(4, rand(HEADS)),
    "hypercube_back_in_time": lambda: Hypercube(3, -rand(HEADS)),
    "hypercube_one_node": lambda: Hypercube(0, rand(HEADS)),
    "walk_kernel": lambda: walk_kernel(alpha=1.0),
    "walk_kernel_unnormalized": lambda: walk_kernel(alpha=0.0),
    "walk_kernel_signed": lambda: WalkKernel(walks(5), -rand(HEADS), 0.7),
    "walk_kernel_expected": lambda: expected_walk_kernel(
        GRAPH, num_nodes=11, num_steps=3, lam=rand(HEADS)
    ),
    "series_kernel": series_kernel,
    "shortest_paths": lambda: shortest_path_mask(GRAPH, num_nodes=11, f=randn(HEADS, 11)),
}

__all__ = ["GRAPH_ZOO", "grid_edges", "random_forest", "random_graph", "random_tree"]
