"""From tensors to kernels: strides, tiles, and the buffers of a backward pass.

T tables, S samples that share one, L tokens, M features, D channels; N entries of a table, and 2 p
+ p p weights of a border. What is written is stored as (S, L, T, C): what a model reads next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from . import backward_kernels, forward_kernels
from .configurations import Configuration, Family, KernelName, block, configuration, family
from .operators import tokens_first
from .places import flat_table, places, token_at

# The programs of the mask's gradient, if there are so many; samples are divided between them.
_PROGRAMS = 1024


@dataclass(frozen=True)
class Options:
    """Everything that a call must know besides its tensors, as the operators take it.

    Attributes:
        kind: "linear" or "softmax".
        grid, prefix: the cells of the table, and prefix tokens before them.
        span: places of keys, if the places of tokens are given.
        features: "none", "relu", "elu" or "square", for q and k; linear only.
        nonnegative: no feature or weight is negative.
        floor: what is added to all weights; linear only.
        scale: of the logits; softmax only.
        budget: bytes for the gradient of masks.
    """

    kind: Literal["linear", "softmax"]
    grid: Sequence[int]
    prefix: int
    span: int = 0
    features: str = "none"
    nonnegative: bool = False
    floor: float = 0.0
    scale: float = 1.0
    budget: int = 64 << 20


@dataclass(frozen=True)
class Inputs:
    """The tensors of a call: tokens (T, S, L, C), table (T, N), border (T, 2 p + p p).

    Tables hold weights. `bias` (T, S, L) is added to the logits of keys; `place_q` and `place_k`
    (S, L) or (1, L) say where tokens stand, by default all cells of the grid in their order.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    border: Tensor
    bias: Tensor | None = None
    place_q: Tensor | None = None
    place_k: Tensor | None = None


class Launcher:
    """The kernels for one call."""

    def __init__(self, inputs: Inputs, options: Options, flat: Tensor | None = None):
        self.inputs, self.options = inputs, options
        self.q, self.k, self.v = (_rows_in_memory(x) for x in (inputs.q, inputs.k, inputs.v))
        self.tables, self.samples, self.length, self.m = self.q.shape
        self.d = self.v.shape[-1]
        self.at = places(tuple(options.grid), options.prefix, self.q.device)
        self.softmax = options.kind == "softmax"
        self.weights = _rows_in_memory(inputs.table)
        self.table = self._flat() if flat is None else flat
        self.bias = None if inputs.bias is None else _rows_in_memory(inputs.bias)
        self.bounded = inputs.place_q is not None
        self.place_q = _index(inputs.place_q, self.at.query)
        self.place_k = _index(inputs.place_k, self.at.key)
        self.family: Family = family(self.q.device)
        dtype = self.q.dtype
        # unnormalized sums and their gradients leave the range of float16
        self.wide = dtype == torch.float16 and not self.softmax

    def _flat(self) -> Tensor:
        """The flat table, for softmax its logarithms: a weight of 0 hides."""
        flat = flat_table(self.weights, self.inputs.border, self.at)
        return flat.log() if self.softmax else flat

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """The result, in the dtype of q; what the backward pass needs of each row; a flat table.

        That is empty if it is the table itself.
        """
        out = tokens_first(self.v)
        statistic = self.v.new_empty(self.v.shape[:-1], dtype=torch.float32)
        kernel: KernelName = self.options.kind
        config = self._config(kernel)
        tensors = {**self._tensors(), "out": out, "statistic": statistic}
        function = forward_kernels.softmax_kernel if self.softmax else forward_kernels.linear_kernel
        self._launch(function, config, self._items(config.bm), tensors)
        own = self.softmax or self.options.prefix > 0
        return out, statistic, self.table if own else self.table.new_empty(0)

    def backward(
        self, grad: Tensor, out: Tensor, statistic: Tensor, of_mask: bool
    ) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v, bias, and, where asked for, of table and border."""
        grad, out = _rows_in_memory(grad), _rows_in_memory(out)
        shift = torch.empty_like(statistic)
        found: dict[str, Any] = {
            "dq": tokens_first(self.q),
            "dk": tokens_first(self.k),
            "dv": tokens_first(self.v),
            "dbias": None if self.bias is None else torch.empty_like(statistic),
        }
        tensors = {**self._tensors(), "out": out, "grad": grad, **found}
        tensors |= {"statistic": statistic, "shift": shift}
        query, key = self._config("query"), self._config("key")
        self._launch(backward_kernels.query_kernel, query, self._items(query.bm), tensors)
        self._launch(backward_kernels.key_kernel, key, self._items(key.bn), tensors)
        masks = self._mask_gradients(tensors) if of_mask else (None, None)
        return *found.values(), *masks

    def _mask_gradients(self, tensors: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Gradients of table and border, some tables, samples and rows at a time."""
        p, budget = self.options.prefix, self.options.budget
        config = self._config("mask")
        pieces = Pieces.of(self.tables, self.samples, self.length, budget, config, self.bounded)
        entries = self.inputs.table.shape[1]
        dtable = self.table.new_empty(self.tables, entries)
        row, column, corner = (
            self.table.new_zeros(self.tables, *shape) for shape in ((p,), (p,), (p, p))
        )
        token = self.at.token
        if self.bounded:
            token = token_at(self.place_k, p, self.options.span)
        for piece in pieces.all():
            dmask = self._mask_gradient(tensors, piece, config)
            self._table_gradient(dmask, dtable, token, piece)
            if p:
                t = slice(piece.table, piece.table + piece.tables)
                of_border(dmask, piece.row, p, row[t], column[t], corner[t])
        dborder = torch.cat([row, column, corner.flatten(1)], 1)
        if self.softmax and p:
            border = self.inputs.border
            dborder = dborder / border.masked_fill(border == 0, torch.inf)
        return dtable, dborder

    def _mask_gradient(
        self, tensors: dict[str, Any], piece: Piece, config: Configuration
    ) -> Tensor:
        dmask = self.table.new_empty(piece.parts, piece.tables, piece.rows, self.length)
        tiles = triton.cdiv(piece.rows, config.bm) * triton.cdiv(self.length, config.bn)
        numbers = {
            "first_table": piece.table,
            "tables": piece.tables,
            "first_sample": piece.sample,
            "last_sample": min(piece.sample + piece.parts * piece.share, self.samples),
            "share": piece.share,
            "first_row": piece.row,
            "rows": piece.rows,
        }
        programs = tiles * piece.tables * piece.parts
        arguments = {**tensors, "dmask": dmask, **numbers}
        self._launch(backward_kernels.mask_kernel, config, programs, arguments)
        return dmask

    def _table_gradient(self, dmask: Tensor, dtable: Tensor, token: Tensor, piece: Piece) -> None:
        config = self._config("table")
        entries = dtable.shape[1]
        arguments = {
            "dmask": dmask,
            "dtable": dtable,
            "table": self.weights,
            "table_t": self.weights.stride(0),
            "SOFTMAX": self.softmax,
            "place_q": self.place_q,
            "token": token,
            "place_s": _sample_stride(self.place_q),
            "token_s": _sample_stride(token),
            "tables": piece.tables,
            "length": self.length,
            "prefix": self.options.prefix,
            "span": token.shape[1],
            "entries": entries,
            "parts": piece.parts,
            "first_table": piece.table,
            "first_sample": piece.sample,
            "first_row": piece.row,
            "rows": piece.rows,
            "FIRST": piece.sample == 0 and piece.row == 0,
            "BI": config.bm,
            "BE": config.bn,
        }
        programs = triton.cdiv(entries, config.bn) * piece.tables
        run(backward_kernels.table_kernel, programs, arguments, config)

    def _tensors(self) -> dict[str, Any]:
        return {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "table": self.table,
            "bias": self.bias,
            "place_q": self.place_q,
            "place_k": self.place_k,
        }

    def _launch(
        self, kernel: Any, config: Configuration, programs: int, tensors: dict[str, Any]
    ) -> None:
        """Start a kernel with those of all arguments that it names."""
        options, arguments = self.options, dict(tensors)
        for name, short in _STRIDES.items():
            if tensors.get(name) is not None:
                strides = zip("tsl", tensors[name].stride(), strict=False)
                arguments |= {f"{short}_{axis}": stride for axis, stride in strides}
        arguments |= {
            "table_t": self.table.stride(0),
            "place_s": _sample_stride(self.place_q),
            "samples": self.samples,
            "length": self.length,
            "entries": self.table.shape[1],
            "origin": self.at.origin,
            "scale": options.scale,
            "floor": options.floor,
            **self._constants(config),
        }
        if self.bias is None:
            arguments |= {"bias_t": 0, "bias_s": 0}
        run(kernel, programs, arguments, config)

    def _constants(self, config: Configuration) -> dict[str, Any]:
        return {
            "M": self.m,
            "D": self.d,
            "MP": block(self.m),
            "DP": block(self.d),
            "BM": config.bm,
            "BN": config.bn,
            "SOFTMAX": self.softmax,
            "FEATURES": self.options.features,
            "NONNEGATIVE": self.options.nonnegative,
            "BIAS": self.bias is not None,
            "FLOOR": self.options.floor != 0.0,
            "BOUNDED": self.bounded,
            "WIDE": self.wide,
        }

    def _config(self, kernel: KernelName) -> Configuration:
        how = self.q.dtype, self.wide, self.family, self.options.features
        return configuration(kernel, self.m, self.d, *how)

    def _items(self, rows: int) -> int:
        return self.tables * self.samples * triton.cdiv(self.length, rows)


_STRIDES = {
    "q": "q", "k": "k", "v": "v", "out": "o", "grad": "g", "dq": "dq", "dk": "dk", "dv": "dv",
    "bias": "bias",
}  # fmt: skip


def run(kernel: Any, programs: int, arguments: dict[str, Any], config: Configuration) -> None:
    """Start a kernel on `programs` programs, with the arguments that it names."""
    own = {name: arguments[name] for name in kernel.arg_names}
    kernel[(programs,)](**own, **config.options())


@dataclass(frozen=True)
class Piece:
    """A part of the masks' gradient: some tables, some samples in parts, some rows."""

    table: int
    tables: int
    sample: int
    parts: int
    share: int
    row: int
    rows: int


@dataclass(frozen=True)
class Pieces:
    """How the gradient of the masks is divided so that a piece stays within the budget."""

    tables: int
    samples: int
    length: int
    tables_each: int
    parts: int
    share: int
    rows: int

    @staticmethod
    def of(
        tables: int, samples: int, length: int, budget: int, config: Configuration, single: bool
    ) -> Pieces:
        """`single`: samples have places of their own, and are not summed before the table is."""
        line = 4 * length
        most = max(1, budget // (line * length))  # masks in a piece
        tiles = triton.cdiv(length, config.bm) * triton.cdiv(length, config.bn)
        rows = length
        if line * length > budget:
            rows = min(length, max(1, budget // (line * config.bm)) * config.bm)
        if single:
            parts, share = min(samples, most), 1
        else:
            parts = min(samples, most, triton.cdiv(_PROGRAMS, tiles * tables))
            share = triton.cdiv(samples, parts)
            parts = triton.cdiv(samples, share)
        each = min(tables, max(1, most // parts))
        return Pieces(tables, samples, length, each, parts, share, rows)

    def all(self) -> list[Piece]:
        pieces = []
        for table in range(0, self.tables, self.tables_each):
            tables = min(self.tables_each, self.tables - table)
            for sample in range(0, self.samples, self.parts * self.share):
                parts = min(self.parts, triton.cdiv(self.samples - sample, self.share))
                for row in range(0, self.length, self.rows):
                    rows = min(self.rows, self.length - row)
                    pieces.append(Piece(table, tables, sample, parts, self.share, row, rows))
        return pieces


def of_border(
    dmask: Tensor, first: int, p: int, row: Tensor, column: Tensor, corner: Tensor
) -> None:
    """Add what some rows of the masks' gradient (parts, T, rows, L) have of a border's."""
    top = max(0, min(p - first, dmask.shape[2]))
    if top:
        own = slice(first, first + top)
        row[:, own] += dmask[:, :, :top, p:].sum((0, -1))
        corner[:, own] += dmask[:, :, :top, :p].sum(0)
    column += dmask[:, :, top:, :p].sum((0, 2))


def _rows_in_memory(x: Tensor) -> Tensor:
    """The tensor, copied unless kernels can read it: their steps from token to token are int32."""
    far = x.dim() > 2 and x.shape[2] * x.stride(2) >= 1 << 31
    return x if x.stride(-1) == 1 and not far else x.contiguous()


def _index(given: Tensor | None, own: Tensor) -> Tensor:
    return own if given is None else given.to(torch.int32).contiguous()


def _sample_stride(x: Tensor) -> int:
    """From one sample's row to the next, if they have rows of their own."""
    return x.shape[1] if len(x) > 1 else 0
