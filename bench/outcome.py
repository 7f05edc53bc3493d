"""What a run found out: plain values that the runner fills and the report reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.registry import Workload
from bench.stats import Spread, paired_ratio


@dataclass(frozen=True)
class Sample:
    """One repetition of one workload by one contestant."""

    repetition: int
    seconds: float
    daemon_cpu_seconds: float
    notes: tuple[str, ...] = ()


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


@dataclass
class Outcome:
    """All of a run. The first contestant is the baseline of every ratio."""

    contestants: tuple[str, ...]
    workloads: tuple[Workload, ...]
    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    figure_failures: dict[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        return self.contestants[0]

    @property
    def failed(self) -> bool:
        return bool(self.failures or self.figure_failures)

    def add(self, workload: str, contestant: str, sample: Sample) -> None:
        self.samples.setdefault((workload, contestant), []).append(sample)

    def of(self, workload: str, contestant: str) -> list[Sample]:
        return self.samples.get((workload, contestant), [])

    def notes(self, workload: str) -> list[str]:
        """Each note once, in the order they came up."""
        every = (self.of(workload, each) for each in self.contestants)
        return list(dict.fromkeys(note for samples in every for s in samples for note in s.notes))

    def ratio(self, workload: str, contestant: str) -> Spread | None:
        """Against the baseline, over the repetitions that both finished; None if there is none."""
        mine = _by_repetition(self.of(workload, contestant))
        theirs = _by_repetition(self.of(workload, self.baseline))
        both = sorted(mine.keys() & theirs.keys())
        if not both:
            return None
        return paired_ratio([mine[n] for n in both], [theirs[n] for n in both])


def _by_repetition(samples: Sequence[Sample]) -> dict[int, float]:
    return {sample.repetition: sample.seconds for sample in samples}
