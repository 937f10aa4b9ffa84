"""Make a past step of a run again and look at it: batch, loss, gradients, ranges of activations.

    vit-rpe replay runs/quickstart --step 500
    vit-rpe replay runs/quickstart --first "loss > 10"
    vit-rpe replay runs/diverged --first nonfinite

It begins at the nearest checkpoint that is kept, else at the beginning, and makes the steps from
there as the run made them, with as many threads; the number of processes must be the same. Loss,
gradient norm and learning rate of each step are compared with what the run recorded: all bits are
equal, or it stops and says what is different here. Steps count from 1, as in the lines of a run.

--first finds the first step whose loss, grad_norm or lr is > >= < <= == or != a number, or that was
skipped because it was not finite. The run's own record tells which step that is; only runs of
earlier versions, which kept none, are made again from their beginning.

The step goes to RUN/replay/step-N: batch.png has the batch as the model saw it, replay.json has all
numbers. Nothing else in the folder of the run is touched, so it may be going on meanwhile.

Exit codes: 0 done, 1 no step meets the condition, or a step is not what it was, 2 wrong input, or
another number of processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.messages import entry
from vit_rpe.program import program
from vit_rpe.training import (
    Condition,
    Replayed,
    Unequal,
    launched_rank,
    parse_condition,
    replay_step,
    say,
    shut_down,
)

from .command_line import (
    DONE,
    FAILED,
    check_output,
    command_parser,
    count,
    one_line_errors,
    positive_integer,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parse(argv)
    name = program("replay")
    try:
        with one_line_errors(name):
            if args.output is not None:
                check_output(args.output, args.overwrite)
            made = replay_step(args.run, args.step, args.first, changes=_changes(args), say=say)
            if made is None:
                say(f"{name}: no step of {args.run} has {args.first.text}")
                return FAILED
            if launched_rank() == 0:
                _show(made, args.output)
        return DONE
    except Unequal as error:
        say(f"{name}: {error}")
        return FAILED
    finally:
        shut_down()


def _show(made: Replayed, output: Path | None) -> None:
    from vit_rpe.report import default_folder, summary, table, write_replay

    figures, picture = write_replay(made, output or default_folder(made))
    print(summary(made))
    print(entry("written", picture, figures))
    print(f"\n{table(made.seen)}")


def _changes(args: argparse.Namespace) -> dict[str, object]:
    given = {"data_dir": args.data, "workers": args.workers}
    return {key: value for key, value in given.items() if value is not None}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("replay", __doc__)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", type=positive_integer, metavar="N", help="the step to make again")
    which.add_argument(
        "--first",
        type=_condition,
        metavar="CONDITION",
        help="the first step that meets a condition: nonfinite, or a name (loss, grad_norm, lr), "
        "an operator and a number",
    )
    add("--data", metavar="DATA", help="shards of the run (default: where they were)")
    add(
        "--workers", type=count, metavar="N", help="processes that read images (default: the run's)"
    )
    add("--output", type=Path, metavar="DIR", help="folder (default: RUN/replay/step-N)")
    add("--overwrite", action="store_true", help="write into a folder that is not empty")
    return parser.parse_args(argv)


def _condition(text: str) -> Condition:
    try:
        return parse_condition(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
