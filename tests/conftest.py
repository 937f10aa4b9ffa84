import os

import pytest
import torch

torch.set_num_threads(1)
# Tests choose paths alike on every machine, and leave no trace in anybody's home.
os.environ["VIT_RPE_PATH_COSTS"] = "default"
# Triton reads this when it is imported. Kernels for GPUs are interpreted in tests that set
# VIT_RPE_TRITON=1; others do not see them.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
