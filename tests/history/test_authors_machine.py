"""Random work of two people: what one did goes back, and nothing of the other's changes.

A plain record of who did what is kept beside: by inode, so it knows what the store should.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import AuthorUnknown
from ckptfs.history import Cause, Changed, authors
from ckptfs.history.diff.tree import ADDED, DELETED
from ckptfs.store import check
from tests.direct import Node, shown
from tests.history.edits import Edits

NAMES = ("a", "b", "c", "d")
REFUSALS = {
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.EINVAL,
    errno.EPERM,
    errno.ESTALE,
}


class Office:
    def __init__(self, path: Path, seed: int) -> None:
        self.work = Edits(path)
        self.chance = random.Random(seed)
        self.said: list[str] = []

    def path(self) -> str:
        depth = self.chance.choice((1, 2, 2, 3))
        return "/".join(self.chance.choice(NAMES) for _ in range(depth))

    def step(self, who: str) -> None:
        deed = self.chance.choice(("put", "put", "mkdir", "move", "remove", "change", "save"))
        path, other = self.path(), self.path()
        self.said.append(f"{who}: {deed} {path} {other}")
        work = self.work
        try:
            with authors.acting(work.fs, Cause(1, who)):
                match deed:
                    case "put":
                        work.put(path, self.chance.randbytes(5))
                    case "mkdir":
                        work.mkdir(path)
                    case "move":
                        work.move(path, other)
                    case "remove":
                        work.remove(path)
                    case "change":
                        work.change(path, mode=self.chance.choice((0o600, 0o700)))
                    case "save":
                        history.seal(work.fs, "manual", "", work.fs.clock())
        except OSError as error:
            if error.errno not in REFUSALS:
                raise

    def tree(self) -> dict[bytes, Node]:
        return _timeless(shown(self.work.fs, self.work.fs.head).nodes)


def _timeless(nodes: dict[bytes, Node]) -> dict[bytes, Node]:
    return {path: node._replace(nlink=0) for path, node in nodes.items()}


@pytest.mark.parametrize("seed", range(40))
def test_restoring_one_authors_changes_keeps_the_others_in_random_work(
    tmp_path: Path, seed: int
) -> None:
    office = Office(tmp_path / "store", seed)
    work = office.work
    for _ in range(15):
        office.step("before")
    first = history.seal(work.fs, "manual", "", work.fs.clock())
    goal = _timeless(shown(work.fs, work.fs.view_of(first.epoch)).nodes)
    for _ in range(office.chance.choice((4, 8, 20))):
        office.step(office.chance.choice(("alice", "bob")))
    before = office.tree()
    try:
        choice = authors.choose(work.fs, first, "alice", [])
    except AuthorUnknown:
        work.store.close(commit=False)
        return
    if choice.mine:
        authors.restore_choice(work.fs, choice, changed=Changed(set(), set()))
    after = office.tree()
    for skipped in choice.skipped:
        path = b"" if skipped.path == b"." else skipped.path
        assert after.get(path) == before.get(path), (path, office.said)
    for change in choice.mine:
        path = b"" if change.path == b"." else change.path
        if DELETED in change.kinds or (change.source == change.path and ADDED not in change.kinds):
            assert after.get(path) == goal[path], (path, office.said)
    work.fs.commit()
    assert check(work.store) == [], office.said
    work.store.close(commit=False)
