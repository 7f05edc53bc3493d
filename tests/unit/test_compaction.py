"""The data file is exchanged for a smaller one, and at every moment one of the two is whole."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfs import errors, interrupts
from ckptfs.fs import Filesystem
from ckptfs.store import Store, check, compaction
from tests.direct import Life, get, new_filesystem, put

SECRET = b"the secret that must not stay in the file"


def fill_and_remove(fs: Filesystem) -> None:
    put(fs, b"kept", b"kept" * 1000)
    for number in range(200):
        put(fs, b"%d" % number, SECRET + os.urandom(60_000))
    put(fs, b"small", SECRET)
    fs.commit()
    for name in [b"small", *(b"%d" % number for number in range(200))]:
        fs.unlink(fs.head, 1, name)
    fs.commit()


def test_free_pages_go_back_and_the_bytes_with_them(tmp_path: Path) -> None:
    with new_filesystem(tmp_path / "store") as fs:
        fill_and_remove(fs)
        data = tmp_path / "store" / "data.mdb"
        before = data.stat().st_size
        assert SECRET in data.read_bytes()
        assert fs.store.reusable_bytes() > 10_000_000
        fs.store.compact()
        assert data.stat().st_size < before // 10
        assert SECRET not in data.read_bytes()
        assert fs.store.reusable_bytes() < 100_000
        assert get(fs, b"kept") == b"kept" * 1000
        put(fs, b"new", b"n" * 100_000)
        fs.store.compact()
        assert get(fs, b"new") == b"n" * 100_000


def test_compact_commits_what_was_written(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    put(life.fs, b"file", b"1" * 5000)
    life.fs.flush()
    life.fs.store.compact()
    assert get(life.crash(), b"file") == b"1" * 5000
    life.end()


def test_a_copy_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with new_filesystem(tmp_path / "store") as fs:
        put(fs, b"file", b"1" * 5000)
        fs.commit()
        with monkeypatch.context() as patch:
            patch.setattr(compaction.os, "fsync", fail)
            with pytest.raises(errors.StoreFull):
                fs.store.compact()
        assert get(fs, b"file") == b"1" * 5000
        assert not list((tmp_path / "store").glob("*" + compaction.COPY_SUFFIX))


def test_a_copier_that_cannot_be_started_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """With no descriptor to spare, and with one more each time until it can be."""
    gc.collect()  # what other tests left open must not go while descriptors are counted
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    failures = 0
    with new_filesystem(tmp_path / "store") as fs:
        put(fs, b"file", b"1" * 5000)
        fs.commit()
        spare = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
        os.close(spare)
        open_before = len(os.listdir("/proc/self/fd"))
        for limit in range(spare, spare + 50):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
            try:
                copy = fs.store.begin_copy(0)
                break
            except errors.CompactFailed:
                failures += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert len(os.listdir("/proc/self/fd")) == open_before
            assert not fs.store.is_read
        fs.store.end_copy(copy)
        assert failures > 4
        fs.store.compact()
        assert get(fs, b"file") == b"1" * 5000


def test_a_copy_that_waits_too_long_for_readers_is_given_up(tmp_path: Path) -> None:
    with new_filesystem(tmp_path / "store") as fs:
        fill_and_remove(fs)
        data = tmp_path / "store" / "data.mdb"
        before = data.stat().st_ino
        with fs.store.hold_snapshot(), pytest.raises(errors.StoreBusy, match="still reads"):
            interrupts.finish(compaction.steps(fs.store, readers_s=0.0))
        assert data.stat().st_ino == before
        assert not list((tmp_path / "store").glob("*" + compaction.COPY_SUFFIX))
        interrupts.finish(compaction.steps(fs.store, readers_s=0.0))
        assert data.stat().st_ino != before
        assert get(fs, b"kept") == b"kept" * 1000


_DYING = """
import os, signal, sys
from pathlib import Path
from ckptfs.store import Store, compaction
die = lambda *rest: os.kill(os.getpid(), signal.SIGKILL)
setattr(*{"copy": (compaction.os, "fsync", die), "adopt": (compaction.os, "replace", die),
          "end": (compaction.os, "close", die)}[sys.argv[2]])
Store.open(Path(sys.argv[1])).compact()
"""


@pytest.mark.parametrize("moment", ["copy", "adopt", "end"])
def test_a_compaction_killed_on_the_way_leaves_a_whole_store(tmp_path: Path, moment: str) -> None:
    store = tmp_path / "store"
    with new_filesystem(store) as fs:
        fill_and_remove(fs)
    done = subprocess.run([sys.executable, "-c", _DYING, store, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    opened = Store.open(store)
    assert check(opened) == []
    fs = Filesystem(opened)
    assert get(fs, b"kept") == b"kept" * 1000
    assert not list(store.glob("*" + compaction.COPY_SUFFIX))
    opened.close()
