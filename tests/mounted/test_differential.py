"""The kernel's own file system as the oracle: the same calls there and here, the same answers."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from tests.support.trees import Facts, facts

STEPS = 500
Step = Callable[[Path], object]


class Script:
    """Random calls on few names, so that they meet: every step is a function of the directory."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def path(self) -> str:
        depth = self.random.choice([1, 1, 1, 2, 2, 3])
        return "/".join(self.random.choice("abcd") for _ in range(depth))

    def step(self) -> tuple[str, Step]:
        make = self.random.choice(
            [self.create] * 4
            + [self.write] * 4
            + [self.mkdir] * 4
            + [self.rename] * 3
            + [self.special_rename, self.unlink, self.unlink, self.rmdir, self.link, self.link]
            + [self.symlink, self.truncate, self.truncate, self.chmod, self.read, self.stat]
            + [self.list, self.readlink, self.append]
        )
        return make()

    def create(self) -> tuple[str, Step]:
        path, flags = self.path(), self.random.choice([0, os.O_EXCL, os.O_TRUNC])
        mode = self.random.choice([0o600, 0o644, 0o755])

        def call(top: Path) -> None:
            os.close(os.open(top / path, os.O_CREAT | os.O_WRONLY | flags, mode))

        return f"create {path} {flags:o} {mode:o}", call

    def write(self) -> tuple[str, Step]:
        path, offset = self.path(), self.random.choice([0, 5, 4000, 65_530, 200_000])
        data = self.random.randbytes(self.random.choice([1, 10, 5000, 70_000]))

        def call(top: Path) -> int:
            fd = os.open(top / path, os.O_WRONLY)
            try:
                return os.pwrite(fd, data, offset)
            finally:
                os.close(fd)

        return f"write {path} {len(data)} at {offset}", call

    def append(self) -> tuple[str, Step]:
        path, data = self.path(), self.random.randbytes(100)

        def call(top: Path) -> int:
            fd = os.open(top / path, os.O_WRONLY | os.O_APPEND)
            try:
                return os.write(fd, data)
            finally:
                os.close(fd)

        return f"append {path}", call

    def truncate(self) -> tuple[str, Step]:
        path, size = self.path(), self.random.choice([0, 3, 4096, 65_536, 65_537, 150_000])
        return f"truncate {path} {size}", lambda top: os.truncate(top / path, size)

    def mkdir(self) -> tuple[str, Step]:
        path = self.path()
        return f"mkdir {path}", lambda top: os.mkdir(top / path)

    def rmdir(self) -> tuple[str, Step]:
        path = self.path()
        return f"rmdir {path}", lambda top: os.rmdir(top / path)

    def unlink(self) -> tuple[str, Step]:
        path = self.path()
        return f"unlink {path}", lambda top: os.unlink(top / path)

    def rename(self) -> tuple[str, Step]:
        old, new = self.path(), self.path()
        return f"rename {old} {new}", lambda top: os.rename(top / old, top / new)

    def special_rename(self) -> tuple[str, Step]:
        old, new = self.path(), self.path()
        flag = self.random.choice([RENAME_NOREPLACE, RENAME_EXCHANGE])
        return f"rename {old} {new} {flag}", lambda top: renameat2(top / old, top / new, flag)

    def link(self) -> tuple[str, Step]:
        old, new = self.path(), self.path()
        return f"link {old} {new}", lambda top: os.link(top / old, top / new)

    def symlink(self) -> tuple[str, Step]:
        target, path = self.path(), self.path()
        return f"symlink {target} {path}", lambda top: os.symlink(target, top / path)

    def chmod(self) -> tuple[str, Step]:
        path, mode = self.path(), self.random.choice([0o600, 0o644, 0o700, 0o755])
        return f"chmod {path} {mode:o}", lambda top: os.chmod(top / path, mode)

    def read(self) -> tuple[str, Step]:
        path = self.path()
        return f"read {path}", lambda top: (top / path).read_bytes()

    def readlink(self) -> tuple[str, Step]:
        path = self.path()
        return f"readlink {path}", lambda top: os.readlink(top / path)

    def list(self) -> tuple[str, Step]:
        path = self.path()
        return f"list {path}", lambda top: sorted(os.listdir(top / path))

    def stat(self) -> tuple[str, Step]:
        path = self.path()
        return f"stat {path}", lambda top: seen(os.lstat(top / path))


def seen(info: os.stat_result) -> tuple[int, int, int, int, int]:
    """What must be equal on any file system; a directory's size is its own affair."""
    size = -1 if (info.st_mode & 0o170000) == 0o040000 else info.st_size
    return (info.st_mode, info.st_nlink, info.st_uid, info.st_gid, size)


def outcome(call: Step, top: Path) -> object:
    try:
        return call(top)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def timeless(known: dict[str, Facts]) -> dict[str, Facts]:
    return {name: fact._replace(mtime_ns=0) for name, fact in known.items()}


def play(seed: int, here: Path, oracle: Path) -> None:
    script = Script(seed)
    done = []
    for _ in range(STEPS):
        words, call = script.step()
        expected, got = outcome(call, oracle), outcome(call, here)
        done.append(f"{words} -> {str(expected)[:60]}")
        assert got == expected, "\n".join([*done[-30:], f"but here: {str(got)[:60]}"])
    assert timeless(facts(here)) == timeless(facts(oracle))


def play_at_once(seed: int, here: Path, oracle: Path) -> None:
    """The same, with nothing between two calls: what was made a moment ago is not in the store yet
    when the next request is about it."""
    script = Script(seed)
    steps = [script.step() for _ in range(STEPS)]
    expected = [outcome(call, oracle) for _, call in steps]
    got = [outcome(call, here) for _, call in steps]
    for number, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        done = [words for words, _ in steps[max(0, number - 30) : number + 1]]
        assert found == wanted, "\n".join([*done, str(wanted)[:60], f"but here: {str(found)[:60]}"])
    assert timeless(facts(here)) == timeless(facts(oracle))


@pytest.mark.parametrize("seed", range(200, 220))
def test_the_same_calls_at_once_give_the_same_answers(
    mount: Path, elsewhere: Path, seed: int
) -> None:
    play_at_once(seed, mount, elsewhere)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_calls_give_the_same_answers(mount: Path, elsewhere: Path, seed: int) -> None:
    play(seed, mount, elsewhere)


def test_programs_see_the_same_with_remounts_in_between(
    own_mount: Workspace, elsewhere: Path
) -> None:
    (elsewhere / "oracle").mkdir()
    (own_mount.path / "here").mkdir()
    for seed in (100, 101):
        play(seed, own_mount.path / "here", elsewhere / "oracle")
        own_mount.remount()
        assert timeless(facts(own_mount.path / "here")) == timeless(facts(elsewhere / "oracle"))
