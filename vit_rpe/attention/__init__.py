"""Masked attention, linear (Algorithm 1 of the paper, on several exact paths) and by softmax."""

from .cost import PathCosts
from .cpu import CpuExplicit, CpuScan, CpuSoftmax
from .explain import explain
from .functional import masked_linear_attention, masked_softmax_attention
from .gpu import FlexExplicit
from .inspect import attention_columns, attention_rows, attention_topk
from .paths import FusedSoftmax, TorchExplicit, TorchProduct, TorchScan, TorchSoftmax
from .plan import AttentionPlan, AttentionRequest, plan_attention, register_forms
from .reference import masked_attention, masked_softmax

register_forms(
    [FlexExplicit(), CpuExplicit(), CpuScan(), TorchExplicit(), TorchProduct(), TorchScan()]
)
register_forms([FusedSoftmax(), CpuSoftmax(), TorchSoftmax()])

__all__ = [
    "AttentionPlan",
    "AttentionRequest",
    "PathCosts",
    "attention_columns",
    "attention_rows",
    "attention_topk",
    "explain",
    "masked_attention",
    "masked_linear_attention",
    "masked_softmax",
    "masked_softmax_attention",
    "plan_attention",
]
