"""A bit of the data file flips while the workspace is mounted, and is read from the disk: whoever
asks is told the truth or gets an error, never less than there is.

LMDB maps the file, so what is written to it here is what the daemon reads next, as if the disk had
returned it. Every trial flips one bit of a page of the last commit's trees, has the kernel forget
what it knows, and looks at everything: names, names that are not there, attributes, bytes, links.
Then the bit is put back, and everything must be as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ckptfs.store.pages import Pages
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, scratch

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can empty the kernel's caches"),
]

_PAGE = 4096
#: A page that was looked at this long ago is looked at again.
_TICK_S = 0.03
_DROP_NAMES = "2\n"


class Seen(NamedTuple):
    """What a path shows."""

    ino: int
    mode: int
    nlink: int
    size: int
    mtime_ns: int
    #: Bytes, where a link leads, or the names in a directory.
    content: bytes | str | tuple[str, ...]


def _fill(top: Path, rng: random.Random, step: int) -> None:
    for place in ("", "a", "a/b", "c"):
        (top / place).mkdir(exist_ok=True)
        for number in range(120):
            name = f"file {number} {'x' * (number * 7 % 40)}"
            (top / place / name).write_bytes(rng.randbytes(rng.choice([10, 300, 1_500])))
        os.symlink(f"to {place}", top / place / f"link {step}")
        os.link(top / place / f"link {step}", top / place / f"other {step}")


def _look(path: Path) -> Seen:
    found = os.lstat(path)
    content: bytes | str | tuple[str, ...]
    if stat.S_ISDIR(found.st_mode):
        content = tuple(sorted(os.listdir(path)))
    elif stat.S_ISLNK(found.st_mode):
        content = os.readlink(path)
    else:
        content = path.read_bytes()
    return Seen(
        found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_mtime_ns, content
    )


def _paths(top: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(top, onerror=_refuse):
        yield from (Path(place) / name for name in (*directories, *files))


def _refuse(error: OSError) -> None:
    raise error


class Mounted:
    """A workspace with something in it, and what it shows."""

    def __init__(self, base: Path) -> None:
        self.workspace = Workspace(base, "--no-write-back", "--auto", "off")
        self.workspace.mount()
        self.top = self.workspace.path
        rng = random.Random(1)
        for number in range(3):
            _fill(self.top, rng, number)
            assert self.workspace.cli("save", "-w", self.top, str(number)).returncode == 0
        (self.top / "last").write_bytes(b"last")
        self.workspace.remount()
        self.data = self.workspace.store / "data.mdb"
        past = self.top / ".checkpoints" / "1" / "a" / "b"
        paths = [self.top, *_paths(self.top), past, *_paths(past)]
        self.shown = {path: _look(path) for path in paths}
        self.came: Counter[str] = Counter()

    def pages(self) -> list[int]:
        """The pages of the last commit's trees."""
        with contextlib.closing(Pages(self.data)) as pages:
            assert pages.faults() == []
            used = sorted(pages._seen - {0, 1})
        data = self.data.read_bytes()
        kinds = {page: struct.unpack_from("=H", data, page * _PAGE + 10)[0] for page in used}
        names = {page: struct.unpack_from("=Q", data, page * _PAGE)[0] for page in used}
        return [page for page in used if kinds[page] in (1, 2) and names[page] == page]

    def flip(self, bit: int) -> None:
        file = os.open(self.data, os.O_RDWR)
        byte = os.pread(file, 1, bit // 8)[0] ^ (1 << bit % 8)
        os.pwrite(file, bytes((byte,)), bit // 8)
        os.close(file)

    def forget(self) -> None:
        """Have the kernel ask for everything anew, and the daemon look at every page."""
        Path("/proc/sys/vm/drop_caches").write_text(_DROP_NAMES)
        time.sleep(_TICK_S)

    def try_out(self, bit: int) -> set[str]:
        """What comes of it when this bit flips."""
        self.flip(bit)
        self.forget()
        try:
            return self.compare()
        finally:
            self.flip(bit)

    def compare(self) -> set[str]:
        found: set[str] = set()
        for path, wanted in self.shown.items():
            try:
                seen = _look(path)
            except OSError as error:
                found.add("error" if error.errno in (errno.EIO, errno.ENOTCONN) else repr(error))
                continue
            if seen != wanted:
                found.add(f"{path} shows {seen} instead of {wanted}")
        for place in ("", "a/b", "c"):
            try:
                os.lstat(self.top / place / "not there")
                found.add("a name that was never there")
            except FileNotFoundError:
                continue
            except OSError:
                found.add("error")
        return found

    def go_on(self) -> None:
        """A daemon that ended leaves a dead mountpoint, and a store that can be mounted."""
        assert self.workspace.pid is not None
        if os.path.exists(f"/proc/{self.workspace.pid}"):
            return
        self.came["ended"] += 1
        assert is_mounted(self.top), "the lower directory was uncovered"
        self.workspace.pid = None
        self.workspace.mount()

    def flip_many(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        pages = self.pages()
        for _ in range(count):
            bit = _bit(rng, rng.choice(pages))
            outcome = self.try_out(bit)
            assert outcome <= {"error"}, f"page {bit // 8 // _PAGE}, bit {bit}: {outcome}"
            self.came[" ".join(outcome) or "same"] += 1
            self.go_on()
        self.forget()
        assert self.compare() == set(), "the bits are as they were"
        print(dict(self.came))


def _bit(rng: random.Random, page: int) -> int:
    """Often where LMDB finds its way: the page's header, and where its records are."""
    within = rng.randrange(rng.choice([16, 64, _PAGE, _PAGE]) * 8)
    return page * _PAGE * 8 + within


@pytest.fixture(scope="module")
def mounted() -> Iterator[Mounted]:
    with scratch() as base:
        found = Mounted(base)
        yield found
        found.workspace.umount()


def test_bits_flipped_while_mounted_are_noticed(mounted: Mounted) -> None:
    mounted.flip_many(30, 1)
    assert mounted.came["error"], "the damage is noticed at all"


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_bits_flipped_while_mounted_are_noticed(mounted: Mounted, seed: int) -> None:
    mounted.flip_many(200, seed)
