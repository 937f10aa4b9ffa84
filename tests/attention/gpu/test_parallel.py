"""Wrapped by DDP and FSDP, with one process, a layer on the fused kernels gets its gradients."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vit_rpe.layers import MaskedLinearAttention
from vit_rpe.rpe import OffsetRPE

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.slow]


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    rpe = OffsetRPE((3, 4), 2, init="decay")
    return MaskedLinearAttention(32, 2, rpe=rpe, num_prefix_tokens=1, qkv_bias=True)


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    module(torch.randn(2, 13, 32)).square().sum().backward()
    grads = [p.grad for p in module.parameters()]
    assert all(g is not None for g in grads)
    return [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_gradients_are_those_of_the_layer_alone(one_process, wrap):
    expected = gradients(layer())
    module = layer()
    if wrap == "ddp":
        module = DistributedDataParallel(module)
    else:
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    for ours, theirs in zip(gradients(module), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
