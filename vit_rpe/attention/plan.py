"""How one attention call is computed: decided once, here, and kept as a value.

A *path* is a way through the mathematics: explicit, product or scan. A *form* is an implementation
of a path: plain PyTorch on any device ("torch"), C++ ("cpu"), a fused kernel ("gpu"). A request
says everything that the decision may depend on: shapes, types, devices and switches. Nothing here
reads the values of a tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from vit_rpe.features import FeatureMap
from vit_rpe.masks import Mask
from vit_rpe.precision import autocast_dtype, in_function_transform, tf32_allowed

from .calibrate import device_costs
from .cost import PathCosts, default_budget, default_costs
from .structure import blocks_of, common_dtype, innermost, signature

KernelName = Literal["linear", "softmax"]
PathName = Literal["auto", "explicit", "product", "scan"]
ConcretePath = Literal["explicit", "product", "scan"]
Tracing = Literal["", "compile", "export", "transform"]
PATHS = ("auto", "explicit", "product", "scan")

# No machine's constants differ so much from the defaults that a path this many times cheaper loses.
_FAR_AHEAD = 5.0
# Plans that are kept, by the requests that they are for.
_MOST_PLANS = 4096
_PLANS: dict[Hashable, AttentionPlan] = {}


@dataclass(frozen=True)
class AttentionRequest:
    """One call of masked attention, without the values of its tensors.

    Attributes:
        mask: the mask; only its structure, shapes and promises are looked at.
        batch_shape: the leading dims of the call, batch and heads.
        num_features, num_values: M and D, as the kernel and the result have them.
        dtype: the precision of the sums, float32 or better.
        grad: whether a gradient of any tensor is wanted.
        autocast: the precision that autocast gives to matrix products; None if it is off.
        inputs: the precision of q, k and v; None if it is `dtype`.
        tf32: whether products of float32 may be rounded to TF32, as torch is told.
        tracing: "compile", "export", "transform" (torch.func), or "" for ordinary calls.
        kernel: "linear", for which what follows is as in `masked_linear_attention`; or "softmax",
            which has a scale, a budget and dropout.
        features, path, budget, dropout, floor, wide_range, scale: arguments of the call.
    """

    mask: Mask
    batch_shape: tuple[int, ...]
    num_features: int
    num_values: int
    dtype: torch.dtype
    device: torch.device
    features: FeatureMap | None = None
    path: PathName = "auto"
    budget: int | None = None
    dropout: float = 0.0
    floor: float = 0.0
    wide_range: bool = True
    grad: bool = True
    autocast: torch.dtype | None = None
    inputs: torch.dtype | None = None
    tf32: bool = False
    tracing: Tracing = ""
    kernel: KernelName = "linear"
    scale: float | None = None

    @staticmethod
    def of(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        *,
        wide_range: bool | None = None,
        **options: Any,
    ) -> AttentionRequest:
        """The request of a call; `options` are its other fields."""
        features: FeatureMap | None = options.get("features")
        if wide_range is None:
            wide_range = features is None or features.wide_range
        batch_shape = torch.broadcast_shapes(mask.batch_shape, *(x.shape[:-2] for x in (q, k, v)))
        tensors = (q, k, v, *mask.all_tensors())
        return AttentionRequest(
            mask=mask,
            batch_shape=tuple(batch_shape),
            num_features=k.shape[-1] if features is None else features.num_features(k.shape[-1]),
            num_values=v.shape[-1],
            dtype=common_dtype(q, k, v),
            device=q.device,
            wide_range=wide_range,
            grad=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
            autocast=autocast_dtype(q.device.type),
            inputs=reduce(torch.promote_types, (x.dtype for x in (q, k, v))),
            tf32=tf32_allowed(q.device.type),
            tracing=_tracing(),
            **options,
        )

    @property
    def leaf(self) -> Mask:
        """The mask inside weights of tokens and prefix tokens: the one that needs a path."""
        return innermost(self.mask)

    @property
    def nonnegative(self) -> bool:
        """Whether no weight can be negative: the absolute sum of a row is then its sum."""
        return self.mask.nonnegative and self.features is not None and self.features.nonnegative

    @property
    def operands(self) -> torch.dtype:
        """The precision of the numbers that a matrix unit multiplies; their sums are `dtype`."""
        if self.autocast is not None and self.dtype != torch.float64:
            return self.autocast
        return self.dtype if self.inputs is None else self.inputs

    @property
    def num_heads(self) -> int:
        """Heads of all samples. A batch that a trace leaves open is counted as one sample."""
        open_batch = self.tracing in ("compile", "export") and len(self.batch_shape) > 1
        return prod(self.batch_shape[1:] if open_batch else self.batch_shape)

    @property
    def resolved_scale(self) -> float:
        """The factor of softmax's logits."""
        return self.num_features**-0.5 if self.scale is None else self.scale

    def resolved_budget(self, path: ConcretePath) -> int:
        """The bytes that the call may use on a path."""
        if self.budget is not None:
            return self.budget
        tracing = self.tracing != ""
        return default_budget(path, self.device.type, self.mask.length, self.dtype, tracing)

    def key(self) -> Hashable | None:
        """All that a plan depends on; None where that is more than shapes and switches."""
        mask = signature(self.mask)
        if mask is None:
            return None
        switches = (self.path, self.budget, self.dropout > 0, self.floor != 0, self.wide_range)
        sizes = (self.batch_shape, self.num_features, self.num_values)
        kinds = (self.dtype, self.device, self.autocast, self.grad, self.nonnegative)
        products = (self.operands, self.tf32, type(self.features))
        return mask, switches, sizes, kinds, products, self.kernel

    def of_part(self, mask: Mask, **changes: object) -> AttentionRequest:
        """The request for a part of the mask."""
        return replace(self, mask=mask, **changes)  # pyright: ignore[reportArgumentType]


def _tracing() -> Tracing:
    if torch.compiler.is_exporting():
        return "export"
    if torch.compiler.is_compiling():
        return "compile"
    return "transform" if in_function_transform() else ""


@dataclass(frozen=True)
class AttentionPlan:
    """How a call is computed.

    Attributes:
        path, form: the way through the mathematics, and its implementation.
        blocks: for each mask that is scanned, the slices in a block along each axis that is cut.
        budget: bytes that may be used beyond inputs and outputs.
        reason: why this path and form, in words.
        parts: plans of the blocks of a `BlockDiagonal`, which are computed one by one.
        kernel: "linear" or "softmax", as in the request.
    """

    path: ConcretePath
    form: str
    blocks: tuple[tuple[int, ...], ...]
    budget: int
    reason: str
    parts: tuple[AttentionPlan, ...] = ()
    kernel: KernelName = "linear"


class Form(Protocol):
    """An implementation of a path, for one kernel."""

    kernel: ClassVar[KernelName]
    path: ClassVar[ConcretePath]
    name: ClassVar[str]

    def supports(self, request: AttentionRequest) -> str | None:
        """Say why this form cannot serve the request; None if it can."""
        ...

    def cost(self, request: AttentionRequest, costs: PathCosts) -> float:
        """Estimate the nanoseconds of a forward and a backward pass."""
        ...

    def blocks(self, request: AttentionRequest) -> tuple[tuple[int, ...], ...]:
        """The blocks of each mask that is scanned; empty on other paths."""
        ...

    def run(
        self, plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The attention, (..., L, D) in v's dtype. q, k and v have all leading dims."""
        ...


FORMS: list[Form] = []
"""All forms; of those that serve a path, the first is taken."""


def register_forms(forms: Sequence[Form]) -> None:
    """Add forms, in the order of their priority."""
    FORMS.extend(forms)


def plan_attention(request: AttentionRequest, costs: PathCosts | None = None) -> AttentionPlan:
    """Decide how a call is computed: a pure function of the request and of `costs`.

    `costs` are the constants of the cost model. By default they are those of the request's device,
    which are asked for only where a choice is close; such plans are kept.
    """
    key = request.key() if costs is None and not request.tracing else None
    if key is None:
        return _plan_parts(request, costs)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan_parts(request, costs)
    return plan


def forget_plans() -> None:
    """Plan every call again, after a change of forms or constants."""
    _PLANS.clear()


def _plan_parts(request: AttentionRequest, costs: PathCosts | None) -> AttentionPlan:
    parts = blocks_of(request.mask)
    if parts is None:
        return _plan(request, costs)
    plans = tuple(_plan(request.of_part(part), costs) for part in parts)
    first = plans[0]
    budget = max(plan.budget for plan in plans)
    reason = "blocks are computed one by one"
    return AttentionPlan(first.path, first.form, (), budget, reason, plans, request.kernel)


def run(
    plan: AttentionPlan, request: AttentionRequest, q: Tensor, k: Tensor, v: Tensor
) -> list[Tensor]:
    """The attention as planned, (..., L, D): one tensor, or one for each block of the mask."""
    if not plan.parts:
        return [_form(plan).run(plan, request, q, k, v)]
    masks = blocks_of(request.mask)
    assert masks is not None
    lengths = [mask.length for mask in masks]
    tokens = zip(*(x.split(lengths, -2) for x in (q, k, v)), strict=True)
    return [
        _form(part).run(part, request.of_part(mask), *qkv)
        for part, mask, qkv in zip(plan.parts, masks, tokens, strict=True)
    ]


def refusals(request: AttentionRequest) -> list[tuple[Form, str | None]]:
    """Every answer of the forms for its kernel to a request, in the order of their priority."""
    return [(form, form.supports(request)) for form in _forms(request.kernel)]


def estimate(request: AttentionRequest, costs: PathCosts) -> float:
    """The estimated nanoseconds of the path that a request names."""
    assert request.path != "auto"
    return _serving_forms(request)[request.path].cost(request, costs)


def _plan(request: AttentionRequest, costs: PathCosts | None) -> AttentionPlan:
    if request.kernel == "softmax":
        return _asked_for(request, "explicit", "softmax has no other path")
    if request.dropout > 0:
        return _asked_for(request, "explicit", "dropout of weights needs the explicit path")
    if request.path != "auto":
        return _asked_for(request, request.path, f"path {request.path!r} was asked for")
    forms = _serving_forms(request)
    constants = costs or default_costs(request.device.type)
    estimates = _estimates(request, forms, constants)
    best = min(estimates, key=estimates.__getitem__)
    close = [path for path, ns in estimates.items() if ns <= _FAR_AHEAD * estimates[best]]
    if len(close) > 1 and costs is None and not request.tracing:
        measured = device_costs(request.device)
        if measured is not constants:
            estimates = _estimates(request, forms, measured)
            best = min(estimates, key=estimates.__getitem__)
    return _with_form(request, forms[best], _comparison(estimates))


def _estimates(
    request: AttentionRequest, forms: dict[ConcretePath, Form], costs: PathCosts
) -> dict[ConcretePath, float]:
    return {path: form.cost(request, costs) for path, form in forms.items()}


def _serving_forms(request: AttentionRequest) -> dict[ConcretePath, Form]:
    """The first form of each path that serves the request."""
    found: dict[ConcretePath, Form] = {}
    for form in _forms(request.kernel):
        if form.path not in found and form.supports(request) is None:
            found[form.path] = form
    return found


def _asked_for(request: AttentionRequest, path: ConcretePath, reason: str) -> AttentionPlan:
    """The plan for a path that is not chosen by its cost."""
    refusal = None
    for form in _forms(request.kernel):
        if form.path == path:
            refusal = form.supports(request)
            if refusal is None:
                return _with_form(request, form, reason)
    raise ValueError(f"path {path!r} {refusal}; use another path, or 'auto'")


def _with_form(request: AttentionRequest, form: Form, reason: str) -> AttentionPlan:
    budget = request.resolved_budget(form.path)
    blocks = form.blocks(request)
    return AttentionPlan(form.path, form.name, blocks, budget, reason, kernel=request.kernel)


def _forms(kernel: KernelName) -> list[Form]:
    return [form for form in FORMS if form.kernel == kernel]


def _form(plan: AttentionPlan) -> Form:
    for form in _forms(plan.kernel):
        if form.path == plan.path and form.name == plan.form:
            return form
    raise ValueError(f"there is no form {plan.form!r} of path {plan.path!r}")


def _comparison(estimates: dict[ConcretePath, float]) -> str:
    """The estimates in words, the cheapest first."""
    if torch.compiler.is_compiling():
        return "the cheapest by estimate"
    ranked = sorted(estimates, key=estimates.__getitem__)
    words = [f"{path} {estimates[path] / 1e6:.3g} ms" for path in ranked]
    return f"the cheapest by estimate: {', '.join(words)}"
