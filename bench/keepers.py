"""What else people keep a history with: shadow git, btrfs, copies by rsync, restic and borg.

Each works on a directory of its own with the same files. Nothing here measures.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from bench.contestants import make_spread
from bench.kit import Kit, NotToBeHad, fetch
from bench.programs import GIT, run

_IMAGE_BYTES = 16 << 30


class Keeper(Protocol):
    tree: Path
    """The files it keeps the history of."""

    def save(self) -> None: ...

    def restore(self) -> None:
        """Make the tree what it was at the last save."""

    def size(self) -> int:
        """Bytes that the history takes, as small as the tool makes it by itself."""


@runtime_checkable
class Differ(Protocol):
    """A keeper that can tell what changed in the tree since the last save."""

    def diff(self) -> None: ...


class ShadowGit:
    """A repository beside a work tree that knows nothing of it, as agents' tools make them."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self.git_dir = base / "shadow"
        self._git = (*GIT, f"--git-dir={self.git_dir}", f"--work-tree={self.tree}")
        self.tree.mkdir(parents=True)
        run(*GIT, "init", "-q", "--bare", self.git_dir)
        run(*self._git, "config", "core.bare", "false")

    def save(self) -> None:
        run(*self._git, "add", "-A")
        run(*self._git, "commit", "-q", "--allow-empty", "-m", "checkpoint")

    def restore(self) -> None:
        run(*self._git, "reset", "-q", "--hard")
        run(*self._git, "clean", "-q", "-f", "-d", "-x")

    def diff(self) -> None:
        run(*self._git, "diff", "--name-status", "HEAD")

    def size(self) -> int:
        """What it takes on disk after gc, without samples and logs."""
        run(*self._git, "gc", "-q", "--prune=now")
        return sum(path.stat().st_size for path in (self.git_dir / "objects").rglob("*.*"))


class Btrfs:
    """A subvolume on a btrfs of its own, and snapshots beside it."""

    def __init__(self, mountpoint: Path) -> None:
        self.tree = mountpoint / "tree"
        self._mountpoint = mountpoint
        self._count = 0
        run("btrfs", "subvolume", "create", self.tree)
        self._empty = self._used()

    def save(self) -> None:
        self._count += 1
        run("btrfs", "subvolume", "snapshot", self.tree, self._snapshot())

    def restore(self) -> None:
        """The subvolume goes, and a snapshot of the snapshot takes its place. A process that has a
        file open, or stands in the directory, stays with the old one."""
        run("btrfs", "subvolume", "delete", self.tree)
        run("btrfs", "subvolume", "snapshot", self._snapshot(), self.tree)

    def size(self) -> int:
        return self._used() - self._empty

    def _snapshot(self) -> Path:
        return self._mountpoint / f"{self._count}"

    def _used(self) -> int:
        run("btrfs", "filesystem", "sync", self._mountpoint)
        found = os.statvfs(self._mountpoint)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


class LinkedCopies:
    """A copy for each save, with hard links to the one before for what has not changed."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self._copies = base / "copies"
        self._count = 0
        self.tree.mkdir(parents=True)
        self._copies.mkdir()

    def save(self) -> None:
        before = f"--link-dest={self._copy()}"
        self._count += 1
        linked = [before] if self._count > 1 else []
        run("rsync", "-a", *linked, f"{self.tree}/", self._copy())

    def restore(self) -> None:
        run("rsync", "-a", "--delete", f"{self._copy()}/", self.tree)

    def diff(self) -> None:
        run("rsync", "-a", "-n", "-i", "--delete", f"{self.tree}/", self._copy())

    def size(self) -> int:
        return _bytes_below(self._copies)

    def _copy(self) -> Path:
        return self._copies / f"{self._count}"


class Restic:
    """Backups without a network, in a repository beside the tree."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self._repository = base / "repository"
        inside = ("env", "-C", self.tree, "RESTIC_PASSWORD=bench", "restic")
        self._restic = (*inside, "-q", "-r", self._repository, "--cache-dir", base / "cache")
        _make_spread_tree(self.tree)
        run(*self._restic, "init")

    def save(self) -> None:
        run(*self._restic, "backup", ".")

    def restore(self) -> None:
        """Over what is there it fails at links, and leaves what came later."""
        with _replaced(self.tree) as fresh:
            run(*self._restic, "restore", "latest", "--target", fresh)

    def size(self) -> int:
        return _bytes_below(self._repository)


class Borg:
    """Archives in a repository beside the tree, without encryption."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self._repository = base / "repository"
        self._count = 0
        self._borg = ("env", f"BORG_BASE_DIR={base / 'settings'}", "borg")
        _make_spread_tree(self.tree)
        run(*self._borg, "init", "-e", "none", self._repository)

    def save(self) -> None:
        self._count += 1
        archive = f"{self._repository}::{self._count}"
        run("env", "-C", self.tree, *self._borg, "create", archive, ".")

    def restore(self) -> None:
        """Over what is there it leaves what came later."""
        with _replaced(self.tree) as fresh:
            run("env", "-C", fresh, *self._borg, "extract", f"{self._repository}::{self._count}")

    def size(self) -> int:
        return _bytes_below(self._repository)


def _make_spread_tree(tree: Path) -> None:
    """For those whose restores make every directory anew."""
    make_spread(tree.parent)
    tree.mkdir()


@contextmanager
def _replaced(tree: Path) -> Iterator[Path]:
    """A new directory that takes the tree's place at the end. The old tree stays beside it until
    all goes: on some disks its removal takes longer than the restore, and it can wait."""
    fresh = tree.with_name("fresh")
    fresh.mkdir()
    yield fresh
    tree.rename(tree.with_name(f"before-{time.time_ns()}"))
    fresh.rename(tree)


def _bytes_below(root: Path) -> int:
    """As du counts: a file with several names once."""
    done = subprocess.run(["du", "-sb", root], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


Opener = Callable[[Kit, Path], AbstractContextManager[Keeper]]


def _by(program: str, keeper: Callable[[Path], Keeper]) -> Opener:
    """One that needs a program and a directory, no more."""

    @contextmanager
    def opened(kit: Kit, base: Path) -> Iterator[Keeper]:
        kit.program(program)
        yield keeper(base)

    return opened


@contextmanager
def _btrfs(kit: Kit, base: Path) -> Iterator[Keeper]:
    """On a loop device, in a file that takes only the room that is used."""
    kit.program("btrfs")
    if os.geteuid() != 0:
        raise NotToBeHad("mounting it needs root")
    image, mountpoint = base / "image", base / "mount"
    mountpoint.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    fetch("mkfs.btrfs", "mkfs.btrfs", "-q", image)
    fetch("mount of a btrfs", "mount", "-o", "loop", image, mountpoint)
    try:
        yield Btrfs(mountpoint)
    finally:
        run("umount", mountpoint)
        image.unlink()


#: Everyone who keeps a history, by name.
KEEPERS: dict[str, Opener] = {
    "git": _by("git", ShadowGit),
    "btrfs": _btrfs,
    "rsync": _by("rsync", LinkedCopies),
    "restic": _by("restic", Restic),
    "borg": _by("borg", Borg),
}
#: Those that copy files, and take minutes for very many.
BACKUPS = frozenset({"rsync", "restic", "borg"})
#: Those that read or write the whole tree for each restore, and take part once.
SLOW_KEEPERS = frozenset({"restic", "borg"})
