"""Making shards: where samples come from, what becomes of them, how they are written."""
