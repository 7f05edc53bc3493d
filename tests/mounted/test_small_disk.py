"""A small disk, or one that others fill: history stays while there is room, and it is told."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ckptfs import CheckpointService, history
from ckptfs.history.checkpoints import describe
from ckptfs.store import Store
from tests.mounted.test_full_disk import OnSmallDisk, fill
from tests.support.mounting import Workspace, scratch, succeed
from tests.support.trees import plant
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs_mount,
    pytest.mark.needs_program("mkfs.ext4"),
]

MIB = 1 << 20
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def small(request: pytest.FixtureRequest) -> Iterator[OnSmallDisk]:
    """A workspace whose store is on an ext4 of its own, 200 MiB in size or as the test says."""
    with scratch() as base:
        (base / "disk").mkdir()
        with (base / "image").open("wb") as image:
            image.truncate(getattr(request, "param", 200 * MIB))
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", base / "image"], check=True)
        subprocess.run(["mount", "-o", "loop", base / "image", base / "disk"], check=True)
        made = OnSmallDisk(base)
        try:
            yield made
        finally:
            made.finish()
            subprocess.run(["umount", base / "disk"], check=True)


def step(work: Workspace, script: str) -> None:
    """One command, as an agent or a shell starts it."""
    subprocess.run(["sh", "-c", script], cwd=work.path, start_new_session=True, check=True)


def pruned(work: Workspace) -> list[int]:
    """What expires by the settings, now and not when the daemon comes to it."""
    answer = json.loads(succeed(work.cli("prune", "--json", "-w", work.path)).stdout)
    return [item["id"] for item in answer["checkpoints"] if not item["keep"]]


def grow_old(store: Path, hours: float) -> None:
    """Let so much time have passed since all that was kept."""
    with closing(Store.open(store)) as opened:
        for item in history.checkpoints(opened):
            describe(opened, replace(item, time_ns=item.time_ns - int(hours * HOUR_NS)))


def log_of(work: Workspace) -> str:
    return (work.store / "ckptfs.log").read_text()


def test_a_small_disk_with_room_keeps_a_days_work(small: OnSmallDisk) -> None:
    small.path.mkdir()
    plant(small.path, {"src": {"app.py": "v0", "lib.py": "lib"}, "README": "read"})
    small.mount()
    for number in range(1, 8):
        step(small, f"echo v{number} > src/app.py")
        step(small, f"echo {number} > note{number}; rm -f note{number - 1}")
    step(small, "rm -rf src")
    assert pruned(small) == []
    record = small.status()
    assert record["short_of_room"] is False and record["room"] is None
    shown = succeed(small.cli("log", "-w", small.path, small.path / "src/app.py")).stdout
    assert len(shown.splitlines()) >= 8
    assert (small.path / f".checkpoints/{numbers(small)[0]}/src/app.py").read_text() == "v0"


def test_a_hundred_manual_saves_leave_automatic_protection_on(
    small: OnSmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in small.env.items():
        monkeypatch.setenv(name, value)
    small.mount()
    with CheckpointService(small.path) as service:
        for number in range(120):
            (small.path / "file").write_text(str(number))
            service.save(f"save {number}")
            if number % 6 == 0:
                step(small, f"echo {number} > other; echo > new{number}")
                step(small, "rm new*")
        before = [item.id for item in service.list()]
        assert pruned(small) == []
        kinds = [item.kind for item in service.list()]
        assert [item.id for item in service.list()] == before
    assert kinds.count("manual") == 120 and kinds.count("auto") > 3


def fill_by_others(work: Workspace, left: int) -> None:
    """Leave so much of the disk for the store, with what it keeps for itself."""
    disk = os.statvfs(work.store)
    size = disk.f_bavail * disk.f_frsize - left - 16 * MIB
    with (work.store.parent / "others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def lose_large_files(work: Workspace, count: int) -> list[bytes]:
    """Files of 8 MiB, made and removed by steps of their own."""
    made = []
    for number in range(count):
        step(work, f"head -c {8 * MIB} /dev/urandom > large{number}; sync large{number}")
        made.append((work.path / f"large{number}").read_bytes())
        step(work, f"rm large{number}")
    return made


def is_kept(work: Workspace, name: str, content: bytes) -> bool:
    found = (work.path / f".checkpoints/{number}/{name}" for number in numbers(work))
    return any(path.exists() and path.read_bytes() == content for path in found)


def numbers(work: Workspace) -> list[int]:
    """Of all that is kept, the oldest first."""
    answer = succeed(work.cli("list", "--moments", "--json", "-w", work.path)).stdout
    return sorted(item["id"] for item in json.loads(answer)["checkpoints"])


def test_where_others_fill_the_disk_as_much_goes_as_helps_and_it_is_told(
    small: OnSmallDisk,
) -> None:
    small.mount()
    step(small, "echo small > text; echo other > text2")
    step(small, "rm text")
    content = lose_large_files(small, 5)
    small.umount()
    grow_old(small.store, 3)
    fill_by_others(small, 4 * MIB)
    told = small.mount()
    assert "Room is short" in told.stderr and "retention.min_free" in told.stderr
    step(small, "echo x > stirs")
    wait_until(lambda: not small.status()["short_of_room"], "enough has expired")
    kept = [is_kept(small, f"large{number}", content[number]) for number in range(5)]
    assert kept[-1] and kept.count(False) in (1, 2), kept
    assert is_kept(small, "text", b"small\n"), "what holds nothing gives no room"
    assert log_of(small).count("the disk is short of room") == 1
    assert "expired: the disk has less than" in log_of(small)


def test_where_expiring_would_not_be_enough_nothing_goes_and_it_is_told(
    small: OnSmallDisk,
) -> None:
    small.mount()
    succeed(small.cli("config", "retention.min_free", "10G", "-w", small.path))
    content = lose_large_files(small, 2)
    small.umount()
    grow_old(small.store, 3)
    small.mount()
    step(small, "echo x > stirs")
    wait_until(lambda: "the disk is short of room" in log_of(small), "the log says it")
    assert pruned(small) == []
    assert all(is_kept(small, f"large{number}", content[number]) for number in range(2))
    shown = succeed(small.cli("status", "-w", small.path)).stdout
    assert "nothing expires" in shown and "ckptfs delete" in shown


def test_a_full_disk_is_told_and_keeps_what_is_young(small: OnSmallDisk) -> None:
    small.mount()
    (small.path / "kept").write_text("precious")
    step(small, "rm kept")
    step(small, "echo > begins")
    assert fill(small.path / "one") == 0
    assert fill(small.path / "two") == 0
    assert fill(small.path / "three") in (errno.ENOSPC, errno.EDQUOT)
    assert is_kept(small, "kept", b"precious")
    room = small.status()["room"]
    assert room["full"] and not room["expires"]
    assert "writes are refused" in succeed(small.cli("status", "-w", small.path)).stdout
    assert log_of(small).count("nothing is left that may expire") == 1


@pytest.mark.parametrize("small", [100 * MIB], indirect=True)
def test_history_gives_way_before_a_write_is_refused_and_it_is_told(small: OnSmallDisk) -> None:
    """Builds whose results together do not fit: none of them fails, and the oldest go."""
    small.path.mkdir()
    (small.path / "source").write_text("before the work began")
    small.mount()
    for number in range(14):
        step(small, f"echo {number} > source; head -c {8 * MIB} /dev/urandom > built; echo > log")
    assert (small.path / "built").stat().st_size == 8 * MIB
    assert (small.path / f".checkpoints/{numbers(small)[0]}/source").read_text().startswith("bef")
    assert 0 < small.status()["expired_for_room"] < 12
    shown = succeed(small.cli("status", "-w", small.path)).stdout
    assert "because the disk had no room" in shown
    assert log_of(small).count("what may expire does so before a write is refused") == 1
