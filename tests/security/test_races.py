"""Another user exchanges a lower file while root unmounts, or restores a plain directory.

`tests/sync/test_attackers.py` stops root at every step. Here nothing is stopped: a process of
the other user waits for the first change in the directory, as an attacker does, and is quick.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.connect import new_store, open_workspace
from ckptfs.errors import WorkspaceUnknown
from ckptfs.team import Team
from tests.support.inotify import Inotify
from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed
from tests.support.peer import NOBODY, Peer, peer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user"),
]

#: So large that a digest of it leaves time for others.
TOOL = os.urandom(1 << 20) * 48
EVIL = b"#!/bin/sh\nid -u\n"


def _exchange() -> None:
    """Wait for the first change in the directory that we are in; put something of ours there."""
    with Inotify(Path()) as watch:
        Path("../beside/ready").touch()
        watch.first()
        os.rename("../beside/evil", "tool")


class Scene:
    def __init__(self, base: Path, nobody: Peer) -> None:
        self.made = Workspace(base, "--auto", "off")
        self.work, self.beside = self.made.path, base / "beside"
        self.nobody = nobody
        for path in (self.work, self.beside):
            path.mkdir()
            self.give(path)
        for path, data in (
            (self.work / "a first one", b"x"),
            (self.work / "tool", TOOL),
            (self.beside / "evil", EVIL),
        ):
            path.write_bytes(data)
            path.chmod(0o755)
            self.give(path)
        # Before a mount covers it: a process in the directory stays in the lower one.
        nobody(os.chdir, str(self.work))

    def give(self, path: Path) -> None:
        os.chown(path, NOBODY, NOBODY)

    def take(self) -> None:
        """What root does in its workspace: a program of the user's becomes root's own."""
        (self.work / "a first one").chmod(0o700)
        os.chown(self.work / "tool", 0, 0)
        (self.work / "tool").chmod(0o4755)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        (self.beside / "ready").unlink(missing_ok=True)
        self.nobody.begin(_exchange)
        wait_until((self.beside / "ready").exists, "the attacker watches")
        yield
        self.nobody.finish(30)
        for path in (*self.work.rglob("*"), *self.beside.rglob("*")):
            seen = path.lstat()
            if seen.st_uid == 0 and seen.st_mode & 0o6000:
                assert path.read_bytes() == TOOL, f"{path.name} runs as root"
            if path.is_file() and path.read_bytes() == EVIL:
                assert seen.st_uid == NOBODY, f"{path.name} is root's"


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scratch() as base, peer(NOBODY) as nobody:
        yield Scene(base, nobody)
        nobody(os.chdir, "/")


def test_an_attack_on_an_unmount_changes_nothing_outside(scene: Scene) -> None:
    scene.made.mount()
    scene.take()
    with scene.attacked():
        scene.made.umount()


def test_an_attack_on_a_restore_of_a_plain_directory_changes_nothing_outside(scene: Scene) -> None:
    scene.made.mount()
    scene.made.umount()
    scene.take()
    saved = succeed(scene.made.cli("save", "of root", "-w", scene.work, "--json"))
    for path in scene.work.iterdir():
        path.chmod(0o755)
        scene.give(path)
    with scene.attacked():
        scene.made.cli("restore", str(json.loads(saved.stdout)["id"]), "-w", scene.work, "--force")


def test_an_attack_on_a_restore_of_a_team_changes_nothing_outside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in scene.made.env.items():
        monkeypatch.setenv(name, value)
    scene.made.mount()
    scene.take()
    data = scene.work.parent / "team-data"
    config = data / "teams/red/config.json"
    config.parent.mkdir(parents=True)
    members = [{"name": "alice", "workspace": str(scene.work)}]
    config.write_text(json.dumps({"name": "red", "members": members}))
    team = Team("red", data)
    taken = team.snapshot()
    for path in scene.work.iterdir():
        path.chmod(0o755)
        scene.give(path)
    scene.made.umount()
    with scene.attacked():
        team.restore(taken.id)


def test_a_restore_wakes_watchers_without_touching_anything_outside(
    nobody_at_work: Workspace,
) -> None:
    """The daemon touches paths through its own mount, with root's rights."""
    made = nobody_at_work
    victims = [made.path.parent / f"victims/{number}" for number in range(_MANY)]
    victims[0].parent.mkdir()
    for victim in victims:
        victim.touch(0o600)
    made.mount()
    with peer(NOBODY) as nobody:
        nobody(_fill, str(made.path), str(victims[0].parent))
        succeed(made.cli("save", "-w", made.path))
        nobody(_change, str(made.path))
        nobody.begin(_exchange_directories, str(made.path))
        wait_until((made.path / "ready").exists, "the attacker watches")
        succeed(made.cli("restore", "1", "--force", "-w", made.path))
        nobody.finish(30)
    made.umount()
    assert {victim.stat().st_mode & 0o7777 for victim in victims} == {0o600}


_MANY = 200


@pytest.fixture
def nobody_at_work() -> Iterator[Workspace]:
    with scratch() as base:
        made = Workspace(base, "--auto", "off", "--allow-other")
        made.path.mkdir()
        os.chown(made.path, NOBODY, NOBODY)
        yield made


def _fill(work: str, victims: str) -> None:
    os.mkdir(f"{work}/dir")
    for number in range(_MANY):
        path = Path(f"{work}/dir/{number}")
        path.touch()
        path.chmod(0o4777)
    os.symlink(victims, f"{work}/link")


def _change(work: str) -> None:
    for number in range(_MANY):
        Path(f"{work}/dir/{number}").write_text("changed")


def _exchange_directories(work: str) -> None:
    """Again and again, for so long that the daemon is done with it."""
    libc = ctypes.CDLL(None)
    with Inotify(Path(work, "dir")):
        Path(work, "ready").touch()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            libc.renameat2(
                _AT_FDCWD, f"{work}/dir".encode(), _AT_FDCWD, f"{work}/link".encode(), _EXCHANGE
            )


_AT_FDCWD, _EXCHANGE = -100, 2


def test_a_link_in_the_place_of_the_workspace_is_not_followed(scene: Scene) -> None:
    """Not a race: a session of root's goes on while the directory is exchanged."""
    victim = scene.work.parent / "victim"
    victim.mkdir()
    (victim / "precious").write_text("stays")
    place = config.Workspace(scene.work, scene.made.store)
    with new_store(place.store) as made:
        made.meet(place.path, keep_first=True, exclude=())
    with open_workspace(place) as session:
        number = session.call("save", {"message": "now"})["id"]
        scene.work.rename(scene.work.with_name("aside"))
        scene.work.symlink_to(victim)
        with pytest.raises(WorkspaceUnknown, match="Nothing was changed"):
            session.call("restore", {"checkpoint": str(number)})
    assert os.listdir(victim) == ["precious"]
