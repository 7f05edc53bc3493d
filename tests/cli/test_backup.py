"""`ckptfs backup`: a copy of one moment that is a store itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.store import Store, check
from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed
from tests.support.trees import plant, tree

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    with scratch() as base:
        made = Workspace(base, "--no-write-back")
        made.mount()
        try:
            yield made
        finally:
            made.finish()


def _write_on(top: Path, over: threading.Event) -> None:
    """Pairs of files, the second only ever made behind the first."""
    number = 0
    while not over.is_set():
        number += 1
        (top / f"first {number}").write_bytes(os.urandom(30_000))
        (top / f"then {number}").write_bytes(b"x" * 3_000)


def test_a_backup_is_whole_while_programs_write(workspace: Workspace) -> None:
    plant(workspace.path, {"kept": "before", "dir": {"large": os.urandom(3_000_000)}})
    succeed(workspace.cli("save", "x", "--tag", "good", "-w", workspace.path))
    (workspace.path / "dir/large").unlink()
    (workspace.path / "now").write_text("closed before the backup, so in it")
    over = threading.Event()
    writer = threading.Thread(target=_write_on, args=(workspace.path, over))
    writer.start()
    try:
        copies = [workspace.store.with_name(f"copy {n}") for n in range(3)]
        for copy in copies:
            succeed(workspace.cli("backup", copy, "-w", workspace.path))
    finally:
        over.set()
        writer.join()
    for copy in copies:
        assert (copy.stat().st_mode & 0o777, (copy / "data.mdb").stat().st_mode & 0o777) == (
            0o700,
            0o600,
        )
        store = Store.open(copy, verify=True)
        assert check(store) == []
        store.close()
    _ask_restored(workspace, copies[0])


def _ask_restored(workspace: Workspace, copy: Path) -> None:
    """It mounts elsewhere, with the history, while the other one goes on."""
    other = Workspace(workspace.store.parent, "--no-write-back")
    other.path, other.store = workspace.store.with_name("restored"), copy
    other.mount()
    try:
        found = tree(other.path)
        assert found["kept"] == "before"
        assert found["now"] == "closed before the backup, so in it"
        firsts = {name.split()[1] for name in found if name.startswith("first")}
        assert {name.split()[1] for name in found if name.startswith("then")} <= firsts
        assert len((other.path / ".checkpoints/1/dir/large").read_bytes()) == 3_000_000
    finally:
        other.finish()


def test_an_unmounted_workspace_is_backed_up_whole(workspace: Workspace) -> None:
    plant(workspace.path, {"kept": "before"})
    workspace.umount()
    copy = workspace.store.with_name("copy")
    done = succeed(workspace.cli("backup", copy, "--json", "--store", workspace.store))
    assert str(copy) in done.stdout
    store = Store.open(copy)
    assert check(store) == []
    store.close()


def test_a_backup_overwrites_nothing_and_stays_out_of_the_workspace(workspace: Workspace) -> None:
    (workspace.store.parent / "taken").mkdir()
    (workspace.store.parent / "taken/file").touch()
    for dest in ("taken", "taken/file", "none/none", "work/inside", "store/inside"):
        done = workspace.cli("backup", workspace.store.parent / dest, "-w", workspace.path)
        assert done.returncode in (51, 52), done.stderr
        assert done.stderr.count("\n") == 2 and "Nothing was changed" in done.stderr
    assert os.listdir(workspace.store.parent / "taken") == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small disk")
def test_a_backup_to_a_full_disk_leaves_nothing_behind(workspace: Workspace) -> None:
    import subprocess

    plant(workspace.path, {"large": os.urandom(8_000_000)})
    small = workspace.store.with_name("small")
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small], check=True)
    try:
        done = workspace.cli("backup", small / "copy", "-w", workspace.path)
        assert done.returncode == 18 and "The store is unchanged" in done.stderr
        assert not (small / "copy/data.mdb").exists()
    finally:
        subprocess.run(["umount", small], check=True)
