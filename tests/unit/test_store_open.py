"""Making and opening stores: who else is there, and every reason why not, by its name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lmdb
import pytest

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO
from ckptfs.store import Store, check, compaction, environment, new_store
from ckptfs.store.directory import store_exists
from ckptfs.store.format import FORMAT_VERSION, pack_u32
from tests.direct import get, put
from tests.support.mounting import scratch
from tests.support.peer import NOBODY, peer

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, or another user")


def _made(path: Path) -> Path:
    """A store with a file in it, closed."""
    store = Store.create(path)
    fs = Filesystem(store)
    put(fs, b"file", b"content")
    fs.commit()
    store.close()
    return path


def _state(path: Path) -> dict[str, str]:
    """What a directory holds, to see that a refusal changed nothing."""
    return {
        entry.name: hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()
        for entry in os.scandir(path)
        if entry.is_file()
    }


def _put_meta(path: Path, key: bytes, value: bytes | None) -> None:
    with lmdb.open(os.fspath(path), map_size=1 << 30, max_dbs=20) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            if value is None:
                txn.delete(key, db=meta)
            else:
                txn.put(key, value, db=meta)


# -- making ----------------------------------------------------------------------------------------


def test_a_new_store_is_private_and_empty(memory: Path) -> None:
    path = memory / "some" / "where"
    store = Store.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) & 0o077 for entry in os.scandir(path)} == {0}
    fs = Filesystem(store)
    assert list(fs.entries(fs.head, 1)) == []
    fs.commit()
    assert check(store) == []
    store.close()


def test_an_empty_directory_becomes_a_store(memory: Path) -> None:
    (memory / "store").mkdir(mode=0o755)
    Store.create(memory / "store").close()
    assert stat.S_IMODE((memory / "store").stat().st_mode) == 0o700


def test_nothing_is_made_in_a_directory_with_something_in_it(memory: Path) -> None:
    (memory / "mine").write_text("keep")
    before = _state(memory)
    with pytest.raises(errors.NotAStore):
        Store.create(memory)
    assert _state(memory) == before


def test_a_store_is_not_made_twice(memory: Path) -> None:
    path = _made(memory / "store")
    with pytest.raises(errors.NotAStore):
        Store.create(path)
    store = Store.open(path)
    assert get(Filesystem(store), b"file") == b"content"
    store.close()


def test_nothing_is_made_on_or_below_a_file(memory: Path) -> None:
    (memory / "file").write_text("keep")
    for path in (memory / "file", memory / "file" / "store"):
        with pytest.raises(errors.NotAStore):
            Store.create(path)
    assert (memory / "file").read_text() == "keep"


# -- what is no store ------------------------------------------------------------------------------


def test_a_missing_store_is_named_as_missing(memory: Path) -> None:
    with pytest.raises(errors.StoreMissing):
        Store.open(memory / "nowhere")
    (memory / "link").symlink_to("nowhere")
    with pytest.raises(errors.StoreMissing):
        Store.open(memory / "link")
    assert os.listdir(memory) == ["link"]


def test_a_file_is_no_store(memory: Path) -> None:
    (memory / "file").write_text("keep")
    with pytest.raises(errors.NotAStore):
        Store.open(memory / "file")


def test_an_empty_directory_is_no_store_and_stays_empty(memory: Path) -> None:
    with pytest.raises(errors.NotAStore):
        Store.open(memory)
    assert os.listdir(memory) == []


@pytest.mark.parametrize("size", [1, 100, 4096, 100_000])
def test_garbage_is_no_store(memory: Path, size: int) -> None:
    (memory / "data.mdb").write_bytes(b"\xa5" * size)
    before = _state(memory)
    with pytest.raises(errors.NotAStore):
        Store.open(memory)
    assert _state(memory) == before


def test_an_empty_data_file_is_no_store(memory: Path) -> None:
    (memory / "data.mdb").touch()
    before = _state(memory)
    with pytest.raises(errors.NotAStore):
        Store.open(memory)
    assert _state(memory) == before


def test_another_programs_lmdb_is_no_store_and_stays_as_it_was(memory: Path) -> None:
    with lmdb.open(os.fspath(memory), map_size=1 << 24, max_dbs=4) as env:
        theirs = env.open_db(b"theirs")
        with env.begin(write=True) as txn:
            txn.put(b"key", b"value", db=theirs)
    before = (memory / "data.mdb").read_bytes()
    with pytest.raises(errors.NotAStore):
        Store.open(memory)
    assert (memory / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("name", ["lock", "data.mdb"])
def test_a_directory_where_a_file_must_be(memory: Path, name: str) -> None:
    path = _made(memory / "store")
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(errors.StoreError):
        Store.open(path)


@pytest.mark.parametrize("pages", [1, 2, 3, 40])
def test_a_file_cut_short_is_told_and_not_died_of(memory: Path, pages: int) -> None:
    """In a process of its own: reading a map behind the end of its file is a bus error."""
    path = _made(memory / "store")
    store = Store.open(path)
    fs = Filesystem(store)
    for n in range(4):
        put(fs, b"large %d" % n, os.urandom(1 << 18))
    fs.commit()
    store.close()
    os.truncate(path / "data.mdb", pages * 4096)
    script = (
        "import sys; from pathlib import Path; from ckptfs import errors\n"
        "from ckptfs.store import Store\n"
        "try: Store.open(Path(sys.argv[1]))\n"
        "except errors.StoreError as error: print(error.kind)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr}"
    assert done.stdout.strip() in ("store-corrupt", "not-a-store")


# -- versions and damage ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 2**32 - 1])
def test_an_unknown_version_is_refused_by_its_number(memory: Path, version: int) -> None:
    path = _made(memory / "store")
    _put_meta(path, b"format", pack_u32(version))
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(errors.StoreVersionUnknown) as caught:
        Store.open(path)
    assert caught.value.found == version
    assert (path / "data.mdb").read_bytes() == before


def test_a_store_without_a_version_is_none(memory: Path) -> None:
    path = _made(memory / "store")
    _put_meta(path, b"format", None)
    with pytest.raises(errors.NotAStore):
        Store.open(path)


@pytest.mark.parametrize("key", [b"next_ino", b"next_content", b"next_epoch", b"head"])
def test_a_lost_counter_is_damage(memory: Path, key: bytes) -> None:
    path = _made(memory / "store")
    _put_meta(path, key, None)
    with pytest.raises(errors.StoreCorrupt, match=key.decode()):
        Store.open(path)


def test_a_refused_store_is_let_go(memory: Path) -> None:
    """What was wrong can be put right and the store opened, in the same process."""
    path = _made(memory / "store")
    _put_meta(path, b"format", pack_u32(FORMAT_VERSION + 1))
    with pytest.raises(errors.StoreVersionUnknown):
        Store.open(path)
    _put_meta(path, b"format", pack_u32(FORMAT_VERSION))
    store = Store.open(path)
    assert get(Filesystem(store), b"file") == b"content"
    store.close()


# -- somebody else ---------------------------------------------------------------------------------


def _kind_of_refusal(path: Path) -> tuple[str, int | None]:
    try:
        Store.open(path)
    except errors.StoreError as refused:
        return refused.kind, getattr(refused, "pid", None)
    return "", None


def _open_for_good(path: Path) -> int:
    _open_for_good.store = Store.open(path)  # type: ignore[attr-defined]
    return os.getpid()


def test_a_store_in_use_by_this_process_is_refused(memory: Path) -> None:
    path = _made(memory / "store")
    store = Store.open(path)
    with pytest.raises(errors.StoreInUse) as caught:
        Store.open(path)
    assert caught.value.pid == os.getpid()
    assert get(Filesystem(store), b"file") == b"content"
    store.close()


def test_a_store_is_in_use_by_another_process_until_that_ends(memory: Path) -> None:
    path = _made(memory / "store")
    with peer() as other:
        pid = other(_open_for_good, path)
        with pytest.raises(errors.StoreInUse) as caught:
            Store.open(path)
        assert caught.value.pid == pid
        with pytest.raises(errors.StoreError):
            Store.create(path)
    Store.open(path).close()


def test_the_words_of_a_holder_that_died_count_for_nothing(memory: Path) -> None:
    path = _made(memory / "store")
    (path / "lock").write_text("1\n")
    store = Store.open(path)
    assert (path / "lock").read_text() == f"{os.getpid()}\n"
    store.close()


@AS_ROOT
def test_a_store_is_unreadable_for_another_user() -> None:
    with scratch() as base:
        path = _made(base / "store")
        with peer(NOBODY) as nobody:
            assert nobody(_kind_of_refusal, path)[0] == "store-unreadable"
            path.chmod(0o755)
            refusal, _ = nobody(_kind_of_refusal, path)
            assert refusal == "store-untrusted"


@AS_ROOT
def test_a_store_behind_a_closed_directory_is_unreadable() -> None:
    with scratch() as base:
        (base / "private").mkdir(mode=0o700)
        path = _made(base / "private" / "store")
        with peer(NOBODY) as nobody:
            assert nobody(_kind_of_refusal, path)[0] == "store-unreadable"


def test_a_name_that_no_file_can_have(memory: Path) -> None:
    for attempt in (Store.open, Store.create):
        with pytest.raises(errors.StoreError):
            attempt(memory / ("n" * 300))


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small file system of its own."""
    with scratch() as base:
        point = base / "disk"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", point], check=True)
        yield point


@AS_ROOT
def test_a_store_on_a_read_only_disk_is_refused(disk: Path) -> None:
    path = _made(disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(errors.StoreReadOnly):
        Store.open(path)
    with pytest.raises(errors.StoreReadOnly):
        Store.create(disk / "new")
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    Store.open(path).close()


@AS_ROOT
def test_a_store_behind_a_read_only_bind_mount_is_refused() -> None:
    with scratch() as base:
        path = _made(base / "store")
        point = base / "bound"
        point.mkdir()
        subprocess.run(["mount", "--bind", path, point], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", point], check=True)
        with pytest.raises(errors.StoreReadOnly):
            Store.open(point)


# -- closing ---------------------------------------------------------------------------------------


def test_a_store_that_moved_opens(memory: Path) -> None:
    path = _made(memory / "store")
    shutil.move(path, memory / "moved")
    store = Store.open(memory / "moved")
    assert get(Filesystem(store), b"file") == b"content"
    store.close()


def test_facts_are_kept(memory: Path) -> None:
    store = Store.create(memory / "store")
    store.metadata.put(b"workspace", b"/home/me")
    store.note()
    store.close()
    store = Store.open(memory / "store")
    assert store.metadata.get(b"workspace") == b"/home/me"
    store.close()


def test_a_commit_of_nothing_writes_nothing(memory: Path) -> None:
    store = Store.open(_made(memory / "store"))
    before = (memory / "store" / "data.mdb").read_bytes()
    assert not store.dirty
    store.commit()
    store.close()
    assert (memory / "store" / "data.mdb").read_bytes() == before


def test_a_making_that_was_interrupted_can_be_repeated(memory: Path) -> None:
    """Killed between LMDB's first page and the first commit: there is nothing in it to lose."""
    path = memory / "store"
    path.mkdir()
    lmdb.open(os.fspath(path), map_size=1 << 24).close()
    Store.create(path).close()
    store = Store.open(path)
    assert list(Filesystem(store).entries(store.head, ROOT_INO)) == [] and check(store) == []
    store.close()


def _interrupted_at(moment: int, path: Path) -> bool:
    """Make a store, with an interrupt at one of the lines that make it; whether it came so far."""
    left = moment

    def at_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line" and "/ckptfs/store/" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return at_line

    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        with new_store(path):
            sys.settrace(before)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("existed", [False, True])
def test_an_interrupt_at_any_moment_leaves_nothing_of_a_new_store(
    memory: Path, existed: bool
) -> None:
    path = memory / "store"
    moment = 1
    while True:
        shutil.rmtree(path, ignore_errors=True)
        if existed:
            path.mkdir()
        if not _interrupted_at(moment, path):
            break
        assert path.exists() == existed, f"moment {moment}"
        assert not existed or os.listdir(path) == [], f"moment {moment}"
        moment += 1 + moment // 20
    assert moment > 50
    Store.open(path).close()


@pytest.mark.parametrize("size", [0, None])
def test_what_a_power_cut_left_of_a_new_store_is_no_store_yet(
    memory: Path, size: int | None
) -> None:
    path = memory / "store"
    path.mkdir(mode=0o700)
    lmdb.open(os.fspath(path), map_size=1 << 20, mode=0o600).close()
    if size is not None:
        os.truncate(path / "data.mdb", size)
    with pytest.raises(errors.NotAStore, match="the making of it was interrupted") as refused:
        Store.open(path)
    assert "takes it over" in refused.value.hint
    assert not store_exists(path)
    Store.create(path).close()
    assert store_exists(path)


# -- read by another process -----------------------------------------------------------------------

_READ = """
import hashlib, lmdb, sys
env = lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=64)
with env.begin() as txn:
    names = [bytes(name) for name in txn.cursor().iternext(values=False)]
    tables = [env.open_db(name, txn=txn, create=False) for name in names]
    for line in sys.stdin:
        found = hashlib.blake2b()
        for table in tables:
            for key, value in txn.cursor(table):
                found.update(key + value)
        print(found.hexdigest(), flush=True)
"""


def test_another_process_reads_a_held_snapshot_while_the_store_goes_on(memory: Path) -> None:
    """Without LMDB's lock file: what it reads stays what it was, however many commits there are."""
    with contextlib.closing(Store.create(memory / "s")) as store, store.hold_snapshot():
        fs = Filesystem(store)
        _write_files(fs, 0)
        command = [sys.executable, "-c", _READ, memory / "s"]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as reader:
            before = _ask(reader)
            for turn in range(1, 6):
                _write_files(fs, turn)
                assert _ask(reader) == before
            assert reader.stdin is not None
            reader.stdin.close()
        assert reader.returncode == 0


def test_where_no_memory_can_be_named_the_lock_file_is_lmdbs_own(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.ENOSYS, name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    with contextlib.closing(Store.create(memory / "s")) as store:
        put(Filesystem(store), b"file", b"bytes")
        assert (memory / "s/lock.mdb").exists()
    monkeypatch.undo()
    with contextlib.closing(Store.open(memory / "s")) as store:
        assert get(Filesystem(store), b"file") == b"bytes"


_KILLED = """
import os, signal, sys
from pathlib import Path
import lmdb
from ckptfs.store import Store

def killed(path, **options):
    if options.get("readonly"):
        return lmdb_open(path, **options)
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

lmdb_open, lmdb.open = lmdb.open, killed
Store.open(Path(sys.argv[1]))
"""


def _left_by_a_killed_process(store: Path) -> Path:
    """The directory in which a process was about to have LMDB open its files."""
    command = [sys.executable, "-c", _KILLED, store]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path = Path(done.stdout.strip())
    assert {item.name for item in path.iterdir()} == {"data.mdb", "lock.mdb"}
    return path


def test_what_a_process_leaves_that_is_killed_while_it_opens_a_store_the_next_one_removes(
    memory: Path,
) -> None:
    left = _left_by_a_killed_process(_made(memory / "s"))
    long_ago = left.stat().st_mtime - 3_600
    os.utime(left, (long_ago, long_ago))
    Store.open(memory / "s").close()
    assert not left.exists()
    assert (memory / "s/data.mdb").exists()


def test_what_a_process_needs_that_opens_a_store_no_other_one_removes(memory: Path) -> None:
    used = _left_by_a_killed_process(_made(memory / "s"))
    young = _left_by_a_killed_process(memory / "s")
    os.utime(used, (0, 0))
    descriptor = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        Store.open(memory / "s").close()
        assert used.is_dir() and young.is_dir()
    finally:
        os.close(descriptor)
        shutil.rmtree(young)
    Store.open(memory / "s").close()
    assert not used.exists()


def _write_files(fs: Filesystem, turn: int) -> None:
    for number in range(100):
        put(fs, b"file %d" % number, os.urandom(3_000) + bytes([turn]))
    fs.store.commit()


def _ask(reader: subprocess.Popen[str], what: str = "read") -> str:
    assert reader.stdin is not None and reader.stdout is not None
    reader.stdin.write(f"{what}\n")
    reader.stdin.flush()
    return reader.stdout.readline()


_READ_LATE = """
import sys
from pathlib import Path
from ckptfs.store.directory import open_snapshot
with open_snapshot(Path(sys.argv[1]), 64) as env:
    for line in sys.stdin:
        print("open" if line == "open\\n" else env.begin().stat()["entries"], flush=True)
"""


def test_a_snapshot_is_read_after_the_data_file_has_grown(memory: Path) -> None:
    """Between the opening of it and the beginning of the reading."""
    with contextlib.closing(Store.create(memory / "s")) as store, store.hold_snapshot():
        command = [sys.executable, "-c", _READ_LATE, memory / "s"]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as reader:
            assert _ask(reader, "open") == "open\n"
            fs = Filesystem(store)
            for number in range(500):
                put(fs, b"file %d" % number, os.urandom(30_000))
            store.commit()
            assert (memory / "s/data.mdb").stat().st_size > 10 << 20
            assert int(_ask(reader) or 0) > 0
            assert reader.stdin is not None
            reader.stdin.close()


# -- the end of a store ----------------------------------------------------------------------------

_FORGOTTEN = """
import gc, sys, threading
from pathlib import Path
from ckptfs.fs import Filesystem
from ckptfs.store import Store
gc.disable()
path = Path(sys.argv[1])
Filesystem(Store.create(path / "forgotten"))
other = Store.create(path / "other")
collector = threading.Thread(target=gc.collect)
collector.start()
collector.join()
other.note()
other.commit()
other.close()
"""


def test_a_store_that_nobody_closed_ends_no_process(tmp_path: Path) -> None:
    """It is collected in another thread, perhaps, than the one that opened it."""
    for name in ("forgotten", "other"):
        (tmp_path / name).mkdir()
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", _FORGOTTEN, tmp_path], check=True)


def test_a_store_whose_copy_cannot_be_removed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store")
    store.begin_copy(0)
    remove = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(".compact"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        remove(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(OSError, match="Read-only"):
            store.close()
    Store.open(tmp_path / "store").close()


def test_a_store_that_cannot_be_made_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "sync", fail)
        with pytest.raises(OSError, match="No space"):
            Store.create(tmp_path / "store")
    assert not environment._open
    shutil.rmtree(tmp_path / "store")
    Store.create(tmp_path / "store").close()
