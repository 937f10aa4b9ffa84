"""Tables, summary and plot of `attention.py`, all drawn from the report that `--json` writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import log
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tools.bench.harness import aligned, number, slope

KINDS = {"forward": "forward", "both": "forward + backward"}
PATHS = {"offset": ("explicit", "product"), "exp": ("explicit", "product", "scan")}
BASELINES = {"sdpa": "C1", "sdpa+bias": "C4", "linear": "C5"}
COLORS = {"dense": "C7", "explicit": "C0", "product": "C3", "scan": "C2", "auto": "black"}


# --- summary -----------------------------------------------------------------------------------


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Regret of `auto`, growth from L to 4 L, and memory at the largest number of tokens."""
    longest = max(results, key=lambda result: (result["tokens"], result["m"] == 32))
    peaks = {name: row["peak_mb"] for name, row in longest["contestants"].items()}
    return {
        "regret": {kind: _regret(results, kind) for kind in KINDS},
        "growth": [entry for pair in product(results, results) for entry in _growth(*pair)],
        "memory": {"case": longest["case"], "peak_mb": peaks},
    }


def _regret(results: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """time(path of auto) / time(best path) by case and mask, their geometric mean and the worst.

    `auto` runs the very code of the path that it takes: their two times are averaged, so that noise
    between equals does not count as regret.
    """
    regrets: dict[str, float] = {}
    for result, (mask, paths) in product(results, PATHS.items()):
        rows = result["contestants"]
        times = {path: rows.get(f"{mask}/{path}", {}).get(f"{kind}_ms") for path in paths}
        auto = rows.get(f"{mask}/auto", {})
        taken = times.get(auto.get("path"))
        if auto.get(f"{kind}_ms") and taken:
            times[auto["path"]] = (auto[f"{kind}_ms"] + taken) / 2
            best = min(time for time in times.values() if time)
            regrets[f"{result['case']} {mask}"] = times[auto["path"]] / best
    values = list(regrets.values())
    mean = geometric_mean(values) if values else None
    return {"cases": regrets, "geometric_mean": mean, "worst": max(values, default=None)}


def _growth(small: dict[str, Any], large: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Time ratios of two cases that differ in a fourfold number of tokens alone."""
    same = all(small[key] == large[key] for key in ("heads", "m", "d", "batch"))
    if not same or large["tokens"] != 4 * small["tokens"] or small["tokens"] < 3136:
        return
    for name, few in small["contestants"].items():
        many = large["contestants"].get(name, {})
        ratios = {kind: _ratio(many.get(f"{kind}_ms"), few[f"{kind}_ms"]) for kind in KINDS}
        if any(ratios.values()):
            yield {"from": small["case"], "to": large["case"], "contestant": name, **ratios}


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


# --- text --------------------------------------------------------------------------------------


def case_table(result: dict[str, Any]) -> str:
    """All contestants of a case; the ratios are to sdpa in the same rounds."""
    shape = f"{'x'.join(map(str, result['grid']))} = {result['tokens']:,} tokens"
    title = (
        f"{shape}, batch {result['batch']}, {result['heads']} heads, m = {result['m']}, "
        f"d = {result['d']}  ({result['rounds']} rounds)"
    )
    head = ["contestant", "forward ms", "/ sdpa", "fwd+bwd ms", "/ sdpa", "peak MB", "note"]
    body = [_table_row(name, row) for name, row in result["contestants"].items()]
    return f"{title}\n{aligned([head, *body])}\n"


def _table_row(name: str, row: dict[str, Any]) -> list[str]:
    note = row["skipped"] or (f"takes {row['path']}" if row["path"] else "")
    columns = ("forward_ms", "forward_ratio", "both_ms", "both_ratio", "peak_mb")
    return [name, *(number(row[column]) for column in columns), note]


def summary_text(summary: dict[str, Any]) -> str:
    return "\n".join([*_regret_text(summary), *_growth_text(summary), *_memory_text(summary)])


def _regret_text(summary: dict[str, Any]) -> Iterator[str]:
    regret = summary["regret"]
    rows = [["auto / best path", "forward", "fwd+bwd"]]
    for case in regret["both"]["cases"] | regret["forward"]["cases"]:
        rows.append([case, *(number(regret[kind]["cases"].get(case)) for kind in KINDS)])
    for key in ("geometric_mean", "worst"):
        rows.append([key.replace("_", " "), *(number(regret[kind][key]) for kind in KINDS)])
    yield f"Regret of auto\n{aligned(rows)}\n"


def _growth_text(summary: dict[str, Any]) -> Iterator[str]:
    rows = [["from", "to", "contestant", "forward", "fwd+bwd"]]
    for entry in summary["growth"]:
        names = [entry[key] for key in ("from", "to", "contestant")]
        rows.append([*names, *(number(entry[kind]) for kind in KINDS)])
    if len(rows) > 1:
        yield f"Growth of time from L to 4 L tokens\n{aligned(rows, text=3)}\n"


def _memory_text(summary: dict[str, Any]) -> Iterator[str]:
    memory = summary["memory"]
    rows = [["contestant", "MB"], *([n, number(mb)] for n, mb in memory["peak_mb"].items())]
    yield f"Peak memory of forward + backward, {memory['case']}\n{aligned(rows)}\n"


# --- plot --------------------------------------------------------------------------------------


def plot(report: dict[str, Any], file: Path) -> None:
    """Forward + backward time against tokens, for the settings that were run on most grids."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = _largest_group(report["cases"])
    figure, panels = plt.subplots(1, 2, figsize=(11, 5), sharex=True, sharey=True)
    titles = {"offset": "OffsetRPE (Toeplitz)", "exp": "ExponentialRPE"}
    for axes, (mask, title) in zip(panels, titles.items(), strict=True):
        for name in results[0]["contestants"]:
            if name in BASELINES or name.startswith(f"{mask}/"):
                _line(axes, name, results)
        axes.set(title=title, xlabel="tokens", xscale="log", yscale="log")
        _token_ticks(axes, results)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")
    panels[0].set_ylabel("forward + backward, ms")
    first = results[0]
    figure.suptitle(
        f"heads {first['heads']}, batch {first['batch']}, m = {first['m']}, d = {first['d']}; "
        f"{report['settings']['device']}, {report['threads']} threads, "
        f"torch {report['versions']['torch']}",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _largest_group(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[tuple(result[key] for key in ("heads", "m", "d", "batch"))].append(result)
    return sorted(max(groups.values(), key=len), key=lambda result: result["tokens"])


def _line(axes: Any, name: str, results: list[dict[str, Any]]) -> None:
    points = [(result["tokens"], result["contestants"][name]["both_ms"]) for result in results]
    points = [(tokens, ms) for tokens, ms in points if ms]
    if not points:
        return
    path = name.partition("/")[2]
    style: dict[str, Any] = {"color": COLORS.get(path) or BASELINES[name], "marker": "o"}
    if not path:
        style |= {"linestyle": "--", "marker": "s"}
    if path == "auto":  # a wide pale band under the path that it follows
        style |= {"linewidth": 7, "alpha": 0.2, "marker": None, "zorder": 1}
    label = f"{path or name}  ~ L^{_longest_slope(points):.2f}" if len(points) > 1 else path or name
    axes.plot(*zip(*points, strict=True), label=label, markersize=4, **style)


def _longest_slope(points: list[tuple[int, float]]) -> float:
    """Slope through the longest three on log axes: short ones are mostly overhead."""
    return slope([(log(tokens), log(ms)) for tokens, ms in points[-3:]])


def _token_ticks(axes: Any, results: list[dict[str, Any]]) -> None:
    tokens = sorted({result["tokens"] for result in results})
    axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axes.minorticks_off()
