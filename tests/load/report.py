"""What a load did to the daemon, as text, as figures and as a picture."""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WIDTH, PANEL, LEFT, GAP = 800, 150, 90, 50


class Told(NamedTuple):
    """What one process went through: seconds of each call by name, errors by errno."""

    calls: dict[str, list[float]]
    errors: Counter[str]


class Sample(NamedTuple):
    """The daemon at one moment of a load."""

    seconds: float
    anonymous_kb: int
    resident_kb: int
    descriptors: int


def sample(pid: int, seconds: float) -> Sample:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    size = [int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")]
    return Sample(seconds, *size, len(os.listdir(f"/proc/{pid}/fd")))


class Latency(NamedTuple):
    """How long the calls of one name took, in milliseconds."""

    count: int
    median: float
    p99: float
    #: The mean of the slowest 1 %.
    tail: float
    slowest: float


def latency_of(seconds: list[float]) -> Latency:
    times = sorted(1e3 * value for value in seconds)
    tail = times[-max(1, len(times) // 100) :]
    p99 = times[min(len(times) - 1, math.ceil(len(times) * 0.99) - 1)]
    return Latency(len(times), times[len(times) // 2], p99, sum(tail) / len(tail), times[-1])


class Report(NamedTuple):
    seconds: float
    done: Counter[str]
    errors: Counter[str]
    latencies: dict[str, Latency]
    samples: list[Sample]

    @classmethod
    def of(
        cls, told: list[Told], done: Counter[str], samples: list[Sample], seconds: float
    ) -> Report:
        calls: dict[str, list[float]] = defaultdict(list)
        errors: Counter[str] = Counter()
        for one in told:
            errors.update(one.errors)
            for name, times in one.calls.items():
                calls[name] += times
        latencies = {name: latency_of(times) for name, times in sorted(calls.items())}
        return cls(seconds, done, errors, latencies, samples)

    def text(self) -> str:
        lines = [f"{self.seconds:.0f} s, {dict(self.done)}"]
        words = ("count", "median", "p99", "slowest 1%", "slowest")
        lines.append(f"{'call':<8} " + " ".join(f"{word:>10}" for word in words) + "  (ms)")
        for name, found in self.latencies.items():
            figures = " ".join(f"{value:>10.2f}" for value in found[1:])
            lines.append(f"{name:<8} {found.count:>10,} {figures}")
        lines.append(f"errors: {dict(self.errors)}")
        for name in Sample._fields[1:]:
            values = [getattr(one, name) for one in self.samples]
            lines.append(f"{name:<13} {values[0]:>8,} .. {values[-1]:>8,}, at most {max(values):,}")
        return "\n".join(lines)

    def write(self, directory: Path) -> Path:
        """`load.json` with every figure and `load.svg`, whose path is returned."""
        directory.mkdir(parents=True, exist_ok=True)
        figures = {
            "seconds": self.seconds,
            "done": self.done,
            "errors": self.errors,
            "latency_ms": {name: found._asdict() for name, found in self.latencies.items()},
            "samples": [one._asdict() for one in self.samples],
        }
        (directory / "load.json").write_text(json.dumps(figures, indent=1))
        picture = directory / "load.svg"
        picture.write_text(_svg(self))
        return picture


# -- the picture -----------------------------------------------------------------------------------


def _svg(report: Report) -> str:
    times = [one.seconds for one in report.samples]
    memory = [one.anonymous_kb / 1024 for one in report.samples]
    descriptors = [float(one.descriptors) for one in report.samples]
    panels = [
        _line(times, memory, "memory of the daemon's own, MiB"),
        _line(times, descriptors, "open descriptors"),
        _bars(report.latencies),
    ]
    placed = [
        f'<g transform="translate(0 {GAP + at * (PANEL + GAP)})">{panel}</g>'
        for at, panel in enumerate(panels)
    ]
    height = len(panels) * (PANEL + GAP) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(placed)
        + "</svg>\n"
    )


def _line(times: Sequence[float], values: Sequence[float], title: str) -> str:
    """Values over time, from zero on: growth must look like growth."""
    top, end = max(values) * 1.1 or 1, max(times) or 1
    width = WIDTH - LEFT - 20
    points = " ".join(
        f"{LEFT + width * time / end:.1f},{PANEL - PANEL * value / top:.1f}"
        for time, value in zip(times, values, strict=True)
    )
    return (
        f"{_frame(title)}{_mark(PANEL - PANEL * max(values) / top, f'{max(values):.0f}')}"
        f"{_mark(PANEL, '0')}"
        f'<text x="{WIDTH - 20}" y="{PANEL + 15}" text-anchor="end">{end:.0f} s</text>'
        f'<polyline points="{points}" fill="none" stroke="#0060a0" stroke-width="1.5"/>'
    )


def _bars(latencies: dict[str, Latency]) -> str:
    """For each call its median, the 99th percentile and the slowest, on a logarithmic scale."""
    parts = [_frame("latency in ms: median, 99 %, mean of the slowest 1 %, slowest")]
    low, high = -3.0, 5.0

    def height(ms: float) -> float:
        return PANEL * (math.log10(max(ms, 10**low)) - low) / (high - low)

    for power in range(-2, 5, 2):
        parts.append(_mark(PANEL - height(10.0**power), f"{10.0**power:g}"))
    step = (WIDTH - LEFT - 20) / max(1, len(latencies))
    shades = ("#a0c8e8", "#4090c8", "#0060a0", "#003050")
    for at, (name, found) in enumerate(latencies.items()):
        left = LEFT + at * step
        for bar, (value, shade) in enumerate(zip(found[1:], shades, strict=True)):
            tall = height(value)
            parts.append(
                f'<rect x="{left + 4 + bar * (step - 8) / 4:.1f}" y="{PANEL - tall:.1f}" '
                f'width="{(step - 8) / 4:.1f}" height="{tall:.1f}" fill="{shade}">'
                f"<title>{name} {value:.2f} ms</title></rect>"
            )
        parts.append(f'<text x="{left + 4:.1f}" y="{PANEL + 15}">{name}</text>')
    return "".join(parts)


def _frame(title: str) -> str:
    width = WIDTH - LEFT - 20
    return (
        f'<text x="{LEFT}" y="-8" font-weight="bold">{title}</text>'
        f'<rect x="{LEFT}" y="0" width="{width}" height="{PANEL}" fill="none" stroke="#888"/>'
    )


def _mark(y: float, words: str) -> str:
    return f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
