"""What is recorded for the power cuts: a history with everything in it that commits or syncs.

    python -m tests.crash.power_work STORE STATES SEED COMMITS [LARGE]

With LARGE most of it is about large files, else there are none.
Behind each commit there is an acknowledgement, and the state that it made is told in STATES. Only
then: to look at it before would have the heap wait for bytes that the commit has to wait for.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Generator
from pathlib import Path

from xxhash import xxh3_128

from ckptfs import history
from ckptfs.errors import StoreBusy
from ckptfs.fs import Filesystem
from ckptfs.history import Changed, merge, removal
from ckptfs.model import BLOCK_SIZE
from ckptfs.service import Service
from ckptfs.store import Store, View, compaction
from ckptfs.textmerge import Labels
from tests.direct import NO_BYTES, Content, Ticks, find, get, put, shown

#: Names of files that are long enough for the heap, and how long: from the fifth block on.
_LARGE = (b"large 0", b"large 1")
_LARGE_SIZES = (400_000, 700_000, 1_200_000)


def state(fs: Filesystem) -> str:
    """A digest of the workspace, of every checkpoint, and of the log of restores."""
    fs.flush()
    whole = hashlib.blake2b()
    _tell(whole, fs, fs.head)
    for checkpoint in history.checkpoints(fs.store):
        whole.update(b"%d " % checkpoint.id)
        _tell(whole, fs, fs.view_of(checkpoint.epoch))
    whole.update(repr(history.restore_log(fs)).encode())
    return whole.hexdigest()


def _tell(whole: hashlib.blake2b, fs: Filesystem, view: View) -> None:
    """The bytes of files for themselves: written out they would be four times as many."""
    tree = shown(fs, view)
    for path, node in tree.nodes.items():
        whole.update(_digest(node.content))
        tree.nodes[path] = node._replace(content=NO_BYTES)
    whole.update(repr(tree).encode())


def _digest(content: Content) -> bytes:
    told = xxh3_128(content.whole)
    for number, data in sorted(content.blocks.items()):
        told.update(b"%d " % number + data)
    return told.digest()


class Worker:
    def __init__(self, store: Path, states: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self._states = states
        self._acks = os.open(store / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number = 0
        self.fs = Filesystem(Store.create(store / "store"), Ticks())
        self.service = Service(self.fs)
        #: A compaction that goes on while files are written.
        self._beside: Generator[float, None, float] | None = None
        self.commit()

    def commit(self) -> None:
        """Make the state durable one way or the other, acknowledge it, and tell it."""
        self._number += 1
        self.random.choice([self.fs.commit, self.fs.sync, self.fs.sync])()
        os.write(self._acks, b"%d\n" % self._number)
        with self._states.open("a") as states:
            states.write(json.dumps(state(self.fs)) + "\n")

    def work(self, count: int, *, large: bool) -> None:
        choices = [self.write, self.write, self.overwrite, self.remove, self.save, self.restore]
        choices.append(self.merge)
        if large:
            choices[:2] = [self.write_large, self.write_large, self.write]
            choices += [self.append_large, self.overwrite_large]
        for _ in range(count):
            for _ in range(self.random.randint(1, 4)):
                self.random.choice(choices)()
            if self.random.random() < 0.1:
                self.delete()
            self.commit()
            # What commits, but changes nothing that is seen.
            if self.random.random() < 0.08:
                self.service.compact()
            if self._beside is None and self.random.random() < 0.4:
                self._beside = compaction.steps(self.fs.store)
            self.compact_beside()
            if self.random.random() < 0.1:
                removal.reap(self.fs)
            if self.random.random() < 0.1:
                self.reopen()

    def compact_beside(self) -> None:
        """Some steps: as many as it takes until files have changed in each of its phases."""
        for _ in range(self.random.randint(1, 4)):
            try:
                pause = None if self._beside is None else next(self._beside, None)
            except StoreBusy:  # `compact` came, or the store was closed
                pause = None
            if pause is None:
                self._beside = None
                return
            time.sleep(pause)

    def reopen(self) -> None:
        """Go on in another life: after an orderly end, or with what is in the journal."""
        self._beside = None
        self.fs.store.close(commit=self.random.random() < 0.5)
        self.fs = Filesystem(Store.open(self.fs.store.path), self.fs.clock)
        self.service = Service(self.fs)

    def name(self) -> bytes:
        return b"f%d" % self.random.randrange(12)

    def names(self) -> list[bytes]:
        return sorted(name for name, _ in self.fs.entries(self.fs.head, 1))

    def write(self) -> None:
        name = self.name()
        if name in self.names():
            self.fs.unlink(self.fs.head, 1, name)
        put(self.fs, name, self.random.randbytes(self.random.choice([10, 1_000, 9_000, 90_000])))

    def overwrite(self) -> None:
        if names := self.names():
            ino = find(self.fs, self.fs.head, self.random.choice(names)).ino
            data = self.random.randbytes(5_000)
            self.fs.write(self.fs.head, ino, self.random.randrange(50_000), data)

    def write_large(self) -> None:
        """Bytes of its own, such as can be compressed, or those of another file."""
        name, size = self.random.choice(_LARGE), self.random.choice(_LARGE_SIZES)
        kind = self.random.randrange(4)
        if kind == 0:
            data = self.random.randbytes(700) * (size // 700)
        elif kind == 1 and (others := self.large()):
            data = get(self.fs, self.random.choice(others))
        else:
            data = self.random.randbytes(size)
        if name in self.names():
            self.fs.unlink(self.fs.head, 1, name)
        put(self.fs, name, data)

    def append_large(self) -> None:
        if names := self.large():
            inode = find(self.fs, self.fs.head, self.random.choice(names))
            if inode.size < max(_LARGE_SIZES):
                data = self.random.randbytes(self.random.choice([1_000, 150_000]))
                self.fs.write(self.fs.head, inode.ino, inode.size, data)

    def overwrite_large(self) -> None:
        """Anywhere, or whole blocks."""
        if names := self.large():
            inode = find(self.fs, self.fs.head, self.random.choice(names))
            offset = self.random.randrange(inode.size)
            data = self.random.randbytes(self.random.choice([3_000, 100_000]))
            if self.random.random() < 0.5:
                offset -= offset % BLOCK_SIZE
                data = self.random.randbytes(2 * BLOCK_SIZE)
            self.fs.write(self.fs.head, inode.ino, offset, data)

    def large(self) -> list[bytes]:
        return [name for name in self.names() if name in _LARGE]

    def remove(self) -> None:
        if names := self.names():
            self.fs.unlink(self.fs.head, 1, self.random.choice(names))

    def save(self) -> None:
        history.seal(self.fs, "manual", "", self.fs.clock())

    def restore(self) -> None:
        if found := history.checkpoints(self.fs.store):
            history.restore(self.fs, self.random.choice(found))

    def merge(self) -> None:
        """What a checkpoint of another line has: restores make such lines."""
        if found := history.checkpoints(self.fs.store):
            how = self.random.choice(["ours", "theirs", "markers"])
            theirs = merge.of_checkpoint(self.random.choice(found))
            plan = merge.plan_merge(self.fs, theirs, lambda _: how, Labels(b"a", b"o", b"b"))
            merge.merge(self.fs, theirs, plan, whole=True, changed=Changed(set(), set()))

    def delete(self) -> None:
        if found := history.checkpoints(self.fs.store):
            # Hidden in this commit, freed by whatever comes later.
            removal.delete(self.fs, [self.random.choice(found)])


def main() -> None:
    store, states, seed, count, *large = sys.argv[1:]
    worker = Worker(Path(store), Path(states), int(seed))
    worker.work(int(count), large=bool(large))
    worker.fs.store.close()


if __name__ == "__main__":
    main()
