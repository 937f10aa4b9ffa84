"""Masked linear attention: Algorithm 1 of the paper, once, with several exact paths."""

from .cost import PathCosts
from .cpu import CpuExplicit, CpuScan
from .explain import explain
from .functional import masked_linear_attention
from .gpu import FlexExplicit
from .inspect import attention_columns, attention_rows, attention_topk
from .paths import TorchExplicit, TorchProduct, TorchScan
from .plan import AttentionPlan, AttentionRequest, plan_attention, register_forms
from .reference import masked_attention

register_forms(
    [FlexExplicit(), CpuExplicit(), CpuScan(), TorchExplicit(), TorchProduct(), TorchScan()]
)

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
    "plan_attention",
]
