"""Seconds of things that are done in turns, and the ratios between them."""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.outcome import Comparison, Figure
from bench.report import seconds_text


@dataclass
class Times:
    """Seconds of each thing, one for each repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, action: Callable[[], object]) -> None:
        os.sync()
        start = time.perf_counter()
        action()
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def add(self, other: "Times") -> None:
        for name, values in other.seconds.items():
            self.seconds.setdefault(name, []).extend(values)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, title: str, mine: str, theirs: str, mark: float) -> Figure:
        """One thing as a share of another: the median of the repetitions' own ratios, of those in
        which both were done."""
        pairs = zip(self.seconds[mine], self.seconds[theirs], strict=False)
        value = statistics.median(a / b for a, b in pairs)
        note = f"{seconds_text(self.median(mine))} against {seconds_text(self.median(theirs))}"
        return Figure(name, title, value, "times", mark, note=note)

    def comparison(
        self, name: str, group: str, title: str, prefix: str, columns: Iterable[str]
    ) -> Comparison:
        """What was taken as `prefix column` for each column, side by side."""
        found = {each: self.seconds.get(f"{prefix} {each}", []) for each in columns}
        return Comparison(name, group, title, "s", {k: v for k, v in found.items() if v})
