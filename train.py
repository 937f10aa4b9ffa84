"""Train a timm model by a recipe.

python train.py --recipe recipes/quickstart.yaml epochs=5
accelerate launch train.py --recipe recipes/quickstart.yaml
"""

import sys

import vit_rpe  # noqa: F401  registers the models with timm
from vit_rpe.training import main

if __name__ == "__main__":
    sys.exit(main())
