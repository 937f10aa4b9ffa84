import os

import pytest
import torch

torch.set_num_threads(1)
# Tests choose paths alike on every machine, and leave no trace in anybody's home.
os.environ["VIT_RPE_PATH_COSTS"] = "default"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
