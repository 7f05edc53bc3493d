"""Random lives of a workspace with excluded files, against what is promised of them.

After every step the store is whole; no checkpoint ever changes or has an excluded file; a restore
brings back what the checkpoint has, but for what is hidden by something excluded, and leaves
everything excluded as it is.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs.exclusion import excluded_entries
from ckptfs.fs.renames import RENAME_EXCHANGE
from ckptfs.history import excluded, packing, purge
from ckptfs.history.paths import path_of
from ckptfs.history.removal import delete
from ckptfs.history.upkeep import Worker
from ckptfs.model import Ino
from ckptfs.service import Service
from ckptfs.store import check
from tests.direct import Node, reopened, shown
from tests.history.edits import Edits, take_a_step

NAMES = ("a", "b", "c", "x.log", "y.log", "cache", "build")
SOME_PATTERNS = ((), ("*.log",), ("*.log", "cache/"), ("/a/b",), ("build", "cache"), ("*", "!a"))
#: What an operation that makes no sense may end with.
REFUSALS = {
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.EXDEV,
    errno.EINVAL,
    errno.EPERM,
    errno.ESTALE,
}


class Life:
    def __init__(self, path: Path, seed: int) -> None:
        self.work = Edits(path)
        self.chance = random.Random(seed)
        self.known: dict[int, dict[bytes, Node]] = {}
        self.said: list[str] = []
        self.held: list[Ino] = []
        self.upkeep: Worker | None = None

    def path(self) -> str:
        depth = self.chance.choice((1, 1, 2, 2, 3))
        return "/".join(self.chance.choice(NAMES) for _ in range(depth))

    # -- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = (
            *(self.put, self.put, self.put, self.mkdir, self.mkdir, self.move, self.move),
            *(self.exchange, self.link, self.remove, self.save, self.restore, self.restore_paths),
            *(self.patterns, self.undo, self.expire, self.reopen, self.utime, self.purge),
            *(self.hold, self.hold, self.drop, self.pack, self.pack, self.unpack),
            *(self.redo, self.set_xattr, self.make_smaller, self.make_smaller),
        )
        chosen = self.chance.choice(steps)
        try:
            chosen()
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
        self.work.fs.commit()
        problems = check(self.work.store)
        assert problems == [], (problems, self.said)

    def say(self, *words: object) -> None:
        self.said.append(" ".join(map(str, words)))

    def put(self) -> None:
        path, size = self.path(), self.chance.choice((0, 5, 3000, 70_000))
        self.say("put", path, size)
        self.work.put(path, self.chance.randbytes(4) * (size // 4))

    def mkdir(self) -> None:
        path = self.path()
        self.say("mkdir", path)
        self.work.mkdir(path)

    def move(self) -> None:
        old, new = self.path(), self.path()
        self.say("move", old, new)
        self.work.move(old, new)

    def exchange(self) -> None:
        old, new = self.path(), self.path()
        self.say("exchange", old, new)
        self.work.move(old, new, RENAME_EXCHANGE)

    def link(self) -> None:
        old, new = self.path(), self.path()
        self.say("link", old, new)
        self.work.link(old, new)

    def remove(self) -> None:
        path = self.path()
        self.say("remove", path)
        self.work.remove(path)

    def set_xattr(self) -> None:
        path = self.path()
        self.say("set_xattr", path)
        ino = self.work.at(path).ino
        self.work.fs.setxattr(self.work.fs.head, ino, b"user.a", self.chance.randbytes(2))

    def utime(self) -> None:
        path = self.path()
        self.say("utime", path)
        self.work.change(path, mtime_ns=self.chance.randrange(10**18))

    def save(self) -> None:
        bare = self.tree(history_only=True)
        self.say("save")
        point = history.seal(self.work.fs, "manual", "", self.work.fs.clock())
        self.known[point.id] = shown(self.work.fs, self.work.fs.view_of(point.epoch)).nodes
        assert self.known[point.id] == bare

    def restore(self) -> None:
        points = history.checkpoints(self.work.store)
        if not points:
            return
        point = self.chance.choice(points)
        self.say("restore", point.id)
        before = self.excluded()
        goal = shown(self.work.fs, self.work.fs.view_of(point.epoch)).nodes
        history.restore(self.work.fs, point)
        self.compare(before, goal)

    def undo(self) -> None:
        if history.undoable(self.work.fs) is not None:
            self.say("undo")
            self.take_back(Service(self.work.fs).undo)

    def redo(self) -> None:
        if history.redoable(self.work.fs) is not None:
            self.say("redo")
            self.take_back(Service(self.work.fs).redo)

    def take_back(self, verb: Callable[[], object]) -> None:
        before = set(map(repr, self.excluded().values()))
        verb()
        assert before <= set(map(repr, self.excluded().values())), self.said

    def restore_paths(self) -> None:
        points = history.checkpoints(self.work.store)
        if not points:
            return
        point, path = self.chance.choice(points), self.path().encode()
        self.say("restore", point.id, path)
        before = self.excluded()
        changed = history.Changed(set(), set())
        try:
            history.restore_paths(self.work.fs, point, [path], changed=changed)
        finally:
            after = self.excluded()
            assert {path: after.get(path) for path in before} == before, self.said

    def patterns(self) -> None:
        chosen = self.chance.choice(SOME_PATTERNS)
        self.say("patterns", chosen)
        before = {path: _timeless(node) for path, node in self.tree().items()}
        excluded.apply(self.work.fs, chosen)
        assert before == {path: _timeless(node) for path, node in self.tree().items()}, self.said

    def expire(self) -> None:
        points = history.checkpoints(self.work.store)
        if len(points) > 3:
            self.say("delete", points[1].id)
            delete(self.work.fs, [points[1]])
            self.known.pop(points[1].id, None)

    def purge(self) -> None:
        path = self.path().encode()
        self.say("purge", path)
        purge.purge(self.work.fs, [path])
        self.known.clear()
        assert path not in self.tree()

    def hold(self) -> None:
        inode = self.work.at(self.path())
        if inode.is_file:
            self.say("hold", inode.ino)
            self.work.fs.hold(inode.ino)
            self.held.append(inode.ino)

    def drop(self) -> None:
        if self.held:
            ino = self.held.pop(self.chance.randrange(len(self.held)))
            self.say("drop", ino)
            self.work.fs.drop(ino)

    def reopen(self) -> None:
        self.say("reopen")
        while self.held:
            self.drop()
        self.upkeep = None
        before = self.tree()
        self.work.fs = reopened(self.work.fs)
        self.work.store = self.work.fs.store
        assert self.tree() == before, self.said

    def pack(self) -> None:
        """Pack what only history sees."""
        self.say("pack")
        before = self.tree()
        packing.pack_records(self.work.fs, self.chance.choice([1, 1_000, 100_000]))
        assert self.tree() == before, self.said
        self.check_checkpoints()

    def unpack(self) -> None:
        """Bring back what the workspace looks for among packed records."""
        self.say("unpack")
        packing.unpack_needed(self.work.fs)

    def make_smaller(self) -> None:
        """Background work, with whatever else happens between its steps."""
        steps = self.chance.randrange(20)
        self.say("make smaller", steps)
        for _ in range(steps):
            self.upkeep = take_a_step(self.work.fs, self.upkeep)

    # -- looking ----------------------------------------------------------------------------------

    def tree(self, *, history_only: bool = False) -> dict[bytes, Node]:
        fs = self.work.fs
        return shown(fs, fs.head.bare if history_only else fs.head).nodes

    def excluded(self) -> dict[bytes, Node]:
        """What is excluded, by its path."""
        fs = self.work.fs
        fs.flush()
        found = {
            path: node
            for path, node in self.tree().items()
            if path and excluded.is_excluded(fs, path)
        }
        tops = [
            path_of(fs.store, fs.head, (directory, name))
            for directory in fs.exclusion.borders
            for name, _ in excluded_entries(fs, fs.store.excluded, directory)  # type: ignore[arg-type]
        ]
        assert {p for p in found if not _above(p, set(found))} == set(tops)
        return found

    def compare(self, before: dict[bytes, Node], goal: dict[bytes, Node]) -> None:
        """After a restore: each excluded file is there, with what it had; of the checkpoint all is
        there that nothing excluded hides."""
        tree, after = self.tree(), self.excluded()
        kept = sorted(repr(_timeless(node)) for node in before.values())
        left = [repr(_timeless(node)) for node in after.values()]
        for one in kept:
            assert one in left, self.said
            left.remove(one)
        for path, node in goal.items():
            if path not in after and not _above(path, set(after)):
                assert _loose(tree[path]) == _loose(node), (path, self.said)
        for path, node in self.tree(history_only=True).items():
            assert path in goal or node.mode & 0o170000 == 0o040000, (path, self.said)

    def check_checkpoints(self) -> None:
        for point in history.checkpoints(self.work.store):
            if point.id in self.known:
                view = self.work.fs.view_of(point.epoch)
                assert shown(self.work.fs, view).nodes == self.known[point.id], self.said


def _above(path: bytes, tops: set[bytes]) -> bool:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        if path in tops:
            return True
    return False


def _timeless(node: Node) -> Node:
    """Without the number of names: patterns may make two files of one."""
    return node._replace(nlink=0)


def _loose(node: Node) -> Node:
    return node._replace(nlink=0)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_excluded_is_lost_in_random_lives(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path / "store", seed)
    excluded.apply(life.work.fs, life.chance.choice(SOME_PATTERNS))
    try:
        for number in range(60):
            life.step()
            if number % 20 == 19:
                life.check_checkpoints()
    finally:
        life.work.store.close(commit=False)
