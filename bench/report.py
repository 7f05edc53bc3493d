"""The table for people and the JSON for programs, both from one Outcome. Measures nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.marks import Mark, marks
from bench.outcome import FLOOR, Comparison, Figure, Outcome
from bench.registry import Workload
from bench.scale import Scale
from bench.stats import spread, verdict_at_least, verdict_at_most

JSON_VERSION = 2
_STYLES = {
    "OK": "green",
    "above": "bold red",
    "below": "bold red",
    "failed": "bold red",
    "missed": "bold red",
}


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
    print_facts(console, scale, facts)
    if outcome.samples or outcome.failures:
        console.print(ratio_table(outcome, scale))
    for group in dict.fromkeys(each.group for each in outcome.comparisons):
        console.print(comparison_table(outcome, group))
    if outcome.figures or outcome.figure_failures:
        console.print(figure_table(outcome))
    if found := marks(outcome):
        console.print(mark_table(found))
    if outcome.aside:
        names = ", ".join(outcome.aside.contestants[1:])
        console.print(f"{names}: with less of everything, beside {outcome.baseline} with as little")
    if FLOOR in outcome.rivals:
        console.print(f"{FLOOR}: what FUSE itself costs; in rows that sync it waits for no disk")
    print_skipped(console, outcome)


def print_skipped(console: Console, outcome: Outcome) -> None:
    for name, reason in outcome.skipped.items():
        console.print(f"without {name}: {reason}", highlight=False, markup=False)


def print_facts(console: Console, scale: Scale, facts: Mapping[str, str]) -> None:
    for key, value in {**facts, "scale": scale_text(scale)}.items():
        console.print(f"{key + ':':13}{value}", highlight=False, markup=False)


def scale_text(scale: Scale) -> str:
    return (
        f"{scale.name}; {scale.repeats} repetitions of each row, {scale.heavy_repeats} of those "
        f"that take long, {scale.rival_repeats} by other file systems"
    )


def ratio_table(outcome: Outcome, scale: Scale) -> Table:
    table = Table(title=f"Time as a ratio to {outcome.baseline} (median, lowest to highest)")
    table.add_column("workload")
    table.add_column(outcome.baseline, justify="right")
    table.add_column(outcome.subject, justify="right")
    table.add_column("daemon CPU", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("ratio", justify="right", style="bold")
    table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("mark", justify="right")
    table.add_column("", no_wrap=True)
    for rival in outcome.rivals:
        table.add_column(rival, justify="right")
    table.add_column("note")
    for workload in outcome.workloads:
        table.add_row(*_ratio_cells(outcome, workload, scale))
    return table


def _ratio_cells(outcome: Outcome, workload: Workload, scale: Scale) -> list[str]:
    subject = outcome.subject
    ratio = outcome.ratio(workload.name, subject)
    cells = [
        workload.title.format(scale=scale),
        median_text(outcome, workload, outcome.baseline),
        median_text(outcome, workload, subject),
        _cpu_text(outcome, workload, subject),
        _memory_text(outcome, workload, subject),
        f"{ratio.median:.2f}" if ratio else "",
        f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio else "",
        f"{workload.mark:.3g}" if workload.mark else "",
        _coloured(verdict(outcome, workload, subject)),
    ]
    for rival in outcome.rivals:
        against = outcome.ratio(workload.name, rival)
        cells.append(f"{against.median:.2f}" if against else "")
    return [*cells, "; ".join([*outcome.notes(workload.name), *_failures(outcome, workload)])]


def _failures(outcome: Outcome, workload: Workload) -> list[str]:
    found = {each: outcome.failure(workload.name, each) for each in outcome.everyone}
    return [f"{each}: {reason}" for each, reason in found.items() if reason]


def comparison_table(outcome: Outcome, group: str) -> Table:
    """Medians side by side; what was not measured for a column stays empty."""
    members = [each for each in outcome.comparisons if each.group == group]
    columns = list(dict.fromkeys(column for each in members for column in each.columns))
    table = Table(title=group)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("note")
    for each in members:
        table.add_row(each.title, *(comparison_text(each, column) for column in columns), each.note)
    return table


def comparison_text(comparison: Comparison, column: str) -> str:
    values = comparison.columns.get(column)
    if not values:
        return ""
    middle = spread(values).median
    return (
        seconds_text(middle)
        if comparison.unit == "s"
        else f"{number_text(middle)} {comparison.unit}"
    )


def mark_table(found: Sequence[Mark]) -> Table:
    table = Table(title="Marks")
    table.add_column("what")
    table.add_column("value", justify="right", style="bold")
    table.add_column("at most", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("note")
    for mark in found:
        value = f"{number_text(mark.value)} {mark.unit}"
        bound = number_text(mark.bound)
        table.add_row(mark.title, value, bound, _coloured(mark.verdict), mark.note)
    return table


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


def median_text(outcome: Outcome, workload: Workload, contestant: str) -> str:
    samples = outcome.of(workload.name, contestant)
    return seconds_text(spread([each.seconds for each in samples]).median) if samples else ""


def _cpu_text(outcome: Outcome, workload: Workload, contestant: str) -> str:
    samples = outcome.of(workload.name, contestant)
    return seconds_text(spread([s.daemon_cpu_seconds for s in samples]).median) if samples else ""


def _memory_text(outcome: Outcome, workload: Workload, contestant: str) -> str:
    samples = outcome.of(workload.name, contestant)
    most = max((each.daemon_own_bytes for each in samples), default=0)
    return f"{most / 1e6:.0f} MB" if most else ""


def _coloured(word: str) -> str:
    return f"[{_STYLES[word]}]{word}[/]" if word in _STYLES else word


def as_json(outcome: Outcome, scale: Scale, facts: Mapping[str, str]) -> dict[str, Any]:
    """Everything the table is made of, every single sample included."""
    return {
        "version": JSON_VERSION,
        "facts": dict(facts),
        "scale": asdict(scale),
        "scale_text": scale_text(scale),
        "contestants": list(outcome.contestants),
        "rivals": list(outcome.rivals),
        "rows": [_row_json(outcome, each, scale) for each in outcome.workloads],
        "figures": [asdict(each) | {"verdict": figure_verdict(each)} for each in outcome.figures],
        "figure_failures": outcome.figure_failures,
        "comparisons": [asdict(each) for each in outcome.comparisons],
        "marks": [asdict(each) | {"verdict": each.verdict} for each in marks(outcome)],
        "aside": list(outcome.aside.contestants[1:]) if outcome.aside else [],
        "skipped": outcome.skipped,
    }


def _row_json(outcome: Outcome, workload: Workload, scale: Scale) -> dict[str, Any]:
    return {
        "name": workload.name,
        "title": workload.title.format(scale=scale),
        "mark": workload.mark,
        "cold": workload.cold,
        "kind": workload.kind,
        "contestants": {
            each: _contestant_json(outcome, workload, each) for each in outcome.everyone
        },
    }


def _contestant_json(outcome: Outcome, workload: Workload, contestant: str) -> dict[str, Any]:
    ratio = outcome.ratio(workload.name, contestant)
    return {
        "samples": [asdict(each) for each in outcome.of(workload.name, contestant)],
        "ratio": asdict(ratio) if ratio else None,
        "verdict": verdict(outcome, workload, contestant),
        "failure": outcome.failure(workload.name, contestant),
    }
