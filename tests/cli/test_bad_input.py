"""Every bad input ends at once: one sentence, a hint, its own exit code, nothing changed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs import errors
from ckptfs.config import Workspace
from ckptfs.daemon import preflight
from ckptfs.store import Store
from tests.cli.conftest import ScratchHome
from tests.support.mounting import is_mounted
from tests.support.peer import NOBODY, peer


def tree(base: Path) -> list[tuple[str, int, int, int]]:
    """Everything below a directory, so that a change of anything tells."""
    found = []
    for directory, names, files in os.walk(base):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            seen = os.lstat(path)
            found.append((path, seen.st_mode, seen.st_size, seen.st_mtime_ns))
    return sorted(found)


def refuse(
    place: ScratchHome, error: type[errors.CkptfsError], *words: str | Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that must fail with this error and leave everything as it is."""
    before = tree(place.base)
    done = place.run(*words, **env)
    assert done.returncode == error.exit_code, done.stderr
    sentence, *hint = done.stderr.splitlines()
    assert sentence.startswith("ckptfs: ")
    assert sentence.endswith(".")
    assert hint
    assert all(line.startswith("  ") for line in hint)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert tree(place.base) == before
    return done


@pytest.fixture
def mountpoint(place: ScratchHome) -> Path:
    path = place / "w"
    path.mkdir()
    return path


@pytest.fixture
def store(place: ScratchHome) -> Path:
    path = place / "store"
    Store.create(path).close()
    return path


# Mountpoints


def test_a_missing_mountpoint_is_refused_with_how_to_make_it(place: ScratchHome) -> None:
    done = refuse(place, errors.MountpointMissing, "mount", place / "none")
    assert f"mkdir -p {place / 'none'}" in done.stderr


def test_a_mountpoint_behind_a_broken_link_is_refused(place: ScratchHome) -> None:
    (place / "link").symlink_to("nowhere")
    refuse(place, errors.MountpointMissing, "mount", place / "link")


def test_a_mountpoint_that_is_a_file_is_refused(place: ScratchHome) -> None:
    (place / "file").touch()
    refuse(place, errors.MountpointNotDirectory, "mount", place / "file")


def test_a_source_for_a_directory_with_content_is_refused(
    place: ScratchHome, mountpoint: Path
) -> None:
    (mountpoint / "x").touch()
    (place / "source").mkdir()
    refuse(place, errors.MountpointNotEmpty, "mount", mountpoint, "--from", place / "source")


def test_a_source_that_does_not_exist_is_refused(place: ScratchHome, mountpoint: Path) -> None:
    refuse(place, errors.SourceMissing, "mount", mountpoint, "--from", place / "none")


def test_a_source_around_the_mountpoint_is_refused(place: ScratchHome, mountpoint: Path) -> None:
    refuse(place, errors.OverlappingTrees, "mount", mountpoint, "--from", place.base)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_a_mountpoint_of_another_file_system_is_refused(
    place: ScratchHome, mountpoint: Path
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", mountpoint], check=True)
    try:
        done = refuse(place, errors.AlreadyMounted, "mount", mountpoint)
        assert "tmpfs" in done.stderr
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def test_a_mountpoint_inside_the_store_is_refused(place: ScratchHome, store: Path) -> None:
    (store / "inside").mkdir()
    refuse(place, errors.MountpointInStore, "mount", store / "inside", "--store", store)
    refuse(place, errors.MountpointInStore, "mount", store, "--store", store)


def test_a_mountpoint_around_the_store_is_refused(place: ScratchHome, mountpoint: Path) -> None:
    refuse(place, errors.StoreInMountpoint, "mount", mountpoint, "--store", mountpoint / "s")
    refuse(place, errors.StoreInMountpoint, "mount", mountpoint, XDG_DATA_HOME=str(mountpoint))


@pytest.mark.parametrize("root", ["/", "/etc", "/usr", "/var", "/tmp", "/root", "/home"])
def test_dangerous_roots_are_refused(place: ScratchHome, root: str) -> None:
    refuse(place, errors.DangerousRoot, "mount", root)


def test_the_home_directory_is_refused_under_any_name(place: ScratchHome) -> None:
    (place / "link").symlink_to("home")
    for name in (place / "home", place / "link", place / "home" / ".." / "home"):
        done = refuse(place, errors.DangerousRoot, "mount", name)
        assert "your home directory" in done.stderr


# Stores


def test_a_store_that_is_a_file_is_refused(place: ScratchHome, mountpoint: Path) -> None:
    (place / "file").touch()
    refuse(place, errors.NotAStore, "mount", mountpoint, "--store", place / "file")


def test_a_store_that_is_some_directory_is_refused(place: ScratchHome, mountpoint: Path) -> None:
    (place / "photos").mkdir()
    (place / "photos" / "cat.jpg").write_bytes(b"cat")
    refuse(place, errors.NotAStore, "mount", mountpoint, "--store", place / "photos")
    refuse(place, errors.NotAStore, "check", "--store", place / "photos")
    refuse(place, errors.NotAStore, "export", place / "out", "--store", place / "photos")


def test_a_store_of_garbage_is_refused_and_unchanged(place: ScratchHome, mountpoint: Path) -> None:
    (place / "s").mkdir()
    (place / "s" / "data.mdb").write_bytes(b"garbage" * 5000)
    done = place.run("mount", mountpoint, "--store", place / "s")
    assert done.returncode == errors.NotAStore.exit_code, done.stderr
    assert (place / "s" / "data.mdb").read_bytes() == b"garbage" * 5000


def test_a_store_of_a_later_version_is_refused(
    place: ScratchHome, mountpoint: Path, store: Path
) -> None:
    opened = Store.open(store)
    opened.charge()
    opened._meta.put(b"format", (99).to_bytes(4, "big"))
    opened.close()
    before = (store / "data.mdb").read_bytes()
    done = place.run("mount", mountpoint, "--store", store)
    assert done.returncode == errors.StoreVersionUnknown.exit_code, done.stderr
    assert "version 99" in done.stderr
    assert not is_mounted(mountpoint)
    assert (store / "data.mdb").read_bytes() == before


def test_a_store_that_does_not_exist_is_refused(place: ScratchHome) -> None:
    refuse(place, errors.StoreMissing, "check", "--store", place / "none")
    refuse(place, errors.StoreMissing, "export", place / "out", "--store", place / "none")


def test_a_store_in_use_is_refused_with_its_process(
    place: ScratchHome, mountpoint: Path, store: Path
) -> None:
    with open(store / "lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write(b"4242\n")
        lock.flush()
        for words in (["mount", mountpoint], ["check"], ["export", place / "out"]):
            done = refuse(place, errors.StoreInUse, *words, "--store", store)
            assert "process 4242" in done.stderr


def kind_of_refusal(rule: Callable[..., object], *arguments: object, **keywords: object) -> str:
    """The kind of error that a rule raises; nothing if it lets it pass."""
    try:
        rule(*arguments, **keywords)
    except errors.CkptfsError as error:
        return error.kind
    return ""


def said_to_nobody(rule: Callable[..., object], *arguments: object, **keywords: object) -> str:
    with peer(NOBODY if os.geteuid() == 0 else None) as nobody:
        said = nobody(kind_of_refusal, rule, *arguments, **keywords)
    assert isinstance(said, str)
    return said


def give_to_nobody(*paths: Path) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)


def test_a_store_without_permission_is_refused(store: Path) -> None:
    data = store / "data.mdb"
    give_to_nobody(store, *store.iterdir())

    def said(path: Path = store) -> str:
        return said_to_nobody(preflight.check_store, path)

    assert said() == ""
    store.chmod(0o500)
    assert said() == "store-read-only"
    assert said(store / "new") == "store-read-only"
    store.chmod(0o000)
    assert said() == "store-unreadable"
    store.chmod(0o700)
    data.chmod(0o400)
    assert said() == "store-read-only"
    data.chmod(0o000)
    assert said() == "store-unreadable"


# The machine


def test_a_directory_of_another_user_is_refused_unless_it_can_be_written(mountpoint: Path) -> None:
    workspace = Workspace(mountpoint, Path("/s"))
    plan = preflight.Plan(workspace, None, None, False, True, False)
    mountpoint.chmod(0o555)
    assert said_to_nobody(preflight.check_directory, plan) == "no-permission"
    mountpoint.chmod(0o700)
    give_to_nobody(mountpoint)
    assert said_to_nobody(preflight.check_directory, plan) == ""


def test_a_user_without_fusermount_is_refused(
    mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    said = said_to_nobody(preflight.check_machine, mountpoint, allow_other=False)
    assert said == "no-fusermount"


_HIDE = 'mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$@"'

#: What takes something from a process that mounts, its error, and what that says.
HANDICAPS = {
    "no /dev/fuse": (["unshare", "-m", "sh", "-c", _HIDE, "sh"], errors.NoFuse, "modprobe fuse"),
    "no right to mount": (
        ["setpriv", "--bounding-set", "-sys_admin"],
        errors.NoPermission,
        "SYS_ADMIN",
    ),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="takes something from root")
@pytest.mark.parametrize("handicap", HANDICAPS)
def test_a_mount_that_the_machine_forbids_is_refused_with_the_reason(
    place: ScratchHome, mountpoint: Path, handicap: str
) -> None:
    prefix, error, reason = HANDICAPS[handicap]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "ckptfs", "mount", mountpoint],
        env={**os.environ, **place.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == error.exit_code and reason in done.stderr, done.stderr
    assert not (place / "data").exists()


# Workspaces, sources and destinations


@pytest.mark.parametrize("verb", ["status", "save", "list", "check"])
def test_a_verb_outside_of_a_workspace_is_refused(place: ScratchHome, verb: str) -> None:
    refuse(place, errors.WorkspaceUnknown, verb)
    refuse(place, errors.WorkspaceUnknown, verb, "-w", place / "none")


def test_a_directory_that_is_no_workspace_is_not_unmounted(
    place: ScratchHome, mountpoint: Path
) -> None:
    refuse(place, errors.WorkspaceUnknown, "umount", mountpoint)
    refuse(place, errors.WorkspaceUnknown, "umount", "-w", mountpoint)


def test_an_import_needs_a_source_apart_from_its_store(place: ScratchHome, store: Path) -> None:
    (place / "file").touch()
    for source in ("none", "file"):
        refuse(place, errors.SourceMissing, "import", place / source, "--store", store)
    refuse(place, errors.OverlappingTrees, "import", place.base, "--store", store)
    refuse(place, errors.UsageError, "import", place / "home")


def test_an_export_overwrites_nothing(place: ScratchHome, store: Path) -> None:
    (place / "full").mkdir()
    (place / "full" / "x").touch()
    for dest in ("full", "full/x", "none/deep"):
        refuse(place, errors.DestinationInvalid, "export", place / dest, "--store", store)
    refuse(place, errors.OverlappingTrees, "export", store / "in", "--store", store)


def test_an_unknown_checkpoint_is_not_exported(place: ScratchHome, store: Path) -> None:
    for name in ("7", "x", "-1", ""):
        done = place.run("export", place / "out", "--store", store, f"--checkpoint={name}")
        assert done.returncode == errors.CheckpointUnknown.exit_code, done.stderr
    assert not (place / "out").exists()


# The command line itself


@pytest.mark.parametrize(
    "words",
    [["-w", "a"], ["frobnicate"], ["mount"], ["mount", "a", "-w", "b"], ["status", "--bogus"]],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    place: ScratchHome, words: list[str]
) -> None:
    refuse(place, errors.UsageError, *words)


def test_a_path_that_is_too_long_is_refused_without_a_traceback(
    place: ScratchHome, mountpoint: Path
) -> None:
    long = "/".join([str(place.base), "x" * 300])
    for words in (["mount", long], ["mount", mountpoint, "--store", long], ["status", "-w", long]):
        done = place.run(*words)
        assert done.returncode not in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        assert "itself failed" not in done.stderr


def test_an_error_is_json_if_asked(place: ScratchHome) -> None:
    done = place.run("--json", "mount", place / "none")
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "mountpoint-missing"
    assert error["exit_code"] == done.returncode == errors.MountpointMissing.exit_code


def test_a_current_directory_that_is_gone_is_named_as_the_reason(place: ScratchHome) -> None:
    gone = place / "gone"
    gone.mkdir()
    program = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m ckptfs status"
    root = Path(errors.__file__).parents[2]
    done = subprocess.run(
        ["sh", "-c", program],
        env={**os.environ, **place.env, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == errors.UsageError.exit_code, done.stderr
    assert "does not exist any more" in done.stderr


def test_names_cannot_act_on_the_terminal(place: ScratchHome) -> None:
    done = place.run("mount", place / "\x1b]0;title\x07\x1b[31m")
    assert "\x1b" not in done.stderr
    assert "\\x1b" in done.stderr


def test_a_reader_that_goes_away_causes_no_message(place: ScratchHome) -> None:
    program = f"{sys.executable} -m ckptfs --help | true; exit 0"
    done = subprocess.run(
        ["sh", "-c", program],
        env={**os.environ, **place.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


def test_version_and_help_are_printed(place: ScratchHome) -> None:
    assert place.run("--version").stdout.startswith("ckptfs ")
    for words in (["--help"], ["mount", "--help"], ["umount", "-h"]):
        done = place.run(*words)
        assert done.returncode == 0
        assert done.stdout.startswith("usage: ckptfs")
