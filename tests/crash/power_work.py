"""What is recorded for the power cuts: a history with everything in it that commits or syncs.

    python -m tests.crash.power_work STORE STATES SEED

Before each commit the state that it makes is told in STATES, behind it an acknowledgement.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import removal
from ckptfs.service import Service
from ckptfs.store import Store
from tests.direct import Ticks, find, put, shown


def state(fs: Filesystem) -> str:
    """A digest of the workspace, of every checkpoint, and of the log of restores."""
    fs.settle()
    whole = hashlib.blake2b()
    whole.update(repr(shown(fs, fs.head)).encode())
    for checkpoint in history.checkpoints(fs.store):
        whole.update(b"%d " % checkpoint.id)
        whole.update(repr(shown(fs, fs.view_of(checkpoint.epoch))).encode())
    whole.update(repr(history.restore_log(fs.store)).encode())
    return whole.hexdigest()


class Worker:
    def __init__(self, store: Path, states: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self._states = states
        self._acks = os.open(store / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number = 0
        self.fs = Filesystem(Store.create(store / "store"), Ticks())
        self.service = Service(self.fs)
        self.commit()

    def commit(self) -> None:
        """Tell the state, make it durable one way or the other, and acknowledge it."""
        self._number += 1
        with self._states.open("a") as states:
            states.write(json.dumps(state(self.fs)) + "\n")
        self.random.choice([self.fs.commit, self.fs.sync, self.fs.sync])()
        os.write(self._acks, b"%d\n" % self._number)

    def work(self, count: int) -> None:
        choices = [self.write, self.write, self.overwrite, self.remove, self.save, self.restore]
        for _ in range(count):
            for _ in range(self.random.randint(1, 4)):
                self.random.choice(choices)()
            if self.random.random() < 0.1:
                self.delete()
            self.commit()
            if self.random.random() < 0.08:
                self.service.compact()  # commits, but changes nothing that is seen

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

    def remove(self) -> None:
        if names := self.names():
            self.fs.unlink(self.fs.head, 1, self.random.choice(names))

    def save(self) -> None:
        history.seal(self.fs, "manual", "", self.fs.clock())

    def restore(self) -> None:
        if found := history.checkpoints(self.fs.store):
            history.restore(self.fs, self.random.choice(found))

    def delete(self) -> None:
        if found := history.checkpoints(self.fs.store):
            # Hidden in this commit, freed by whatever comes later.
            removal.delete(self.fs, [self.random.choice(found)])


def main() -> None:
    store, states, seed, count = sys.argv[1:]
    worker = Worker(Path(store), Path(states), int(seed))
    worker.work(int(count))
    worker.fs.store.close()


if __name__ == "__main__":
    main()
