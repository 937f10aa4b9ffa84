"""Masked linear attention: Algorithm 1 of the paper, once, with several exact paths."""

from .cost import PathCosts, choose_path
from .functional import masked_linear_attention
from .inspect import attention_columns, attention_rows, attention_topk

__all__ = [
    "PathCosts",
    "attention_columns",
    "attention_rows",
    "attention_topk",
    "choose_path",
    "masked_linear_attention",
]
