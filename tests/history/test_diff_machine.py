"""Random edits, checkpoints and branches: every pair of views must compare as their trees do."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs.fs.renames import RENAME_EXCHANGE
from ckptfs.history import removal
from ckptfs.history.checkpoints import checkpoints
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import View
from tests.history.edits import Edits, edits
from tests.history.replay import read_tree, verify

#: Which of the paths that are there when the step is done.
SOME = st.integers(0, 30)
#: A place: which of the directories, and a name in it.
PLACE = st.tuples(SOME, st.sampled_from((b"a", b"b", b"c", b"\xff")))
#: By name, or a failing example would be hard to read.
BYTES = {
    "empty": b"",
    "one": b"one\n",
    "two": b"two\n",
    "long": b"x" * 3000,
    "two blocks": b"".join(b"y%d\n" % number for number in range(BLOCK_SIZE // 5)),
}
DATA = st.sampled_from(list(BYTES))

STEPS = st.one_of(
    st.tuples(st.just("create"), PLACE, DATA),
    st.tuples(st.just("write"), SOME, st.sampled_from((0, 2, BLOCK_SIZE + 3)), DATA),
    st.tuples(st.just("replace"), SOME, DATA),
    st.tuples(st.just("truncate"), SOME, st.sampled_from((0, 1, 5000))),
    st.tuples(st.just("mkdir"), PLACE),
    st.tuples(st.just("symlink"), PLACE, st.sampled_from((b"t1", b"t2"))),
    st.tuples(st.just("retype"), SOME),
    st.tuples(st.just("link"), SOME, PLACE),
    st.tuples(st.just("move"), SOME, PLACE),
    st.tuples(st.just("copy_and_remove"), SOME, PLACE),
    st.tuples(st.just("exchange"), SOME, SOME),
    st.tuples(st.just("remove"), SOME),
    st.tuples(st.just("remake"), SOME),
    st.tuples(st.just("attributes"), SOME, st.sampled_from((0o600, 0o755)), st.integers(0, 1)),
    st.tuples(st.just("touch"), SOME),
    st.tuples(st.just("xattr"), SOME, st.sampled_from((b"1", b"2"))),
    st.just(("save",)),
    st.tuples(st.just("back"), st.integers(0, 5)),
    st.tuples(st.just("delete"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("renumber"), SOME),
)


class Walker:
    """Does steps; one that is not possible is skipped."""

    def __init__(self, work: Edits) -> None:
        self.work = work
        self.fs = work.fs
        self.views: list[View] = []

    def do(self, step: tuple[object, ...]) -> None:
        verb, *args = step
        with contextlib.suppress(OSError):
            getattr(self, str(verb))(*args)

    def _some(self, number: int) -> bytes:
        paths = sorted(read_tree(self.fs, self.fs.head).keys() - {b"."})
        return paths[number % len(paths)] if paths else b"a"

    def _place(self, place: tuple[int, bytes]) -> bytes:
        number, name = place
        tree = read_tree(self.fs, self.fs.head)
        above = [path for path in tree if path != b"." and self.work.at(path).is_dir]
        chosen = sorted([b"", *above])[number % (len(above) + 1)]
        return chosen + b"/" + name if chosen else name

    def create(self, place: tuple[int, bytes], data: str) -> None:
        self.work.put(self._place(place), BYTES[data])

    def write(self, some: int, offset: int, data: str) -> None:
        self.work.write(self._some(some), offset, BYTES[data])

    def replace(self, some: int, data: str) -> None:
        """What editors do: write beside it, rename over it."""
        path = self._some(some)
        self.work.put(path + b"~", BYTES[data])
        self.work.move(path + b"~", path)

    def truncate(self, some: int, size: int) -> None:
        self.work.change(self._some(some), size=size)

    def mkdir(self, place: tuple[int, bytes]) -> None:
        self.work.mkdir(self._place(place))

    def symlink(self, place: tuple[int, bytes], target: bytes) -> None:
        self.work.symlink(self._place(place), target)

    def retype(self, some: int) -> None:
        """A link in place of a file or directory, a directory in place of a link."""
        path = self._some(some)
        was_link = self.work.at(path).is_link
        self.work.remove(path)
        if was_link:
            self.work.mkdir(path)
        else:
            self.work.symlink(path, b"t1")

    def link(self, some: int, place: tuple[int, bytes]) -> None:
        self.work.link(self._some(some), self._place(place))

    def move(self, some: int, place: tuple[int, bytes]) -> None:
        self.work.move(self._some(some), self._place(place))

    def copy_and_remove(self, some: int, place: tuple[int, bytes]) -> None:
        path, goal = self._some(some), self._place(place)
        inode = self.work.at(path)
        self.work.put(goal, bytes(self.fs.read(self.fs.head, inode.ino, 0, inode.size)))
        self.work.remove(path)

    def exchange(self, some: int, other: int) -> None:
        self.work.move(self._some(some), self._some(other), RENAME_EXCHANGE)

    def remove(self, some: int) -> None:
        self.work.remove(self._some(some))

    def remake(self, some: int) -> None:
        """Remove a directory and make it again with files of the same names."""
        path = self._some(some)
        inode = self.work.at(path)
        names = [name for name, child in self.fs.entries(self.fs.head, inode.ino) if child.is_file]
        self.work.remove(path)
        self.work.mkdir(path)
        for name in names:
            self.work.put(path + b"/" + name, b"one\n")

    def attributes(self, some: int, mode: int, uid: int) -> None:
        self.work.change(self._some(some), mode=mode, uid=uid)

    def touch(self, some: int) -> None:
        self.work.change(self._some(some), mtime_ns=self.fs.clock())

    def xattr(self, some: int, value: bytes) -> None:
        ino = self.work.at(self._some(some)).ino
        self.fs.setxattr(self.fs.head, ino, b"user.k", value)

    def save(self) -> None:
        self.views.append(self.work.save())

    def back(self, number: int) -> None:
        self.work.go_back(self.views[number % len(self.views)])

    def delete(self, number: int, at_once: bool) -> None:
        """Delete a checkpoint; one that is only hidden still holds its records."""
        if len(self.views) < 2:
            return
        doomed = self.views.pop(number % len(self.views)).epoch
        removal.hide(self.fs, [c for c in checkpoints(self.fs.store) if c.epoch == doomed])
        if at_once:
            removal.reap(self.fs)
        self.views = [self.fs.view_of(view.epoch) for view in self.views]

    def renumber(self, some: int) -> None:
        """What a restore does to a file that is held open."""
        self.work.go_back(self.views[-1])
        inode = self.work.at(self._some(some))
        if inode.is_file:
            self.fs.renumber(self.fs.head, inode.ino)


def plant(work: Edits) -> None:
    for path in ("a", "a/b", "c"):
        work.mkdir(path)
    for path in ("a/a", "a/b/c", "c/a", "b"):
        work.put(path, b"content of " + path.encode())
    work.link("b", "c/b")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEPS, min_size=3, max_size=30))
def test_replaying_the_changes_between_any_two_views_leads_from_one_to_the_other(
    steps: list[tuple[object, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as base, edits(Path(base) / "store") as work:
        plant(work)
        walker = Walker(work)
        walker.save()
        for step in steps:
            walker.do(step)
        views = [*walker.views[-3:], walker.views[0], work.fs.head]
        for a in views:
            for b in views:
                verify(work.fs, a, b)
