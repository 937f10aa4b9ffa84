"""Compare the fused kernels with the definition, and repeat them: values and all gradients.

    python -m vit_rpe.checks.numbers        the small cases on a CPU; one line of JSON each

The second needs TRITON_INTERPRET=1 and VIT_RPE_TRITON=1 in its environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from vit_rpe.attention import AttentionRequest, plan_attention
from vit_rpe.masks import Mask

from .cases import SMALL, Case, Tokens

# The error of a kernel over that of the same written in torch, in the same precision.
MOST_OF_TORCH = {"bfloat16": 2.0, "float16": 2.0}
_BELOW = 1e-5  # errors that nobody minds
# Relative errors in float32, interpreted: exact products, sums in another order.
_FLOAT32 = {False: 1e-5, True: 1e-4}  # signed
# On a GPU, over what the result loses if only q, k, v and the gradient are cut to TF32: inside,
# weights and their gradients are cut, too. What torch loses is no measure: it decides by shape
# whether it uses TF32 at all.
_TF32 = 4.0


@dataclass(frozen=True)
class Numbers:
    """A case in one precision: relative errors of the kernels, and of torch, tensor by tensor.

    For TF32 `torch_errors` are those of exact products of inputs that are cut to TF32.
    """

    case: str
    dtype: str
    form: str
    errors: dict[str, float]
    torch_errors: dict[str, float]
    repeats: int
    same_bits: bool
    signed: bool
    exact: bool

    def problem(self) -> str | None:
        """Say what is wrong; None if nothing is."""
        if self.form != "gpu":
            return f"it was computed by the form {self.form!r}, not by the kernels"
        for name, error in self.errors.items():
            most = self.most(name)
            if not error <= most:  # NaN is an error, too
                return f"{name} is wrong by {error:.1e}; allowed are {most:.1e}"
        return None if self.same_bits else f"{self.repeats} repetitions differ in their bits"

    def most(self, name: str) -> float:
        """The largest error that is allowed."""
        if self.dtype == "float32" and self.exact:
            return _FLOAT32[self.signed]
        factor = MOST_OF_TORCH.get(self.dtype, _TF32)
        return factor * self.torch_errors[name] + _BELOW


def compare(case: Case, dtype: torch.dtype, device: torch.device, repeats: int = 3) -> Numbers:
    """Run a case with the kernels, in torch in the same precision, and in float64."""
    torch.manual_seed(0)
    q, k, v = (x.to(device, dtype) for x in case.tokens())
    tokens = (q, k, v)
    parameters = [x.to(device, torch.float32) for x in case.parameters()]
    grad = torch.randn(*v.shape, dtype=torch.float64).to(device, dtype)

    def run(
        function: str, precision: torch.dtype, change: Callable[[Tensor], Tensor] = Tensor.detach
    ) -> dict[str, Tensor]:
        double = precision == torch.float64
        q, k, v = (change(x).to(precision).requires_grad_() for x in tokens)
        leaves = (q, k, v)
        weights = [(x.double() if double else x.clone()).requires_grad_() for x in parameters]
        out = getattr(case, function)(leaves, case.mask(weights))
        found = torch.autograd.grad(
            out, [*leaves, *weights], change(grad).to(out.dtype), materialize_grads=True
        )
        of_mask = torch.cat([x.flatten() for x in found[3:]])
        return dict(zip(NAMES, (out.detach(), *found[:3], of_mask), strict=True))

    expected = run("define", torch.float64)
    first = run("attend", dtype)
    others = [run("attend", dtype) for _ in range(repeats - 1)]
    exact = _multiplies_exactly(device)
    cut = dtype == torch.float32 and not exact
    rival = run("define", torch.float64, cut_to_tf32) if cut else run("define", dtype)
    return Numbers(
        case=case.name,
        dtype=str(dtype).removeprefix("torch."),
        form=_form(case, tokens, case.mask(parameters)),
        errors=relative_errors(first, expected),
        torch_errors=relative_errors(rival, expected),
        repeats=repeats,
        same_bits=all(torch.equal(x[name], first[name]) for x in others for name in NAMES),
        signed=case.signed,
        exact=exact,
    )


NAMES = ("result", "gradient of q", "gradient of k", "gradient of v", "gradient of the mask")


def _multiplies_exactly(device: torch.device) -> bool:
    """Whether products of float32 are exact: interpreted, they are."""
    return device.type == "cpu"


def cut_to_tf32(x: Tensor) -> Tensor:
    """Leave out the bits of float32 that a matrix unit does not read."""
    return (x.detach().view(torch.int32) & -(1 << 13)).view(torch.float32)


def relative_errors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Errors by the Frobenius norm; a gradient that is 0 is measured by that of v."""
    of_values = expected["gradient of v"].norm()
    errors = {}
    for name, x in expected.items():
        size = x.norm() if x.norm() > 1e-9 * of_values else of_values
        errors[name] = float((found[name].double() - x).norm() / size)
    return errors


def _form(case: Case, tokens: Tokens, mask: Mask) -> str:
    kernel = "softmax" if case.features == "softmax" else "linear"
    options = {"features": case.feature_map(), "floor": case.floor, "kernel": kernel}
    request = AttentionRequest.of(*tokens, mask, wide_range=False, **options)
    return plan_attention(request).form


def small_numbers() -> Iterator[Numbers]:
    """The small cases, interpreted: float32 by exact products, and both precisions of 16 bits."""
    for case in SMALL:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if dtype == torch.float32 or not case.signed:
                yield compare(case, dtype, torch.device("cpu"), repeats=2)


if __name__ == "__main__":
    for numbers in small_numbers():
        print(json.dumps(asdict(numbers)), flush=True)
    sys.stdout.flush()
