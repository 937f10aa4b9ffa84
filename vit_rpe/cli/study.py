"""Train variants of a recipe with several seeds, and compare them with error bars.

    vit-rpe study cifar10_masks
    vit-rpe study mine.yaml data_dir=data/mine --jobs 4 --nice 10
    vit-rpe study mine.yaml --dry-run
    vit-rpe study mine.yaml --report

A study is a YAML file, or the name of one that is shipped (vit-rpe recipes list); docs/studies.md
says what is in it. Each trial is a run of `vit-rpe train` in a process of its own, with one thread;
a finished one is a line of JSON in docs/results/STUDY.jsonl. The same command goes on where it was
stopped. Exit codes: 0 all trials are done, 1 some failed, 2 study, data or results are wrong,
75 stopped by a signal, and all trials saved.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit_rpe.experiments import (
    Planned,
    check_settings,
    hours,
    insert_report,
    load_study,
    plan_study,
    report_text,
    run_study,
    write_report,
)
from vit_rpe.program import program

from .command_line import (
    DONE,
    FAILED,
    STOPPED,
    Parser,
    command_parser,
    niceness,
    one_line_errors,
    positive_integer,
    say_error,
)


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    name = program("study")
    with one_line_errors(name):
        study = load_study(args.study)
        output = args.output or Path("docs/results") / f"{study.name}.jsonl"
        plan = plan_study(study, output, args.runs, args.overrides)
        if args.dry_run:
            _show_plan(plan, args.jobs)
            return DONE
        failed, stopped = ([], False) if args.report else run_study(plan, args.jobs, args.nice)
        if stopped:
            print("stopped, and all trials saved; the same command goes on")
            return STOPPED
        _report(plan, args)
    if failed:
        names = ", ".join(trial.name for trial in failed)
        say_error(name, f"{len(failed)} trials failed: {names}; the same command tries them again")
        return FAILED
    return DONE


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser: Parser = command_parser("study", __doc__)
    add = parser.add_argument
    add("study", help="a YAML file, or the name of a shipped study")
    add("overrides", nargs="*", metavar="key=value", help="keys of the recipe, for all trials")
    add("--jobs", type=positive_integer, default=2, help="trials at a time (default: 2)")
    add("--nice", type=niceness, default=0, help="0 to 19: how far to stand back for others")
    add("--output", type=Path, help="file of results (default: docs/results/STUDY.jsonl)")
    add("--runs", type=Path, default=Path("runs/studies"), help="default: runs/studies")
    add("--dry-run", action="store_true", help="check everything, list trials and their cost")
    add("--report", action="store_true", help="only make the tables of what is there")
    add("--tables", type=Path, help="folder of tables and picture (default: RUNS/STUDY/report)")
    add("--into", type=Path, metavar="PAGE", help="also renew the study's section of a page")
    return parser.parse_intermixed_args(argv)


def _show_plan(plan: Planned, jobs: int) -> None:
    """Print the trials that are left, and what they will cost by a few measured steps."""
    settings = check_settings(plan.study, plan.recipes, timed=True)
    for trial in plan.trials:
        known = settings[trial.setting]
        state = f"about {hours(known.seconds or 0)}" if trial in plan.left() else "done"
        print(f"{trial.name}  {known.parameters:,} parameters, {known.steps} steps, {state}")
    total = sum(settings[trial.setting].seconds or 0 for trial in plan.left())
    left = len(plan.left())
    print(
        f"{len(plan.trials)} trials, {left} left: about {hours(total)} of one process by the speed "
        f"of a few steps now, {hours(total / jobs)} with {jobs} at a time"
    )


def _report(plan: Planned, args: argparse.Namespace) -> None:
    folder = args.tables or plan.runs / "report"
    reason = write_report(plan.study, plan.trials, plan.results, folder)
    if args.into is not None:
        insert_report(plan.study, plan.trials, plan.results, args.into)
    print(report_text(plan.study, plan.trials, plan.results))
    print(f"tables are in {folder}" + (f"; no picture: {reason}" if reason else ""))
