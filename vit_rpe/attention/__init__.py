"""Masked attention, linear (Algorithm 1 of the paper, on several exact paths) and by softmax."""

from .cost import PathCosts, default_budget
from .cpu import CpuBlockSoftmax, CpuExplicit, CpuGram, CpuScan, CpuSoftmax
from .explanation import describe_plan, explain
from .functional import masked_linear_attention, masked_softmax_attention
from .gpu import FusedLinear, FusedTableSoftmax
from .inspect import attention_columns, attention_rows, attention_topk
from .paths import (
    BlockExplicit,
    BlockSoftmax,
    FusedSoftmax,
    TorchExplicit,
    TorchProduct,
    TorchScan,
    TorchSoftmax,
)
from .paths.product import budget_for
from .plan import (
    PATHS,
    AttentionPlan,
    AttentionRequest,
    PathName,
    forget_plans,
    plan_attention,
    register_forms,
)
from .reference import masked_attention, masked_softmax, safe_denominator

register_forms([FusedLinear(), CpuExplicit(), BlockExplicit(), TorchExplicit()])
register_forms([CpuGram(), TorchProduct(), CpuScan(), TorchScan()])
register_forms([FusedSoftmax(), FusedTableSoftmax(), CpuSoftmax()])
register_forms([CpuBlockSoftmax(), BlockSoftmax(), TorchSoftmax()])

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
    "describe_plan",
    "explain",
    "forget_plans",
    "masked_attention",
    "masked_linear_attention",
    "masked_softmax",
    "masked_softmax_attention",
    "plan_attention",
    "safe_denominator",
]
