"""The state of every optimizer survives, and nothing but plain values and tensors passes."""

from __future__ import annotations

import json

import pytest
import torch
from timm.optim import create_optimizer_v2, list_optimizers
from torch import nn

from vit_rpe.training.loop.optim import seed_optimizer
from vit_rpe.training.record.state_tree import flatten, restore

ELSEWHERE = ("bnb", "fused")  # need other packages and a GPU


OPTIMIZERS = [name for name in list_optimizers() if not name.startswith(ELSEWHERE)]


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        loss = model(torch.randn(7, 6)).square().mean()
        loss.backward(create_graph=getattr(optimizer, "is_second_order", False))
        seed_optimizer(optimizer, torch.device("cpu"), 7, seed)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", [*OPTIMIZERS, "lookahead_adamw"])
@pytest.mark.filterwarnings("ignore:Using backward", "ignore:It is highly recommended")
def test_the_state_of_every_optimizer_survives(name, monkeypatch):
    """Three steps, through JSON and tensors into a new optimizer, two more: bit-equal."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # kron compiles for long

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
        return model, create_optimizer_v2(model, name, lr=1e-2, weight_decay=0.1)

    one, optimizer = make()
    _steps(one, optimizer, range(3))
    two, other = make()
    two.load_state_dict(one.state_dict())
    tree, tensors = flatten(optimizer.state_dict())
    other.load_state_dict(restore(json.loads(json.dumps(tree)), tensors))
    _steps(one, optimizer, range(3, 5))
    _steps(two, other, range(3, 5))
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        assert (ours == theirs).all()


def test_state_that_is_not_plain_is_refused():
    value = {"a": [1, (2.5, None), {"3": torch.eye(2)}], 4: True}
    tree, tensors = flatten(value)
    back = restore(json.loads(json.dumps(tree)), tensors)
    assert back["a"][:2] == [1, (2.5, None)] and back[4] is True
    assert (back["a"][2]["3"] == torch.eye(2)).all()
    with pytest.raises(TypeError, match=".a is a object, which no checkpoint can hold"):
        flatten({"a": object()})
    with pytest.raises(TypeError, match="keys of a state must be strings or integers"):
        flatten({(1, 2): 3})
