"""A run in words: figures for its head, its recipe, where it comes from, and what went wrong."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from vit_rpe.messages import short

from .run import LONGEST, MOST_BAD, RunRecord, number
from .subject import Subject

MOST_STARTS = 50
SESSION = {"processes": "Processes", "model": "Model", "versions": "Versions", "machine": "Machine"}


def figures(subject: Subject) -> list[list[str]]:
    """Return the most important numbers, each with its name."""
    run, result, shown = subject.run, subject.evaluation, []
    if result is not None:
        metrics = result.metrics
        shown += [
            ["top-1", f"{metrics['top1']:.2f} %"],
            ["top-5", f"{metrics['top5']:.2f} %"],
            ["loss", f"{metrics['loss']:.4f}"],
            ["calibration error", f"{result.calibration_error():.4f}"],
        ]
    if subject.model is not None:
        count = sum(parameter.numel() for parameter in subject.model.parameters())
        shown.append(["parameters", _count(count)])
    if run is not None:
        steps = max((line["step"] for line in run.log), default=0)
        shown += [["epochs", str(len(run.history))], ["steps", f"{steps:,}"]]
        rate = [
            number(line.get(f"{unit}_per_s"))
            for line in run.lines("train")[-1:]
            for unit in ("img", "clips")
        ]
        shown += [["samples/s", f"{each:,.0f}"] for each in rate if each is not None]
        if (seconds := _duration(run)) is not None:
            shown.append(["time", _time(seconds)])
    return shown


def recipe_of(run: RunRecord) -> dict[str, Any]:
    """Return all keys of a recipe as text, and how it differs from its base."""
    values = {name: text(value) for name, value in run.recipe.model_dump().items()}
    told = (run.lines("start") or [{}])[-1].get("recipe") or {}
    changed = told.get("changed") if isinstance(told, dict) else None
    if not isinstance(changed, dict):
        return {"values": values, "base": None, "file": None, "changed": None}
    pairs = {k: [text(v) for v in pair] for k, pair in changed.items() if isinstance(pair, list)}
    base, file = told.get("base"), told.get("file")
    return {"values": values, "base": text(base), "file": text(file), "changed": pairs}


def origin_of(starts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each start of a run: when, by which command, with what; the last of very many."""
    sessions = []
    for line in starts[-MOST_STARTS:]:
        rows = [["Command", text(line.get("command"))], ["Began", text(line.get("time"))]]
        if line.get("step"):
            rows.append(["From step", text(line["step"])])
        for key, title in SESSION.items():
            values = line.get(key)
            if isinstance(values, dict):
                shown = [f"{name} {text(v)}" for name, v in values.items() if v is not None]
                rows.append([title, ", ".join(shown)])
        rows.append(["Code", _git(line.get("git"))])
        sessions.append({"rows": rows, "step": line.get("step")})
    return sessions


def events_of(run: RunRecord) -> dict[str, Any]:
    """Return what went wrong: warnings, skipped steps, bad samples."""
    warnings = [each for line in run.lines("start") for each in _texts(line.get("warnings"))]
    skipped = [
        [line["step"], text(line.get("loss")), short(", ".join(_texts(line.get("keys"))), 300)]
        for line in run.lines("skipped")
    ]
    return {
        "warnings": list(dict.fromkeys(warnings))[:MOST_BAD],
        "skipped": skipped[:MOST_BAD],
        "skippedCount": len(skipped),
        "bad": run.bad[:MOST_BAD],
        "badCount": len(run.bad),
    }


def text(value: Any) -> str:
    """Return a plain value as people read it: text as it is, the rest as JSON."""
    if value is None:
        return "–"
    plain = isinstance(value, str)
    return short(value if plain else json.dumps(value, ensure_ascii=False, default=str), LONGEST)


def _texts(values: Any) -> list[str]:
    return [text(each) for each in values] if isinstance(values, list) else []


def _git(state: Any) -> str:
    if not isinstance(state, dict):
        return "no git repository here"
    changed = " with changes that are not committed" if state.get("changed") else ""
    return f"{text(state.get('commit'))[:12]} on {text(state.get('branch'))}{changed}"


def _duration(run: RunRecord) -> float | None:
    """Return the seconds that the sessions took, as far as their epochs tell."""
    total, begin, last = 0.0, None, None
    for line in run.log:
        at = _moment(line.get("time"))
        if at is None:
            continue
        if line.get("event") == "start":
            total += last - begin if begin is not None and last is not None else 0.0
            begin = at
        last = at
    total += last - begin if begin is not None and last is not None else 0.0
    return total if total > 0 else None


def _moment(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _count(count: int) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)
