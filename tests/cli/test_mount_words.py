"""What `mount` refuses and what it says besides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptfs.daemon import mounts
from ckptfs.errors import NestedWorkspace
from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, Workspace, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def test_a_workspace_inside_another_is_refused(place: ScratchHome) -> None:
    inner = place / "outer" / "inner"
    inner.mkdir(parents=True)
    succeed(place.run("mount", "outer"))
    done = place.run("mount", inner)
    assert done.returncode == NestedWorkspace.exit_code
    assert "outer, a workspace that is mounted" in done.stderr
    succeed(place.run("umount", "outer"))

    succeed(place.run("mount", inner))
    done = place.run("mount", "outer")
    assert done.returncode == NestedWorkspace.exit_code
    assert f"ckptfs umount {inner}" in done.stderr
    succeed(place.run("umount", inner))
    succeed(place.run("mount", "outer"))
    succeed(place.run("umount", "outer"))


def test_a_shell_in_the_directory_hears_how_to_get_in(place: ScratchHome) -> None:
    work = place / "work"
    work.mkdir()
    done = succeed(place.run("mount", ".", cwd=work))
    assert "cd ." in done.stderr
    succeed(place.run("umount", "work"))
    assert "cd ." not in succeed(place.run("mount", "work")).stderr
    succeed(place.run("umount", "work"))


def test_a_history_that_is_gone_is_missed(place: ScratchHome) -> None:
    (place / "work").mkdir()
    first = succeed(place.run("mount", "work"))
    assert "history" not in first.stderr
    succeed(place.run("umount", "work"))
    (store,) = Path(place / "data" / "ckptfs").glob("work-*")
    shutil.rmtree(store)
    again = succeed(place.run("mount", "work"))
    assert f"{store}, was gone" in again.stderr
    succeed(place.run("umount", "work"))
    assert "gone" not in succeed(place.run("mount", "work")).stderr
    succeed(place.run("umount", "work"))


def test_what_a_source_brings_in_is_counted(place: ScratchHome) -> None:
    (place / "from" / "below").mkdir(parents=True)
    (place / "from" / "below" / "file").write_text("x")
    (place / "work").mkdir()
    done = succeed(place.run("mount", "work", "--from", "from"))
    assert "brought in: 2 added" in done.stdout
    succeed(place.run("umount", "work"))


@pytest.mark.parametrize(
    "name",
    ["store", "a b,allow_other,c", "back\\slash\\040", "café", "#\n", "x" * 250],
    ids=["plain", "comma", "backslash", "no ASCII", "lines", "long"],
)
def test_the_mount_table_names_the_store(workspace: Workspace, name: str) -> None:
    workspace.store = workspace.store.parent / name
    workspace.mount()
    mount = mounts.mount_at(workspace.path)
    assert mount is not None and mount.is_ours
    assert mount.source == (str(workspace.store) if name[:2] != "xx" else "ckptfs")
    workspace.umount()
