"""How a service comes to its workspace, mounted or not, and outlasts its daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.errors import DangerousRoot, MountpointMissing, StoreInMountpoint, WorkspaceUnknown
from tests.api.conftest import PLAIN
from tests.support.mounting import ckptfs, is_mounted, succeed
from tests.support.waiting import wait_until


def test_a_directory_is_unknown_before_the_first_initialize(work: Path) -> None:
    with pytest.raises(WorkspaceUnknown, match="not a ckptfs workspace"):
        CheckpointService(work).list()


def test_a_known_workspace_needs_no_initialize(plain: CheckpointService, work: Path) -> None:
    assert CheckpointService(work).list() == plain.list()


def test_initialize_mounts_where_it_can(mounted: CheckpointService, work: Path) -> None:
    assert is_mounted(work) and mounted.status().daemon["pid"] > 0
    assert mounted.call("status")["state"] == "serving"
    assert CheckpointService(work).initialize().mounted
    mounted.close()
    assert not is_mounted(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take /dev/fuse away")
def test_without_fuse_the_directory_stays_plain(base: Path, work: Path) -> None:
    code = (
        f"from ckptfs import CheckpointService; s = CheckpointService({str(work)!r})\n"
        "print(s.initialize().mounted, s.save('one', allow_empty=True).id)"
    )
    script = f'mount --bind /dev/null /dev/fuse && exec "{sys.executable}" -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", code], capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["False", "1"], "")


def test_a_storage_directory_holds_the_store_and_is_remembered(base: Path, work: Path) -> None:
    with CheckpointService(work, base / "elsewhere", PLAIN) as service:
        assert service.status().store == str(base / "elsewhere")
    assert (base / "elsewhere/data.mdb").exists()
    assert CheckpointService(work).status().store == str(base / "elsewhere")


@pytest.mark.parametrize("mount", [True, False])
def test_what_cannot_be_a_workspace(base: Path, work: Path, mount: bool) -> None:
    config = CheckpointConfig(mount=mount)
    for path, storage, wrong in (
        (base / "absent", None, MountpointMissing),
        (Path("/etc"), None, DangerousRoot),
        (work, work / "store", StoreInMountpoint),
    ):
        with pytest.raises(wrong):
            CheckpointService(path, storage, config).initialize()
    assert os.listdir(work) == []


def test_a_store_is_the_same_with_and_without_a_mount(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("plain\n")
    one = plain.save("plain", state={"turn": 1})
    with CheckpointService(work, config=CheckpointConfig(unmount_on_close=True)) as mounted:
        assert mounted.mounted and plain.mounted
        assert mounted.get(one.id) == one == plain.get(one.id)
        (work / "a").write_text("mounted\n")
        two = mounted.save("mounted")
    assert not plain.mounted
    plain.restore(one.id)
    assert (work / "a").read_text() == "plain\n"
    assert plain.restore(two.id).modified_paths == ["a"]
    assert (work / "a").read_text() == "mounted\n"
    listed = json.loads(succeed(ckptfs("list", "-w", work, "--no-mount", "--json")).stdout)
    assert [str(item["id"]) for item in listed["checkpoints"]] == [x.id for x in plain.list()]


def test_what_both_sides_changed_is_logged_by_the_call_that_meets_it(
    work: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (work / "both").write_text("base")
    succeed(ckptfs("mount", work))
    (work / "both").write_text("from the mount")
    succeed(ckptfs("umount", "--no-write-back", work))
    (work / "both").write_text("from below, longer")
    CheckpointService(work, config=PLAIN).save("now")
    assert "'both' changed on both sides; the version from outside is kept as" in caplog.text


def test_the_command_line_works_on_a_plain_directory(base: Path, work: Path) -> None:
    def run(*words: str | Path) -> dict[str, object]:
        done = succeed(ckptfs(*words, "-w", work, "--no-mount", "--json"))
        found: dict[str, object] = json.loads(done.stdout)
        return found

    (work / "a").write_text("one\n")
    assert ckptfs("save", "-w", work).returncode == WorkspaceUnknown.exit_code
    assert ckptfs("list", "-w", work, "--no-mount").returncode == WorkspaceUnknown.exit_code
    assert run("save", "first")["id"] == 0
    (work / "a").write_text("two\n")
    assert run("restore", "0", "--force")["modified_paths"] == ["a"]
    assert (work / "a").read_text() == "one\n"
    run("undo")
    assert (work / "a").read_text() == "two\n"
    assert not is_mounted(work)


def test_the_library_says_nothing(base: Path, work: Path) -> None:
    code = f"""
import logging
from ckptfs import CheckpointService, CheckpointConfig, CkptfsError
service = CheckpointService({str(work)!r}, config=CheckpointConfig(mount=False))
def broken(event): raise ValueError("a handler's own fault")
service.on("checkpoint_created", broken)
service.on("error", broken)
service.initialize()
service.save("one", allow_empty=True)
try:
    service.restore("99")
except CkptfsError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_daemon_that_died_is_no_end(mounted: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    saved = mounted.save("one")
    pid = mounted.status().daemon["pid"]
    os.kill(pid, 9)
    wait_until(lambda: not mounted.mounted, "the daemon is gone")
    assert mounted.list()[0] == saved
    assert mounted.initialize().mounted
    assert (work / "a").read_text() == "one\n"
