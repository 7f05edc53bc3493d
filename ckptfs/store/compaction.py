"""Giving free pages back to the disk: a copy of the data file without them takes its place.

The copy is made beside a store that goes on (`steps`), so that no request waits for it:

1. A process of its own (`copier`) writes what the last commit has to a file beside the data file,
   record by record, in order. That fills pages to the brim, where LMDB's own copy keeps them as
   they were. Nothing but records that are there gets into it, so what was deleted before is not
   in the new file. From here on the keys that change are noted (`ChangedKeys`).
2. The pages of the source are verified: each is still what was committed, or was when a commit gave
   it up. And the digests of the copy's pages are taken, for the guard.
3. The keys that changed are brought over, with the values that they have by now, a few at a time;
   then the copier syncs the file. Again, until few are left.
4. In one step: commit, bring over the rest, sync, rename, sync the directory, reopen
   (`Store.exchange`).

At any moment the data file is whole, the old one or the new one, and the old one has everything
until the name of the new one is durable. A copy that was not finished is removed by the next
opening. The journal belongs to the old file: the copy has no key for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import lmdb

from ckptfs import errors
from ckptfs.interrupts import Steps
from ckptfs.store import format as fmt
from ckptfs.store.transaction import ChangedKeys

if TYPE_CHECKING:
    from ckptfs.store.environment import Store
    from ckptfs.store.transaction import Database

#: The copy while it is written.
COPY_SUFFIX = ".compact"
#: A backup while it is made, in its own directory, and what makes it a store.
_PART = "ckptfs.backup"
_DATA = "data.mdb"

#: How long one step may keep requests waiting, and how much of that is for one transaction of the
#: copy, whose commit comes on top.
_STEP_S = 0.001
_PUT_S = 0.001
#: Bytes in such a transaction.
_PUT_BYTES = 1 << 20
#: How often to look whether the copier has got on.
_LOOK_S = 0.01
#: For how long, and how often, a copy that waits for those who read goes before others who would.
_PRECEDENCE_S = 2.0
_PRECEDENCE_EVERY_S = 20.0
#: How often to look whether others still read the old file.
_READ_S = 0.1
#: How much memory the keys may take that change while the copy is made.
_KEYS_BYTES = 32 << 20
#: So many may be left for the last step; twice as many after each round that left more, since under
#: a writer that never pauses there is no end otherwise. A thousand take some 5 ms.
_FEW_KEYS = 500
#: Seconds to wait for those who read the old file.
_READERS_S = 600.0
#: Seconds that a copier gets to end by itself, once it is told.
_ENDING_S = 5.0

_STILL_READ = (
    "a backup, or a verb that reads much, still reads the file that the copy would replace"
)

#: (done, total) in records.
OnProgress = Callable[[int, int], object]


class CopyFailed(Exception):
    """The copier could not do its work; says why."""


class Outlook(NamedTuple):
    """How long the data file is, and about how long a copy of it would be."""

    bytes: int
    copy_bytes: int

    @property
    def gain_bytes(self) -> int:
        return max(0, self.bytes - self.copy_bytes)


class Copy:
    """The copy of a data file: the process that writes it, and then the changes since."""

    def __init__(self, files: Path, dir_fd: int, map_size: int, niceness: int) -> None:
        self.path = files / (_DATA + COPY_SUFFIX)
        self._map_size = map_size
        self.path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # By its descriptor: a copier that outlives a kill of this process for a moment must not
        # write to what the next one has under the same name.
        with open(os.open(self.path, flags, 0o600), "rb") as target:
            self._identity = _identity(os.fstat(target.fileno()))
            self._process = self._start(files, (dir_fd, target.fileno()), niceness)
        os.set_blocking(self._reports.fileno(), False)
        self._env: lmdb.Environment | None = None
        self._dbs: list[Database] = []
        self._heard = b""
        #: What changes from here on, and what holds the snapshot until it is copied.
        self.changed = ChangedKeys(_KEYS_BYTES)
        self.hold = contextlib.ExitStack()
        self._is_closed = False
        self.is_copied = self.is_synced = False
        #: Since when it has waited for those who read the old file, by the monotonic clock.
        self._waits_since: float | None = None
        #: Whether records were brought over: its free pages have what they replaced.
        self.is_changed = False
        self.done = self.total = 0
        #: What the copier took of the CPU, when it was last heard of.
        self.cpu_s = 0.0

    def _start(self, files: Path, fds: tuple[int, int], niceness: int) -> subprocess.Popen[bytes]:
        by_descriptor = Path(f"/proc/self/fd/{fds[1]}")
        target = by_descriptor if by_descriptor.exists() else self.path
        library = Path(lmdb.__file__).parents[1]
        words = [library, files / _DATA, target, self._map_size, niceness]
        names = [name.decode() for name in fmt.TABLES]
        copier = Path(__file__).with_name("copier.py")
        # Not by subprocess.PIPE: where there is no descriptor for the second, it leaks the first.
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdin, self._requests = _pipe(theirs, ours)
            self._reports, stdout = _pipe(ours, theirs)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", copier, *map(str, words), *names],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                cwd="/",
                # The scheduler weighs sessions: this is to have no part in the daemon's priority.
                start_new_session=True,
            )
            ours.pop_all()
        return process

    def wait_for_readers(self) -> None:
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    @property
    def goes_before_readers(self) -> bool:
        """Whether new ones should let it come to its end: for a moment now and then, since one that
        reads already may take long."""
        if self._waits_since is None:
            return False
        return (time.monotonic() - self._waits_since) % _PRECEDENCE_EVERY_S < _PRECEDENCE_S

    # -- the copier -------------------------------------------------------------------------------

    def hear(self) -> None:
        """Take in what the copier says. Raises CopyFailed if it has ended."""
        try:
            more = os.read(self._reports.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not more:
            raise CopyFailed(f"the copier ended, with {self._process.wait()}")
        *lines, self._heard = (self._heard + more).split(b"\n")
        for line in lines:
            self._take(*line.decode(errors="replace").split(" ", 1))

    def _take(self, kind: str, text: str) -> None:
        if kind == "e":
            raise CopyFailed(text)
        if kind == "p":
            self.done, self.total = map(int, text.split())
        else:
            self.is_copied, self.is_synced = True, kind == "s"
            self.cpu_s = float(text)

    def ask_for_sync(self) -> None:
        self.is_synced = False
        try:
            os.write(self._requests.fileno(), b"s")
        except BrokenPipeError:
            self.hear()

    def dismiss(self) -> None:
        """Let the copier end by itself: it is the last to close the old file, which takes time."""
        self._requests.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    # -- the copy ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Go on in it, when the copier is done. Without syncs: until it is adopted nothing needs
        it."""
        self._require_own()
        self._env = lmdb.open(
            os.fspath(self.path),
            subdir=False,
            lock=False,
            sync=False,
            map_size=self._map_size,
            max_dbs=len(fmt.TABLES),
            mode=0o600,
            max_spare_txns=0,
        )
        self._dbs = [self._env.open_db(name) for name in fmt.TABLES]

    def put(self, records: Iterable[tuple[int, bytes, bytes | None]]) -> None:
        """Make these the records of tables, by their places; None for one that is not there."""
        assert self._env is not None
        with self._env.begin(write=True) as txn:
            for table, key, value in records:
                if value is None:
                    txn.delete(key, db=self._dbs[table])
                else:
                    txn.put(key, value, db=self._dbs[table])

    def endings(self) -> Iterator[list[tuple[int, bytes, bytes | None]]]:
        """The last two commits. The journal is not the copy's own: numbers of commits begin anew.
        And both show the same: a repair may go back to the one before the last."""
        assert self._env is not None
        meta = fmt.TABLES.index(fmt.META)
        with self._env.begin() as txn:
            version = txn.get(fmt.META_FORMAT, db=self._dbs[meta])
        yield [(meta, fmt.META_JOURNAL, None), (meta, fmt.META_FORMAT, version)]
        yield [(meta, fmt.META_FORMAT, version)]

    def finish(self) -> None:
        """Nothing more comes into it."""
        assert self._env is not None
        self._env.close()
        sync(self.path)
        self._require_own()

    def _require_own(self) -> None:
        """Refuse another file under its name: LMDB would make a new one, with nothing in it."""
        if self._identity != _identity(os.stat(self.path)):
            raise CopyFailed("another file is in the copy's place")

    def close(self) -> None:
        """Give up what is left: the process, and the file unless it was adopted. By then the next
        copy may have its name."""
        if self._is_closed:
            return
        self._is_closed = True
        self.changed.stop()
        self.hold.close()
        if self._env is not None:
            self._env.close()
        if not self.has_ended:
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        self._requests.close()
        self._reports.close()
        with contextlib.suppress(FileNotFoundError, CopyFailed):
            self._require_own()
            self.path.unlink()


def _pipe(
    reading: contextlib.ExitStack, writing: contextlib.ExitStack
) -> tuple[BinaryIO, BinaryIO]:
    """The two ends of a pipe, each closed with what it belongs to."""
    source, target = os.pipe()
    return (
        reading.enter_context(open(source, "rb", buffering=0)),
        writing.enter_context(open(target, "wb", buffering=0)),
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


# -- from the first step to the last ---------------------------------------------------------------


def steps(
    store: Store,
    *,
    niceness: int = 5,
    on_progress: OnProgress | None = None,
    readers_s: float = _READERS_S,
) -> Steps[float]:
    """Give the free pages back to the disk, in steps of a few milliseconds that each leave
    everything whole. Each says how many seconds to wait before the next; 0 is for requests to pass.
    To close it is to give it up: everything is as it was. Returns the CPU seconds of the copier.
    Those who read the old file are waited for, for ``readers_s`` seconds in all."""
    copy = store.begin_copy(niceness)
    try:
        while not copy.is_copied:
            yield _LOOK_S
            _require_usable(store, copy)
            if on_progress is not None:
                on_progress(copy.done, copy.total)
        copy.hold.close()
        yield from _verify(store, copy)
        copy.open()
        while not store.prepare_copy(copy, _STEP_S):
            yield 0.0
            _require_usable(store, copy)
        until = time.monotonic() + readers_s
        yield from _catch_up(store, copy, until)
        while not store.exchange(copy):
            yield from _catch_up(store, copy, until)
        copy.dismiss()
        until = time.monotonic() + _ENDING_S
        while not copy.has_ended and time.monotonic() < until:
            yield _LOOK_S
    except (lmdb.Error, OSError, CopyFailed) as error:
        raise _failure(store, error) from error
    finally:
        store.end_copy(copy)
    return copy.cpu_s


def _require_usable(store: Store, copy: Copy) -> None:
    if not copy.changed.is_wanted:
        raise errors.StoreBusy(store.path, "another copy of it is being made")
    store.require_space_beside_copy()
    _require_all_known(store, copy)
    try:
        copy.hear()
    except CopyFailed:
        for _ in store.verified():  # it may be a damaged page that ended it
            pass
        raise


def _require_all_known(store: Store, copy: Copy) -> None:
    if copy.changed.are_too_many:
        raise errors.StoreBusy(store.path, "it is changed faster than it can be copied")


def _verify(store: Store, copy: Copy) -> Iterator[float]:
    until = time.monotonic() + _STEP_S
    for _ in store.verified():
        if time.monotonic() > until:
            yield 0.0
            _require_usable(store, copy)
            until = time.monotonic() + _STEP_S


def _catch_up(store: Store, copy: Copy, until: float) -> Iterator[float]:
    """Bring over what changes, and have it synced, until little is left for the last step; and wait
    for those who read the old file through this process, until the clock says so."""
    few = _FEW_KEYS
    while True:
        while store.is_read:
            if time.monotonic() >= until:
                raise errors.StoreBusy(store.path, _STILL_READ)
            copy.wait_for_readers()
            yield _READ_S
            _require_usable(store, copy)
        # What waits in buffers would be left for the last step, too.
        store.commit()
        for _ in bring_over(store, copy):
            yield 0.0
            _require_usable(store, copy)
        copy.ask_for_sync()
        while not copy.is_synced:
            yield _LOOK_S
            _require_usable(store, copy)
        if len(copy.changed) <= few and not store.is_read:
            return
        few *= 2
        yield _LOOK_S
        _require_usable(store, copy)


def bring_over(store: Store, copy: Copy) -> Iterator[None]:
    """Give the copy the values that the changed keys have now."""
    while keys := copy.changed.take():
        at = 0
        while at < len(keys):
            until, size = time.monotonic() + _PUT_S, 0
            records: list[tuple[int, bytes, bytes | None]] = []
            while at < len(keys) and size < _PUT_BYTES and time.monotonic() < until:
                table, key = keys[at]
                value = store.record(table, key)
                records.append((table, key, value))
                size += len(value or b"")
                at += 1
            copy.put(records)
            copy.is_changed = True
            store.prepare_copy(copy, _STEP_S)
            yield
    _require_all_known(store, copy)


def _is_full(error: Exception) -> bool:
    """LMDB says it in words alone."""
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))


def _failure(store: Store, error: Exception) -> Exception:
    """What to say of an error. Damage that was found is damage."""
    if isinstance(error, fmt.CorruptRecord | errors.StoreError):
        return error
    if _is_full(error):
        return errors.StoreFull(store.path, f"the disk has no space for the compact copy: {error}")
    return errors.CompactFailed(store.path, str(error))


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def snapshot(env: lmdb.Environment, dest: Path, complete: Callable[[Path], None]) -> None:
    """A durable copy of the last commit in the directory ``dest``. By LMDB itself, beside a writer
    and without holding up this process's other threads. ``complete`` puts what else belongs to it
    into the directory that it is given. The data file comes last: without one there is no store.
    The name of ``dest`` itself is the caller's to sync."""
    part = dest / _PART
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        env.copy(os.fspath(part), compact=True)
        complete(part)
        (part / _DATA).chmod(0o600)
        sync(part / _DATA)
        for name in sorted(os.listdir(part), key=lambda name: name == _DATA):
            os.replace(part / name, dest / name)
        part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(dest)


def copy_file(source: Path, dest: Path) -> None:
    """A durable copy of a small file. A link in its place is not followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(source, flags), "rb") as file:
        content = file.read()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(dest, flags, 0o600), "wb") as file:
        file.write(content)
    sync(dest)


def remove_leftover(data_file: Path) -> None:
    """Remove the copy of a compaction that did not end."""
    data_file.with_name(data_file.name + COPY_SUFFIX).unlink(missing_ok=True)
