"""Calls of fused attention beside the definition in float64: results and all gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.zoo import own_tensors, with_tensors
from vit_rpe.attention import (
    AttentionRequest,
    masked_attention,
    masked_linear_attention,
    masked_softmax,
    masked_softmax_attention,
    plan_attention,
)
from vit_rpe.features import FeatureMap
from vit_rpe.masks import BlockDiagonal, Bordered, Mask, Scaled, Sum


@dataclass
class Case:
    """One call: `mask` makes the same mask each time, in float64."""

    mask: Callable[[], Mask]
    lead: tuple[int, ...] = (2, 3)
    m: int = 8
    d: int = 6
    features: FeatureMap | None = None
    floor: float = 0.0
    softmax: bool = False
    dtype: torch.dtype = torch.float32
    change: Callable[[Tensor, Tensor, Tensor], None] = lambda q, k, v: None

    def tensors(self, length: int) -> list[Tensor]:
        torch.manual_seed(1)
        q, k = torch.randn(2, *self.lead, length, self.m)
        v = torch.randn(*self.lead, length, self.d)
        self.change(q, k, v)
        return [x.to(self.dtype) for x in (q, k, v)]


def promised(mask: Mask) -> Mask:
    """The mask, and those that it wraps, with the promise that no entry is negative."""
    for part in _walk(mask):
        part.nonnegative = True
    return mask


def _walk(mask: Mask) -> list[Mask]:
    inner = [mask.inner] if isinstance(mask, Bordered | Scaled) else []
    inner += mask.masks if isinstance(mask, Sum | BlockDiagonal) else []
    return [mask, *(part for x in inner for part in _walk(x))]


def fused(case: Case) -> dict[str, Tensor]:
    """Results and gradients of the fused kernels, which must have been planned."""
    mask, leaves = _mask(case, torch.float32)
    tokens = [x.requires_grad_() for x in case.tensors(mask.length)]
    assert forms(case, tokens, mask) == {"gpu"}
    out = attend(case, tokens, mask)
    return _with_gradients(out, [*tokens, *leaves], case)


def defined(case: Case, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The same by whole matrices, in float64; or in another precision, with its errors."""
    mask, leaves = _mask(case, torch.float64 if dtype == torch.float64 else torch.float32)
    tokens = [x.to(dtype).requires_grad_() for x in case.tensors(mask.length)]
    q, k, v = tokens
    if case.softmax:
        out = (
            masked_softmax(q, k, v, mask) if dtype == torch.float64 else low_softmax(q, k, v, mask)
        )
    else:
        if case.features is not None:
            q, k = (x.to(dtype) for x in case.features(q, k))
        reference = masked_attention if dtype == torch.float64 and not case.floor else low_linear
        out = reference(q, k, v, mask, *([case.floor] if case.floor else []))
    return _with_gradients(out, [*tokens, *leaves], case)


def low_linear(q: Tensor, k: Tensor, v: Tensor, mask: Mask, floor: float = 0.0) -> Tensor:
    """Linear attention as one writes it in torch: products in the precision of q."""
    weights = mask.dense() * (q @ k.mT) + floor
    total = weights.sum(-1, keepdim=True)
    empty = total.abs() <= 1e-7 * weights.abs().sum(-1, keepdim=True)
    return ((weights.to(q.dtype) @ v) / total.masked_fill(empty, torch.inf)).to(q.dtype)


def low_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    logits = (q @ k.mT) * q.shape[-1] ** -0.5 + mask.dense().log()
    return logits.softmax(-1).to(q.dtype) @ v


def attend(case: Case, tokens: list[Tensor], mask: Mask) -> Tensor:
    if case.softmax:
        return masked_softmax_attention(*tokens, mask)
    options: dict[str, Any] = {"features": case.features, "floor": case.floor}
    return masked_linear_attention(*tokens, mask, wide_range=False, **options)


def forms(case: Case, tokens: list[Tensor], mask: Mask) -> set[str]:
    options: dict[str, Any] = {"kernel": "softmax"} if case.softmax else {"floor": case.floor}
    request = AttentionRequest.of(
        *tokens, mask, features=case.features, wide_range=False, **options
    )
    plan = plan_attention(request)
    return {part.form for part in plan.parts or (plan,)}


def errors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Relative errors by the Frobenius norm, of the result, of dq, dk, dv and of the mask.

    All gradients of the mask are taken together, because that of a border may be a small difference
    of large numbers. One that is 0 by definition, as for one token, is measured by that of v.
    """
    own, right = _together(found), _together(expected)
    of_values = right["dv"].norm()
    result = {}
    for name, x in right.items():
        assert own[name].isfinite().all(), name
        size = x.norm() if x.norm() > 1e-9 * of_values else of_values
        result[name] = float((own[name].double() - x).norm() / size)
    return result


def _together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    whole = {name: x for name, x in tensors.items() if not name.startswith("mask")}
    parts = [x.flatten() for name, x in tensors.items() if name.startswith("mask")]
    return {**whole, "mask": torch.cat(parts)} if parts else whole


def _mask(case: Case, dtype: torch.dtype) -> tuple[Mask, list[Tensor]]:
    torch.manual_seed(0)
    mask = case.mask()
    if case.softmax:
        promised(mask)
    leaves = [x.detach().float().to(dtype).requires_grad_() for x in own_tensors(mask)]
    return with_tensors(mask, tuple(leaves)), leaves


def _with_gradients(out: Tensor, leaves: list[Tensor], case: Case) -> dict[str, Tensor]:
    torch.manual_seed(2)
    grad = torch.randn(out.shape).to(case.dtype)
    found = torch.autograd.grad(out, leaves, grad.to(out.dtype), materialize_grads=True)
    names = ["out", "dq", "dk", "dv", *(f"mask {i}" for i in range(len(leaves) - 3))]
    return dict(zip(names, (out.detach(), *found), strict=True))
