"""docs/BENCHMARKS.md and its plots, from the JSON of a run: the words and the figures in one place.

Measures nothing and needs nothing but the file, so that a run made elsewhere can be written down.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.outcome import DAY_GROUP, FLOOR
from bench.plots import Bar, ratio_bars, value_bars, value_lines
from bench.registry import MICRO, REAL
from bench.report import JSON_VERSION, number_text, seconds_text

Json = Mapping[str, Any]

_KINDS = {
    REAL: ("Programs at work", "What people and agents run all day, with the real programs."),
    MICRO: ("Single calls", "One kind of call at a time, from a loop."),
}
_INTRODUCTION = """\
# Benchmarks

How fast ckptfs is, beside the same work on the directory's own file system and on others.
Everything on this page is written by the benchmark from one run:

    make bench          measure; prints the tables and writes a JSON file
    make bench-docs     write this page and its plots from the newest JSON file

What a number means, and how a run is kept fair: [bench/README.md](../bench/README.md). Times
differ from machine to machine, ratios within one run less. Run it on yours.
"""
_FLOOR_WORDS = """\
*floor* is a C file system in memory that uses the kernel as ckptfs does: what FUSE itself costs. It
keeps nothing when it ends; none that is used in this way can be much faster. In rows that wait for
the disk (fsync, SQLite) it has none to wait for, and is no measure."""


class NotAResult(Exception):
    """The file is not what this version of the benchmark writes."""


def load(path: Path) -> Json:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NotAResult(f"Cannot read {path}: {error}") from error
    if not isinstance(data, dict) or data.get("version") != JSON_VERSION:
        raise NotAResult(f"Cannot read {path}: it is not a result of this version of the benchmark")
    return data


def write(data: Json, page: Path) -> list[Path]:
    """The page and, in a directory beside it, its plots; returns what was written."""
    plots = page.parent / "benchmarks"
    plots.mkdir(parents=True, exist_ok=True)
    drawn = dict(_plots(data))
    for old in plots.glob("*.svg"):
        old.unlink()
    for name, svg in drawn.items():
        (plots / f"{name}.svg").write_text(svg)
    page.write_text(_page(data, drawn))
    return [page, *(plots / f"{name}.svg" for name in drawn)]


# -- the page --------------------------------------------------------------------------------------


def _page(data: Json, drawn: Mapping[str, str]) -> str:
    parts = [_INTRODUCTION, _machine(data)]
    if data["marks"]:
        parts.append(_marks(data["marks"]))
    for kind, (title, words) in _KINDS.items():
        rows = [each for each in data["rows"] if each["kind"] == kind]
        if rows:
            text = " ".join(filter(None, (words, _floor(data), _aside(data))))
            parts.append(f"## {title}\n\n{text}\n\n{_picture(kind, drawn)}{_rows(data, rows)}")
    for group in _groups(data):
        members = [each for each in data["comparisons"] if each["group"] == group]
        parts.append(f"## {group}\n\n{_picture(_slug(group), drawn)}{_comparisons(members)}")
    if data["figures"]:
        parts.append(f"## ckptfs alone\n\n{_figures(data['figures'])}")
    if data["skipped"]:
        lines = [f"- {name}: {reason}" for name, reason in data["skipped"].items()]
        parts.append("## Left out in this run\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _floor(data: Json) -> str:
    return _FLOOR_WORDS if FLOOR in data["rivals"] else ""


def _aside(data: Json) -> str:
    if not data["aside"]:
        return ""
    names = ", ".join(data["aside"])
    return (
        f"{names} would take too long and has less of everything, beside a baseline with as little."
    )


def _machine(data: Json) -> str:
    facts = {**data["facts"], "scale": data["scale_text"]}
    return "## The run\n\n" + _table(["", ""], [[key, value] for key, value in facts.items()])


def _marks(found: Sequence[Json]) -> str:
    rows = [_mark(each) for each in found]
    return "## The marks\n\n" + _table(["what", "value", "at most", "", "note"], rows)


def _mark(mark: Json) -> list[str]:
    word = "OK" if mark["verdict"] == "OK" else f"**{mark['verdict']}**"
    value = _value(mark["value"], mark["unit"])
    return [mark["title"], value, number_text(mark["bound"]), word, mark["note"]]


def _rows(data: Json, rows: Sequence[Json]) -> str:
    baseline, subject = data["contestants"][:2]
    head = ["", baseline, subject, "daemon CPU", "memory", "ratio", "spread", "mark", ""]
    body = [
        [*_row(each, baseline, subject), *(_rival(each, name) for name in data["rivals"])]
        for each in rows
    ]
    return _table([*head, *data["rivals"]], body)


def _row(row: Json, baseline: str, subject: str) -> list[str]:
    ours = row["contestants"][subject]
    ratio = ours["ratio"]
    return [
        row["title"],
        _seconds(row["contestants"][baseline]["samples"], "seconds"),
        _seconds(ours["samples"], "seconds"),
        _seconds(ours["samples"], "daemon_cpu_seconds"),
        _most(ours["samples"]),
        f"**{ratio['median']:.2f}**" if ratio else "",
        f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio else "",
        f"{row['mark']:.3g}" if row["mark"] else "",
        ours["verdict"],
    ]


def _rival(row: Json, name: str) -> str:
    ratio = row["contestants"].get(name, {}).get("ratio")
    return f"{ratio['median']:.2f}" if ratio else ""


def _comparisons(members: Sequence[Json]) -> str:
    columns = list(dict.fromkeys(column for each in members for column in each["columns"]))
    rows = [
        [each["title"], *(_cell(each, column) for column in columns), each["note"]]
        for each in members
    ]
    return _table(["", *columns, "note"] if any(row[-1] for row in rows) else ["", *columns], rows)


def _cell(comparison: Json, column: str) -> str:
    values = comparison["columns"].get(column)
    if not values:
        return ""
    middle = median(values)
    return seconds_text(middle) if comparison["unit"] == "s" else _value(middle, comparison["unit"])


def _figures(found: Sequence[Json]) -> str:
    rows = []
    for each in found:
        bound = "at least" if each["mark_is_minimum"] else "at most"
        mark = f"{bound} {number_text(each['mark'])}" if each["mark"] is not None else ""
        value = _value(each["value"], each["unit"])
        rows.append([each["title"], value, mark, each["verdict"], each["note"]])
    return _table(["", "value", "mark", "", "note"], rows)


def _seconds(samples: Sequence[Json], key: str) -> str:
    return seconds_text(median(each[key] for each in samples)) if samples else ""


def _most(samples: Sequence[Json]) -> str:
    most = max((each["daemon_own_bytes"] for each in samples), default=0)
    return f"{most / 1e6:.0f} MB" if most else ""


def _value(value: float, unit: str) -> str:
    return f"{number_text(value)} {unit}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *(row[: len(head)] for row in rows)]
    return "".join("| " + " | ".join(map(_escaped, line)) + " |\n" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _picture(name: str, drawn: Mapping[str, str]) -> str:
    return f"![{name}](benchmarks/{name}.svg)\n\n" if name in drawn else ""


# -- the plots -------------------------------------------------------------------------------------


#: Groups whose rows follow each other in time.
_OVER_TIME = {DAY_GROUP}


def _plots(data: Json) -> Iterator[tuple[str, str]]:
    for kind, (title, _) in _KINDS.items():
        rows = [each for each in data["rows"] if each["kind"] == kind]
        bars = [Bar(each["title"], _ratios(data, each)) for each in rows]
        if any(bar.values for bar in bars):
            series = [data["contestants"][1], *data["rivals"]]
            marks = [1.5, 2.5] if kind == REAL else []
            heading = f"{title}: time as a multiple of {data['contestants'][0]}"
            yield kind, ratio_bars(heading, bars, series, marks)
    for group in _groups(data):
        members = [each for each in data["comparisons"] if each["group"] == group]
        series = list(dict.fromkeys(column for each in members for column in each["columns"]))
        scale, unit = (1e3, "ms") if members[0]["unit"] == "s" else (1.0, members[0]["unit"])
        bars = [
            Bar(each["title"], {k: scale * median(v) for k, v in each["columns"].items() if v})
            for each in members
        ]
        draw = value_lines if group in _OVER_TIME else value_bars
        yield _slug(group), draw(group, bars, series, unit)


def _ratios(data: Json, row: Json) -> dict[str, float]:
    names = [data["contestants"][1], *data["rivals"]]
    found = {name: row["contestants"].get(name, {}).get("ratio") for name in names}
    return {name: ratio["median"] for name, ratio in found.items() if ratio}


def _groups(data: Json) -> list[str]:
    return list(dict.fromkeys(each["group"] for each in data["comparisons"]))


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
