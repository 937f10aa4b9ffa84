"""Sums over a weighted tree that decay exponentially with distance, by heavy paths. O(L).

Nodes are laid out path by path, paths of one level together. A node with several light children is
repeated at distance 0, one slot for each, so that a slot has at most one path hanging from it:
what comes from the rest of the tree is then a sum without any subtraction, and exact to round-off
for decaying and growing exponentials alike. There are fewer than 2 L slots.

Shapes: P slots, Q paths, C columns; the rate is (...) and columns are (..., P, C).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_rpe.masks.helpers import SparseMatrix

from .forest import Forest

# Slots are multiplied in blocks of this length; what lies between blocks is the same problem on a
# list that is 16 times shorter.
_BLOCK = 16


class HeavyPaths:
    """The slots of a forest: which node, which path, and where each path hangs."""

    def __init__(self, forest: Forest):
        n, device = forest.num_nodes, forest.parent.device
        order = torch.argsort(forest.level * n + forest.pre)
        light = (forest.head == torch.arange(n, device=device)) & (forest.parent >= 0)
        child = light.nonzero().squeeze(-1)
        child = child[torch.argsort(forest.parent[child], stable=True)]
        hangs_from = forest.parent[child]
        count = torch.bincount(hangs_from, minlength=n)
        copies = count.clamp(min=1)
        slot = torch.empty_like(order)
        slot[order] = copies[order].cumsum(0) - copies[order]
        rank = torch.arange(len(child), device=device) - (count.cumsum(0) - count)[hangs_from]

        self.node_slot = slot  # (L,): the first slot of a node
        self.slot_node = order.repeat_interleave(copies[order])  # (P,)
        self.repeated = torch.ones_like(self.slot_node, dtype=torch.bool)
        self.repeated[slot] = False
        begins = (forest.head == torch.arange(n, device=device))[self.slot_node] & ~self.repeated
        self.path = begins.cumsum(0) - 1  # (P,)
        self.first = begins.nonzero().squeeze(-1)  # (Q,): the slot where a path begins
        self.top = self.slot_node[self.first]  # (Q,): its node
        self.attach = torch.full_like(self.first, -1)  # (Q,): the slot it hangs from
        self.attach[self.path[slot[child]]] = slot[hangs_from] + rank
        path_level = forest.level[self.top]
        self.levels: list[_Level] = []
        for k in range(int(path_level.max()) + 1):
            upper = self.levels[-1] if self.levels else None
            self.levels.append(_Level(self, path_level == k, upper))
        seen_once = torch.where(self.repeated, -1, self.slot_node)
        self.slots_of_nodes = SparseMatrix.selection(seen_once, n)

    def along(self, lengths: Tensor) -> Tensor:
        """Compute the distance of each slot from the head of its path, (P,), for lengths (L,)."""
        step = lengths[self.slot_node].masked_fill(self.repeated, 0.0)
        total = step.cumsum(0)
        return total - total[self.first][self.path]

    def from_root(self, lengths: Tensor) -> Tensor:
        """Compute the distance of each node from its root, (L,)."""
        along = self.along(lengths)
        parts: list[Tensor] = []
        for level in self.levels:
            top = lengths[level.top]
            if level.attach is not None:
                top = top + parts[-1][level.attach]
            parts.append(along[level.slots] + top[level.path])
        return torch.cat(parts)[self.node_slot]

    def sums(self, x: Tensor, rate: Tensor, lengths: Tensor) -> Tensor:
        """Compute w_i = sum_j exp(rate * dist(i, j)) x_j over the tree of i, for x (..., L, C).

        Up, level by level: each path sends its sum to the slot that it hangs from. Along the
        paths, all at once. Down: each path hears what all the rest sends to its head.
        """
        along = self.along(lengths)
        fade = _exp(rate, along)  # (..., P): from a slot to the head of its path
        step = _exp(rate, lengths[self.top])[..., None]  # from a head to where it hangs
        own = self.slots_of_nodes @ x
        z = self._gather_up(own, fade, step)
        others = two_sided(z, rate, along, self.path)
        outside = self._send_down(own + others, fade, step)
        return self.slots_of_nodes.mT @ (z + others + outside)

    def _gather_up(self, own: Tensor, fade: Tensor, step: Tensor) -> Tensor:
        """Add up at each slot its x and what the path that hangs from it sends."""
        parts: list[Tensor] = []
        sent = own.new_zeros(0)
        for level in reversed(self.levels):
            z = own[..., level.slots, :]
            if level.below is not None:
                z = z + level.below.mT @ sent
            sums = level.members.mT.product(fade[..., level.slots], z)
            sent = step[..., level.paths, :] * sums
            parts.append(z)
        return torch.cat(parts[::-1], -2)

    def _send_down(self, around: Tensor, fade: Tensor, step: Tensor) -> Tensor:
        """Pass to each slot what comes from outside of its path.

        `around` is what a slot has without the path that hangs from it.
        """
        heard = torch.zeros_like(around[..., self.levels[0].slots, :])
        parts = [heard]
        for upper, level in pairwise(self.levels):
            assert upper.below is not None
            here = around[..., upper.slots, :] + heard
            head = step[..., level.paths, :] * (upper.below @ here)
            heard = level.members.product(fade[..., level.slots], head)
            parts.append(heard)
        return torch.cat(parts, -2)


class _Level:
    """The paths of one level, a range of slots, and where they hang in the level above."""

    def __init__(self, all_paths: HeavyPaths, chosen: Tensor, upper: _Level | None):
        self.paths = _range(chosen)
        self.slots = _range(chosen[all_paths.path])
        self.top = all_paths.top[self.paths]
        self.path = all_paths.path[self.slots] - self.paths.start
        # its entries, and those of its transpose, are in the order of the slots
        self.members = SparseMatrix.selection(self.path, len(self.top))
        self.below: SparseMatrix | None = None  # from the slots to the paths that hang from them
        self.attach: Tensor | None = None
        if upper is not None:
            attach = all_paths.attach[self.paths] - upper.slots.start
            upper.below = SparseMatrix.selection(attach, len(upper.path))
            self.attach = attach


def _range(chosen: Tensor) -> slice:
    slots = chosen.nonzero()
    return slice(int(slots[0]), int(slots[-1]) + 1)


# --- along the paths ---------------------------------------------------------------------------


def two_sided(z: Tensor, rate: Tensor, along: Tensor, path: Tensor) -> Tensor:
    """Sum at each slot what the others of its path send, on either side: (..., P, C)."""
    blocks, along, path = _blocks(z, along, path)
    slot = torch.arange(path.shape[1], device=path.device)
    side = (slot[:, None] - slot).sign()  # of the later of two slots: lengths may be negative
    gap = side * (along[:, :, None] - along[:, None, :])
    same = (path[:, :, None] == path[:, None, :]) & (side != 0)
    result = _kernel(rate, gap, same) @ blocks
    if len(path) > 1:
        result = result + _from_other_blocks(blocks, rate, along, path)
    return result.flatten(-3, -2)[..., : z.shape[-2], :]


def _from_other_blocks(blocks: Tensor, rate: Tensor, along: Tensor, path: Tensor) -> Tensor:
    """Sum at each slot what the blocks before and after its own send, (..., blocks, b, C)."""
    edges, crossing = along[:, [-1, 0]], path[:, [-1, 0]]  # the last slot, and the first
    side = torch.tensor([1, -1], device=path.device)  # the last comes after all, the first before
    gap = side[:, None] * (edges[:, :, None] - along[:, None, :])
    sent = _kernel(rate, gap, path[:, None, :] == crossing[:, :, None]) @ blocks
    forward = _up_to(sent[..., 0, :], rate, edges[:, 0], crossing[:, 0])
    back = _up_to(sent[..., 1, :].flip(-2), rate, -edges[:, 1].flip(0), crossing[:, 1].flip(0))
    states = torch.stack([_shifted(forward, 1), _shifted(back.flip(-2), -1)], -2)
    edges = torch.stack([edges[:, 0].roll(1), edges[:, 1].roll(-1)], -1)
    # nothing comes before the first block or after the last one: no path is -2
    before = F.pad(crossing[:-1, 0], (1, 0), value=-2)
    after = F.pad(crossing[1:, 1], (0, 1), value=-2)
    crossing = torch.stack([before, after], -1)
    gap = side * (along[:, :, None] - edges[:, None, :])
    return _kernel(rate, gap, path[:, :, None] == crossing[:, None, :]) @ states


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift entries by one block, from before (1) or after (-1), with 0 at the end."""
    return F.pad(x, (0, 0, 1, -1) if by > 0 else (0, 0, -1, 1))


def _up_to(z: Tensor, rate: Tensor, along: Tensor, path: Tensor) -> Tensor:
    """Sum at each slot what itself and those before it on its path send: (..., P, C)."""
    blocks, along, path = _blocks(z, along, path)
    gap = along[:, :, None] - along[:, None, :]
    same = (path[:, :, None] == path[:, None, :]).tril()
    result = _kernel(rate, gap, same) @ blocks
    if len(path) > 1:
        result = result + _from_before(blocks, rate, along, path)
    return result.flatten(-3, -2)[..., : z.shape[-2], :]


def _from_before(blocks: Tensor, rate: Tensor, along: Tensor, path: Tensor) -> Tensor:
    """Sum at each slot what the blocks before its own send, (..., blocks, b, C).

    Only the path that crosses the end of a block sends on: its sum there, decayed from end to end,
    is the same problem on the list of the ends.
    """
    end, crossing = along[:, -1:], path[:, -1:]
    sending = _kernel(rate, (end - along)[:, None], (path == crossing)[:, None])
    state = _up_to((sending @ blocks).squeeze(-2), rate, end[:, 0], crossing[:, 0])
    arriving = _kernel(
        rate, (along[1:] - end[:-1])[:, :, None], (path[1:] == crossing[:-1])[:, :, None]
    )
    return F.pad(arriving * state[..., :-1, None, :], (0, 0, 0, 0, 1, 0))


def _blocks(z: Tensor, along: Tensor, path: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cut into blocks, (..., blocks, b, C) and (blocks, b); padding of the last is on no path."""
    pad = -len(path) % _BLOCK if len(path) > _BLOCK else 0
    size = min(len(path), _BLOCK)
    return (
        F.pad(z, (0, 0, 0, pad)).unflatten(-2, (-1, size)),
        F.pad(along, (0, pad)).unflatten(0, (-1, size)),
        F.pad(path, (0, pad), value=-1).unflatten(0, (-1, size)),
    )


def _kernel(rate: Tensor, gap: Tensor, same: Tensor) -> Tensor:
    """Evaluate exp(rate * gap) on one path, 0 between paths, for gaps between two slots."""
    exponent = rate[(..., *[None] * gap.ndim)] * gap.to(rate.dtype)
    return exponent.masked_fill(~same, -torch.inf).exp()


def _exp(rate: Tensor, distance: Tensor) -> Tensor:
    return (rate[..., None] * distance.to(rate.dtype)).exp()
