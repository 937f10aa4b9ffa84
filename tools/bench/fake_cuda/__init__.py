"""Programs on a GPU that is not there: fake CUDA tensors, and a count of what would be launched.

A fake tensor has a shape, a type and a device, and no values (`FakeTensorMode`). Forward passes
need nothing else; backward passes and autocast ask the CUDA runtime for a device, and `use_driver`
answers for it.
"""

from .counter import Counter, Launch, operators, register_formula, summed
from .driver import DriverError, leave_after, use_driver
from .fakes import cuda_fakes, faked
from .gpus import GPUS, Gpu

__all__ = [
    "GPUS",
    "Counter",
    "DriverError",
    "Gpu",
    "Launch",
    "cuda_fakes",
    "faked",
    "leave_after",
    "operators",
    "register_formula",
    "summed",
    "use_driver",
]
