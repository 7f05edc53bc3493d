"""What the handlers of single requests take, in microseconds, without the kernel: each in a loop.

    .venv/bin/python bench/floor/handlers.py [DIR]

The difference to what a program sees (`calls.c`) is what FUSE itself takes. The last rows are one
file of an untar, handled request by request, and taken over whole as the compiled server hands it
over.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ckptfs.fs import Filesystem
from ckptfs.fuse.hooks import MountOptions, unguarded
from ckptfs.fuse.requests import Requests
from ckptfs.fuse.server.binding import Bound
from ckptfs.store import Store

FILES = 5_000
DIRECTORIES = 200
PID = 42
FILE = stat.S_IFREG | 0o644
TIME_NS = 1_700_000_000_000_000_000


def took(title: str, call: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> None:
    start = time.perf_counter()
    for values in arguments:
        call(*values)
    print(f"{(time.perf_counter() - start) / len(arguments) * 1e6:8.1f}  {title}")


class Loops:
    def __init__(self, fs: Filesystem) -> None:
        fs.keep_unlinked = True
        self.fs = fs
        self.bound = Bound(Requests(fs, MountOptions(), unguarded()), fs)
        self.parents = [
            self.bound.mkdir(1, b"%d" % n, 0o755, PID, 0, 0).ino for n in range(DIRECTORIES)
        ]
        self.data = os.urandom(4_000 + FILES)

    def names(self, stem: bytes) -> list[tuple[int, bytes]]:
        return [(self.parents[n % DIRECTORIES], b"%s%d" % (stem, n)) for n in range(FILES)]

    def bytes_of(self, number: int) -> bytes:
        return self.data[number : number + 4_000]

    def make(self, parent: int, name: bytes) -> int:
        inode = self.bound.mknod(parent, name, FILE, 0, PID, 0, 0)
        return int(inode.ino)

    def dress(self, ino: int) -> None:
        none = (None,) * 4
        self.bound.setattr(ino, *none, TIME_NS, TIME_NS, None, 0, PID, True)
        self.bound.setattr(ino, None, 0, 0, None, None, None, None, 0, PID, True)
        self.bound.setattr(ino, 0o644, None, None, None, None, None, None, 0, PID, True)

    def one_by_one(self) -> None:
        bound, names = self.bound, self.names(b"single")
        took("lookup of an absent name", bound.lookup, names)
        inos: list[int] = []
        took("mknod", lambda *name: inos.append(self.make(*name)), names)
        writes = [(ino, 0, self.bytes_of(n), PID, True) for n, ino in enumerate(inos)]
        took("write of 4,000 B", bound.write, writes)
        took("setattr, three of them", self.dress, [(ino,) for ino in inos])
        took("getattr", bound.getattr, [(ino,) for ino in inos])
        took("read of 4,000 B", bound.read_pieces, [(ino, 0, 4_096) for ino in inos])
        took("unlink", bound.unlink, [(*name, PID) for name in names])
        took("forget of what was unlinked", bound.forget, [(ino,) for ino in inos])

    def _request_by_request(self, number: int, parent: int, name: bytes) -> None:
        self.bound.lookup(parent, name)
        ino = self.make(parent, name)
        self.bound.getattr(parent)
        self.bound.write(ino, 0, self.bytes_of(number), PID, True)
        self.dress(ino)

    def _taken(self, portion: Sequence[tuple[int, tuple[int, bytes]]]) -> None:
        ino, *_ = self.bound.grant(PID) or (0,)
        times = (TIME_NS,) * 4
        record = self.bound.record
        arrivals = [
            (ino + n, FILE, 1, 0, 0, 0, 4_000, *times, parent, name, record(self.bytes_of(number)))
            for n, (number, (parent, name)) in enumerate(portion)
        ]
        self.bound.take(arrivals, [], [PID] * len(arrivals), PID)

    def whole(self) -> None:
        names = list(enumerate(self.names(b"steps")))
        took(
            "a file of an untar, request by request",
            self._request_by_request,
            [(number, *name) for number, name in names],
        )
        self.fs.commit()
        names = list(enumerate(self.names(b"whole")))
        portions = [(names[at : at + 20],) for at in range(0, FILES, 20)]
        took("20 files of an untar, taken over", self._taken, portions)


def main() -> None:
    place = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        store = Store.create(Path(scratch) / "store")
        try:
            loops = Loops(Filesystem(store))
            loops.one_by_one()
            loops.whole()
        finally:
            store.close()


if __name__ == "__main__":
    main()
