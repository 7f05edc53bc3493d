"""The marks that speed is held to, from what a run found. Measures nothing.

A mark whose rows or figures were not part of the run is not there: nothing is guessed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.outcome import FLOOR, Figure, Outcome
from bench.registry import MICRO, REAL, REAL_MARK, SAME
from bench.stats import mean_ratio, verdict_at_most

_MEAN_MARK = 1.5
_SYNCED_MARK = 2.0
_MEMORY_MARK_MB = 150.0
#: The rows that sync every few kilobytes.
_SYNCED = ("sqlite-rollback", "sqlite-wal", "synced-write")
#: The rows that the kernel answers out of its own caches.
_WARM = ("stat-warm", "stream-read-warm")
#: Figures that have marks of their own and are among those asked for.
_FIGURES = (
    *("save", "diff", "restore", "save-flat", "diff-flat", "restore-flat", "browse"),
    "memory-full",
    "idle-cpu",
)


@dataclass(frozen=True)
class Mark:
    title: str
    value: float
    unit: str
    bound: float
    note: str = ""

    @property
    def verdict(self) -> str:
        return "OK" if verdict_at_most(self.value, self.bound) == "OK" else "missed"


def marks(outcome: Outcome) -> list[Mark]:
    return [*_row_marks(outcome), *_memory_mark(outcome), *_figure_marks(outcome)]


def _row_marks(outcome: Outcome) -> Iterator[Mark]:
    real = _ratios(outcome, [w.name for w in outcome.workloads if w.kind == REAL])
    if len(real) > 1:
        yield _mean(outcome, real)
        yield _worst(outcome, "real workloads", real, REAL_MARK)
    if "bindfs" in outcome.contestants:
        micro = _ratios(outcome, [w.name for w in outcome.workloads if w.kind == MICRO], "bindfs")
        if len(micro) > 1:
            title = "single calls, geometric mean against bindfs"
            yield Mark(title, mean_ratio(list(micro.values())), "times", 1.0, f"{len(micro)} rows")
    synced = _ratios(outcome, _SYNCED)
    if synced:
        yield _worst(outcome, "4 KiB synced writes", synced, _SYNCED_MARK)
    warm = _ratios(outcome, _WARM)
    if warm:
        yield _worst(outcome, "warm reads and stats", warm, SAME)


def _ratios(
    outcome: Outcome, names: "list[str] | tuple[str, ...]", to: str = ""
) -> dict[str, float]:
    known = {each.name for each in outcome.workloads}
    found = {n: outcome.ratio(n, outcome.subject, to or None) for n in names if n in known}
    return {name: ratio.median for name, ratio in found.items() if ratio}


def _mean(outcome: Outcome, ratios: dict[str, float]) -> Mark:
    title = f"real workloads, geometric mean against {outcome.baseline}"
    mean, note = mean_ratio(list(ratios.values())), f"{len(ratios)} rows"
    floors = [floor for each in ratios if (floor := _floor(outcome, each)) is not None]
    if floors and mean > _MEAN_MARK:
        note += f" (floor {mean_ratio(floors):.2f} over the {len(floors)} that do not sync)"
    return Mark(title, mean, "times", _MEAN_MARK, note)


def _worst(outcome: Outcome, what: str, ratios: dict[str, float], bound: float) -> Mark:
    name = max(ratios, key=lambda each: ratios[each])
    over = [_over(outcome, each, ratio) for each, ratio in ratios.items() if ratio > bound]
    title = f"{what}, the slowest against {outcome.baseline}"
    return Mark(title, ratios[name], "times", bound, ", ".join(over) or name)


def _over(outcome: Outcome, name: str, ratio: float) -> str:
    floor = _floor(outcome, name)
    return f"{name} {ratio:.2f}" + (f" (floor {floor:.2f})" if floor is not None else "")


def _floor(outcome: Outcome, name: str) -> float | None:
    """What FUSE itself takes in that row, if that was measured. It keeps nothing on a disk, so of
    rows that wait for one it says nothing."""
    ratio = outcome.ratio(name, FLOOR) if name not in _SYNCED else None
    return ratio.median if ratio else None


def _memory_mark(outcome: Outcome) -> Iterator[Mark]:
    """The most that the daemon had after any of the rows."""
    own = {
        workload.name: max(sample.daemon_own_bytes for sample in samples) / 1e6
        for workload in outcome.workloads
        if (samples := outcome.of(workload.name, outcome.subject))
    }
    if own and any(own.values()):
        name = max(own, key=lambda each: own[each])
        yield Mark(
            "memory of the daemon after a row, the most", own[name], "MB", _MEMORY_MARK_MB, name
        )


def _figure_marks(outcome: Outcome) -> Iterator[Mark]:
    by_name: dict[str, list[Figure]] = {}
    for figure in outcome.figures:
        by_name.setdefault(figure.name, []).append(figure)
    for name in _FIGURES:
        for each in by_name.get(name, []):
            if each.mark is not None:
                yield Mark(each.title, each.value, each.unit, each.mark, each.note)
