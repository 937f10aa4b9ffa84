"""Errors in data: bad samples are named and counted, bad shards stop the run."""

from typing import NamedTuple


class ShardError(ValueError):
    """A shard, or a set of shards, that cannot be used as it is."""


class FolderBusy(ValueError):
    """A folder that another process is working in."""


class MissingShards(ShardError):
    """No shards, or none of a split, at an address."""


class BadData(ValueError):
    """The bytes of one sample cannot be used; the message is the reason."""


NO_MEMORY = "it needs more memory than there is"  # the reason of a sample that is too large


class BadSample(NamedTuple):
    """A sample that was left out: where it is, and why."""

    shard: str
    key: str
    reason: str
