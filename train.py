"""`vit-rpe train` from a checkout.

python train.py --recipe recipes/quickstart.yaml epochs=5
accelerate launch train.py --recipe recipes/quickstart.yaml
"""

import sys

from vit_rpe.cli import run

if __name__ == "__main__":
    sys.exit(run("train", called="train.py"))
