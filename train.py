"""Train a timm model by a recipe.

python train.py --recipe recipes/quickstart.yaml epochs=5
accelerate launch train.py --recipe recipes/quickstart.yaml
"""

import signal
import sys


def main() -> int:
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(75))  # while imports take their time

    import vit_rpe  # noqa: F401  registers the models with timm
    from vit_rpe.training import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
