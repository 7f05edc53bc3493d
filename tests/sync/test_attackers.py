"""Root writes back into a directory of another user, who exchanges things at any step."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckptfs.errors import DestinationInvalid
from ckptfs.model import Attributes
from ckptfs.sync import export_tree
from tests.support.peer import NOBODY, Peer, peer
from tests.sync.attack import (
    Deed,
    Held,
    attacked,
    by,
    put_link,
    swap,
    swap_back,
    swap_first,
    swap_unfinished,
)
from tests.sync.pair import Pair

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others attack it")

DEEP = pytest.mark.deep

TOOL, EVIL, SECRET = b"the tool that root made", b"what another user wants to run", b"root's alone"


@pytest.fixture(scope="module")
def nobody() -> Iterator[Peer]:
    with peer(NOBODY) as process:
        yield process


class Scene:
    """A lower directory of another user under root's store, and a second one beside it."""

    def __init__(self, root: Path, nobody: Peer, mode: int | None = None) -> None:
        """With ``mode`` the directory is root's own, and others may do in it what that says."""
        root.mkdir()
        self.nobody = nobody
        self.pair = Pair(root)
        self.lower = self.pair.lower
        self.beside = root / "beside"
        self.beside.mkdir()
        root.chmod(0o755)
        self.give(self.beside)
        if mode is None:
            self.give(self.lower)
        else:
            self.lower.chmod(mode)
        self.evil = self.beside / "evil"
        self.evil.write_bytes(EVIL)
        self.evil.chmod(0o755)
        self.give(self.evil)
        self.secret = self.beside / "secret"
        self.secret.write_bytes(SECRET)
        self.secret.chmod(0o600)
        self.held = [Held(self.secret)]

    def give(self, *paths: Path) -> None:
        for path in paths:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def file(self, name: str, data: bytes = TOOL, mode: int = 0o644) -> Path:
        """A file of the other user's in the directory."""
        path = self.lower / name
        path.write_bytes(data)
        path.chmod(mode)
        self.give(path)
        return path

    def set(self, name: str, attributes: Attributes) -> None:
        self.pair.fs.setattr(self.pair.fs.head, self.pair.inode(name).ino, attributes)

    def swap(self, new: Path, name: str) -> tuple[Deed, Deed]:
        """To put something in the place of another, and to put both back."""
        old = str(self.lower / name)
        there = by(self.nobody, swap, str(new), old)
        return there, by(self.nobody, swap_back, str(new), old)

    def close(self) -> None:
        for held in self.held:
            held.close()
        self.pair.fs.commit()
        self.pair.store.close()

    # -- what must hold ---------------------------------------------------------------------------

    def judge(self, step: object) -> None:
        for held in self.held:
            assert held.now() == held.before, f"step {step}: root's own was given away"
        paths = [*self.lower.rglob("*"), *self.beside.rglob("*")]
        found = [(str(path), path.lstat(), path) for path in paths]
        for name, seen, path in found:
            if stat.S_ISREG(seen.st_mode):
                self._judge_file(
                    f"step {step}: {name}", seen.st_mode, seen.st_uid, path.read_bytes()
                )
        for name, facts in self.pair.stored().items():
            if facts.type == "-":
                self._judge_file(
                    f"step {step}: stored {name}", facts.mode, facts.uid, facts.content
                )

    def _judge_file(self, name: str, mode: int, uid: int, data: bytes) -> None:
        if uid == 0 and mode & 0o6000:
            assert data == TOOL, f"{name} has root's rights"
        if data == SECRET:
            assert uid == 0 and not mode & 0o077, f"{name} shows root's secret"


Prepare = Callable[[Scene], tuple[Deed, Deed]]


def a_vault(scene: Scene) -> Path:
    """A directory in the workspace that only root may enter, with something in it."""
    vault = scene.lower / "vault"
    vault.mkdir(mode=0o700)
    (vault / "key").write_bytes(SECRET)
    (vault / "key").chmod(0o600)
    scene.held += [Held(vault), Held(vault / "key", safe=True)]
    return vault


def tool_becomes_roots(scene: Scene) -> tuple[Deed, Deed]:
    """Root made a program of the user's its own, and gave it its rights."""
    scene.file("tool", mode=0o755)
    scene.pair.scan()
    scene.set("tool", Attributes(mode=0o104755, uid=0, gid=0))
    return scene.swap(scene.evil, "tool")


def attributes_change(scene: Scene) -> tuple[Deed, Deed]:
    """Attributes alone changed, so that the lower file stays and gets them."""
    scene.file("file", mode=0o644)
    scene.pair.scan()
    scene.set("file", Attributes(mode=0o100666, mtime_ns=5 * 10**18 // 4))
    scene.pair.fs.setxattr(scene.pair.fs.head, scene.pair.inode("file").ino, b"user.x", b"y")
    return scene.swap(scene.secret, "file")


def owner_changes(scene: Scene) -> tuple[Deed, Deed]:
    """Root gave a file of its own to the user."""
    path = scene.file("file")
    os.chown(path, 0, 0)
    scene.pair.scan()
    scene.set("file", Attributes(mode=0o100666, uid=NOBODY, gid=NOBODY))
    return scene.swap(scene.secret, "file")


def directory_is_made(scene: Scene) -> tuple[Deed, Deed]:
    """A directory of the user's own comes down, in whose place one of root's is put."""
    vault = a_vault(scene)
    scene.pair.scan()
    scene.pair.mkdir("made")
    scene.set("made", Attributes(mode=0o40777, uid=NOBODY, gid=NOBODY))
    scene.pair.write("made/key", "written over it")
    return scene.swap(vault, "made")


def directory_is_dressed(scene: Scene) -> tuple[Deed, Deed]:
    vault, known = scene.lower / "vault", scene.lower / "known"
    for path in (vault, known):
        path.mkdir(mode=0o700)
    scene.held += [Held(vault)]
    scene.pair.scan()
    scene.set("known", Attributes(mode=0o40777, uid=NOBODY, gid=NOBODY))
    return scene.swap(vault, "known")


def nodes_are_made(scene: Scene) -> tuple[Deed, Deed]:
    """A FIFO and a link come down under names for unfinished things."""
    scene.pair.scan()
    for name, mode in (("pipe", stat.S_IFIFO | 0o666), ("socket", stat.S_IFSOCK | 0o666)):
        scene.pair.mknod(name, mode)
        scene.set(name, Attributes(mode=mode, uid=NOBODY, gid=NOBODY))
    scene.pair.symlink("link", "anywhere")
    scene.set("link", Attributes(uid=NOBODY, gid=NOBODY))
    there = by(scene.nobody, swap_unfinished, str(scene.secret), str(scene.lower))
    return there, by(scene.nobody, swap_back, str(scene.secret), str(scene.lower / "moved"))


def links_are_made(scene: Scene) -> tuple[Deed, Deed]:
    scene.file("one")
    scene.pair.scan()
    scene.pair.link("one", "two")
    return scene.swap(scene.secret, "one")


def tree_is_removed(scene: Scene) -> tuple[Deed, Deed]:
    """A directory goes, in whose place one of root's is put."""
    vault = a_vault(scene)
    doomed = scene.lower / "doomed"
    doomed.mkdir(mode=0o700)
    (doomed / "key").write_bytes(b"to be removed")
    scene.give(doomed, doomed / "key")
    scene.pair.scan()
    scene.pair.remove("doomed")
    return scene.swap(vault, "doomed")


def tree_is_moved(scene: Scene) -> tuple[Deed, Deed]:
    vault = a_vault(scene)
    old = scene.lower / "old"
    old.mkdir()
    (old / "key").write_bytes(b"to be moved")
    scene.give(old, old / "key")
    scene.pair.scan()
    scene.pair.rename("old", "new")
    scene.pair.write("new/key", "and written to")
    return scene.swap(vault, "old")


SCENES = [
    tool_becomes_roots,
    attributes_change,
    owner_changes,
    directory_is_made,
    directory_is_dressed,
    nodes_are_made,
    links_are_made,
    tree_is_removed,
    tree_is_moved,
]


def _try_every_step(
    memory_path: Path,
    nobody: Peer,
    prepare: Prepare,
    *,
    mode: int | None = None,
    undone_after: int = 0,
) -> None:
    memory_path.chmod(0o755)
    step, count = 0, 1
    while step < count:
        step += 1
        scene = Scene(memory_path / str(step), nobody, mode)
        deed, undo = prepare(scene)
        deeds = {step: deed}
        if undone_after:
            deeds[step + undone_after] = undo
        with attacked(deeds) as steps:
            scene.pair.write_back()
        count = steps.count
        scene.judge(step)
        scene.close()
        shutil.rmtree(memory_path / str(step))
    assert step > 10


@pytest.mark.parametrize("prepare", SCENES)
def test_nothing_is_given_away_at_any_step_of_a_write_back(
    memory_path: Path, nobody: Peer, prepare: Prepare
) -> None:
    _try_every_step(memory_path, nobody, prepare)


@pytest.mark.parametrize(
    "mode", [pytest.param(0o777, id="open"), pytest.param(0o1777, id="sticky", marks=DEEP)]
)
@pytest.mark.parametrize("prepare", SCENES)
def test_nothing_is_given_away_in_a_directory_of_roots_that_others_may_write_to(
    memory_path: Path, nobody: Peer, prepare: Prepare, mode: int
) -> None:
    _try_every_step(memory_path, nobody, prepare, mode=mode)


@pytest.mark.parametrize(
    "undone_after", [2, *(pytest.param(after, marks=DEEP) for after in (1, 3, 4, 5, 8))]
)
@pytest.mark.parametrize("prepare", SCENES)
def test_nothing_is_given_away_if_the_swap_is_undone_some_steps_later(
    memory_path: Path, nobody: Peer, prepare: Prepare, undone_after: int
) -> None:
    _try_every_step(memory_path, nobody, prepare, undone_after=undone_after)


# -- export ----------------------------------------------------------------------------------------


def test_nothing_is_given_away_by_an_export_into_a_directory_of_another(
    memory_path: Path, nobody: Peer
) -> None:
    memory_path.chmod(0o755)
    step, count = 0, 1
    while step < count:
        step += 1
        scene = Scene(memory_path / str(step), nobody)
        nodes_are_made(scene)
        links_are_made(scene)
        dest = scene.beside.parent / "dest"
        dest.mkdir()
        scene.give(dest)
        names = ["pipe", "link", "socket", "one", "two"]
        deed = by(nobody, swap_first, str(scene.secret), [f"{dest}/{name}" for name in names])
        with attacked({step: deed}) as steps:
            export_tree(scene.pair.fs, scene.pair.fs.head, dest)
        count = steps.count
        scene.judge(step)
        scene.close()
        shutil.rmtree(memory_path / str(step))
    assert step > 30


def test_nothing_is_given_away_through_a_link_in_the_place_of_an_exports_destination(
    memory_path: Path, nobody: Peer
) -> None:
    memory_path.chmod(0o755)
    step, count = 0, 1
    while step < count:
        step += 1
        scene = Scene(memory_path / str(step), nobody)
        scene.file("file")
        scene.pair.scan()
        victim = memory_path / str(step) / "victim"
        victim.mkdir(mode=0o700)
        held = Held(victim)
        dest = scene.beside / "dest"
        deed = by(nobody, put_link, str(victim), str(dest))
        with attacked({step: deed}) as steps, suppress(DestinationInvalid):
            export_tree(scene.pair.fs, scene.pair.fs.head, dest)
        count = steps.count
        assert held.now() == held.before, f"step {step}"
        assert os.listdir(victim) == [], f"step {step}"
        held.close()
        scene.close()
        shutil.rmtree(memory_path / str(step))
    assert step > 10
