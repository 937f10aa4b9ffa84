"""Hashes as numbers, to choose samples by their names."""


def unit_interval(digest: bytes) -> float:
    """Return the first 8 bytes of a hash as a number from 0 to 1."""
    return int.from_bytes(digest[:8], "big") / 2**64
