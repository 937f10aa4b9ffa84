"""Layers for tests."""

import torch

from vit_rpe.graph import GKATConv, RandomWalkMask

FEATURE_MAPS = ("softmax", "favor_hyperbolic", "relu", "elu", "square", "additive")
WALKS = RandomWalkMask(num_walks=8, num_steps=3)


def pair(feature_map: str, **options) -> tuple[GKATConv, GKATConv]:
    """A layer and GKAT-0 with the same parameters."""
    torch.manual_seed(0)
    make = {"feature_map": feature_map, "mask": WALKS, **options}
    linear, explicit = GKATConv(5, 4, 3, **make), GKATConv(5, 4, 3, exact_kernel=True, **make)
    explicit.load_state_dict(linear.state_dict())
    return linear.eval(), explicit.eval()  # in training each would draw walks of its own
