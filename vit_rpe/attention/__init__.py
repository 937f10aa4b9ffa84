"""Masked linear attention: Algorithm 1 of the paper, once, with several exact paths."""

from .cost import PathCosts, default_budget
from .cpu import CpuExplicit, CpuScan
from .explanation import explain
from .functional import masked_linear_attention
from .gpu import FlexExplicit
from .inspect import attention_columns, attention_rows, attention_topk
from .paths import TorchExplicit, TorchProduct, TorchScan
from .paths.product import budget_for
from .plan import PATHS, AttentionPlan, AttentionRequest, PathName, plan_attention, register_forms
from .reference import masked_attention, safe_denominator
from .softmax import log_weights, softmax_attention

register_forms(
    [FlexExplicit(), CpuExplicit(), CpuScan(), TorchExplicit(), TorchProduct(), TorchScan()]
)

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
    "log_weights",
    "masked_attention",
    "masked_linear_attention",
    "plan_attention",
    "safe_denominator",
    "softmax_attention",
]
