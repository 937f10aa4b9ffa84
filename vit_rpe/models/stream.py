"""A causal video model on frames as they come.

Shapes: B samples, p prefix tokens, P patches of a tubelet, C channels.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit_rpe.attention.streaming import Scratch
from vit_rpe.rpe import TokenLayout

if TYPE_CHECKING:
    from .masked_video import MaskedVideo


class VideoStream:
    """The logits of a clip so far, tubelet by tubelet; no earlier frame is computed again.

        stream = model.eval().stream()
        for frames in clip.split(model.patch_embed.tubelet_size, 2):
            logits = stream(frames)

    After n tubelets the logits are those of the model on a clip of n tubelets. Linear attention
    with exponential masks, or without weights, needs a state of constant size; tables and softmax
    attention keep all keys and values.

    A stream is made of the model's present weights, and of its size: after a change of either make
    another one. It gives no gradients.
    """

    @torch.no_grad()
    def __init__(self, model: MaskedVideo):
        if not model.causal_time:
            raise ValueError(
                "a stream needs a model with causal_time=True: without it earlier frames depend on "
                "later ones"
            )
        _check_mode(model)
        self.model = model
        self._pool = RunningPool(model)
        scratch = Scratch()
        self._states = [attn.stream_state(scratch) for attn in model._attentions()]
        self._grid = model.patch_embed.grid_size
        self._prefix, self._positions = _start(model)
        reasons = [state.why_bounded for state in self._states]
        if self._positions is not None:
            reasons.insert(0, "its absolute positions are learned for a fixed number of frames")
        self._why_bounded = next((reason for reason in reasons if reason is not None), None)
        self._batch: int | None = None
        self._steps = 0

    @property
    def num_frames(self) -> int:
        """Frames seen so far."""
        return self._steps * self.model.patch_embed.tubelet_size

    def __call__(self, frames: Tensor) -> Tensor:
        """The newest tubelet, (B, C, tubelet_size, H, W) -> logits of all frames so far."""
        self.forward_features(frames)
        return self.forward_head()

    @torch.no_grad()
    def forward_features(self, frames: Tensor) -> Tensor:
        """Take the newest tubelet, which then counts as seen -> tokens (B, p + P, C).

        They are the prefix tokens of all frames so far, and this tubelet's patches.
        """
        self._check(frames)
        model: Any = self.model
        x = model.norm_pre(self._placed(model.patch_embed.tubelet(frames)))
        for block, state in zip(model.blocks, self._states, strict=True):
            x = block(x, attn_mask=TokenLayout(stream=state))
        x = model.norm(x)
        self._pool.add(x)
        self._batch = frames.shape[0]
        self._steps += 1
        return x

    @torch.no_grad()
    def forward_head(self, pre_logits: bool = False) -> Tensor:
        """The logits of all frames so far, or what the classifier would read."""
        model: Any = self.model
        if not self._steps:
            raise ValueError("the stream has seen no frames yet")
        x = model.head_drop(model.fc_norm(self._pool.read()))
        return x if pre_logits else model.head(x)

    def reset(self) -> None:
        """Ready for another clip."""
        for state in self._states:
            state.reset()
        self._pool.reset()
        self._batch, self._steps = None, 0

    def _placed(self, patches: Tensor) -> Tensor:
        """The newest patches with their positions, behind the prefix tokens."""
        if self._positions is not None:
            patches = patches + self._positions[:, self._steps]
        return torch.cat([self._prefix.expand(patches.shape[0], -1, -1), patches], 1)

    def _check(self, frames: Tensor) -> None:
        embed = self.model.patch_embed
        _check_mode(self.model)
        if embed.grid_size != self._grid:
            raise ValueError(
                f"the stream was made for a grid of {self._grid}, and the model now has "
                f"{embed.grid_size}; make another stream"
            )
        sides = (embed.proj.in_channels, embed.tubelet_size, *embed.img_size)
        if tuple(frames.shape[1:]) != sides:
            raise ValueError(
                f"a stream takes one tubelet at a time, (B, {', '.join(map(str, sides))}), "
                f"got {tuple(frames.shape)}"
            )
        if self._batch not in (None, frames.shape[0]):
            raise ValueError(
                f"the stream began with {self._batch} clips, got {frames.shape[0]}; reset() starts "
                "again"
            )
        if self._why_bounded is not None and self._steps == self._grid[0]:
            raise ValueError(
                f"the stream has seen all {embed.num_frames} frames and cannot go on: "
                f"{self._why_bounded}"
            )


class RunningPool:
    """timm's pooling of tokens, of which only the newest are there."""

    def __init__(self, model: MaskedVideo):
        if model.global_pool not in ("token", "avg", "max", "avgmax"):
            raise ValueError(
                "a stream can pool by token, avg, max or avgmax, which need no earlier tokens; got "
                f"global_pool={model.global_pool!r}"
            )
        self._kind = model.global_pool
        self._prefix = model.num_prefix_tokens
        self._include_prefix = model.pool_include_prefix
        self.reset()

    def reset(self) -> None:
        self._count = 0
        self._sum: Tensor | None = None
        self._max: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """The newest tokens (B, p + P, C)."""
        self._tokens, patches = x[:, : self._prefix], x[:, self._prefix :]
        self._count += patches.shape[1]
        total, largest = patches.sum(1, dtype=_wide(x)), patches.amax(1)
        self._sum = total if self._sum is None else self._sum + total
        self._max = largest if self._max is None else torch.maximum(self._max, largest)

    def read(self) -> Tensor:
        """(B, C)."""
        if self._kind == "token":
            return self._tokens[:, 0]
        assert self._sum is not None and self._max is not None
        count, total, largest = self._count, self._sum, self._max
        if self._include_prefix and self._prefix:
            count, total = count + self._prefix, total + self._tokens.sum(1, dtype=total.dtype)
            largest = torch.maximum(largest, self._tokens.amax(1))
        mean = (total / count).to(largest.dtype)
        return {"avg": mean, "max": largest, "avgmax": 0.5 * (largest + mean)}[self._kind]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _check_mode(model: MaskedVideo) -> None:
    if model.training:
        raise ValueError("a stream needs a model in eval mode; call model.eval()")


def _start(model: MaskedVideo) -> tuple[Tensor, Tensor | None]:
    """The prefix tokens of the first block, (1, p, C), and positions of patches, (1, T, P, C)."""
    net: Any = model
    embed = net.patch_embed
    tokens = [token for token in (net.cls_token, net.reg_token) if token is not None]
    prefix = torch.cat([*tokens, embed.proj.weight.new_empty(1, 0, net.embed_dim)], 1)
    if net.pos_embed is None:
        return prefix, None
    count = net.pos_embed.shape[1] - prod(embed.grid_size)  # 0 with no_embed_class
    positions = net.pos_embed.detach().clone()
    prefix = prefix + positions[:, :count] if count else prefix
    return prefix, positions[:, count:].unflatten(1, (embed.grid_size[0], -1))
