"""The table for people and the JSON for programs, both from one Outcome. Measures nothing."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.outcome import Figure, Outcome
from bench.registry import Workload
from bench.scale import Scale
from bench.stats import spread, verdict_at_least, verdict_at_most

JSON_VERSION = 1
_STYLES = {"OK": "green", "above": "bold red", "below": "bold red", "failed": "bold red"}


def seconds_text(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s"


def number_text(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def figure_verdict(figure: Figure) -> str:
    judge = verdict_at_least if figure.mark_is_minimum else verdict_at_most
    return judge(figure.value, figure.mark)


def print_report(
    console: Console, outcome: Outcome, scale: Scale, facts: Mapping[str, str]
) -> None:
    for key, value in facts.items():
        console.print(f"{key + ':':13}{value}", highlight=False, markup=False)
    console.print(f"{'scale:':13}{scale.name}, {scale.repeats} repetitions", highlight=False)
    if outcome.samples or outcome.failures:
        console.print(ratio_table(outcome, scale))
    if outcome.figures or outcome.figure_failures:
        console.print(figure_table(outcome))


def ratio_table(outcome: Outcome, scale: Scale) -> Table:
    table = Table(title=f"Time as a ratio to {outcome.baseline} (median, lowest to highest)")
    table.add_column("workload")
    table.add_column(outcome.baseline, justify="right")
    for contestant in outcome.contestants[1:]:
        table.add_column(contestant, justify="right")
        table.add_column("daemon CPU", justify="right")
        table.add_column("ratio", justify="right", style="bold")
        table.add_column("spread", justify="right", no_wrap=True)
        table.add_column("mark", justify="right")
        table.add_column("", no_wrap=True)
    table.add_column("note")
    for workload in outcome.workloads:
        table.add_row(*_ratio_cells(outcome, workload, scale))
    return table


def _ratio_cells(outcome: Outcome, workload: Workload, scale: Scale) -> list[str]:
    cells = [workload.title.format(scale=scale), _median_text(outcome, workload, outcome.baseline)]
    for contestant in outcome.contestants[1:]:
        ratio = outcome.ratio(workload.name, contestant)
        cells += [
            _median_text(outcome, workload, contestant),
            _cpu_text(outcome, workload, contestant),
            f"{ratio.median:.2f}" if ratio else "",
            f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio else "",
            f"{workload.mark:.1f}" if workload.mark else "",
            _coloured(verdict(outcome, workload, contestant)),
        ]
    failures = [
        f"{each}: {outcome.failures[workload.name, each]}"
        for each in outcome.contestants
        if (workload.name, each) in outcome.failures
    ]
    return [*cells, "; ".join([*outcome.notes(workload.name), *failures])]


def verdict(outcome: Outcome, workload: Workload, contestant: str) -> str:
    if (workload.name, contestant) in outcome.failures:
        return "failed"
    ratio = outcome.ratio(workload.name, contestant)
    return verdict_at_most(ratio.median, workload.mark) if ratio else ""


def figure_table(outcome: Outcome) -> Table:
    table = Table(title="Figures")
    table.add_column("figure")
    table.add_column("value", justify="right", style="bold")
    table.add_column("mark", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("note")
    for figure in outcome.figures:
        bound = "at least" if figure.mark_is_minimum else "at most"
        mark = f"{bound} {number_text(figure.mark)}" if figure.mark is not None else ""
        value = f"{number_text(figure.value)} {figure.unit}"
        table.add_row(figure.title, value, mark, _coloured(figure_verdict(figure)), figure.note)
    for name, reason in outcome.figure_failures.items():
        table.add_row(name, "", "", _coloured("failed"), reason)
    return table


def _median_text(outcome: Outcome, workload: Workload, contestant: str) -> str:
    samples = outcome.of(workload.name, contestant)
    return seconds_text(spread([each.seconds for each in samples]).median) if samples else ""


def _cpu_text(outcome: Outcome, workload: Workload, contestant: str) -> str:
    samples = outcome.of(workload.name, contestant)
    return seconds_text(spread([s.daemon_cpu_seconds for s in samples]).median) if samples else ""


def _coloured(word: str) -> str:
    return f"[{_STYLES[word]}]{word}[/]" if word in _STYLES else word


def as_json(outcome: Outcome, scale: Scale, facts: Mapping[str, str]) -> dict[str, Any]:
    """Everything the table is made of, every single sample included."""
    return {
        "version": JSON_VERSION,
        "facts": dict(facts),
        "scale": asdict(scale),
        "baseline": outcome.baseline,
        "rows": [_row_json(outcome, each, scale) for each in outcome.workloads],
        "figures": [asdict(each) | {"verdict": figure_verdict(each)} for each in outcome.figures],
        "figure_failures": outcome.figure_failures,
    }


def _row_json(outcome: Outcome, workload: Workload, scale: Scale) -> dict[str, Any]:
    return {
        "name": workload.name,
        "title": workload.title.format(scale=scale),
        "mark": workload.mark,
        "cold": workload.cold,
        "contestants": {
            each: _contestant_json(outcome, workload, each) for each in outcome.contestants
        },
    }


def _contestant_json(outcome: Outcome, workload: Workload, contestant: str) -> dict[str, Any]:
    ratio = outcome.ratio(workload.name, contestant)
    return {
        "samples": [asdict(each) for each in outcome.of(workload.name, contestant)],
        "ratio": asdict(ratio) if ratio else None,
        "verdict": verdict(outcome, workload, contestant),
        "failure": outcome.failures.get((workload.name, contestant)),
    }
