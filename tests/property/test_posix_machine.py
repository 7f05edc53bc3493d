"""The kernel is the oracle: whatever is done to a tmpfs directory is done to the file system.

Each operation must end alike, with the same errno or the same answer, and leave the same tree:
types, modes, owners, link counts, sizes, bytes, devices, xattrs, which names are one inode,
and which times changed. Half of the runs compare after every operation; the others only when told
to, so that partial blocks in memory meet further operations.

Access by permission bits is the kernel's business, so the machine runs best as root.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, check
from tests.direct import Node, Shown, Ticks, join, reopened
from tests.history.leftovers import leftovers
from tests.property.sides import (
    ROOT_USER,
    Direct,
    Kernel,
    every_change_shows,
    has_user_xattrs,
)
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE

SCRATCH = "/dev/shm"

#: Few names, so that paths meet; hostile ones among them, and one that is too long.
NAMES = st.sampled_from(
    [b"a", b"b", b"c", b"d", b"a\x01", b"\xff\xfe", b"new\nline ", b"x" * 255, b"x" * 256]
)
_OWN = 0 if ROOT_USER else 0o700
DIR_MODES = st.sampled_from([0o755, 0o700, 0o1777, 0o511]).map(lambda mode: mode | _OWN)
MODES = st.sampled_from(
    [0o644, 0o600, 0, 0o7777, 0o4755, 0o2755, 0o2644, 0o1777] if ROOT_USER else [0o755, 0o700]
).map(lambda mode: mode | _OWN)
_IDS = [0, 1000, 65534, 2**32 - 2] if ROOT_USER else [os.getuid()]
TARGETS = st.sampled_from(
    [b"a", b"b", b"a/b", b"c/a", b"nowhere", b"\xff\xfe", b"t" * 4095, b"t" * 4096, b""]
)
SPECIAL = st.sampled_from([stat.S_IFIFO, stat.S_IFSOCK] + [stat.S_IFCHR, stat.S_IFBLK] * ROOT_USER)
DEVICES = st.sampled_from([os.makedev(1, 3), os.makedev(259, 70_000)])
FLAGS = st.sampled_from([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])
TIMES = st.sampled_from([0, 1, -1, -(10**18) - 1, 2**31 * 10**9, 10**18 + 123_456_789])

_NEAR = [-1, 0, 1]
_BORDERS = [k * BLOCK_SIZE + d for k in (1, 2, 3) for d in _NEAR]
_INLINE = [1_920 + d for d in _NEAR]
OFFSETS = st.one_of(
    st.integers(0, 20),
    st.sampled_from(_BORDERS + _INLINE),
    st.integers(0, 4 * BLOCK_SIZE),
    st.sampled_from([2**32 - 3, 2**40 + 5]),
)
SIZES = st.one_of(
    st.just(0),
    st.integers(0, 20),
    st.sampled_from(_BORDERS + _INLINE),
    st.integers(0, 4 * BLOCK_SIZE),
    st.just(2**33 + 1),
)
LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from(_BORDERS[:6] + _INLINE))
#: Bytes whose period fits no block, so that a shifted block shows.
_PATTERN = bytes(range(5, 256)) * 1_200
DATA = st.builds(
    lambda seed, length: _PATTERN[seed : seed + length] if seed else bytes(length),
    st.integers(0, 12),
    LENGTHS,
)
#: What may be done to an open file.
WORK = st.one_of(
    st.tuples(st.just("write_to"), OFFSETS, DATA),
    st.tuples(st.just("write_to"), OFFSETS, DATA),
    st.tuples(st.just("truncate_to"), SIZES),
    st.tuples(st.just("punch_in"), OFFSETS, LENGTHS),
    st.tuples(st.just("allocate_for"), st.sampled_from([0, *_BORDERS]), LENGTHS),
    st.tuples(st.just("read_from"), OFFSETS, LENGTHS),
)
XATTRS = st.sampled_from([b"user.a", b"user.ab", b"user.\xff" + b"n" * 200])
VALUES = st.sampled_from([b"", b"value", b"\0" * 300, b"v" * 5_000])

#: Paths that are there right now, told by the kernel, so that most operations have something to do.
MACHINE = st.runner()
FILES = MACHINE.flatmap(lambda machine: st.sampled_from(machine.present(stat.S_IFREG) or [b"a"]))
DIRS = MACHINE.flatmap(lambda machine: st.sampled_from(machine.present(stat.S_IFDIR)))
PRESENT = MACHINE.flatmap(lambda machine: st.sampled_from(machine.present()))
FRESH = st.builds(join, DIRS, NAMES)

Outcome = tuple[str, Any]


class Handle(NamedTuple):
    ours: Any
    theirs: int
    number: int


class PosixMachine(RuleBasedStateMachine):
    #: Paths that something had once; most of them lead nowhere now, or elsewhere.
    earlier = Bundle("earlier")
    handles = Bundle("handles")

    anything = PRESENT | PRESENT | FRESH | earlier

    def __init__(self) -> None:
        super().__init__()
        #: Undone in the end even where a failure left half of a step behind.
        self._cleanup = ExitStack()
        self._cleanup.callback(os.umask, os.umask(0))
        self._scratch = Path(tempfile.mkdtemp(prefix="ckptfs-machine-", dir=SCRATCH))
        self._cleanup.callback(shutil.rmtree, self._scratch)
        root = self._scratch / "theirs"
        root.mkdir(mode=0o755)
        self._xattrs = has_user_xattrs(str(root))
        self._fine_times = every_change_shows(str(root))
        self.theirs = Kernel(str(root))
        self.ours = Direct(Filesystem(Store.create(self._scratch / "store"), Ticks()))
        self.every_step = True
        self.open: dict[int, Handle] = {}
        self._opened = 0
        #: Whether a name may have been taken or given to an inode since the last look.
        self._relinked = False
        self._ours_before, self._theirs_before = self._trees()

    def teardown(self) -> None:
        with self._cleanup:
            self._cleanup.callback(lambda: self.ours.fs.store.close(commit=False))
            self._cleanup.callback(self._close_descriptors)
            self.look()
            self._end()

    def _close_descriptors(self) -> None:
        for handle in self.open.values():
            self.theirs.close(handle.theirs)

    def _end(self) -> None:
        """When everything is closed and forgotten, nothing but the tree is left in the store."""
        fs = self.ours.fs
        self._close_all()
        self.forget()
        fs.commit()
        assert check(fs.store) == []
        assert leftovers(fs.store) == []
        assert fs.head.inodes == len(set(self.ours.tree().inos.values()))
        assert not list(fs.store.orphans.walk())

    @initialize(target=earlier, every_step=st.booleans(), keep_unlinked=st.booleans())
    def begin(self, every_step: bool, keep_unlinked: bool) -> Any:
        self.every_step = every_step
        self.ours.fs.keep_unlinked = keep_unlinked
        self.both("mkdir", b"a", 0o755)
        self.both("mkdir", b"a/b", 0o755)
        self.both("mknod", b"a/c", stat.S_IFREG | 0o644, 0)
        self.both("link", b"a/c", b"d")
        self.both("write", b"d", 0, _PATTERN[: BLOCK_SIZE + 100])
        return multiple(b"a", b"a/b", b"a/c", b"d")

    @initialize(target=handles)
    def begin_with_an_open_file(self) -> Any:
        assert self.both("mknod", b"c", stat.S_IFREG | 0o644, 0)
        return self._open(b"c")

    def present(self, kind: int = 0) -> list[bytes]:
        """The paths of one type, or all but the root's."""
        kinds = self.theirs.kinds()
        if kind:
            return [path for path, found in kinds.items() if found == kind]
        return [path for path in kinds if path] or [b"a"]

    # -- comparing --------------------------------------------------------------------------------

    def both(self, operation: str, *arguments: Any) -> bool:
        """Do it on both sides; say whether it was done."""
        self._relinked |= operation in ("link", "unlink", "rmdir", "rename")
        ours = _outcome(self.ours, operation, arguments)
        theirs = _outcome(self.theirs, operation, arguments)
        assert ours == theirs, f"{operation}: ours {_short(ours)}, theirs {_short(theirs)}"
        return theirs[0] == "done"

    def both_by_handle(self, operation: str, handle: Handle, *arguments: Any) -> None:
        ours = _outcome(self.ours, operation, (handle.ours, *arguments))
        theirs = _outcome(self.theirs, operation, (handle.theirs, *arguments))
        assert ours == theirs, f"{operation}: ours {_short(ours)}, theirs {_short(theirs)}"

    @invariant()
    def same_after_every_step(self) -> None:
        if self.every_step:
            self.look()

    @rule()
    @precondition(lambda self: not self.every_step)
    def look(self) -> None:
        """Compare the whole trees, and what happened to them since the last look."""
        ours, theirs = self._trees()
        assert not (found := list(_differences(ours, theirs))), "\n".join(found)
        pairs = {(ours.inos[path], theirs.inos[path]) for path in ours.nodes}
        assert len({ino for ino, _ in pairs}) == len({ino for _, ino in pairs}) == len(pairs)
        self._compare_times(pairs, ours, theirs)
        self._ours_before, self._theirs_before = ours, theirs
        self._relinked = False

    def _trees(self) -> tuple[Shown, Shown]:
        ours, theirs = self.ours.tree(), self.theirs.tree()
        for number, handle in self.open.items():
            for tree, found in (
                (ours, self.ours.handle_node(handle.ours)),
                (theirs, self.theirs.handle_node(handle.theirs)),
            ):
                path = b"/handle %d" % number
                tree.nodes[path], tree.inos[path], tree.times[tree.inos[path]] = found
        return ours, theirs

    def _compare_times(self, pairs: set[tuple[int, int]], ours: Shown, theirs: Shown) -> None:
        for ino, their_ino in pairs:
            before = self._ours_before.times.get(ino)
            their_before = self._theirs_before.times.get(their_ino)
            assert (before is None) == (their_before is None), "an inode changed its number"
            if before is None or their_before is None:
                continue
            after, their_after = ours.times[ino], theirs.times[their_ino]
            for field in ("mtime_ns", "ctime_ns"):
                changed = getattr(before, field) != getattr(after, field)
                must = getattr(their_before, field) != getattr(their_after, field)
                path = next(path for path, found in ours.inos.items() if found == ino)
                if changed != must and (must or self._shows_changes(ours.nodes[path])):
                    raise AssertionError(f"{field} of {path!r}: changed {changed}, must {must}")
            assert after.ctime_ns >= before.ctime_ns

    def _shows_changes(self, node: Node) -> bool:
        """Whether a change that tmpfs made shows. Linking and unlinking give the directory the same
        coarse time as the inode that gains or loses the name, and it may have that already."""
        return self._fine_times and not (self._relinked and stat.S_ISDIR(node.mode))

    # -- making -----------------------------------------------------------------------------------

    @rule(target=earlier, path=FRESH, mode=DIR_MODES)
    def mkdir(self, path: bytes, mode: int) -> Any:
        return self._made("mkdir", path, mode)

    @rule(target=earlier, path=FRESH, mode=MODES)
    def create(self, path: bytes, mode: int) -> Any:
        return self._made("mknod", path, stat.S_IFREG | mode, 0)

    @rule(target=earlier, path=FRESH, kind=SPECIAL, mode=MODES, device=DEVICES)
    def mknod(self, path: bytes, kind: int, mode: int, device: int) -> Any:
        rdev = device if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        return self._made("mknod", path, kind | mode, rdev)

    @rule(target=earlier, path=FRESH, to=TARGETS)
    def symlink(self, path: bytes, to: bytes) -> Any:
        return self._made("symlink", path, to)

    @rule(target=earlier, path=FILES | PRESENT, new_path=FRESH)
    def link(self, path: bytes, new_path: bytes) -> Any:
        return new_path if self.both("link", path, new_path) else multiple()

    def _made(self, operation: str, path: bytes, *arguments: Any) -> Any:
        return path if self.both(operation, path, *arguments) else multiple()

    @rule(
        operation=st.sampled_from([("mkdir", 0o755), ("mknod", 0o644, 0), ("symlink", b"a")]),
        path=anything,
    )
    def make_anywhere(self, operation: tuple[Any, ...], path: bytes) -> None:
        self.both(operation[0], path, *operation[1:])

    # -- removing and moving ----------------------------------------------------------------------

    @rule(path=anything)
    def unlink(self, path: bytes) -> None:
        self.both("unlink", path)

    @rule(path=DIRS | anything)
    def rmdir(self, path: bytes) -> None:
        if path:
            self.both("rmdir", path)

    @rule(target=earlier, path=PRESENT, new_path=FRESH | PRESENT, flags=FLAGS)
    def rename(self, path: bytes, new_path: bytes, flags: int) -> Any:
        return new_path if self.both("rename", path, new_path, flags) else multiple()

    @rule(path=anything, new_path=anything, flags=FLAGS)
    def rename_anything(self, path: bytes, new_path: bytes, flags: int) -> None:
        self.both("rename", path, new_path, flags)

    # -- attributes -------------------------------------------------------------------------------

    @rule(path=anything, mode=MODES)
    def chmod(self, path: bytes, mode: int) -> None:
        if self.theirs.kind(path) != stat.S_IFLNK:
            self.both("chmod", path, mode)

    @rule(path=DIRS, mode=st.sampled_from([0o2775, 0o755]))
    def chmod_dir(self, path: bytes, mode: int) -> None:
        if self.theirs.kind(path) != stat.S_IFLNK:
            self.both("chmod", path, mode)

    @rule(path=anything, uid=st.sampled_from([-1, *_IDS]), gid=st.sampled_from(_IDS))
    def chown(self, path: bytes, uid: int, gid: int) -> None:
        self.both("chown", path, uid, gid if ROOT_USER else os.getgid())

    @rule(path=anything, atime_ns=TIMES, mtime_ns=TIMES)
    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> None:
        self.both("utime", path, atime_ns, mtime_ns)

    @rule(path=anything)
    def readlink(self, path: bytes) -> None:
        self.both("readlink", path)

    @rule(path=DIRS | anything, page=st.integers(1, 4))
    def readdir(self, path: bytes, page: int) -> None:
        if self.theirs.kind(path) != stat.S_IFLNK:
            self.both("names", path, page)

    def _may_have_xattrs(self, path: bytes) -> bool:
        return self._xattrs and self.theirs.kind(path) in (0, stat.S_IFREG, stat.S_IFDIR)

    @rule(path=FILES | anything, name=XATTRS, value=VALUES, flags=st.sampled_from([0, 0, 1, 2]))
    def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        if self._may_have_xattrs(path):
            self.both("setxattr", path, name, value, flags)

    @rule(path=FILES | anything, name=XATTRS)
    def getxattr(self, path: bytes, name: bytes) -> None:
        if self._may_have_xattrs(path):
            self.both("getxattr", path, name)

    @rule(path=FILES | anything, name=XATTRS)
    def removexattr(self, path: bytes, name: bytes) -> None:
        if self._may_have_xattrs(path):
            self.both("removexattr", path, name)

    # -- content ----------------------------------------------------------------------------------

    @rule(path=FILES, offset=OFFSETS, data=DATA)
    def write(self, path: bytes, offset: int, data: bytes) -> None:
        self.both("write", path, offset, data)

    @rule(path=FILES, size=SIZES)
    def truncate(self, path: bytes, size: int) -> None:
        self.both("truncate", path, size)

    @rule(path=FILES, offset=OFFSETS, size=LENGTHS)
    def read(self, path: bytes, offset: int, size: int) -> None:
        self.both("read", path, offset, size)

    @rule(
        path=FILES,
        offset=OFFSETS,
        new_path=FILES,
        new_offset=OFFSETS,
        size=LENGTHS | st.integers(0, 4 * BLOCK_SIZE),
        alike=st.booleans(),
    )
    def copy(
        self, path: bytes, offset: int, new_path: bytes, new_offset: int, size: int, alike: bool
    ) -> None:
        """Mostly from and to the beginnings of blocks, which can be shared."""
        if alike:
            offset -= offset % BLOCK_SIZE
            new_offset -= new_offset % BLOCK_SIZE
        self.both("copy", path, offset, new_path, new_offset, size)

    @rule(
        operation=st.sampled_from([("write", 0, b"x"), ("truncate", 0), ("read", 0, 1)]),
        path=anything,
    )
    def content_of_anything(self, operation: tuple[Any, ...], path: bytes) -> None:
        """The kernel itself serves what is neither file nor directory; a FIFO would even block."""
        if self.theirs.kind(path) in (0, stat.S_IFREG, stat.S_IFDIR):
            self.both(operation[0], path, *operation[1:])

    # -- open files: no name is looked up, so its partial blocks stay in memory ------------

    @rule(target=handles, path=FILES)
    def open_file(self, path: bytes) -> Any:
        return self._open(path) if self.theirs.kind(path) == stat.S_IFREG else multiple()

    def _open(self, path: bytes) -> Handle:
        self._opened += 1
        handle = Handle(self.ours.open(path), self.theirs.open(path), self._opened)
        self.open[handle.number] = handle
        return handle

    @rule(handle=consumes(handles))
    def close(self, handle: Handle) -> None:
        if self.open.pop(handle.number, None):
            self.ours.close(handle.ours)
            self.theirs.close(handle.theirs)

    @rule(handle=handles, work=st.lists(WORK, min_size=1, max_size=5))
    def use(self, handle: Handle, work: list[tuple[Any, ...]]) -> None:
        """Several operations in a row, with nothing looked at in between."""
        if handle.number in self.open:
            for operation, *arguments in work:
                self.both_by_handle(operation, handle, *arguments)

    @rule(handle=consumes(handles), work=st.lists(WORK, min_size=1, max_size=3))
    def use_without_a_name_and_close(self, handle: Handle, work: list[tuple[Any, ...]]) -> None:
        if handle.number in self.open:
            for path in self.theirs.paths_of(handle.theirs):
                self.both("unlink", path)
            self.use(handle, work)
            self.close(handle)

    def _close_all(self) -> None:
        while self.open:
            self.close(next(iter(self.open.values())))

    # -- what must not show -----------------------------------------------------------------------

    @rule()
    def forget(self) -> None:
        """The kernel drops the nameless inodes that it still knew."""
        for ino in list(self.ours.fs.unlinked):
            self.ours.fs.forget(ino)

    @rule()
    def flush(self) -> None:
        self.ours.fs.flush()

    @rule()
    def commit(self) -> None:
        self.ours.fs.commit()

    @rule()
    def reopen(self) -> None:
        self._close_all()
        keep_unlinked = self.ours.fs.keep_unlinked
        self.ours = Direct(reopened(self.ours.fs))
        self.ours.fs.keep_unlinked = keep_unlinked

    @rule()
    def seal(self) -> None:
        history.seal(self.ours.fs, "test", "", 0)


def _outcome(side: Any, operation: str, arguments: tuple[Any, ...]) -> Outcome:
    try:
        return "done", getattr(side, operation)(*arguments)
    except OSError as failed:
        return "failed", errno.errorcode.get(failed.errno or 0, failed.errno)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:180]}... ({len(text)} characters)"


def _differences(ours: Shown, theirs: Shown) -> Iterator[str]:
    for path in sorted(ours.nodes.keys() | theirs.nodes.keys()):
        mine, other = ours.nodes.get(path), theirs.nodes.get(path)
        if mine is None or other is None:
            yield f"{path!r} is only in {'theirs' if mine is None else 'ours'}"
            continue
        for field in mine._fields:
            a, b = getattr(mine, field), getattr(other, field)
            if a != b:
                yield f"{path!r}: {field} is {_short(a)}, must be {_short(b)}"


@pytest.mark.timeout(900)  # a failure is made small before it is told
class TestPosix(PosixMachine.TestCase):
    settings = settings(
        derandomize=True,
        max_examples=300,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.deep
@pytest.mark.timeout(0)
class TestPosixDeep(PosixMachine.TestCase):
    settings = settings(
        max_examples=2_000,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
