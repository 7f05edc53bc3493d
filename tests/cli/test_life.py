"""A workspace's life as a user sees it: mount, work, unmount, and everything that cuts in."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, succeed
from tests.support.waiting import wait_for_exit, wait_until

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def kinds(workspace: Workspace) -> list[str]:
    """The kinds of all checkpoints, oldest first."""
    listed = json.loads(succeed(workspace.cli("list", "-w", workspace.path, "--json")).stdout)
    return [checkpoint["kind"] for checkpoint in reversed(listed["checkpoints"])]


def pid_of(workspace: Workspace) -> int:
    pid = workspace.status()["pid"]
    assert isinstance(pid, int)
    return pid


def letting_go(workspace: Workspace) -> int:
    """The daemon, which this test ends by a way of its own."""
    pid, workspace.pid = workspace.pid, None
    assert pid is not None
    return pid


def fails(
    workspace: Workspace, error: type[errors.CkptfsError], *words: str | Path
) -> subprocess.CompletedProcess[str]:
    done = workspace.cli(*words)
    assert done.returncode == error.exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_directory_is_mounted_in_place_and_written_back(workspace: Workspace) -> None:
    (workspace.path / "dir").mkdir()
    (workspace.path / "dir" / "old").write_bytes(b"old")
    (workspace.path / "goes").write_bytes(b"goes")
    workspace.mount()
    assert contents(workspace.path) == {"dir/old": b"old", "goes": b"goes"}
    (workspace.path / "dir" / "old").write_bytes(b"edited")
    (workspace.path / "new").write_bytes(b"new")
    (workspace.path / "goes").unlink()
    workspace.umount()
    assert contents(workspace.path) == {"dir/old": b"edited", "new": b"new"}


def test_status_tells_what_was_promised(workspace: Workspace) -> None:
    workspace.mount("--xattrs")
    status = workspace.status()
    assert status["workspace"] == str(workspace.path)
    assert status["store"] == str(workspace.store)
    assert status["mounted"] is True
    assert status["checkpoint_count"] == 1
    assert status["options"]["xattrs"] is True
    assert os.path.exists(status["log"])
    os.kill(status["pid"], 0)
    human = succeed(workspace.cli("status", "-w", workspace.path)).stdout
    assert str(workspace.store) in human
    workspace.umount()
    status = workspace.status()
    assert (status["mounted"], status["pid"]) == (False, None)
    assert status["checkpoint_count"] == 1


def test_a_mounted_status_is_light(workspace: Workspace) -> None:
    workspace.mount()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ckptfs", "status", "-w", workspace.path],
        env={**os.environ, **workspace.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for heavy in ("lmdb", "trio", "pyfuse3", "rich", "xxhash", "subprocess", "ctypes"):
        assert f"| {heavy}\n" not in done.stderr.replace("|  ", "| ").replace("  ", "")


def test_the_workspace_is_found_from_inside(workspace: Workspace) -> None:
    (workspace.path / "deep").mkdir()
    workspace.mount()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ckptfs", "status", "--json"],
        cwd=workspace.path / "deep",
        env={**os.environ, **workspace.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(succeed(done).stdout)["workspace"] == str(workspace.path)


def test_the_default_store_is_private_and_in_the_data_directory(workspace: Workspace) -> None:
    succeed(workspace.cli("mount", workspace.path))
    status = workspace.status()
    store = Path(status["store"])
    assert store.parent == Path(workspace.env["XDG_DATA_HOME"]) / "ckptfs"
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in store.iterdir())
    succeed(workspace.cli("umount", workspace.path))


def test_a_mounted_workspace_is_not_mounted_twice(workspace: Workspace) -> None:
    workspace.mount()
    done = fails(workspace, errors.AlreadyMounted, "mount", workspace.path)
    assert str(pid_of(workspace)) in done.stderr


def test_a_store_in_use_by_another_workspace_is_refused(workspace: Workspace) -> None:
    workspace.mount()
    other = workspace.path.parent / "other"
    other.mkdir()
    done = fails(workspace, errors.StoreInUse, "mount", other, "--store", workspace.store)
    assert str(pid_of(workspace)) in done.stderr
    assert not is_mounted(other)


def test_umount_of_what_is_not_mounted_is_refused(workspace: Workspace) -> None:
    workspace.mount()
    workspace.umount()
    fails(workspace, errors.NotMounted, "umount", workspace.path)


def test_a_busy_workspace_stays(workspace: Workspace) -> None:
    workspace.mount()
    with (workspace.path / "open").open("w"):
        done = fails(workspace, errors.MountpointBusy, "umount", workspace.path)
        assert f"({os.getpid()})" in done.stderr
        assert is_mounted(workspace.path)
        assert (workspace.path / "open").exists()
    workspace.umount()


def test_what_uses_it_for_a_moment_and_is_not_seen_does_not_keep_it(workspace: Workspace) -> None:
    """As a program does that looks at it again and again. A descriptor that was sent and not yet
    received is one that no process has."""
    workspace.mount()
    log, pid = Path(workspace.status()["log"]), letting_go(workspace)
    sending, receiving = socket.socketpair()
    with sending, receiving:
        with (workspace.path / "open").open("w") as file:
            socket.send_fds(sending, [b"x"], [file.fileno()])
        with subprocess.Popen(
            [sys.executable, "-m", "ckptfs", "umount", workspace.path],
            env={**os.environ, **workspace.env},
        ) as unmounting:
            wait_until(lambda: "uses the mount" in log.read_text(), "the daemon tries again")
            receiving.close()
        assert unmounting.returncode == 0
    wait_for_exit(pid)
    assert contents(workspace.path) == {"open": b""}


def test_a_lazy_unmount_lets_open_files_finish(workspace: Workspace) -> None:
    workspace.mount()
    pid = letting_go(workspace)
    with (workspace.path / "open").open("w") as file:
        succeed(workspace.cli("umount", workspace.path, "--lazy"))
        assert not is_mounted(workspace.path)
        assert workspace.status()["mounted"] is False
        fails(workspace, errors.StoreInUse, "mount", workspace.path, "--store", workspace.store)
        fails(workspace, errors.ControlError, "umount", workspace.path)
        file.write("late")
    wait_for_exit(pid)
    assert contents(workspace.path) == {"open": b"late"}


def test_a_forced_unmount_ends_at_once(workspace: Workspace) -> None:
    workspace.mount()
    pid = letting_go(workspace)
    file = os.open(workspace.path / "open", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(file, b"written")
        succeed(workspace.cli("umount", workspace.path, "--force"))
        wait_for_exit(pid)
        with pytest.raises(OSError, match=r"not connected|Input/output"):
            os.fsync(file)
    finally:
        os.close(file)
    assert contents(workspace.path) == {"open": b"written"}


@pytest.mark.parametrize("how", ["fusermount3", "umount", "SIGTERM", "SIGINT"])
def test_any_end_writes_back(workspace: Workspace, how: str) -> None:
    workspace.mount()
    pid = letting_go(workspace)
    (workspace.path / "new").write_bytes(b"new")
    if how == "fusermount3":
        subprocess.run(["fusermount3", "-u", workspace.path], check=True)
    elif how == "umount":
        if os.geteuid() != 0:
            pytest.skip("only root may use it; for others it is fusermount3")
        subprocess.run(["umount", workspace.path], check=True)
    else:
        os.kill(pid, signal.Signals[how])
    wait_for_exit(pid)
    assert not is_mounted(workspace.path)
    assert contents(workspace.path) == {"new": b"new"}
    assert workspace.status()["mounted"] is False


def test_umount_right_after_an_unmount_by_hand_loses_nothing(workspace: Workspace) -> None:
    workspace.mount()
    (workspace.path / "new").write_bytes(b"new")
    letting_go(workspace)
    subprocess.run(["fusermount3", "-u", workspace.path], check=True)
    done = workspace.cli("umount", workspace.path)
    assert done.returncode in (0, errors.NotMounted.exit_code), done.stderr
    assert contents(workspace.path) == {"new": b"new"}


def test_umount_from_inside_names_the_shell_only(workspace: Workspace) -> None:
    workspace.mount()
    with subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -P -m ckptfs umount; true"],
        cwd=workspace.path,
        env={**os.environ, **workspace.env},
        stderr=subprocess.PIPE,
        text=True,
    ) as shell:
        _, err = shell.communicate(timeout=60)
        assert f"sh ({shell.pid}) still uses it" in err


def test_a_mount_right_after_an_unmount_by_hand_has_everything(workspace: Workspace) -> None:
    workspace.mount()
    (workspace.path / "new").write_bytes(b"new")
    subprocess.run(["fusermount3", "-u", workspace.path], check=True)
    workspace.mount()
    assert contents(workspace.path) == {"new": b"new"}


def test_the_next_mount_has_what_a_killed_daemon_stored(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"below")
    workspace.mount()
    with (workspace.path / "file").open("wb") as file:
        file.write(b"newer")
        file.flush()
        os.fsync(file.fileno())
    workspace.kill()
    assert is_mounted(workspace.path)
    status = workspace.status()
    assert (status["mounted"], status["state"], status["pid"]) == (False, "dead", None)
    workspace.mount()
    assert contents(workspace.path) == {"file": b"newer"}
    workspace.umount()
    assert contents(workspace.path) == {"file": b"newer"}


def test_umount_after_a_killed_daemon_brings_the_directory_up_to_date(workspace: Workspace) -> None:
    workspace.mount()
    with (workspace.path / "file").open("wb") as file:
        file.write(b"kept")
        file.flush()
        os.fsync(file.fileno())
    workspace.kill()
    done = succeed(workspace.cli("umount", workspace.path))
    assert "died" in done.stdout
    assert not is_mounted(workspace.path)
    assert contents(workspace.path) == {"file": b"kept"}
    fails(workspace, errors.NotMounted, "umount", workspace.path)


def test_umount_writes_back_after_a_dead_mount_was_cleared_by_hand(workspace: Workspace) -> None:
    workspace.mount()
    with (workspace.path / "file").open("wb") as file:
        file.write(b"kept")
        file.flush()
        os.fsync(file.fileno())
    workspace.kill()
    subprocess.run(["fusermount3", "-u", "-z", workspace.path], check=True)
    assert contents(workspace.path) == {}
    succeed(workspace.cli("umount", workspace.path))
    assert contents(workspace.path) == {"file": b"kept"}


def test_changes_while_unmounted_are_a_checkpoint_of_their_own(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"one")
    workspace.mount()
    (workspace.path / "inside").write_bytes(b"inside")
    workspace.umount()
    (workspace.path / "file").write_bytes(b"changed outside")
    workspace.mount()
    assert contents(workspace.path) == {"file": b"changed outside", "inside": b"inside"}
    assert kinds(workspace) == ["mount", "mount", "offline"]


def test_an_untouched_remount_adds_nothing(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"one")
    workspace.mount()
    workspace.remount()
    workspace.remount()
    assert kinds(workspace) == ["mount"]


def test_a_mount_without_write_back_leaves_the_directory_alone(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"below")
    workspace.mount("--no-write-back")
    (workspace.path / "file").write_bytes(b"inside")
    workspace.umount()
    assert contents(workspace.path) == {"file": b"below"}
    workspace.mount()
    assert contents(workspace.path) == {"file": b"inside"}


def test_an_umount_without_write_back_leaves_the_directory_alone(workspace: Workspace) -> None:
    workspace.mount()
    (workspace.path / "file").write_bytes(b"inside")
    letting_go(workspace)
    succeed(workspace.cli("umount", workspace.path, "--no-write-back"))
    assert contents(workspace.path) == {}
    succeed(workspace.cli("umount", workspace.path))
    assert contents(workspace.path) == {"file": b"inside"}


def test_from_fills_and_never_writes(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(b"content")
    before = os.lstat(source / "sub" / "file")
    workspace.mount("--from", str(source))
    assert contents(workspace.path) == {"sub/file": b"content"}
    (workspace.path / "sub" / "file").write_bytes(b"changed")
    workspace.umount()
    assert contents(source) == {"sub/file": b"content"}
    assert os.lstat(source / "sub" / "file").st_mtime_ns == before.st_mtime_ns
    assert contents(workspace.path) == {"sub/file": b"changed"}


def test_a_source_for_a_workspace_with_content_is_refused(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    source.mkdir()
    workspace.mount("--no-write-back")
    (workspace.path / "file").write_bytes(b"x")
    workspace.umount()
    words = ["mount", workspace.path, "--store", workspace.store, "--from", source]
    fails(workspace, errors.WorkspaceNotEmpty, *words)
    assert not is_mounted(workspace.path)


def test_a_store_on_another_directory_shows_its_content(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"content")
    workspace.mount()
    workspace.umount()
    other = workspace.path.parent / "other"
    other.mkdir()
    succeed(workspace.cli("mount", other, "--store", workspace.store))
    assert contents(other) == {"file": b"content"}
    succeed(workspace.cli("umount", other))
    assert contents(other) == {"file": b"content"}


def test_a_saved_checkpoint_is_listed_without_control_characters(workspace: Workspace) -> None:
    workspace.mount()
    (workspace.path / "file").write_bytes(b"x")
    done = succeed(workspace.cli("save", "-w", workspace.path, "a \x1b[31mred message"))
    assert done.stdout == "Saved checkpoint 1.\n"
    listed = succeed(workspace.cli("list", "-w", workspace.path)).stdout
    assert "\x1b" not in listed
    assert "a \\x1b[31mred message" in listed.splitlines()[0]
    assert kinds(workspace) == ["mount", "manual"]


def test_save_without_a_mount_takes_the_directory(workspace: Workspace) -> None:
    workspace.mount()
    workspace.umount()
    (workspace.path / "file").write_bytes(b"outside")
    succeed(workspace.cli("save", "-w", workspace.path, "offline"))
    out = workspace.path.parent / "out"
    succeed(workspace.cli("export", out, "--checkpoint", "1", "-w", workspace.path))
    assert contents(out) == {"file": b"outside"}


def exported(workspace: Workspace, *words: str | Path) -> dict[str, bytes]:
    out = workspace.path.parent / f"out-{len(os.listdir(workspace.path.parent))}"
    succeed(workspace.cli("export", out, *words))
    return contents(out)


def test_an_export_is_of_now_or_of_a_checkpoint(workspace: Workspace) -> None:
    (workspace.path / "file").write_bytes(b"one")
    workspace.mount()
    (workspace.path / "file").write_bytes(b"two")
    here: list[str | Path] = ["-w", workspace.path]
    assert exported(workspace, *here) == {"file": b"two"}
    assert exported(workspace, *here, "--checkpoint", "0") == {"file": b"one"}
    there: list[str | Path] = ["--store", workspace.store]
    assert exported(workspace, *there) == {"file": b"two"}
    fails(workspace, errors.OverlappingTrees, "export", workspace.path / "out", *here)
    workspace.umount()
    assert exported(workspace, *there, "--checkpoint", "0") == {"file": b"one"}
    assert exported(workspace, *there) == {"file": b"two"}


def test_imported_files_are_there_after_a_mount(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content")
    succeed(workspace.cli("import", source, "--store", workspace.store))
    (source / "more").write_bytes(b"more")
    succeed(workspace.cli("import", source, "--store", workspace.store))
    workspace.mount()
    assert contents(workspace.path) == {"file": b"content", "more": b"more"}
    assert kinds(workspace) == ["manual", "manual"]


def test_import_fills_a_workspace_that_is_named(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content")
    succeed(workspace.cli("import", source, "-w", workspace.path))
    assert contents(workspace.path) == {"file": b"content"}
    succeed(workspace.cli("mount", workspace.path))
    assert contents(workspace.path) == {"file": b"content"}
    succeed(workspace.cli("umount", workspace.path))


def test_import_over_what_is_there_is_refused(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content")
    (workspace.path / "file").write_bytes(b"mine")
    wanted = ("import", source, "-w", workspace.path)
    assert str(workspace.path) in fails(workspace, errors.WorkspaceNotEmpty, *wanted).stderr
    fails(workspace, errors.WorkspaceUnknown, "status", "-w", workspace.path)
    workspace.mount()
    fails(workspace, errors.WorkspaceNotEmpty, *wanted)
    workspace.umount()
    fails(workspace, errors.WorkspaceNotEmpty, *wanted)
    assert contents(workspace.path) == {"file": b"mine"}
    assert kinds(workspace) == ["mount"]


def test_import_fills_an_empty_mounted_workspace(workspace: Workspace) -> None:
    source = workspace.path.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content")
    workspace.mount()
    assert os.listdir(workspace.path) == []
    assert not (workspace.path / "file").exists()
    succeed(workspace.cli("import", source, "-w", workspace.path))
    assert contents(workspace.path) == {"file": b"content"}
    fails(workspace, errors.WorkspaceNotEmpty, "import", source, "-w", workspace.path)


def test_check_says_clean(workspace: Workspace) -> None:
    workspace.mount()
    (workspace.path / "file").write_bytes(b"x")
    assert succeed(workspace.cli("check", "-w", workspace.path)).stdout == "clean\n"
    answer: dict[str, Any] = json.loads(
        succeed(workspace.cli("check", "--json", "--store", workspace.store)).stdout
    )
    assert (answer["clean"], answer["problems"]) == (True, [])


def test_a_mount_in_the_foreground_ends_with_a_signal(workspace: Workspace) -> None:
    command = [sys.executable, "-m", "ckptfs", "mount", "--foreground", str(workspace.path)]
    with subprocess.Popen(
        [*command, "--store", str(workspace.store)],
        env={**os.environ, **workspace.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Mounted")
        (workspace.path / "file").write_bytes(b"x")
        assert workspace.status()["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert contents(workspace.path) == {"file": b"x"}


def test_the_daemon_holds_nothing_of_its_parent(workspace: Workspace) -> None:
    workspace.mount()
    pid = pid_of(workspace)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    targets = {os.readlink(f"/proc/{pid}/fd/{name}") for name in ("0", "1", "2")}
    assert targets == {"/dev/null"}
    assert os.getsid(pid) != os.getsid(0)
    held = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    pipes = [target for target in held if target.startswith("pipe:")]
    assert all(pipes.count(pipe) == 2 for pipe in pipes), "the other end is somebody else's"


def test_a_failed_first_mount_leaves_no_store(workspace: Workspace) -> None:
    words = ["mount", workspace.path, "--store", workspace.store, "--from", workspace.path / "none"]
    fails(workspace, errors.SourceMissing, *words)
    assert not workspace.store.exists()


def test_an_interrupted_start_leaves_nothing(workspace: Workspace) -> None:
    """Ctrl-C while the directory is read in: nothing is mounted, no daemon and no store stay."""
    for number in range(3000):
        (workspace.path / f"file{number}").write_bytes(os.urandom(8000))
    with subprocess.Popen(
        [sys.executable, "-m", "ckptfs", "mount", workspace.path, "--store", workspace.store],
        env={**os.environ, **workspace.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until((workspace.store / "daemon.json").exists, "the daemon took the store")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        if process.returncode == 0:
            return  # it was faster than we
        assert process.returncode == 130
    assert not is_mounted(workspace.path)
    assert not workspace.store.exists()


def test_the_workspaces_own_path_may_have_any_bytes(workspace: Workspace) -> None:
    path = Path(os.fsdecode(os.fsencode(workspace.path.parent) + b"/caf\xe9 \n"))
    path.mkdir()
    (path / "file").write_bytes(b"x")
    succeed(workspace.cli("mount", path))
    try:
        status = json.loads(succeed(workspace.cli("status", "-w", path, "--json")).stdout)
        assert "workspace_b64" in status
        assert contents(path) == {"file": b"x"}
    finally:
        succeed(workspace.cli("umount", path))
    assert contents(path) == {"file": b"x"}


def test_a_store_may_have_a_path_too_long_for_a_socket(workspace: Workspace) -> None:
    store = workspace.store / ("d" * 120)
    workspace.store.mkdir()
    succeed(workspace.cli("mount", workspace.path, "--store", store))
    assert workspace.status()["mounted"] is True
    succeed(workspace.cli("umount", workspace.path))
