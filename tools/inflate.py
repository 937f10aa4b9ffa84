"""`vit-rpe inflate` from a checkout: python tools/inflate.py RUN --output DIR"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from vit_rpe.cli import run

if __name__ == "__main__":
    sys.exit(run("inflate", called="inflate.py"))
