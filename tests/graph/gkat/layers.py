"""Layers for tests."""

import torch

from vit_rpe.graph import RWGNK, GKATConv

FEATURE_MAPS = ("softmax", "favor_hyperbolic", "relu", "elu", "square", "additive")
WALKS = RWGNK(num_walks=8, num_steps=3)


def pair(feature_map: str, **options) -> tuple[GKATConv, GKATConv]:
    """A layer and GKAT-0 with the same parameters."""
    torch.manual_seed(0)
    make = {"feature_map": feature_map, "mask": WALKS, "path": "product", **options}
    linear = GKATConv(5, 4, 3, exact_kernel=False, **make)
    explicit = GKATConv(5, 4, 3, **{**make, "exact_kernel": True})
    explicit.load_state_dict(linear.state_dict())
    return linear.eval(), explicit.eval()  # in training each would draw walks of its own
