"""The rules of mounting, each alone, without mounting anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.daemon import mounts, preflight
from ckptfs.errors import (
    DangerousRoot,
    MountpointInStore,
    MountpointMissing,
    MountpointNotDirectory,
    MountpointNotEmpty,
    NotAStore,
    OverlappingTrees,
    SourceMissing,
    StoreInMountpoint,
    StoreInUse,
    StoreMissing,
)


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def refused(path: Path | str) -> bool:
    try:
        preflight.check_not_dangerous(config.resolve(path))
    except DangerousRoot:
        return True
    return False


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/usr", "/var", "/tmp", "/root", "/home", "/bin", "/proc/1", "/sys/fs"]
)
def test_dangerous_roots_are_refused_however_they_are_spelled(path: str) -> None:
    assert refused(path)
    assert refused(f"{path}/.")
    assert refused(f"{path}/x/..")


def test_home_and_what_holds_it_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    assert refused(home)
    assert refused(tmp_path / "home")
    assert not refused(home / "proj")
    assert not refused(tmp_path / "home" / "you")


def test_a_link_to_a_dangerous_root_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert refused(tmp_path / "link")


def test_ordinary_places_below_system_directories_are_allowed() -> None:
    for path in ("/tmp/x", "/srv/x", "/opt/proj", "/var/lib/x", "/root/proj", "/dev/shm/x"):
        assert not refused(path)


def test_the_store_and_the_workspace_stay_apart() -> None:
    preflight.check_apart(Path("/a/w"), Path("/a/s"))
    preflight.check_apart(Path("/a/store2"), Path("/a/store"))
    with pytest.raises(MountpointInStore):
        preflight.check_apart(Path("/a/s/w"), Path("/a/s"))
    with pytest.raises(MountpointInStore):
        preflight.check_apart(Path("/a/s"), Path("/a/s"))
    with pytest.raises(StoreInMountpoint):
        preflight.check_apart(Path("/a"), Path("/a/s"))


def test_a_mountpoint_must_be_a_directory(tmp_path: Path) -> None:
    preflight.check_is_directory(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to("nowhere")
    with pytest.raises(MountpointNotDirectory):
        preflight.check_is_directory(tmp_path / "file")
    for missing in ("none", "broken", "file/below"):
        with pytest.raises(MountpointMissing):
            preflight.check_is_directory(tmp_path / missing)


@pytest.mark.parametrize("make", ["fifo", "socket", "file"])
def test_nothing_else_is_a_mountpoint(tmp_path: Path, make: str) -> None:
    path = tmp_path / make
    if make == "fifo":
        os.mkfifo(path)
    elif make == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.touch()
    with pytest.raises(MountpointNotDirectory):
        preflight.check_is_directory(path)


def test_the_store_is_the_named_the_last_or_the_default(tmp_path: Path) -> None:
    path, other = tmp_path / "w", tmp_path / "other"
    assert preflight.choose_store(path, None) == config.default_store(path)
    assert preflight.choose_store(path, str(other)) == other
    other.mkdir()
    config.register(Workspace(path, other))
    assert preflight.choose_store(path, None) == other
    other.rmdir()
    with pytest.raises(StoreMissing, match="other"):
        preflight.choose_store(path, None)
    assert preflight.choose_store(path, str(tmp_path / "third")) == tmp_path / "third"


def test_a_default_store_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "w"
    config.register(Workspace(path, config.default_store(path)))
    assert preflight.choose_store(path, None) == config.default_store(path)


def test_a_source_must_be_a_directory_elsewhere(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w", tmp_path / "s")
    source = tmp_path / "source"
    source.mkdir()
    workspace.path.mkdir()
    assert preflight.check_source(str(source), workspace) == source
    (tmp_path / "file").touch()
    for bad in ("none", "file"):
        with pytest.raises(SourceMissing):
            preflight.check_source(str(tmp_path / bad), workspace)
    for around in (tmp_path, workspace.path):
        with pytest.raises(OverlappingTrees):
            preflight.check_source(str(around), workspace)


def test_what_can_be_said_about_a_store_from_outside(tmp_path: Path) -> None:
    preflight.check_store(tmp_path / "new")
    preflight.check_store(tmp_path / "deep" / "new")
    (tmp_path / "file").touch()
    for bad in ("file", "file/below"):
        with pytest.raises(NotAStore):
            preflight.check_store(tmp_path / bad)


def test_from_needs_an_empty_directory(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.mkdir()
    workspace = Workspace(path, tmp_path / "s")
    plan = preflight.Plan(workspace, tmp_path, None, False, True, False)
    preflight.check_directory(plan)
    (path / "x").touch()
    with pytest.raises(MountpointNotEmpty):
        preflight.check_directory(plan)
    preflight.check_directory(plan._replace(source=None))


def test_a_living_daemon_keeps_its_store(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w", tmp_path)
    preflight.check_unused(workspace)
    mine = runtime.Daemon(
        os.getpid(), runtime.own_start_ticks(), runtime.SERVING, "/another", 0, "0", {}
    )
    runtime.publish(workspace, mine)
    with pytest.raises(StoreInUse, match=f"process {os.getpid()} "):
        preflight.check_unused(workspace)
    runtime.publish(workspace, mine._replace(state=runtime.SCANNING, workspace=str(workspace.path)))
    with pytest.raises(StoreInUse):
        preflight.check_unused(workspace)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("user_allow_other\n", True),
        ("# c\n  user_allow_other # why\n", True),
        ("#user_allow_other\n", False),
        ("mount_max = 1000\n", False),
        ("", False),
    ],
)
def test_allow_other_needs_its_line_in_fuse_conf(tmp_path: Path, text: str, allowed: bool) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(text)
    assert preflight.user_allow_other(conf) is allowed
    assert not preflight.user_allow_other(tmp_path / "none")


TABLE = rb"""22 28 0:20 / /proc rw,relatime - proc proc rw
28 1 254:0 / / rw - ext4 /dev/vda rw
51 28 0:40 / /mnt/a\040b\012c rw,nosuid shared:7 - fuse.ckptfs ckptfs rw,user_id=0
52 28 0:41 / /w rw - fuse.sshfs host:/x rw
53 28 0:42 / /w rw - fuse.ckptfs ckptfs rw
broken line
"""


def test_the_mount_table_is_read() -> None:
    found = mounts.parse_mountinfo(TABLE)
    assert [str(mount.path) for mount in found] == ["/proc", "/", "/mnt/a b\nc", "/w", "/w"]
    assert [mount.is_ours for mount in found] == [False, False, True, False, True]
    assert found[3].source == "host:/x"


@pytest.mark.parametrize(
    "path, option",
    [
        (b"/home/me/.local/share/ckptfs/stores/a-1", "/home/me/.local/share/ckptfs/stores/a-1"),
        (b"/a b,c\\d\n", r"/a\040b\054c\134d\012"),
        (b"/caf\xc3\xa9/\xff", r"/caf\303\251/\377"),
        (b"/" + b"x" * 254, "/" + "x" * 254),
        (b"/" + b"x" * 255, "ckptfs"),
    ],
)
def test_the_source_of_a_mount_is_one_option(path: bytes, option: str) -> None:
    assert mounts.source_option(Path(os.fsdecode(path))) == option


def test_the_mounts_of_this_machine_are_found() -> None:
    proc = mounts.mount_at(Path("/proc"))
    assert proc is not None
    assert proc.fstype == "proc"
    assert not proc.is_ours
    assert mounts.mount_at(Path("/proc/none/such")) is None
    assert not mounts.is_dead(Path("/"))
    assert not mounts.is_dead(Path("/none/such"))


def test_unmounting_what_is_not_mounted_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        mounts.unmount(tmp_path)
    assert tmp_path.is_dir()


def test_a_file_system_can_be_synced_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    mounts.sync_filesystem(tmp_path)
    with pytest.raises(FileNotFoundError, match="gone"):
        mounts.sync_filesystem(tmp_path / "gone")
