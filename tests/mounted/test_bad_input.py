"""A mount that cannot be made is refused at once, with a sentence, and changes nothing.

Which error each mistake has is in tests/cli/test_bad_input.py; here is what else must hold.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Workspace, ckptfs, is_mounted, scratch
from tests.support.peer import NOBODY
from tests.support.trees import Stat, plant, stats, tree

pytestmark = pytest.mark.needs_mount


@pytest.fixture
def base() -> Iterator[Path]:
    with scratch() as path:
        yield path


class Attempt:
    """One call of the CLI that must fail, made in a world that must stay as it is."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.work = base / "work"
        self.store = base / "store"
        self.env = Workspace(base).env
        self.work.mkdir()

    def refused(
        self, *arguments: str | Path, naming: str = "", env: dict[str, str] | None = None
    ) -> int:
        """Run, see that it fails as it should, and return the exit code."""
        before = stats(self.base)
        done = ckptfs(*arguments, env={**self.env, **(env or {})}, timeout=20)
        refuses(done, naming)
        assert _but_directories_of_ckptfs(stats(self.base)) == _but_directories_of_ckptfs(before)
        return done.returncode


def refuses(done: subprocess.CompletedProcess[str], naming: str = "") -> None:
    """Not a success, not a crash, and words that name the thing."""
    assert done.returncode not in (0, 1), f"exit {done.returncode}: {done.stderr}"
    assert done.returncode > 0, f"ended by a signal: {done.stderr}"
    assert "Traceback" not in done.stderr and "Traceback" not in done.stdout
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 3, f"should be a sentence and a hint:\n{done.stderr}"
    assert naming in done.stderr


def _but_directories_of_ckptfs(known: dict[str, Stat]) -> dict[str, Stat]:
    """State and runtime directories may be made by asking; the rest must not be touched."""
    private = ("data", "state", "run", "config")
    return {
        name: info
        for name, info in known.items()
        if name != "." and name.split("/", 1)[0] not in private
    }


@pytest.fixture
def attempt(base: Path) -> Iterator[Attempt]:
    made = Attempt(base)
    yield made
    assert not is_mounted(made.work), "half mounted"


@pytest.mark.parametrize("kind", ["file", "dangling link", "fifo"])
def test_a_mountpoint_that_is_no_directory_is_refused(attempt: Attempt, kind: str) -> None:
    path = attempt.base / "thing"
    if kind == "file":
        path.write_text("x")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    attempt.refused("mount", path, "--store", attempt.store, naming=str(attempt.base))
    assert not attempt.store.exists()


def test_a_source_that_is_missing_or_no_directory_is_refused(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x"})
    for source in (attempt.base / "none", attempt.base / "file"):
        attempt.refused(
            "mount", attempt.work, "--store", attempt.store, "--from", source, naming=str(source)
        )


def test_a_mountpoint_that_is_mounted_already_is_refused(own_mount: Workspace) -> None:
    plant(own_mount.path, {"file": "x"})
    pid = own_mount.status()["pid"]
    for store in (own_mount.store, own_mount.store.with_name("other")):
        refuses(own_mount.cli("mount", own_mount.path, "--store", store), str(own_mount.path))
    assert own_mount.status()["pid"] == pid
    assert tree(own_mount.path) == {"file": "x"}
    assert not own_mount.store.with_name("other").exists()


def test_a_workspace_inside_a_workspace_is_refused(own_mount: Workspace) -> None:
    (own_mount.path / "inner").mkdir()
    store = own_mount.store.with_name("other")
    done = own_mount.cli("mount", own_mount.path / "inner", "--store", store)
    if done.returncode == 0:  # allowed, but then it has to work and to come off again
        (own_mount.path / "inner/file").write_text("x")
        assert own_mount.cli("umount", own_mount.path / "inner").returncode == 0
    else:
        refuses(done, "inner")
    assert not is_mounted(own_mount.path / "inner")


def test_a_mountpoint_around_the_default_store_is_refused(attempt: Attempt) -> None:
    inside = str(attempt.work / "data")
    attempt.refused("mount", attempt.work, env={"XDG_DATA_HOME": inside})
    assert tree(attempt.work) == {}


def test_a_store_reached_through_a_link_is_still_inside(attempt: Attempt) -> None:
    plant(attempt.work, {"kept": {}})
    (attempt.base / "way").symlink_to(attempt.work / "kept")
    attempt.refused("mount", attempt.work, "--store", attempt.base / "way/store")
    assert tree(attempt.work) == {"kept": {}}


#: A world of its own that ends with the command, should it really mount over the system.
BUBBLE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]


def mount_in_a_bubble(attempt: Attempt, path: str | Path) -> subprocess.CompletedProcess[str]:
    bubble = BUBBLE if os.geteuid() == 0 else []
    return subprocess.run(
        [*bubble, sys.executable, "-m", "ckptfs", "mount", str(path), "--store", attempt.store],
        env={**os.environ, **attempt.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_a_dangerous_root_in_disguise_is_refused(attempt: Attempt) -> None:
    (attempt.base / "link").symlink_to("/etc")
    for path in (attempt.base / "link", "/usr/../etc", "//etc/"):
        refuses(mount_in_a_bubble(attempt, path), "/etc")
    assert not attempt.store.exists()


def test_a_store_in_use_is_refused(own_mount: Workspace) -> None:
    other = own_mount.path.with_name("other")
    other.mkdir()
    refuses(own_mount.cli("mount", other, "--store", own_mount.store), str(own_mount.store))
    assert not is_mounted(other)
    (own_mount.path / "file").write_text("the first one still works")


def test_what_is_no_store_is_refused(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x", "full": {"letter": "dear"}, "odd": {"data.mdb": "x" * 9000}})
    for name in ("file", "full", "odd"):
        store = attempt.base / name
        attempt.refused("mount", attempt.work, "--store", store, naming=str(store))


def test_a_store_of_random_bytes_is_refused(attempt: Attempt) -> None:
    plant(attempt.base, {"store": {"data.mdb": os.urandom(300_000)}})
    attempt.refused("mount", attempt.work, "--store", attempt.store, naming=str(attempt.store))


def test_a_store_that_is_cut_short_is_refused(own_mount: Workspace) -> None:
    (own_mount.path / "file").write_bytes(os.urandom(400_000))
    own_mount.umount()
    cut = own_mount.store.with_name("cut")
    shutil.copytree(own_mount.store, cut)
    os.truncate(cut / "data.mdb", 4096)
    work = own_mount.path.with_name("other")
    work.mkdir()
    refuses(own_mount.cli("mount", work, "--store", cut), str(cut))
    assert not is_mounted(work)


@pytest.mark.needs_root
def test_a_store_on_a_read_only_file_system_is_refused(attempt: Attempt) -> None:
    plant(attempt.base, {"disk": {}})
    disk = attempt.base / "disk"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,ro", "none", disk], check=True)
    try:
        attempt.refused("mount", attempt.work, "--store", disk / "store", naming=str(disk))
        attempt.refused("mount", attempt.work, "--store", disk, naming=str(disk))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.needs_root
def test_a_store_that_became_read_only_is_refused(own_mount: Workspace) -> None:
    (own_mount.path / "file").write_text("x")
    own_mount.umount()
    store = own_mount.store
    subprocess.run(["mount", "--bind", store, store], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", store], check=True)
        refuses(own_mount.cli("mount", own_mount.path, "--store", store), str(store))
        assert not is_mounted(own_mount.path)
    finally:
        subprocess.run(["umount", store], check=True)


def test_a_store_below_a_file_is_refused(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x"})
    attempt.refused("mount", attempt.work, "--store", attempt.base / "file/store")


def test_an_export_to_a_place_that_will_not_do_is_refused(own_mount: Workspace) -> None:
    plant(own_mount.path, {"file": "x"})
    full = own_mount.path.with_name("full")
    full.mkdir()
    plant(full, {"kept": "y"})
    for destination in (full, full / "kept", full / "kept/below"):
        refuses(own_mount.cli("export", destination, "-w", own_mount.path), str(destination))
    refuses(
        own_mount.cli("export", full.with_name("out"), "-w", own_mount.path, "--checkpoint", "99")
    )
    assert tree(full) == {"kept": "y"}
    assert not full.with_name("out").exists()


def test_an_import_of_what_will_not_do_is_refused(own_mount: Workspace) -> None:
    plant(own_mount.path, {"file": "x"})
    source = own_mount.path.with_name("source")
    refuses(own_mount.cli("import", source, "-w", own_mount.path), str(source))
    source.mkdir()
    plant(source, {"other": "y"})
    refuses(own_mount.cli("import", source, "-w", own_mount.path))
    assert tree(own_mount.path) == {"file": "x"}


# --- machines and users without what it takes ------------------------------------------------


def _crippled(attempt: Attempt, script: str) -> subprocess.CompletedProcess[str]:
    """`ckptfs mount` in a mount namespace of its own that `script` has taken something from."""
    mount = '"$0" -m ckptfs mount "$1" --store "$2"'
    arguments = [sys.executable, str(attempt.work), str(attempt.store)]
    return subprocess.run(
        [*BUBBLE, "sh", "-ec", f"{script}\n{mount}", *arguments],
        env={**os.environ, **attempt.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.needs_root
def test_a_device_that_is_not_fuse_is_refused(attempt: Attempt) -> None:
    done = _crippled(attempt, "mount --bind /dev/null /dev/fuse")
    refuses(done)


def test_every_refusal_has_an_exit_code_of_its_own(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x", "full": {"a": ""}, "source": {}})
    plant(attempt.work, {"b": ""})
    store = ("--store", attempt.store)
    codes = [
        attempt.refused("mount", attempt.base / "none", *store),
        attempt.refused("mount", attempt.base / "file", *store),
        attempt.refused("mount", attempt.work, *store, "--from", attempt.base / "source"),
        mount_in_a_bubble(attempt, "/etc").returncode,
        attempt.refused("mount", attempt.work, "--store", attempt.work / "store"),
        attempt.refused("mount", attempt.work, "--store", attempt.base / "full"),
        attempt.refused("status", "-w", attempt.work),
        attempt.refused("check", "--store", attempt.base / "none"),
        attempt.refused("nonsense"),
    ]
    assert len(set(codes)) == len(codes)


@pytest.mark.needs_root
def test_other_users_cannot_read_the_store(own_mount: Workspace) -> None:
    done = subprocess.run(
        ["cat", own_mount.store / "data.mdb"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
    )
    assert done.returncode != 0
