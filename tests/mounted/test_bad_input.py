"""Whatever is wrong with a mount ends at once, with a sentence, and changes nothing."""

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


def test_a_mountpoint_that_is_missing(attempt: Attempt) -> None:
    path = attempt.base / "none"
    attempt.refused("mount", path, "--store", attempt.store, naming=str(path))
    assert not path.exists() and not attempt.store.exists()


@pytest.mark.parametrize("kind", ["file", "dangling link", "fifo"])
def test_a_mountpoint_that_is_no_directory(attempt: Attempt, kind: str) -> None:
    path = attempt.base / "thing"
    if kind == "file":
        path.write_text("x")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    attempt.refused("mount", path, "--store", attempt.store, naming=str(attempt.base))
    assert not attempt.store.exists()


def test_a_mountpoint_with_content_and_from(attempt: Attempt) -> None:
    plant(attempt.base, {"source": {"a": "x"}})
    plant(attempt.work, {"b": "y"})
    source = attempt.base / "source"
    attempt.refused("mount", attempt.work, "--store", attempt.store, "--from", source)
    assert tree(attempt.work) == {"b": "y"}


def test_a_source_that_is_missing_or_no_directory(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x"})
    for source in (attempt.base / "none", attempt.base / "file"):
        attempt.refused(
            "mount", attempt.work, "--store", attempt.store, "--from", source, naming=str(source)
        )


def test_a_source_around_or_inside_the_workspace(attempt: Attempt) -> None:
    for source in (attempt.base, attempt.work):
        attempt.refused("mount", attempt.work, "--store", attempt.store, "--from", source)


def test_a_mountpoint_that_is_mounted_already(own_mount: Workspace) -> None:
    plant(own_mount.path, {"file": "x"})
    pid = own_mount.status()["pid"]
    for store in (own_mount.store, own_mount.store.with_name("other")):
        refuses(own_mount.cli("mount", own_mount.path, "--store", store), str(own_mount.path))
    assert own_mount.status()["pid"] == pid
    assert tree(own_mount.path) == {"file": "x"}
    assert not own_mount.store.with_name("other").exists()


@pytest.mark.needs_root
def test_a_mountpoint_on_which_something_else_is_mounted(attempt: Attempt) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", attempt.work], check=True)
    try:
        done = ckptfs("mount", attempt.work, "--store", attempt.store, env=attempt.env)
        refuses(done, str(attempt.work))
    finally:
        subprocess.run(["umount", attempt.work], check=True)
    assert not attempt.store.exists()


def test_a_workspace_inside_a_workspace(own_mount: Workspace) -> None:
    (own_mount.path / "inner").mkdir()
    store = own_mount.store.with_name("other")
    done = own_mount.cli("mount", own_mount.path / "inner", "--store", store)
    if done.returncode == 0:  # allowed, but then it has to work and to come off again
        (own_mount.path / "inner/file").write_text("x")
        assert own_mount.cli("umount", own_mount.path / "inner").returncode == 0
    else:
        refuses(done, "inner")
    assert not is_mounted(own_mount.path / "inner")


def test_a_mountpoint_inside_the_store(attempt: Attempt) -> None:
    plant(attempt.base, {"store": {"inside": {}}})
    attempt.refused("mount", attempt.store / "inside", "--store", attempt.store)
    attempt.refused("mount", attempt.store, "--store", attempt.store)


def test_a_mountpoint_around_the_store(attempt: Attempt) -> None:
    attempt.refused("mount", attempt.work, "--store", attempt.work / "deep/store")
    assert tree(attempt.work) == {}


def test_a_mountpoint_around_the_default_store(attempt: Attempt) -> None:
    inside = str(attempt.work / "data")
    attempt.refused("mount", attempt.work, env={"XDG_DATA_HOME": inside})
    assert tree(attempt.work) == {}


def test_a_store_reached_through_a_link_is_still_inside(attempt: Attempt) -> None:
    plant(attempt.work, {"kept": {}})
    (attempt.base / "way").symlink_to(attempt.work / "kept")
    attempt.refused("mount", attempt.work, "--store", attempt.base / "way/store")
    assert tree(attempt.work) == {"kept": {}}


DANGEROUS = ["/", "/etc", "/usr", "/var", "/tmp", "/root", "/home", "/bin", "/dev", "/proc"]

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


@pytest.mark.parametrize("path", DANGEROUS)
def test_a_dangerous_root(attempt: Attempt, path: str) -> None:
    refuses(mount_in_a_bubble(attempt, path), path)
    assert not attempt.store.exists()


def test_a_dangerous_root_in_disguise(attempt: Attempt) -> None:
    (attempt.base / "link").symlink_to("/etc")
    for path in (attempt.base / "link", "/usr/../etc", "//etc/"):
        refuses(mount_in_a_bubble(attempt, path), "/etc")
    assert not attempt.store.exists()


def test_the_home_directory_itself(attempt: Attempt) -> None:
    home = attempt.base / "home"
    home.mkdir()
    attempt.refused("mount", home, "--store", attempt.store, env={"HOME": str(home)})
    assert not is_mounted(home)


def test_a_store_in_use(own_mount: Workspace) -> None:
    other = own_mount.path.with_name("other")
    other.mkdir()
    refuses(own_mount.cli("mount", other, "--store", own_mount.store), str(own_mount.store))
    assert not is_mounted(other)
    (own_mount.path / "file").write_text("the first one still works")


def test_things_that_are_no_store(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x", "full": {"letter": "dear"}, "odd": {"data.mdb": "x" * 9000}})
    for name in ("file", "full", "odd"):
        store = attempt.base / name
        attempt.refused("mount", attempt.work, "--store", store, naming=str(store))


def test_a_store_of_random_bytes(attempt: Attempt) -> None:
    plant(attempt.base, {"store": {"data.mdb": os.urandom(300_000)}})
    attempt.refused("mount", attempt.work, "--store", attempt.store, naming=str(attempt.store))


def test_a_store_that_is_cut_short(own_mount: Workspace) -> None:
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
def test_a_store_on_a_read_only_file_system(attempt: Attempt) -> None:
    plant(attempt.base, {"disk": {}})
    disk = attempt.base / "disk"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,ro", "none", disk], check=True)
    try:
        attempt.refused("mount", attempt.work, "--store", disk / "store", naming=str(disk))
        attempt.refused("mount", attempt.work, "--store", disk, naming=str(disk))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.needs_root
def test_an_existing_store_that_became_read_only(own_mount: Workspace) -> None:
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


def test_a_store_below_a_file(attempt: Attempt) -> None:
    plant(attempt.base, {"file": "x"})
    attempt.refused("mount", attempt.work, "--store", attempt.base / "file/store")


def test_an_option_or_a_verb_that_is_unknown(attempt: Attempt) -> None:
    for arguments in (
        ("mount", attempt.work, "--nonsense"),
        ("nonsense",),
        ("mount",),
        ("mount", attempt.work, attempt.work),
        ("mount", attempt.work, "--xattrs=maybe"),
        (),
    ):
        done = ckptfs(*arguments, env=attempt.env, cwd=attempt.base)
        assert done.returncode == 2, f"{arguments}: exit {done.returncode}"
        assert "Traceback" not in done.stderr and done.stderr.strip()


def test_verbs_outside_of_any_workspace(attempt: Attempt) -> None:
    attempt.refused("umount", attempt.work, naming=str(attempt.work))
    attempt.refused("status", "-w", attempt.work, naming=str(attempt.work))
    attempt.refused("umount", attempt.base / "none")
    attempt.refused("export", attempt.base / "out", "-w", attempt.work)
    attempt.refused("check", "--store", attempt.base / "none")


def test_export_to_places_that_will_not_do(own_mount: Workspace) -> None:
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


def test_import_of_what_will_not_do(own_mount: Workspace) -> None:
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
def test_a_machine_without_dev_fuse(attempt: Attempt) -> None:
    done = _crippled(attempt, "mount -t tmpfs none /dev")
    refuses(done, "/dev/fuse")
    assert not attempt.store.exists()


@pytest.mark.needs_root
def test_a_device_that_is_not_fuse(attempt: Attempt) -> None:
    done = _crippled(attempt, "mount --bind /dev/null /dev/fuse")
    refuses(done)


@pytest.mark.needs_root
def test_root_without_the_right_to_mount(attempt: Attempt) -> None:
    drop = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    command = [*drop, sys.executable, "-m", "ckptfs", "mount", str(attempt.work)]
    done = subprocess.run(
        [*command, "--store", str(attempt.store)],
        env={**os.environ, **attempt.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    refuses(done, str(attempt.work))
    assert not is_mounted(attempt.work)


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
