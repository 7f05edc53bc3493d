"""What a workload is, and the list of all of them.

A workload is one generator function: what stands before its `yield` is setup, what stands after
is measured. Owns the registry and the choice of what to run; refuses to know how time is taken,
who the contestants are, and how results are shown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bench.scale import Scale


@dataclass(frozen=True)
class WorkDirectory:
    """Where one contestant does one repetition of a scene, and what it works with."""

    root: Path
    scale: Scale
    repetition: int
    material: Mapping[str, Path]
    """What the workload said it wants, by name."""

    def __truediv__(self, name: str) -> Path:
        return self.root / name


#: The kinds of rows: single system calls, and what people's programs do.
MICRO, REAL = "micro", "real"

#: The mark of rows that the kernel answers alone: 1.0, and what two timings of the same differ by.
SAME = 1.05
#: The mark of every real row that has no closer one of its own.
REAL_MARK = 2.5

Steps = Callable[[WorkDirectory], Iterator[None]]


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Workloads of one scene run one after the other in the same fresh directory, so that a tree is
    unpacked once and then searched, copied and removed. `needs` names the earlier workloads of
    the scene whose result this one uses: they run even when only this one is asked for. `wants`
    names programs and material from outside, without which the row is left out.
    """

    name: str
    title: str
    scene: str
    steps: Steps
    mark: float | None
    cold: bool
    needs: tuple[str, ...]
    kind: str = REAL
    wants: tuple[str, ...] = ()


class UnknownWorkload(Exception):
    """A pattern given with --only matches nothing."""


_registry: dict[str, Workload] = {}


def workload(
    name: str,
    title: str,
    *,
    scene: str,
    mark: float | None = None,
    cold: bool = False,
    needs: tuple[str, ...] = (),
    kind: str = REAL,
    wants: tuple[str, ...] = (),
) -> Callable[[Steps], Steps]:
    """Register a generator function as a workload; may be stacked (the same work cold and warm).

    `title` may use the scale, as in "create {scale.files:,} files". `mark` is the highest ratio
    to ext4 that is good enough (a real row has one in any case). `cold` has the kernel's caches
    dropped after the setup.
    """

    def register(steps: Steps) -> Steps:
        if name in _registry:
            raise ValueError(f"workload {name} is registered twice")
        bound = REAL_MARK if mark is None and kind == REAL else mark
        _registry[name] = Workload(name, title, scene, steps, bound, cold, needs, kind, wants)
        return steps

    return register


def all_workloads() -> list[Workload]:
    """Every workload, in the order of the table.

    Stacked decorators run bottom up, so the lower one comes first.
    """
    import bench.workloads  # noqa: F401  registers them; late, since they import this module

    return list(_registry.values())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is meant by one of the patterns (`git*`), or none are given."""
    patterns = list(patterns)
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def refuse_unknown(patterns: Iterable[str], names: Iterable[str]) -> None:
    names = list(names)
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            raise UnknownWorkload(f"No workload or figure is called {pattern}. See --list.")


def with_needs(chosen: Iterable[Workload], known: Iterable[Workload]) -> list[Workload]:
    """The chosen workloads and all that they build on, in the order of `known`."""
    known = list(known)
    by_name = {each.name: each for each in known}
    wanted: set[str] = set()
    waiting = [each.name for each in chosen]
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting.extend(by_name[name].needs)
    return [each for each in known if each.name in wanted]


def without_missing(
    workloads: Iterable[Workload], missing: Mapping[str, str]
) -> tuple[list[Workload], dict[str, str]]:
    """Those that can run, and why each of the others cannot: something from outside is missing."""
    left: list[Workload] = []
    skipped: dict[str, str] = {}
    for each in workloads:
        lacking = [missing[want] for want in each.wants if want in missing]
        lacking += [f"it needs {need}" for need in each.needs if need in skipped]
        if lacking:
            skipped[each.name] = lacking[0]
        else:
            left.append(each)
    return left, skipped


def by_scene(workloads: Iterable[Workload]) -> dict[str, list[Workload]]:
    scenes: dict[str, list[Workload]] = {}
    for each in workloads:
        scenes.setdefault(each.scene, []).append(each)
    return scenes
