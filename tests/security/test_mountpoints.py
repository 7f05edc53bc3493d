"""Another user may rename in the path of a workspace, and puts a link there while root mounts."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckptfs.daemon import mounts
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, scratch
from tests.support.peer import NOBODY, peer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user"),
]


@pytest.fixture
def base() -> Iterator[Path]:
    with scratch() as made:
        yield made


def _exchange(work: str, store: str, target: str) -> None:
    """Put a link in the place of the workspace while root reads what is in it."""
    Path(f"{work}.ready").touch()
    wait_until(Path(store).exists, "root makes a store")
    time.sleep(0.03)
    with suppress(OSError):  # root was faster, and the directory is busy
        os.rename(work, f"{work}.aside")
        os.symlink(target, work)


def test_root_covers_no_directory_that_a_link_leads_to(base: Path) -> None:
    home, victim = base / "home", base / "victim"
    victim.mkdir()
    made = Workspace(base, "--auto", "off")
    made.path = home / "work"
    made.path.mkdir(parents=True)
    for number in range(1_000):  # to be at it for some time
        (made.path / str(number)).write_bytes(bytes(5_000))
    for path in (home, made.path):
        os.chown(path, NOBODY, NOBODY)
    with peer(NOBODY) as nobody:
        nobody.begin(_exchange, str(made.path), str(made.store), str(victim))
        wait_until((home / "work.ready").exists, "the attacker is ready")
        done = made.cli("mount", made.path, "--store", made.store, "--auto", "off")
        nobody.finish(30)
    assert not is_mounted(victim)
    if done.returncode == 0:  # on the directory that was there, wherever it is now
        mounts.unmount(home / "work.aside" if made.path.is_symlink() else made.path, detach=True)


def test_root_unmounts_nothing_that_a_link_leads_to(base: Path) -> None:
    (base / "boot").mkdir()
    (base / "link").symlink_to(base)
    subprocess.run(["mount", "-t", "tmpfs", "none", base / "boot"], check=True)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        mounts.unmount(base / "link" / "boot", detach=True)
    assert is_mounted(base / "boot")
    mounts.unmount(base / "boot")
    assert not is_mounted(base / "boot")
