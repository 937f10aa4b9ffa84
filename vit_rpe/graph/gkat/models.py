"""GKAT for the classification of nodes and of graphs (paper, Sec. 5). Needs torch-geometric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import JumpingKnowledge, global_add_pool, global_mean_pool
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from vit_rpe.masks import Mask

from .conv import GKATConv

READOUTS = ("mean", "mf", "dm")


class GKAT(nn.Module):
    """Layers of GKATConv in the manner of PyG's `BasicGNN`; one mask serves all of them.

    Between layers, and after the last one only with `jk`: norm, activation, dropout.

    Args:
        in_channels: -1: those of the first x.
        hidden_channels: width of each layer, heads together, as in PyG's `GAT`; one number, or one
            for each layer.
        num_layers: number of layers.
        out_channels: width of the last layer, whose heads are averaged; or, with `jk`, of a linear
            layer after all.
        dropout, act, act_first, norm, norm_kwargs, jk: as in PyG's models.
        heads: of each layer; one number, or one for each.
        conv: other arguments of GKATConv.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Callable | None = "elu",
        act_first: bool = False,
        norm: str | Callable | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: str | None = None,
        *,
        heads: int | Sequence[int] = 1,
        **conv: Any,
    ):
        super().__init__()
        if jk not in (None, "last", "cat", "max", "lstm"):
            raise ValueError(f"jk must be None, 'last', 'cat', 'max' or 'lstm', got {jk!r}")
        heads = _per_layer(heads, num_layers, "heads")
        widths = _per_layer(hidden_channels, num_layers, "hidden_channels")
        to_out = out_channels is not None and jk is None
        if out_channels is not None and to_out:
            widths[-1] = out_channels
        self.in_channels, self.num_layers = in_channels, num_layers
        self.act, self.act_first, self.dropout = activation_resolver(act), act_first, dropout
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, (width, h) in enumerate(zip(widths, heads, strict=True)):
            concat = not (to_out and i == num_layers - 1)
            if concat and width % h:
                raise ValueError(f"layer {i} of {width} channels cannot be cut into {h} heads")
            before = widths[i - 1] if i else in_channels
            self.convs.append(GKATConv(before, width // h if concat else width, h, concat, **conv))
            norm_layer = None
            if i < num_layers - 1 or jk is not None:
                norm_layer = normalization_resolver(norm, width, **(norm_kwargs or {}))
            self.norms.append(norm_layer or nn.Identity())
        self.jk, self.lin = None, None
        if jk is not None:
            if jk != "last":
                if len(set(widths)) > 1 and jk != "cat":
                    raise ValueError(f"jk={jk!r} needs layers of one width, got {widths}")
                self.jk = JumpingKnowledge(jk, widths[0], num_layers)
            joined = sum(widths) if jk == "cat" else widths[-1]
            self.lin = nn.Linear(joined, out_channels or widths[-1])
        self.jk_mode = jk
        self.out_channels: int = out_channels or widths[-1]

    def reset_parameters(self) -> None:
        _reset(self)

    def mask_of(self, x: Tensor, *graph: Any, **options: Any) -> Mask | None:
        """Make the mask by the first layer's maker; None for no nodes."""
        first = self.convs[0]
        assert isinstance(first, GKATConv)
        return first.mask_of(x, *graph, **options) if len(x) else None

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Map (L, in_channels) to (L, out_channels)."""
        mask = self.mask_of(x, edge_index, edge_weight, batch=batch, mask=mask)
        outputs = []
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = conv(x, batch=batch, mask=mask)
            if i < self.num_layers - 1 or self.jk_mode is not None:
                x = self._between(x, norm, batch, batch_size)
                outputs.append(x)
        if self.jk is not None:
            x = self.jk(outputs)
        return x if self.lin is None else self.lin(x)

    def _between(
        self, x: Tensor, norm: nn.Module, batch: Tensor | None, batch_size: int | None
    ) -> Tensor:
        if self.act is not None and self.act_first:
            x = self.act(x)
        x = apply_norm(norm, x, batch, batch_size)
        if self.act is not None and not self.act_first:
            x = self.act(x)
        return F.dropout(x, self.dropout, self.training)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.in_channels}, {self.out_channels}, num_layers={self.num_layers})"


def apply_norm(
    norm: nn.Module, x: Tensor, batch: Tensor | None, batch_size: int | None = None
) -> Tensor:
    """Normalize; norms of PyG that work graph by graph are told which node is in which."""
    if "batch" in signature(norm.forward).parameters:
        return norm(x, batch, batch_size)
    return norm(x)


def _per_layer(value: int | Sequence[int], num_layers: int, name: str) -> list[int]:
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    values = [value] * num_layers if isinstance(value, int) else list(value)
    if len(values) != num_layers or min(values) < 1:
        raise ValueError(f"{num_layers} layers need as many {name}, from 1 on, got {values}")
    return values


def _reset(module: nn.Module) -> None:
    """Reset the parameters of the outermost modules inside that know how."""
    for child in module.children():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()  # pyright: ignore[reportCallIssue]
        else:
            _reset(child)


class GKATNodeClassifier(nn.Module):
    """Two layers as in GAT: heads side by side, then one head (or the mean of some) per class."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_classes: int,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        **conv: Any,
    ):
        super().__init__()
        self.body = GKAT(
            in_channels, heads * hidden_channels, 2, num_classes, dropout,
            heads=(heads, out_heads), **conv,
        )  # fmt: skip

    def reset_parameters(self) -> None:
        self.body.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Compute logits (L, num_classes)."""
        x = F.dropout(x, self.body.dropout, self.training)
        return self.body(x, edge_index, edge_weight, batch=batch, mask=mask)


class GKATGraphClassifier(nn.Module):
    """GKAT layers, then a readout of all nodes of a graph.

    | `readout` | |
    |---|---|
    | `mean` | mean of the nodes, linear: the paper's motif model |
    | `mf` | sum of the nodes, MLP of one hidden layer: molecular fingerprints |
    | `dm` | MLP of each node, sum, MLP: DeepMultisets |

    Args:
        in_channels: those of a node; -1 is not possible with `normalize`.
        hidden_channels: channels of a head, one number or one for each layer.
        num_classes: width of the result.
        heads: of each layer.
        readout: see the table.
        dropout: of features, before every layer and inside the last MLP.
        normalize: batch norm of the nodes' own features, before all (the paper's "Norm").
        pre_channels: width of a linear layer with activation before the first GKAT layer ("add
            FC"); None: there is none.
        post_channels: width of the MLPs of `mf` and `dm` ("d FC"); by default that of the nodes.
        norm, jk: between the layers, as in `GKAT`.
        conv: other arguments of GKATConv.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        num_classes: int,
        heads: Sequence[int] = (2, 2),
        readout: str = "mean",
        dropout: float = 0.0,
        *,
        normalize: bool = False,
        pre_channels: int | None = None,
        post_channels: int | None = None,
        norm: str | Callable | None = None,
        jk: str | None = None,
        **conv: Any,
    ):
        super().__init__()
        if readout not in READOUTS:
            raise ValueError(f"readout must be one of {', '.join(READOUTS)}, got {readout!r}")
        layers = len(heads)
        channels = _per_layer(hidden_channels, layers, "hidden_channels")
        widths = [h * c for h, c in zip(heads, channels, strict=True)]
        self.first = nn.Sequential()
        if normalize:
            self.first.append(nn.BatchNorm1d(in_channels))
        if pre_channels is not None:
            wide = nn.LazyLinear if in_channels == -1 else lambda n: nn.Linear(in_channels, n)
            self.first.extend([wide(pre_channels), nn.ReLU()])
            in_channels = pre_channels
        self.body = GKAT(
            in_channels, widths, layers, dropout=dropout, norm=norm, jk=jk, heads=heads, **conv
        )
        width = self.body.out_channels
        inner = post_channels or width
        self.before: nn.Module = nn.Identity()
        self.after: nn.Module = nn.Linear(width, num_classes)
        self.pool = global_mean_pool if readout == "mean" else global_add_pool
        if readout == "dm":
            self.before = nn.Sequential(nn.Linear(width, inner), nn.ReLU())
            width = inner
        if readout != "mean":
            self.after = nn.Sequential(
                nn.Linear(width, inner),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(inner, num_classes),
            )

    def reset_parameters(self) -> None:
        _reset(self)

    def forward(
        self,
        x: Tensor,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        mask: Mask | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Compute logits (graphs, num_classes); `batch` (L,) says which graph a node is in.

        `batch_size` is needed where the last graphs may have no nodes.
        """
        x = F.dropout(self.first(x), self.body.dropout, self.training)
        nodes = self.body(x, edge_index, edge_weight, batch=batch, batch_size=batch_size, mask=mask)
        if self.body.lin is None:
            nodes = F.elu(nodes)
        if batch is None:
            batch = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            batch_size = 1
        return self.after(self.pool(self.before(nodes), batch, batch_size))
