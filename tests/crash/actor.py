"""One program at work in a directory of its own, and what must be left of its work after a crash.

An actor does one step after another and keeps, outside the workspace, which steps it began and up
to which of them an fsync or a save has promised that they last. Every step ends with everything
handed over (closed, or a change of names), so what a crash leaves must be the state after one of
the steps since the last promise, with at most the next step half done.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: What stands at a path: a file's bytes; None where there is nothing.
State = dict[str, bytes]
Found = bytes | None

_PAGE = 4096


class Step(NamedTuple):
    """Something to do, what it makes of the paths it names, and what may be seen on the way."""

    what: str
    do: Callable[[int], None]
    after: dict[str, Found]
    #: Whether a path may look like this while the step is under way. As it stands, never: a change
    #: of names is made at once.
    between: Callable[[str, Found, Found], bool] = lambda path, before, found: False
    #: Whether its end promises that everything so far lasts.
    promises: bool = False


class Actor:
    """``steps`` since the state ``base``; the first ``promised`` of them are sure to last."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._random = random.Random(seed)
        self._count = 0
        self.restart({})

    def restart(self, base: State) -> None:
        """Go on from a state that was found, or made, on disk."""
        self._base = base
        self._steps: list[Step] = []
        self.promised = 0
        self._done = 0
        self.now: State = dict(base)

    def work(self, top: int) -> None:
        """Do one step in the directory ``top``/name."""
        step = self._choose()
        self._steps.append(step)
        where = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
        try:
            step.do(where)
        finally:
            os.close(where)
        self._done = len(self._steps)
        self.now = _applied(self.now, step)
        if step.promises:
            self.promised = self._done

    def promise(self) -> None:
        """A save returned, or the daemon ended in order: all that was done is to last."""
        self.promised = self._done

    def explain(self, found: State) -> str:
        """Why this cannot be what is left of the work; empty if it can."""
        state = self._base
        reasons = []
        for number in range(len(self._steps) + 1):
            if number >= self.promised:
                reason = self._fits(state, number, found)
                if not reason:
                    return ""
                reasons.append(reason)
            if number < len(self._steps):
                state = _applied(state, self._steps[number])
        steps = [step.what for step in self._steps[self.promised :]]
        return f"{self.name}: {self.promised} promised, then {steps}: {reasons[:3]} {reasons[-1]}"

    def _fits(self, state: State, number: int, found: State) -> str:
        """Nothing differs from the state but what the next step is about, and that is halfway."""
        step = self._steps[number] if number < len(self._steps) else None
        for path in sorted(state.keys() | found.keys()):
            before, now = state.get(path), found.get(path)
            if before == now:
                continue
            if step is None or path not in step.after:
                return f"after {number}: {path} is {_told(now)}, not {_told(before)}"
            if not step.between(path, before, now):
                return f"after {number}: {step.what} cannot leave {path} as {_told(now)}"
        return ""

    # -- steps ------------------------------------------------------------------------------------

    def _choose(self) -> Step:
        names = sorted(self.now)
        choices = [self._replace]
        if names:
            choices += [self._append, self._overwrite, self._cut, self._remove, self._move]
            choices += [self._sync, self._sync_directory]
        if len(names) > 12:
            choices = [self._remove]
        return self._random.choice(choices)()

    def _data(self, most: int) -> bytes:
        """Bytes that occur nowhere else, so that a wrong version cannot pass for the right one."""
        self._count += 1
        stamp = b"%s %d " % (self.name.encode(), self._count)
        size = self._random.choice([len(stamp), 100, 2_000, 5_000, 70_000, most])
        return (stamp * (size // len(stamp) + 1))[:size]

    def _name(self) -> str:
        return f"f{self._random.randrange(16)}"

    def _known(self) -> str:
        return self._random.choice(sorted(self.now))

    def _replace(self) -> Step:
        """As editors and databases do it: a new file, synced or not, renamed over the old one."""
        name, data, sync = self._name(), self._data(700_000), self._random.random() < 0.5

        def do(where: int) -> None:
            _write(where, "new", data, os.O_CREAT | os.O_TRUNC, sync=sync)
            os.rename("new", name, src_dir_fd=where, dst_dir_fd=where)
            if sync:
                os.fsync(where)

        def between(path: str, before: Found, found: Found) -> bool:
            return path == "new" and found is not None and data.startswith(found)

        return Step(f"replace {name}", do, {name: data, "new": None}, between, sync)

    def _append(self) -> Step:
        name, data = self._known(), self._data(20_000)
        before = self.now[name]

        def between(path: str, _: Found, found: Found) -> bool:
            return found is not None and (before + data).startswith(found) and found >= before

        return Step(
            f"append {name}",
            lambda where: _write(where, name, data, os.O_APPEND),
            {name: before + data},
            between,
        )

    def _overwrite(self) -> Step:
        name, data, sync = self._known(), self._data(200_000), self._random.random() < 0.3
        before = self.now[name]
        offset = self._random.randrange(len(before) + 1)
        after = before[:offset] + data + before[offset + len(data) :]

        def between(path: str, _: Found, found: Found) -> bool:
            return found is not None and all(
                page in (after[at : at + len(page)], before[at : at + len(page)])
                for at, page in _pages(found)
            )

        return Step(
            f"overwrite {name} at {offset}",
            lambda where: _write(where, name, data, 0, offset, sync=sync),
            {name: after},
            between,
            sync,
        )

    def _cut(self) -> Step:
        name = self._known()
        size = self._random.randrange(len(self.now[name]) + 1)

        def do(where: int) -> None:
            fd = os.open(name, os.O_WRONLY, dir_fd=where)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)

        return Step(f"cut {name} to {size}", do, {name: self.now[name][:size]})

    def _remove(self) -> Step:
        name = self._known()
        return Step(f"remove {name}", lambda where: os.unlink(name, dir_fd=where), {name: None})

    def _move(self) -> Step:
        name, to = self._known(), self._name()
        after: dict[str, Found] = {name: None, to: self.now[name]}

        def do(where: int) -> None:
            os.rename(name, to, src_dir_fd=where, dst_dir_fd=where)

        return Step(f"move {name} to {to}", do, after)

    def _sync(self) -> Step:
        name = self._known()

        def do(where: int) -> None:
            fd = os.open(name, os.O_RDONLY, dir_fd=where)
            try:
                self._random.choice([os.fsync, os.fdatasync])(fd)
            finally:
                os.close(fd)

        return Step(f"sync {name}", do, {}, promises=True)

    def _sync_directory(self) -> Step:
        return Step("sync the directory", os.fsync, {}, promises=True)


def _write(
    where: int, name: str, data: bytes, flags: int, offset: int = -1, *, sync: bool = False
) -> None:
    fd = os.open(name, os.O_WRONLY | flags, 0o644, dir_fd=where)
    try:
        if offset >= 0:
            os.lseek(fd, offset, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _applied(state: State, step: Step) -> State:
    made = {**state, **{path: data for path, data in step.after.items() if data is not None}}
    for path, data in step.after.items():
        if data is None:
            made.pop(path, None)
    return made


def _pages(data: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(data), _PAGE):
        yield at, data[at : at + _PAGE]


def _told(data: Found) -> str:
    return "absent" if data is None else f"{len(data)} bytes {data[:16]!r}"


def read_state(path: str) -> State:
    """What stands in an actor's directory."""
    found: State = {}
    for entry in os.scandir(path):
        with open(entry.path, "rb") as file:
            found[entry.name] = file.read()
    return found
