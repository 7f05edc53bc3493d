"""Many threads and processes at one workspace."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ckptfs import CheckpointService, connect
from ckptfs.api.workspace import prepare_plain
from ckptfs.errors import DaemonGone, NotAStore, StoreInUse
from tests.api.conftest import PLAIN
from tests.support.mounting import ckptfs, succeed


def test_threads_of_one_process_take_turns(plain: CheckpointService) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda n: plain.save(str(n), allow_empty=True).id, range(16), timeout=60)
        )
    assert len(set(made)) == 16


def test_processes_take_turns(plain: CheckpointService, work: Path) -> None:
    code = (
        "import sys; from ckptfs import CheckpointService\n"
        f"s = CheckpointService({str(work)!r})\n"
        "for n in range(5): s.save('x', allow_empty=True)"
    )
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert len(plain.list()) == 21


def test_callers_outlast_mounts_and_unmounts(plain: CheckpointService, work: Path) -> None:
    """While a workspace is mounted and unmounted, whoever asks waits and asks who is there then.
    Only a request that is under way when the daemon ends is lost, and that is told."""
    done = threading.Event()
    saved: list[str] = []

    def save_on() -> None:
        while not done.wait(0.2):  # or nobody would find a moment to mount
            with suppress(DaemonGone):
                saved.append(plain.save(f"{len(saved)}", allow_empty=True).id)

    with ThreadPoolExecutor(2) as threads:
        callers = [threads.submit(save_on) for _ in range(2)]
        rounds = 0
        while rounds < 2 or (len(saved) <= 5 and rounds < 20):
            succeed(mount_again(work))
            succeed(ckptfs("umount", work))
            rounds += 1
        done.set()
        for caller in callers:
            caller.result(60)
    assert len(set(saved)) == len(saved) > 5


def mount_again(work: Path) -> subprocess.CompletedProcess[str]:
    """Mount, though others have the store now and then."""
    for _ in range(200):
        tried = ckptfs("mount", work)
        if tried.returncode != StoreInUse.exit_code:
            break
    return tried


def test_a_daemon_serves_a_hundred_callers_at_once(mounted: CheckpointService) -> None:
    with ThreadPoolExecutor(100) as threads:
        made = list(threads.map(lambda n: mounted.save(str(n), allow_empty=True).id, range(100)))
    assert len(set(made)) == 100


_TWO_AT_ONCE = """
import random, threading
from ckptfs.store import codec

def work(seed):
    source = random.Random(seed)
    for _ in range(300):
        size = source.choice((50, 700, 8_000))
        data = b" ".join(b"%d" % source.randrange(10**6) for _ in range(size))
        frame = codec.compress(data)
        assert frame is None or codec.decompress(frame) == data

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_two_threads_with_workspaces_of_their_own_do_not_meet() -> None:
    """What compresses and decompresses is each thread's own."""
    words = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", _TWO_AT_ONCE]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_several_may_be_the_first(tmp_path: Path) -> None:
    """Each begins to make the workspace's store, and one of them does."""
    directories = [tmp_path / f"work{number}" for number in range(6)]

    def begin(directory: Path) -> str:
        store = directory.with_suffix(".store")
        with CheckpointService(directory, store, PLAIN) as service:
            return service.save("first", allow_empty=True).id

    with ThreadPoolExecutor(4) as threads:
        for directory in directories:
            directory.mkdir()
            (directory / "file").write_text("content")
            made = list(threads.map(begin, [directory] * 4, timeout=60))
            assert len(set(made)) == 4


def test_what_is_no_store_is_not_waited_for(tmp_path: Path) -> None:
    """Only one that others are making just then is; this one would be waited for too long."""
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "data.mdb").write_bytes(b"garbage" * 2_000)
    (tmp_path / "work").mkdir()
    looks: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect.time, "sleep", looks.append)
        with pytest.raises(NotAStore):
            prepare_plain(tmp_path / "work", store)
    assert looks == []
