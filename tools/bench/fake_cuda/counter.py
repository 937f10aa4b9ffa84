"""Launches, bytes and operations of a program on fake CUDA tensors, operator by operator.

    with cuda_fakes(), Counter() as counter:
        loss = model(images).mean()
        counter.phase = "backward"
        loss.backward()
    print(summed(counter.launches), counter.waits)

An operator that reads no memory (a view) is no launch. All others count as one kernel that reads
its inputs and writes its outputs once, which is what PyTorch's own do, nearly. Kernels of our own
are counted as their formula says: `register_formula`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Self

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

# Neither views nor allocations launch anything; their names differ by what they are called with.
_FREE = set(
    """alias as_strided detach device diagonal empty empty_like empty_strided expand is_pinned
    is_same_size lift_fresh lift_fresh_copy narrow new_empty new_empty_strided permute
    promote_types _reshape_alias reshape select slice split split_with_sizes squeeze sym_numel
    sym_size sym_storage_offset sym_stride t transpose unbind unfold _unsafe_view unsqueeze view
    view_as_complex view_as_real""".split()
)
# These write and do not read, whatever they are called with.
_WRITES = set(
    """arange bernoulli_ fill_ full full_like new_full new_ones new_zeros normal_ ones ones_like
    rand randn scalar_tensor uniform_ zero_ zeros zeros_like""".split()
)
_READS_VALUES = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero"}
# Torch's fused attention works on whole tiles of this many queries and keys.
_FLASH_TILE = 64


@dataclass(frozen=True)
class Launch:
    """One operator: kernels that it starts, bytes that they move, operations at a rate's peak."""

    phase: str
    name: str
    rate: str
    bytes: int
    flops: int = 0
    kernels: int = 1
    shape: tuple[int, ...] = ()


Formula = Callable[..., dict[str, Any]]
_FORMULAS: dict[str, Formula] = {}


def register_formula(operator: str, formula: Formula) -> None:
    """Say what an operator of our own costs: `register_formula("vit_rpe::attend", formula)`.

    `formula(*args, out=..., **kwargs)` gets what the operator gets and its result, and returns
    fields of `Launch`: `flops`, `rate` (one of `Gpu.rates`), `kernels`, `bytes`. What it leaves out
    is counted as for any other operator.
    """
    _FORMULAS[operator] = formula


class Counter(TorchDispatchMode):
    """Counts what would be launched; a mode, to be entered inside `cuda_fakes`.

    Attributes:
        launches: all of them, in their order.
        waits: where the program would wait for the device: (phase, operator).
        phase: the name under which launches are counted from now on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.waits: list[tuple[str, str]] = []
        self.phase = "forward"
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def kept_bytes(self) -> int:
        """Bytes on the device that were made since the counter began, and are still in use."""
        return sum(size for storage, size in self._made.values() if not storage.expired())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, inputs = func._schema.name, _tensors((args, kwargs))
        devices = {x.device.type for x in inputs}
        if "cuda" in devices and name.split("::")[1] in _READS_VALUES:
            self.waits.append((self.phase, name))  # now: a fake tensor has no value to return
        out = func(*args, **kwargs)
        outputs = _tensors(out)
        self._keep(outputs)
        devices |= {x.device.type for x in outputs}
        if {"cpu", "cuda"} <= devices and name in ("aten::_to_copy", "aten::copy_"):
            self.waits.append((self.phase, name))
        if "cuda" in devices and name.split("::")[1] not in _FREE:
            launch = self._launch(func, name, args, kwargs, out, inputs, outputs)
            if launch is not None:
                self.launches.append(launch)
        return out

    def _launch(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        inputs: list[Tensor],
        outputs: list[Tensor],
    ) -> Launch | None:
        short = name.split("::")[1]
        read, written = sum(map(_bytes, inputs)), sum(map(_bytes, outputs))
        if short == "_to_copy" and _is_same(inputs[0], outputs[0]):
            return None
        if short in _WRITES:
            read = 0
        elif short == "copy_":
            read -= _bytes(inputs[0])
        read -= sum(map(_bytes, _tensors(kwargs.get("out"))))
        rate = _rate(inputs)
        flops = _flops(func, args, kwargs, out)
        if "flash" in short or "efficient" in short or "cudnn_attention" in short:
            rate = "flash_backward" if "backward" in short else "flash"
            flops = int(flops * _padding(inputs))
        fields: dict[str, Any] = {"rate": rate, "bytes": read + written, "flops": flops}
        if name in _FORMULAS:
            fields |= _FORMULAS[name](*args, out=out, **kwargs)
        shape = tuple(outputs[0].shape) if outputs else ()
        return Launch(self.phase, name, shape=shape, **fields)

    def _keep(self, outputs: list[Tensor]) -> None:
        for x in outputs:
            storage = x.untyped_storage()
            if x.device.type == "cuda" and storage._cdata not in self._made:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()


def summed(launches: Iterable[Launch]) -> dict[str, int]:
    """The sums of launches: kernels, bytes, operations."""
    rows = list(launches)
    return {
        "launches": sum(row.kernels for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "flops": sum(row.flops for row in rows),
    }


def operators(launches: Iterable[Launch]) -> dict[str, dict[str, int]]:
    """The sums of each operator, the one that moves most bytes first."""
    groups: dict[str, list[Launch]] = defaultdict(list)
    for row in launches:
        groups[row.name.removeprefix("aten::")].append(row)
    sums = {name: summed(rows) for name, rows in groups.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]["bytes"]))


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _bytes(x: Tensor) -> int:
    """Bytes of memory that a tensor covers: expanded dims are there once."""
    entries = prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step != 0)
    return 0 if x.device.type != "cuda" else entries * x.element_size()


def _is_same(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and x.device == y.device and x.stride() == y.stride()


def _rate(inputs: list[Tensor]) -> str:
    if not inputs:
        return "float32"
    name = str(inputs[0].dtype).removeprefix("torch.")
    return "tf32" if name == "float32" and torch.backends.cuda.matmul.allow_tf32 else name


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    formula = flop_registry.get(func._overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def _padding(inputs: list[Tensor]) -> float:
    """Operations on whole tiles over those of the tokens that are there."""
    queries, keys = (inputs[i].shape[-2] for i in (0, 1))
    return prod(ceil(n / _FLASH_TILE) * _FLASH_TILE / n for n in (queries, keys))
