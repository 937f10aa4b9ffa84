"""The compiled explicit path: equal to the generic one, and optional."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.zoo import own_tensors, rand, randn, with_tensors
from vit_rpe.attention import masked_linear_attention
from vit_rpe.attention.cpu import CpuExplicit, build
from vit_rpe.attention.cpu.explicit import attend_on_grid
from vit_rpe.attention.plan import forget_plans
from vit_rpe.attention.reference import masked_attention
from vit_rpe.features import ELUFeatures, PositiveRandomFeatures, ReLUFeatures
from vit_rpe.masks import Bordered, Dense, Exponential, Mask, Toeplitz

needs_native = pytest.mark.skipif(not build.is_built(), reason="no C++ compiler or ninja here")

MASKS = {
    "sequence": lambda: Toeplitz(rand(3, 2 * 41 - 1), (41,)),
    "image": lambda: Toeplitz(rand(3, 7, 9), (4, 5)),
    "signed": lambda: Toeplitz(randn(3, 7, 9), (4, 5)),
    "video": lambda: Toeplitz(rand(3, 3, 7, 9), (2, 4, 5)),
    "per sample": lambda: Toeplitz(rand(2, 3, 7, 9), (4, 5)),
    "one table": lambda: Toeplitz(rand(7, 9), (4, 5)),
    "several tiles": lambda: Toeplitz(rand(3, 39, 65), (20, 33)),
    "exponential": lambda: Exponential(rand(3, 2, 2), rand(3, 2), (4, 5), one_sided=(0,)),
    "border of ones": lambda: Bordered(Toeplitz(rand(3, 7, 9), (4, 5)), 2),
    "learned border": lambda: Bordered(
        Toeplitz(rand(2, 3, 39, 51), (20, 26)), 2, rand(3, 2), rand(2), rand(3, 2, 2)
    ),
}


def watch(monkeypatch, form: type) -> list:
    """The plans that a form runs from now on."""
    calls, run = [], form.run
    monkeypatch.setattr(form, "run", lambda self, *x: calls.append(x[0]) or run(self, *x))
    return calls


def inputs(mask: Mask) -> list[torch.Tensor]:
    return [randn(2, 3, mask.length, size).requires_grad_() for size in (6, 6, 4)]


@needs_native
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("features", [None, ReLUFeatures, ELUFeatures])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_equals_the_generic_path(name, features, floor, monkeypatch):
    mask = MASKS[name]()
    leaves = [*inputs(mask), *own_tensors(mask)]
    with_tensors(mask, tuple(leaves[3:]))
    q, k, v = leaves[:3]
    phi = None if features is None else features()
    if phi is None:
        q, k = q.exp(), k.exp()
    grad = randn(2, 3, mask.length, 4)
    results, calls = [], watch(monkeypatch, CpuExplicit)
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(CpuExplicit, "supports", lambda *_: "is turned off")
            forget_plans()
        out = masked_linear_attention(q, k, v, mask, features=phi, path="explicit", floor=floor)
        results.append((out, *torch.autograd.grad(out, leaves, grad, retain_graph=True)))
    assert len(calls) == 1
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@needs_native
def test_sums_without_division():
    mask = MASKS["video"]()
    q, k, v = inputs(mask)
    out = attend_on_grid(q, k, v, mask, q.dtype, divide=False)
    weights = (q @ k.mT) * mask.dense()
    torch.testing.assert_close(out[..., :-1], weights @ v)
    torch.testing.assert_close(out[..., -1], weights.sum(-1))


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_number_of_threads_changes_nothing(threads):
    mask = Toeplitz(rand(2, 39, 65).requires_grad_(), (20, 33))
    q, k, v = (rand(1, 2, mask.length, 3).requires_grad_() for _ in range(3))
    expected = torch.autograd.grad(masked_attention(q, k, v, mask).sum(), (q, k, mask.offsets))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = masked_linear_attention(q, k, v, mask, path="explicit")
        grads = torch.autograd.grad(out.sum(), (q, k, mask.offsets))
    finally:
        torch.set_num_threads(before)
    for ours, theirs in zip(grads, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@needs_native
def test_nothing_but_inputs_and_result_is_kept():
    mask = Bordered(Toeplitz(torch.rand(3, 7, 9), (4, 5)), 1)
    q, k, v = (torch.rand(2, 3, 21, 8, requires_grad=True) for _ in range(3))
    kept: dict[int, int] = {}

    def note(x):
        kept[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        masked_linear_attention(q, k, v, mask, features=ReLUFeatures(), path="explicit")
    rows = 2 * 3 * 21
    assert sum(kept.values()) <= 4 * q.numel() + rows + 3 * 7 * 9


@needs_native
def test_features_with_parameters_learn():
    class Learned(ReLUFeatures):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.tensor(0.5))

        def query(self, q):
            return super().query(q + self.shift)

    features, mask = Learned(), Toeplitz(torch.rand(3, 7, 9), (4, 5))
    q, k, v = (torch.rand(2, 3, 20, 8) for _ in range(3))
    masked_linear_attention(q, k, v, mask, features=features, path="explicit").sum().backward()
    assert features.shift.grad is not None and features.shift.grad != 0


def test_features_on_other_paths_and_masks():
    features = PositiveRandomFeatures(6, 12).double()
    for mask, path in (
        (Toeplitz(rand(3, 7, 9), (4, 5)), "product"),
        (Exponential(rand(3, 1), rand(3, 1), (4, 5)), "scan"),
        (Dense(rand(3, 20, 20)), "explicit"),
    ):
        q, k, v = inputs(mask)
        out = masked_linear_attention(q, k, v, mask, features=features, path=path)
        torch.testing.assert_close(out, masked_attention(*features(q, k), v, mask))


@needs_native
def test_an_empty_batch():
    mask = Toeplitz(torch.rand(3, 7, 9, requires_grad=True), (4, 5))
    q = torch.rand(0, 3, 20, 8, requires_grad=True)
    out = masked_linear_attention(q, q, q, mask, path="explicit")
    out.sum().backward()
    assert out.shape == q.shape and (mask.offsets.grad == 0).all()


PROGRAM = """
import warnings, torch
from vit_rpe.attention import masked_linear_attention
from vit_rpe.masks import Toeplitz
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    q = torch.rand(3, 20, 4)
    out = masked_linear_attention(q, q, q, Toeplitz(torch.rand(3, 7, 9), (4, 5)), path="explicit")
assert out.shape == q.shape
print([str(w.message) for w in caught if "vit_rpe" in str(w.message)])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "said"), [("0", "[]"), ("1", "could not be built")])
def test_works_without_a_compiler(setting, said, tmp_path):
    environment = {"PATH": str(tmp_path), "VIT_RPE_NATIVE": setting, "OMP_NUM_THREADS": "1"}
    environment |= {"TORCH_EXTENSIONS_DIR": str(tmp_path), "CXX": str(tmp_path / "none")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert said in run.stdout


@needs_native
def test_a_first_use_from_several_threads_builds_once(monkeypatch):
    """A build changes PATH for a while: two at once would leave it changed."""
    builds = []

    def slow_build() -> None:
        builds.append(1)
        time.sleep(0.05)

    monkeypatch.setattr(build, "_build", slow_build)
    build._is_built.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda _: build.is_built(), range(8)))
    finally:
        build._is_built.cache_clear()
    assert len(builds) == 1
