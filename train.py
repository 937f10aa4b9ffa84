"""`vit-rpe train` from a checkout.

python train.py --recipe recipes/quickstart.yaml epochs=5
accelerate launch train.py --recipe recipes/quickstart.yaml
"""

import signal
import sys


def main() -> int:
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(75))  # while imports take their time

    from vit_rpe.cli import run

    return run("train", called="train.py")


if __name__ == "__main__":
    sys.exit(main())
