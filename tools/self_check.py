"""`vit-rpe check` from a checkout, and a picture of the masks: python tools/self_check.py"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: tools, vit_rpe

from tools.figures.masks import draw_masks
from vit_rpe.cli import run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--output", type=Path, default=Path("output/masks.png"))
    args, others = parser.parse_known_args(argv)
    code = run("check", others, called="self_check.py")
    try:
        print(f"Masks drawn: {draw_masks((8, 10), args.output)}")
    except ModuleNotFoundError as error:
        print(f"No picture: {error}")
    return code


if __name__ == "__main__":
    sys.exit(main())
