"""Whether autocast is on, and how to turn it off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return autocast's precision of matrix products on a kind of device; None if it is off.

    The meta device has no autocast at all.
    """
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def without_autocast(device: str) -> AbstractContextManager:
    """Turn autocast off in a `with` block: tensors keep the precision that they have."""
    if autocast_dtype(device) is None:
        return nullcontext()
    return torch.autocast(device, enabled=False)
