"""Programs that watch files notice a restore, which itself changes nothing more for that."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.inotify import Inotify
from tests.support.mounting import Workspace, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_mount


@pytest.fixture
def work(own_mount: Workspace) -> Workspace:
    """Checkpoint 1 has `kept`, `old` and `sub/deep`; since then each of them changed."""
    path = own_mount.path
    (path / "sub").mkdir()
    for name in ("kept", "old", "same", "sub/deep"):
        (path / name).write_text(f"{name} as it was")
        os.utime(path / name, ns=(1_000_000_007, 2_000_000_009))
    succeed(own_mount.cli("save", "as it was", "-w", path))
    (path / "kept").write_text("changed")
    (path / "old").unlink()
    (path / "new").write_text("new")
    (path / "sub" / "deep").write_text("changed, too")
    return own_mount


def restore(work: Workspace) -> None:
    succeed(work.cli("restore", "1", "--force", "-w", work.path))


def listed(work: Workspace) -> list[int]:
    found = json.loads(succeed(work.cli("list", "-w", work.path, "--json")).stdout)
    return [item["id"] for item in found["checkpoints"]]


def test_a_watcher_of_a_directory_hears_of_a_restore(work: Workspace) -> None:
    path = work.path
    with Inotify(path, path / "sub") as watch:
        restore(work)
        heard = watch.until(
            *((path, what, "kept") for what in ("MODIFY", "ATTRIB", "CLOSE_WRITE")),
            (path, "MODIFY", "old"),
            (path / "sub", "MODIFY", "deep"),
            (path, "ATTRIB", ""),  # for what is gone: there is nothing to touch
        )
    assert not any(name == "same" for _, _, name in heard)


def test_a_watched_file_is_replaced(work: Workspace) -> None:
    kept, new = work.path / "kept", work.path / "new"
    with Inotify(kept, new) as watch:
        restore(work)
        watch.until((kept, "DELETE_SELF", ""), (new, "DELETE_SELF", ""))
    assert kept.read_text() == "kept as it was"
    assert kept.stat().st_nlink == 1


def test_a_watcher_hears_of_a_renamed_file_that_came_back(work: Workspace) -> None:
    restore(work)
    (work.path / "same").rename(work.path / "moved")
    with Inotify(work.path) as watch:
        restore(work)
        watch.until((work.path, "MODIFY", "same"))
    assert (work.path / "same").stat().st_nlink == 1


def test_being_woken_changes_nothing(work: Workspace) -> None:
    path = work.path
    with Inotify(path, path / "sub") as watch:
        restore(work)
        watch.until((path, "CLOSE_WRITE", "kept"), (path / "sub", "CLOSE_WRITE", "deep"))
    for name in ("kept", "old", "sub/deep"):
        found = (path / name).stat()
        assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_007, 2_000_000_009)
        assert (path / name).read_text() == f"{name} as it was"
    known = listed(work)
    succeed(work.cli("save", "-w", path))
    assert listed(work) == known, "something had changed"
    assert succeed(work.cli("diff", "1", "--name-status", "--times", "-w", path)).stdout == ""
    # The next command's checkpoint is its own, not one of the daemon's.
    subprocess.run(["sh", "-c", "echo more >> kept"], cwd=path, check=True)
    succeed(work.cli("save", "-w", path))
    assert len(listed(work)) == len(known) + 1


def test_a_watcher_of_an_unchanged_file_hears_nothing(work: Workspace) -> None:
    with Inotify(work.path / "same") as watch:
        restore(work)
        work.umount()
        assert watch.pending() == set()


@pytest.mark.needs_program("inotifywait")
def test_inotifywait_hears_of_a_restore(work: Workspace) -> None:
    command = ["inotifywait", "-q", "-t", "60", "-e", "close_write", "--format", "%f", work.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        wait_until(lambda: _watches(waiting.pid), "inotifywait watches")
        restore(work)
        assert waiting.communicate(timeout=60)[0].strip() in {"kept", "old"}


def _watches(pid: int) -> bool:
    infos = Path(f"/proc/{pid}/fdinfo").iterdir()
    return any("inotify wd" in info.read_text() for info in infos)


def test_what_is_purged_is_nowhere_in_the_kernel(work: Workspace) -> None:
    """Not even for one who has it open: its pages are dropped."""
    path = work.path / "sub" / "deep"
    assert path.read_text() == "changed, too"
    with path.open("rb", buffering=0) as held:
        succeed(work.cli("purge", work.path / "sub", "--force", "-w", work.path))
        assert not path.exists()
        assert not (work.path / "sub").exists()
        with suppress(OSError):
            assert b"changed" not in held.read()
