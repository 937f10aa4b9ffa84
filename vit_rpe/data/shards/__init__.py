"""Shards on disk or behind an address: layout, bytes, index, samples.

The names below are public, for those who write shards or their index by other means; readers find
what they need in vit_rpe.data.
"""

from .index import Shards, as_table, open_shards, write_table
from .layout import Info, SplitInfo, index_name, read_info
from .tar_index import Row, index_tar

__all__ = [
    "Info",
    "Row",
    "Shards",
    "SplitInfo",
    "as_table",
    "index_name",
    "index_tar",
    "open_shards",
    "read_info",
    "write_table",
]
