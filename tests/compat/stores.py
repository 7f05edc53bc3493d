"""What the stored old stores hold, and how they were made.

    python -m tests.compat.stores DIRECTORY     with the release that is to be remembered

makes one and packs its data file into DIRECTORY/data.mdb.gz.
"""

from __future__ import annotations

import gzip
import stat
import sys
from pathlib import Path

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.store import Store

#: What each checkpoint shows, and what the workspace does, by path.
FIRST = {b"small": b"a small file\n", b"large": b"a line of many\n" * 9_000, b"empty": b""}
SECOND = {**FIRST, b"small": b"another small file\n", b"dir/below": b"below\n"}
NOW = {name: data for name, data in SECOND.items() if name != b"empty"}
LINK = (b"link", b"dir/below")


def make(path: Path) -> None:
    fs = Filesystem(Store.create(path), lambda: 1_700_000_000_000_000_000)
    for name, data in FIRST.items():
        ino = fs.mknod(fs.head, 1, name, stat.S_IFREG | 0o640, 1000, 1000).ino
        fs.write(fs.head, ino, 0, data)
    history.seal(fs, "manual", "the first", 1_700_000_000_000_000_000)
    small = fs.lookup(fs.head, 1, b"small").ino
    fs.write(fs.head, small, 0, SECOND[b"small"])
    directory = fs.mkdir(fs.head, 1, b"dir", 0o750, 1000, 1000).ino
    below = fs.mknod(fs.head, directory, b"below", stat.S_IFREG | 0o600, 1000, 1000).ino
    fs.write(fs.head, below, 0, SECOND[b"dir/below"])
    fs.symlink(fs.head, 1, *LINK, 1000, 1000)
    fs.setxattr(fs.head, below, b"user.kept", b"yes")
    history.seal(fs, "manual", "the second", 1_700_000_000_000_000_000)
    fs.unlink(fs.head, 1, b"empty")
    fs.commit()
    fs.store.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make(target / "store")
    packed = gzip.compress((target / "store/data.mdb").read_bytes(), mtime=0)
    (target / "data.mdb.gz").write_bytes(packed)
