"""Ranges of what modules give, and the first module that gives what is not finite."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vit_rpe.training.replay.activations import Activations, measured
from vit_rpe.training.replay.layers import layer_of, layers_of


class Divide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(3))
        self.stem = nn.Linear(3, 3)
        self.blocks = nn.ModuleList([nn.Sequential(Divide(), nn.ReLU()), nn.Linear(3, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # pyright: ignore
        return x


def test_ranges_and_the_first_that_is_not_finite():
    net = Model()
    x = torch.tensor([[0.0, -2.0, 4.0]], requires_grad=True)
    with measured(net) as found:
        net(x)
        net(x).sum().backward()  # which computes the blocks again
    divided = found.ranges["blocks.0.0"]
    assert (divided.low, divided.high, divided.finite, divided.nonfinite) == (-0.5, 0.25, 4, 2)
    assert divided.rms == ((0.5**2 + 0.25**2) / 2) ** 0.5
    assert found.first_nonfinite == "blocks.0.0"
    assert "stem" not in found.ranges and "model" in found.ranges
    assert not any(module._forward_hooks for module in net.modules())


def test_ranks_are_joined():
    parts = [Activations(), Activations()]
    parts[0].add("a", torch.tensor([1.0, 2.0]))
    parts[1].add("a", (torch.tensor([-1.0, torch.inf]), torch.tensor([7])))
    joined = Activations.joined(parts).ranges["a"]
    assert (joined.low, joined.high, joined.finite, joined.nonfinite) == (-1, 2, 3, 1)
    assert joined.rms == 2**0.5 and Activations.joined(parts).first_nonfinite == "a"


def test_layers_are_the_parts_of_a_model_and_of_its_lists():
    layers = layers_of(Model())
    assert layers == ["stem", "blocks.0", "blocks.1"]
    assert layer_of("blocks.1.weight", layers) == "blocks.1"
    assert layer_of("blocks.10.weight", layers) == "blocks.10.weight"
    assert layer_of("token", layers) == "token"
