"""Which tokens there are, told to a layer by whoever knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Grid = tuple[int, ...]


class StreamState(Protocol):
    """The state of one attention layer in a clip that comes slice by slice."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the newest tokens, (B, H, tokens, channels), to all tokens so far."""
        ...


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a forward pass, where they are not those of the model's own grid.

    It is a value that travels with them, as timm's `attn_mask`, down to every
    attention layer, which makes its mask from it. No module changes in a forward pass: one model
    can serve several threads, and gradient checkpointing finds the same tokens again.

    Attributes:
        grids: those of the samples in the sequence, one after the other, each behind its prefix
            tokens; several are a pack, and none sees another. None: the model's own grid.
        keep: boolean, (B, L) or (B, 1, 1, L), the keys that can be seen; None: all.
        stream: what attends instead of the layer, to tokens of earlier calls.
    """

    grids: tuple[Grid, ...] | None = None
    keep: Tensor | None = None
    stream: StreamState | None = None

    @staticmethod
    def of(attn_mask: Tensor | TokenLayout | None) -> TokenLayout:
        """The layout that an attention layer is given; a tensor says which keys are kept."""
        return attn_mask if isinstance(attn_mask, TokenLayout) else TokenLayout(keep=attn_mask)
