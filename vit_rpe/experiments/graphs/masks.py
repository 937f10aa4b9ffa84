"""Sets of graphs whose batches come with a mask for GKAT."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor
from torch_geometric.data import Data

from vit_rpe.graph import RWGNK, TreeExponential, walk_mask
from vit_rpe.masks import BlockDiagonal, Dense, Mask

from .data import GraphBatch, GraphSet, pointers, ragged

_FORMED = 64  # matrices at a time, padded to the largest


class Walked:
    """Graphs with the walks of each, drawn once, all graphs in one go."""

    def __init__(self, graphs: GraphSet, walks: RWGNK):
        self.graphs, self.walks = graphs, walks
        every = graphs.batch(torch.arange(len(graphs)))
        visits = walks(every.edge_index, num_nodes=every.num_nodes).visits
        pattern, ptr = visits.pattern, graphs.node_ptr
        self.pair_ptr = pattern.starts.long()[ptr]  # rows are in order: so are graphs
        shift = ptr[:-1].repeat_interleave(self.pair_ptr.diff())
        self.pairs = torch.stack([pattern.row, pattern.column]) - shift
        self.counts = visits.entries.mT.contiguous()

    def __len__(self) -> int:
        return len(self.graphs)

    def batch(self, index: Tensor) -> GraphBatch:
        """Join some graphs, and their walks to one mask."""
        data = self.graphs.batch(index)
        pairs, ptr = ragged(self.pair_ptr, index)
        shift = data.ptr[:-1].repeat_interleave(ptr.diff())
        walked = Data(
            walk_index=self.pairs[:, pairs] + shift, walk_count=self.counts[pairs],
            ptr=data.ptr, num_nodes=data.num_nodes,
        )  # fmt: skip
        data.mask = walk_mask(walked, self.walks.lam, self.walks.alpha)
        return data

    def select(self, index: Tensor) -> Chosen:
        return Chosen(self, index)


class Matrices:
    """Graphs with the matrix of the walks of each, formed once: for the exact kernel."""

    def __init__(self, walked: Walked):
        self.graphs = walked.graphs
        self.matrices: list[Tensor] = []
        for index in torch.arange(len(walked)).split(_FORMED):
            data = walked.batch(index)
            assert data.mask is not None
            sizes = data.ptr.diff().tolist()
            blocks = data.mask.diagonal_blocks(data.ptr[:-1].tolist(), sizes)
            self.matrices += [b[:n, :n].clone() for b, n in zip(blocks, sizes, strict=True)]

    def __len__(self) -> int:
        return len(self.graphs)

    def batch(self, index: Tensor) -> GraphBatch:
        """Join some graphs, and their matrices to one mask."""
        data = self.graphs.batch(index)
        data.mask = Formed([self.matrices[i] for i in index.tolist()])
        return data

    def select(self, index: Tensor) -> Chosen:
        return Chosen(self, index)


class Formed(Mask):
    """Matrices of nonnegative entries on the diagonal, which attention takes all together."""

    nonnegative = True

    def __init__(self, matrices: Sequence[Tensor]):
        self.inner = BlockDiagonal([Dense(each, nonnegative=True) for each in matrices])
        self.length, self.part_sizes = self.inner.length, tuple(self.inner.lengths)
        self._begins = dict(zip(accumulate(self.part_sizes, initial=0), matrices, strict=False))

    def parts(self) -> tuple[Mask, ...]:
        return (self.inner,)

    @property
    def batch_shape(self) -> torch.Size:
        return self.inner.batch_shape

    def matmul(self, x: Tensor) -> Tensor:
        return self.inner.matmul(x)

    def dense(self) -> Tensor:
        return self.inner.dense()

    def rows(self, start: int, stop: int) -> Tensor:
        return self.inner.rows(start, stop)

    def diagonal_blocks(self, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Copy the matrices into blocks, which hold one or several of them."""
        n = max(sizes)
        result = next(iter(self._begins.values())).new_zeros(len(sizes), n, n)
        for block, start, size in zip(result, starts, sizes, strict=True):
            place = 0
            while place < size:
                matrix = self._begins[start + place]
                inside = slice(place, place + len(matrix))
                block[inside, inside] = matrix
                place += len(matrix)
        return result

    def cost(self, columns: int) -> float:
        return self.inner.cost(columns)

    def abs_bound(self) -> Mask:
        return self


class Chosen:
    """Some graphs of a set, which keeps them."""

    def __init__(self, graphs: Walked | Matrices, index: Tensor):
        self.graphs, self.index = graphs, index

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor) -> GraphBatch:
        return self.graphs.batch(self.index[index])


class Spanned:
    """Graphs with a random spanning tree of each, whose mask decays along the tree."""

    def __init__(self, graphs: GraphSet, seed: int):
        self.graphs = graphs
        every = graphs.batch(torch.arange(len(graphs)))
        source, target = every.edge_index[:, every.edge_index[0] < every.edge_index[1]].numpy()
        weight = np.random.default_rng(seed).random(len(source)) + 1
        forest = minimum_spanning_tree(
            csr_matrix((weight, (source, target)), (every.num_nodes,) * 2)
        )
        row, column = (torch.from_numpy(x.astype(np.int64)) for x in forest.nonzero())
        graph = every.batch[row]
        order = graph.argsort(stable=True)
        shift = graphs.node_ptr[graph[order]]
        self.edges = torch.stack([row[order], column[order]]) - shift
        self.ptr = pointers(torch.bincount(graph, minlength=len(graphs)))

    def __len__(self) -> int:
        return len(self.graphs)

    def batch(self, index: Tensor) -> GraphBatch:
        """Join some graphs, and their trees to one forest; a layer knows how fast it decays."""
        data = self.graphs.batch(index)
        chosen, ptr = ragged(self.ptr, index)
        edges = self.edges[:, chosen] + data.ptr[:-1].repeat_interleave(ptr.diff())
        both = torch.cat([edges, edges.flip(0)], 1)
        data.tree = TreeExponential(both, num_nodes=data.num_nodes, nonnegative=True)
        return data
