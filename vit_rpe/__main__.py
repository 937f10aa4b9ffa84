"""`python -m vit_rpe COMMAND ...`: the same as `vit-rpe COMMAND ...`."""

import sys

from vit_rpe.cli import main

if __name__ == "__main__":
    sys.exit(main(typed="python -m vit_rpe"))
