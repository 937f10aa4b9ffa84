"""Masked attention, linear (Algorithm 1 of the paper, on several exact paths) and by softmax."""

from .cost import PathCosts, default_budget
from .cpu import CpuExplicit, CpuScan, CpuSoftmax
from .explanation import explain
from .functional import masked_linear_attention, masked_softmax_attention
from .gpu import FlexExplicit
from .inspect import attention_columns, attention_rows, attention_topk
from .paths import FusedSoftmax, TorchExplicit, TorchProduct, TorchScan, TorchSoftmax
from .paths.product import budget_for
from .plan import PATHS, AttentionPlan, AttentionRequest, PathName, plan_attention, register_forms
from .reference import masked_attention, masked_softmax, safe_denominator

register_forms(
    [FlexExplicit(), CpuExplicit(), CpuScan(), TorchExplicit(), TorchProduct(), TorchScan()]
)
register_forms([FusedSoftmax(), CpuSoftmax(), TorchSoftmax()])

__all__ = [
    "PATHS",
    "AttentionPlan",
    "AttentionRequest",
    "PathCosts",
    "PathName",
    "attention_columns",
    "attention_rows",
    "attention_topk",
    "budget_for",
    "default_budget",
    "explain",
    "masked_attention",
    "masked_linear_attention",
    "masked_softmax",
    "masked_softmax_attention",
    "plan_attention",
    "safe_denominator",
]
