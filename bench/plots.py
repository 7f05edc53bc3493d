"""Plots as SVG, drawn by hand: bars and lines with few words, that a browser and GitHub show.

Pure: numbers in, text out. Colours carry no meaning of their own; every mark has its label.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH = 860
_LABEL = 330
_LABEL_LENGTH = 52
_RIGHT = 70
_ROW = 22
_HEAD = 58
_FOOT = 34
_GAP = 6
#: Of lines: where they begin, how high they are, and the room for the slanted labels below.
_LINES_LEFT, _LINES_TOP, _LINES_HEIGHT, _LINES_FOOT = 90, 62, 260, 110
_COLOURS = ("#2563eb", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#0891b2")
_FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Bar:
    label: str
    values: Mapping[str, float]
    """What each series has here; a series may have nothing."""


def ratio_bars(
    title: str, bars: Sequence[Bar], series: Sequence[str], marks: Sequence[float]
) -> str:
    """Bars from 1.0 on a logarithmic scale: half and double look alike; marks are dashed."""
    values = [value for bar in bars for value in bar.values.values()]
    axis = _Log(min(0.5, *values), max(2.0, *values, *marks), _LABEL, _WIDTH - _RIGHT)
    return _chart(title, bars, series, _Frame(axis, 1.0, marks, ".2f"))


def value_bars(title: str, bars: Sequence[Bar], series: Sequence[str], unit: str) -> str:
    """Bars from the power of ten below the smallest value, on a logarithmic scale."""
    values = [value for bar in bars for value in bar.values.values() if value > 0]
    low = 10 ** math.floor(math.log10(min(values)))
    axis = _Log(low, max(values) * 1.2, _LABEL, _WIDTH - _RIGHT)
    return _chart(f"{title} ({unit})", bars, series, _Frame(axis, low, (), ".3g"))


def value_lines(title: str, points: Sequence[Bar], series: Sequence[str], unit: str) -> str:
    """A line for each series over points in their order, from zero; the last value is written."""
    most = max(value for point in points for value in point.values.values())
    step = 10 ** math.floor(math.log10(most))
    top = math.ceil(most / step) * step
    parts = [_text(16, 24, f"{title} ({unit})", size=16, weight="bold"), *_legend(series)]
    for share in range(5):
        y = _line_y(share / 4)
        ends = f'x1="{_LINES_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"'
        parts.append(f'<line {ends} stroke="#d4d4d8"/>')
        parts.append(_text(_LINES_LEFT - 8, y + 4, f"{share / 4 * top:,g}", anchor="end", size=11))
    width = _WIDTH - _RIGHT - _LINES_LEFT
    at = [_LINES_LEFT + width * n / max(len(points) - 1, 1) for n in range(len(points))]
    for x, point in zip(at, points, strict=True):
        parts.append(_slanted(x, _LINES_TOP + _LINES_HEIGHT + 16, point.label))
    for name in series:
        pairs = [(x, p.values[name]) for x, p in zip(at, points, strict=True) if name in p.values]
        parts += _line([(x, _line_y(value / top)) for x, value in pairs], _colour(series, name))
        if pairs:
            x, value = pairs[-1]
            parts.append(_text(x + 6, _line_y(value / top) - 5, f"{value:.3g}", size=11))
    return _document(_LINES_TOP + _LINES_HEIGHT + _LINES_FOOT, parts)


def _line_y(share: float) -> float:
    return _LINES_TOP + (1 - share) * _LINES_HEIGHT


def _line(at: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _slanted(x: float, y: float, words: str) -> str:
    return (
        f'<g transform="rotate(-25 {x:.1f} {y:.1f})">'
        + _text(x, y, _shortened(words), anchor="end", size=11)
        + "</g>"
    )


@dataclass(frozen=True)
class _Frame:
    """What bars are drawn in: an axis, where they begin, marks, and how values are written."""

    axis: "_Log"
    origin: float
    marks: Sequence[float]
    shape: str


def _chart(title: str, bars: Sequence[Bar], series: Sequence[str], frame: _Frame) -> str:
    parts, top = [], _HEAD
    for bar in bars:
        parts.append(_text(_LABEL - 8, top + 15, _shortened(bar.label), anchor="end"))
        for name in (each for each in series if each in bar.values):
            parts.append(_bar(frame, top, bar.values[name], _colour(series, name)))
            top += _ROW
        top += _GAP if bar.values else _ROW + _GAP
    height = top + _FOOT
    heading = [_text(16, 24, title, size=16, weight="bold"), *_legend(series)]
    return _document(height, [*heading, *_grid(frame, height), *parts])


def _bar(frame: _Frame, top: int, value: float, colour: str) -> str:
    ends = sorted((frame.axis.at(frame.origin), frame.axis.at(max(value, frame.axis.low))))
    return (
        f'<rect x="{ends[0]:.1f}" y="{top + 2}" width="{max(ends[1] - ends[0], 1.0):.1f}" '
        f'height="{_ROW - 5}" fill="{colour}"/>'
        + _text(ends[1] + 5, top + 15, f"{value:{frame.shape}}", size=11)
    )


def _grid(frame: _Frame, height: int) -> list[str]:
    parts = []
    for tick in frame.axis.ticks():
        parts.append(_upright(frame.axis.at(tick), height, "#d4d4d8"))
        label = _text(frame.axis.at(tick), height - 14, f"{tick:,g}", anchor="middle", size=11)
        parts.append(label)
    parts.append(_upright(frame.axis.at(frame.origin), height, "#3f3f46"))
    for mark in frame.marks:
        parts.append(_upright(frame.axis.at(mark), height, "#dc2626", "5 4"))
    return parts


def _shortened(label: str) -> str:
    return label if len(label) <= _LABEL_LENGTH else label[: _LABEL_LENGTH - 1] + "…"


@dataclass(frozen=True)
class _Log:
    """A logarithmic axis from `low` to `high`, between two places on the paper."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
        every = [step * 10.0**decade for decade in decades for step in steps]
        return [each for each in every if self.low <= each <= self.high]


def _legend(series: Sequence[str]) -> list[str]:
    parts, x = [], _LABEL
    for name in series:
        parts.append(
            f'<rect x="{x}" y="34" width="11" height="11" fill="{_colour(series, name)}"/>'
        )
        parts.append(_text(x + 16, 44, name, size=12))
        x += 30 + 8 * len(name)
    return parts


def _colour(series: Sequence[str], name: str) -> str:
    return _COLOURS[list(series).index(name) % len(_COLOURS)]


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="#27272a">{escape(words)}</text>'
    )


def _upright(x: float, height: int, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x:.1f}" y1="{_HEAD - 4}" x2="{x:.1f}" y2="{height - _FOOT}" '
        f'stroke="{colour}"{dashed}/>'
    )


def _document(height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
