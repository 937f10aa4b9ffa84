"""`vit-rpe replay` from a checkout: python tools/replay.py RUN --step 500"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from vit_rpe.cli import run

if __name__ == "__main__":
    sys.exit(run("replay", called="replay.py"))
