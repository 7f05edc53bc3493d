"""What a run found out: plain values that the runner fills and the report reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.registry import Workload
from bench.stats import Spread, paired_ratio

#: The file system in memory that shows what FUSE itself costs, where it took part.
FLOOR = "floor"
#: The group of comparisons whose rows are the hours of one day.
DAY_GROUP = "The room of a day's work"


@dataclass(frozen=True)
class Sample:
    """One repetition of one workload by one contestant."""

    repetition: int
    seconds: float
    daemon_cpu_seconds: float
    daemon_own_bytes: int = 0
    """Memory of its own that the daemon had at the end, without pages of the mapped store."""
    notes: tuple[str, ...] = ()
    checkpoints: int = 0
    """Those that ckptfs took by itself in the measured part, moments among them."""


@dataclass(frozen=True)
class Figure:
    """A number that has nothing to be compared with, such as the daemon's memory."""

    name: str
    title: str
    value: float
    unit: str
    mark: float | None = None
    mark_is_minimum: bool = False
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The same thing measured for several: tools that keep a history, or sizes of a tree.

    `columns` has the values of each, one for each repetition, in the order they are shown in; the
    first is what the others are compared with. Who cannot do it at all is not among them.
    """

    name: str
    group: str
    title: str
    unit: str
    columns: dict[str, list[float]]
    note: str = ""


@dataclass
class Outcome:
    """All of a run. The first contestant is the baseline of every ratio, the second is what is
    under test, any others are there to compare with."""

    contestants: tuple[str, ...]
    workloads: tuple[Workload, ...]
    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    aside: "Outcome | None" = None
    """The same rows with less of everything, by the baseline and those too slow for the rest."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Rows and rivals that were left out, and why."""
    figure_failures: dict[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.contestants[0]

    @property
    def subject(self) -> str:
        return self.contestants[1]

    @property
    def rivals(self) -> tuple[str, ...]:
        return self.contestants[2:] + (self.aside.contestants[1:] if self.aside else ())

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.contestants[:2] + self.rivals

    def failure(self, workload: str, contestant: str) -> str | None:
        if self.aside and contestant in self.aside.contestants[1:]:
            return self.aside.failure(workload, contestant)
        return self.failures.get((workload, contestant))

    @property
    def failed(self) -> bool:
        """Whether a row or figure failed on the baseline or under test; a rival may fail."""
        ours = self.contestants[:2]
        return bool(self.figure_failures) or any(who in ours for _, who in self.failures)

    def add(self, workload: str, contestant: str, sample: Sample) -> None:
        self.samples.setdefault((workload, contestant), []).append(sample)

    def of(self, workload: str, contestant: str) -> list[Sample]:
        if self.aside and contestant in self.aside.contestants[1:]:
            return self.aside.of(workload, contestant)
        return self.samples.get((workload, contestant), [])

    def notes(self, workload: str) -> list[str]:
        """Each note once, in the order they came up."""
        every = (self.of(workload, each) for each in self.contestants)
        return list(dict.fromkeys(note for samples in every for s in samples for note in s.notes))

    def ratio(self, workload: str, contestant: str, to: str | None = None) -> Spread | None:
        """Against the baseline or another one, over the repetitions that both finished; None if
        there is none."""
        if self.aside and contestant in self.aside.contestants[1:]:
            return self.aside.ratio(workload, contestant)
        mine = _by_repetition(self.of(workload, contestant))
        theirs = _by_repetition(self.of(workload, to or self.baseline))
        both = sorted(mine.keys() & theirs.keys())
        if not both:
            return None
        return paired_ratio([mine[n] for n in both], [theirs[n] for n in both])


def _by_repetition(samples: Sequence[Sample]) -> dict[int, float]:
    return {sample.repetition: sample.seconds for sample in samples}
