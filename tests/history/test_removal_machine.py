"""Random histories: change, save, restore, delete, in any order, with ends and crashes between.

Every checkpoint that is kept reads back equal to what was seen when it was taken, `check` finds
nothing, and no record is left that nobody needs.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ckptfs.history import checkpoints, compression, packing, removal, restore, seal
from ckptfs.history.upkeep import Worker
from ckptfs.model import ROOT_INO
from ckptfs.store import check
from tests.direct import Node, crashed, reopened, shown
from tests.history.edits import Edits, take_a_step
from tests.history.leftovers import leftovers

names = st.sampled_from(["a", "b", "c", "d/a", "d/b", "d/e/a"])
#: Inline, in one block, in several; few different bytes, so that blocks are shared.
contents = st.builds(
    lambda letter, size: letter * size,
    st.sampled_from([b"x", b"y", b"zz"]),
    st.sampled_from([1, 1_000, 3_000, 70_000, 140_000]),
)
offsets = st.sampled_from([0, 10, 65_536, 100_000, 300_000])
attributes = st.sampled_from([b"user.a", b"user.b"])


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ckptfs-removal-"))
        self.work = Edits(self.root / "store")
        self.work.mkdir("d")
        self.work.mkdir("d/e")
        self.work.fs.commit()
        self.taken: dict[int, dict[bytes, Node]] = {}
        self.reaper = removal.Reaper(self.work.fs)
        self.upkeep: Worker | None = None

    # -- changes ----------------------------------------------------------------------------------

    def _files(self) -> list[bytes]:
        fs = self.work.fs
        tree = shown(fs, fs.head).nodes
        return sorted(path for path, node in tree.items() if node.mode & 0o170000 == 0o100000)

    def _pick(self, data: st.DataObject) -> bytes | None:
        files = self._files()
        return data.draw(st.sampled_from(files)) if files else None

    @rule(path=names, content=contents)
    def put(self, path: str, content: bytes) -> None:
        self.work.put(path, content)

    @rule(data=st.data(), offset=offsets, content=contents)
    def write(self, data: st.DataObject, offset: int, content: bytes) -> None:
        if path := self._pick(data):
            self.work.write(path, offset, content)

    @rule(data=st.data(), size=offsets)
    def truncate(self, data: st.DataObject, size: int) -> None:
        if path := self._pick(data):
            self.work.change(path, size=size)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if path := self._pick(data):
            self.work.remove(path)

    @rule(data=st.data(), new=names)
    def move(self, data: st.DataObject, new: str) -> None:
        if path := self._pick(data):
            self.work.move(path, new)

    @rule(data=st.data(), new=names)
    def link(self, data: st.DataObject, new: str) -> None:
        path = self._pick(data)
        if path and new.encode() not in self._files():
            self.work.link(path, new)

    @rule(data=st.data(), name=attributes, value=st.sampled_from([b"1", b"2"]))
    def set_attribute(self, data: st.DataObject, name: bytes, value: bytes) -> None:
        if path := self._pick(data):
            self.work.fs.setxattr(self.work.fs.head, self.work.at(path).ino, name, value)

    @rule(data=st.data(), name=attributes)
    def remove_attribute(self, data: st.DataObject, name: bytes) -> None:
        if path := self._pick(data):
            fs, ino = self.work.fs, self.work.at(path).ino
            if name in fs.listxattr(fs.head, ino):
                fs.removexattr(fs.head, ino, name)

    @rule()
    def make_and_remove_a_directory(self) -> None:
        fs = self.work.fs
        if fs.seek(fs.head, ROOT_INO, b"new") is None:
            self.work.mkdir("new")
            self.work.put("new/file", b"1" * 3000)
        else:
            self.work.remove("new")

    # -- history ----------------------------------------------------------------------------------

    def _note(self, number: int) -> None:
        fs = self.work.fs
        epoch = next(c.epoch for c in checkpoints(fs.store) if c.id == number)
        self.taken[number] = shown(fs, fs.view_of(epoch)).nodes

    @rule()
    def save(self) -> None:
        self._note(seal(self.work.fs, "manual", "", self.work.fs.clock()).id)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), holding=st.booleans())
    def restore(self, data: st.DataObject, holding: bool) -> None:
        """With some files held open, which then go on in limbo and are let go."""
        fs = self.work.fs
        target = data.draw(st.sampled_from(checkpoints(fs.store)))
        held = [self.work.at(path).ino for path in self._files()] if holding else []
        for ino in held:
            fs.hold(ino)
        self._note(restore(fs, target).before.id)
        assert shown(fs, fs.head).nodes == self.taken[target.id]
        for ino in held:
            if view := fs.limbo.get(ino):
                fs.write(view, ino, 5, b"limbo" * 1000)
            fs.drop(ino)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        doomed = data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1, max_size=4))
        removal.delete(self.work.fs, self._forget(doomed))
        self._check()
        assert leftovers(self.work.store) == []

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def hide(self, data: st.DataObject) -> None:
        doomed = data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1, max_size=2))
        removal.hide(self.work.fs, self._forget(doomed))

    @rule()
    def reap_a_little(self) -> None:
        self.reaper.step(0)

    @rule()
    def compress(self) -> None:
        compression.compress(self.work.fs)
        compression.repack(self.work.fs)
        self.work.store.blocks.forget_decoded()

    @rule(chunk_bytes=st.sampled_from([1, 200, packing.CHUNK_BYTES]))
    def pack_records(self, chunk_bytes: int) -> None:
        packing.pack_records(self.work.fs, chunk_bytes)

    @rule()
    def make_smaller_a_little(self) -> None:
        """Background work, with whatever else happens between its steps."""
        self.upkeep = take_a_step(self.work.fs, self.upkeep)

    def _forget(self, doomed: set[int]) -> list[removal.Checkpoint]:
        for number in doomed:
            del self.taken[number]
        return [c for c in checkpoints(self.work.store) if c.id in doomed]

    @rule()
    def commit(self) -> None:
        self.work.fs.commit()

    @rule()
    def reopen(self) -> None:
        self.upkeep = None
        self._go_on(reopened(self.work.fs))

    def _go_on(self, fs: removal.Filesystem) -> None:
        self.work.fs, self.work.store = fs, fs.store
        self.reaper = removal.Reaper(fs)

    @rule()
    def commit_and_crash(self) -> None:
        self.work.fs.commit()
        self.upkeep = None
        self._go_on(crashed(self.work.fs))

    # -- what must hold ---------------------------------------------------------------------------

    def _check(self) -> None:
        fs = self.work.fs
        fs.commit()
        kept = checkpoints(fs.store)
        assert [c.id for c in kept] == sorted(self.taken)
        for checkpoint in kept:
            seen = shown(fs, fs.view_of(checkpoint.epoch)).nodes
            assert seen == self.taken[checkpoint.id], checkpoint.id
        assert check(fs.store) == []

    def teardown(self) -> None:
        try:
            self._check()
            head = shown(self.work.fs, self.work.fs.head).nodes
            removal.delete(self.work.fs, self._forget(set(self.taken)))
            assert shown(self.work.fs, self.work.fs.head).nodes == head
            assert list(self.work.store.epochs) == [self.work.store.head.epoch]
            self._check()
            assert leftovers(self.work.store) == []
        finally:
            self.work.store.close(commit=False)
            shutil.rmtree(self.root)


# The steps are few where every test runs and more where there is time (make test-deep).
TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
