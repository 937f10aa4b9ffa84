"""Shards as they lie on disk or behind an address: layout, bytes, index, samples, checks."""
