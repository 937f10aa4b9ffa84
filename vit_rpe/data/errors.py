"""What can be wrong with data: a sample, which is named and counted, or a shard, which stops."""

from typing import NamedTuple


class ShardError(ValueError):
    """A shard, or a set of shards, that cannot be used as it is."""


class FolderBusy(ValueError):
    """A folder that another process is at work in."""


class BadData(ValueError):
    """The bytes of one sample cannot be used; the message is the reason."""


class BadSample(NamedTuple):
    """A sample that was left out, by name."""

    shard: str
    key: str
    reason: str
