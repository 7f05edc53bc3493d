"""A disk that runs full: ENOSPC, nothing lost, and a way back."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, is_mounted, scratch, succeed
from tests.support.trees import fsync, plant, tree
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_mount]


class OnSmallDisk(Workspace):
    """A workspace whose store is on a disk of 24 MiB."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.store = base / "disk/store"

    def quiet(self) -> None:
        """A full disk may be worth a warning; it is not worth a traceback or a dead daemon."""
        trouble = self.trouble()
        assert "Traceback" not in trouble, trouble[-4000:]
        if self.pid is not None:
            assert is_mounted(self.path), "the mount has gone by itself"


@pytest.fixture(params=["24m"])
def cramped(request: pytest.FixtureRequest) -> Iterator[OnSmallDisk]:
    with scratch() as base:
        (base / "disk").mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", base / "disk"],
            check=True,
        )
        made = OnSmallDisk(base)
        made.mount()
        try:
            yield made
        finally:
            made.finish()
            subprocess.run(["umount", base / "disk"], check=True)


def fill(path: Path) -> int:
    """Write until it fails; the errno it failed with, at the write, the fsync or the close."""
    with open(path, "wb", buffering=0) as file:
        try:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        except OSError as error:
            return error.errno or 0
    return 0


def test_a_full_disk_says_enospc_and_keeps_what_was_there(cramped: OnSmallDisk) -> None:
    plant(cramped.path, {"kept": "precious" * 1000, "dir": {"also": "kept"}})
    fsync(cramped.path / "kept")
    fsync(cramped.path)
    assert fill(cramped.path / "huge") in (errno.ENOSPC, errno.EDQUOT)
    assert (cramped.path / "kept").read_text() == "precious" * 1000
    assert (cramped.path / "dir/also").read_text() == "kept"


def test_after_deleting_there_is_room_again(cramped: OnSmallDisk) -> None:
    plant(cramped.path, {"kept": "x"})
    assert fill(cramped.path / "huge") in (errno.ENOSPC, errno.EDQUOT)
    (cramped.path / "huge").unlink()
    wait_until(lambda: _is_written(cramped.path / "new"), "there is room for a megabyte")
    fsync(cramped.path / "new")
    cramped.remount()
    assert tree(cramped.path) == {"kept": "x", "new": "y" * 1_000_000}


def _is_written(path: Path) -> bool:
    """What was deleted a moment ago may not have given up its room yet."""
    try:
        path.write_bytes(b"y" * 1_000_000)
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EDQUOT)
        return False
    return True


@pytest.mark.parametrize("cramped", ["240m"], indirect=True)
def test_a_disk_is_filled_and_emptied_again_and_again(cramped: OnSmallDisk) -> None:
    """Large transactions: what was deleted is room for them only when LMDB may use it."""
    plant(cramped.path, {"kept": "x"})
    huge = cramped.path / "huge"
    reached = []
    for _ in range(6):
        wait_until(lambda: _is_written(huge), "there is room for a megabyte")
        with fails(errno.ENOSPC), open(huge, "wb", buffering=0) as file:
            while True:
                file.write(os.urandom(1_000_000))
        reached.append(huge.stat().st_size)
        huge.unlink()
    assert min(reached) > 50_000_000
    cramped.remount()
    assert tree(cramped.path) == {"kept": "x"}


def test_what_was_synced_before_the_disk_ran_full_survives_a_kill(cramped: OnSmallDisk) -> None:
    plant(cramped.path, {"kept": "precious"})
    fsync(cramped.path / "kept")
    fsync(cramped.path)
    fill(cramped.path / "huge")
    cramped.kill()
    cramped.mount()
    assert (cramped.path / "kept").read_text() == "precious"


def test_a_full_workspace_can_be_unmounted_and_mounted(cramped: OnSmallDisk) -> None:
    plant(cramped.path, {"kept": "precious"})
    assert fill(cramped.path / "huge") in (errno.ENOSPC, errno.EDQUOT)
    with fails(errno.ENOSPC), open(cramped.path / "to the brim", "ab", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))
            os.fsync(file.fileno())
    names = os.listdir(cramped.path)
    cramped.remount()
    assert (cramped.path / "kept").read_text() == "precious"
    assert os.listdir(cramped.path) == names


@pytest.mark.parametrize("server", ["on", "off"])
def test_a_mark_on_a_full_disk_is_refused(
    cramped: OnSmallDisk, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFS_SERVER", server)
    cramped.remount()
    mark = cramped.path / ".checkpoints/.mark"
    mark.write_text("there is room")
    assert fill(cramped.path / "huge") in (errno.ENOSPC, errno.EDQUOT)
    with fails(errno.ENOSPC), open(cramped.path / "to the brim", "ab", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))
            os.fsync(file.fileno())
    before = os.listdir(mark.parent)
    with fails(errno.ENOSPC):
        mark.write_text("there is none")
    assert os.listdir(mark.parent) == before
    (cramped.path / "huge").unlink()
    (cramped.path / "to the brim").unlink()
    wait_until(lambda: _is_marked(mark), "there is room for a mark")
    shown = succeed(cramped.cli("list", "-w", cramped.path)).stdout
    assert "room again" in shown and "there is room" in shown and "there is none" not in shown


def _is_marked(mark: Path) -> bool:
    try:
        mark.write_text("room again")
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return False
    return True


@pytest.mark.parametrize("verb", ["delete", "prune"])
def test_history_can_be_given_up_for_room(cramped: OnSmallDisk, verb: str) -> None:
    top = cramped.path
    old = os.urandom(2_000_000)
    (top / "old").write_bytes(old)
    saved = json.loads(succeed(cramped.cli("save", "x", "--json", "-w", top)).stdout)
    (top / "old").unlink()
    assert fill(top / "huge") in (errno.ENOSPC, errno.EDQUOT)
    assert (top / f".checkpoints/{saved['id']}/old").read_bytes() == old
    size = (top / "huge").stat().st_size
    if verb == "delete":
        succeed(cramped.cli("delete", str(saved["id"]), "-w", top))
    else:
        succeed(cramped.cli("prune", "-w", top))
        succeed(cramped.cli("delete", str(saved["id"]), "-w", top))
    succeed(cramped.cli("status", "-w", top))
    (top / "huge").unlink()
    (top / "new").write_bytes(os.urandom(min(size, 2_000_000)))
    fsync(top / "new")


def test_a_restore_on_a_full_disk_is_done_or_refused(cramped: OnSmallDisk) -> None:
    top = cramped.path
    plant(top, {"a": "before", "dir": {"b": "x" * 50_000}})
    saved = json.loads(succeed(cramped.cli("save", "x", "--json", "-w", top)).stdout)
    (top / "a").write_text("after")
    assert fill(top / "huge") in (errno.ENOSPC, errno.EDQUOT)
    done = cramped.cli("restore", str(saved["id"]), "--force", "-w", top)
    found = tree(top)
    if done.returncode == 0:
        assert found == {"a": "before", "dir": {"b": "x" * 50_000}}
    else:
        assert found["a"] == "after" and "Traceback" not in done.stderr


def test_a_merge_without_room_has_not_happened(cramped: OnSmallDisk) -> None:
    """What they have is shared, so that a merge takes little; what is merged by lines is new."""
    names = [f"f{number}" for number in range(12)]
    lines = [f"{number} " + "x" * 60 for number in range(8_000)]
    texts = {who: "\n".join([first, *lines, last]) for who, first, last in _SIDES}
    cli, at = cramped.cli, ("-w", str(cramped.path))
    for name in names:
        (cramped.path / name).write_text(texts["base"])
    succeed(cli("save", "--tag", "base", *at))
    for name in names:
        (cramped.path / name).write_text(texts["theirs"])
    succeed(cli("save", "--tag", "theirs", *at))
    succeed(cli("restore", "base", "--force", *at))
    for name in names:
        (cramped.path / name).write_text(texts["ours"])
    succeed(cli("config", "retention.automatic", "off", *at))
    fsync(cramped.path / "f0")
    assert fill(cramped.path / "huge") in (errno.ENOSPC, errno.EDQUOT)
    before = json.loads(succeed(cli("list", "--json", *at)).stdout)["checkpoints"]
    done = cli("merge", "theirs", *at)
    assert done.returncode and "o space left" in done.stderr, done.stderr
    after = json.loads(succeed(cli("list", "--json", *at)).stdout)["checkpoints"]
    assert [each["id"] for each in after] == [each["id"] for each in before]
    assert all((cramped.path / name).read_text() == texts["ours"] for name in names)
    (cramped.path / "huge").unlink()


#: The first and the last line of each side.
_SIDES = [
    ("base", "first", "last"),
    ("ours", "first of ours", "last"),
    ("theirs", "first", "last of theirs"),
]
