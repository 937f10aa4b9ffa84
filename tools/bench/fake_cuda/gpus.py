"""What GPUs can do, as constants of an estimate: none of them was measured here.

Peaks are what large kernels reach, about 0.7 of data sheets; fused attention reaches less. They are
frozen, so that estimates of different days can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .counter import Launch


@dataclass(frozen=True)
class Gpu:
    """Bytes a second, seconds between two launches, and operations a second of each rate."""

    bandwidth: float
    gap: float
    rates: dict[str, float]

    def seconds(self, launches: Iterable[Launch]) -> float:
        """The time of launches one after the other, each bound by one of the three."""
        return sum(self.seconds_of(each) for each in launches)

    def seconds_of(self, launch: Launch) -> float:
        """The time of one launch."""
        moving = launch.bytes / self.bandwidth
        computing = launch.flops / self.rates.get(launch.rate, self.rates["float32"])
        return max(moving, computing, self.gap * launch.kernels)


GPUS = {
    "A100": Gpu(
        bandwidth=1.6e12,
        gap=2.5e-6,
        rates={
            "bfloat16": 220e12,
            "float16": 220e12,
            "tf32": 110e12,
            "float32": 15e12,
            "float64": 7.5e12,
            "flash": 170e12,
            "flash_backward": 130e12,
            "triton": 120e12,
            "triton_backward": 100e12,
        },
    ),
    "H100": Gpu(
        bandwidth=2.7e12,
        gap=2.0e-6,
        rates={
            "bfloat16": 550e12,
            "float16": 550e12,
            "tf32": 275e12,
            "float32": 45e12,
            "float64": 22e12,
            "flash": 350e12,
            "flash_backward": 280e12,
            "triton": 240e12,
            "triton_backward": 190e12,
        },
    ),
}
