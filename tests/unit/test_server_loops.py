"""The compiled loops pass over what is in order, and over nothing else; Python does the same."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckptfs.fs import Filesystem
from ckptfs.fuse.server import binding
from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import ROOT_INO
from ckptfs.store import Store, pages
from ckptfs.sync.ledger import VERSION, signature
from ckptfs.sync.lower import Seen


@pytest.fixture
def module() -> ServerModule:
    loaded = binding.load()
    assert loaded.module is not None, loaded.reason
    return loaded.module


# -- a directory and the ledger --------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "inner").mkdir()
    os.utime(tmp_path / "a", ns=(1, -5_000_000_001))
    return tmp_path


def recorded(directory: Path) -> dict[bytes, bytes]:
    """What the ledger would have of each entry, directories too."""
    return {
        os.fsencode(path.name): signature(os.lstat(path)) + b"and more"
        for path in directory.iterdir()
    }


def others(module: ServerModule, directory: Path, known: dict[bytes, bytes]) -> set[bytes]:
    """The names that are not passed over; what is passed over is taken out of what is known."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    before = dict(known)
    try:
        count, names = module.pass_unchanged(fd, known, VERSION)
        assert len(os.listdir(fd)) == count + len(names), "it can be listed again"
    finally:
        os.close(fd)
    assert len(before) - len(known) == count
    return set(names)


def test_only_directories_are_left_if_nothing_changed(
    module: ServerModule, directory: Path
) -> None:
    known = recorded(directory)
    assert others(module, directory, known) == {b"inner"} == set(known)


def test_what_changed_is_left(module: ServerModule, directory: Path) -> None:
    known = recorded(directory)
    (directory / "b").write_text("longer")
    (directory / "c").unlink()
    (directory / "new").touch()
    (directory / "link").unlink()
    (directory / "link").symlink_to("elsewhere")
    assert others(module, directory, known) == {b"b", b"new", b"link", b"inner"}
    assert set(known) == {b"b", b"c", b"link", b"inner"}


def test_every_byte_of_a_signature_counts(module: ServerModule, directory: Path) -> None:
    whole = recorded(directory)[b"b"]
    for at in range(len(whole) - len(b"and more")):
        other = bytearray(whole)
        other[at] ^= 1
        assert b"b" in others(module, directory, {b"b": bytes(other)})
    assert b"b" not in others(module, directory, {b"b": whole})
    assert b"b" in others(module, directory, {b"b": whole[:20]})


def test_a_file_with_several_names_is_left(module: ServerModule, directory: Path) -> None:
    os.link(directory / "a", directory / "twin")
    assert {b"a", b"twin"} <= others(module, directory, recorded(directory))


def test_a_time_beyond_64_bits_is_left(module: ServerModule, directory: Path) -> None:
    known = recorded(directory)
    try:
        os.utime(directory / "c", ns=(0, 12_000_000_000 * 10**9))
    except OverflowError:
        pytest.skip("this file system has no such times")
    assert b"c" in others(module, directory, known)


def test_a_directory_of_many_blocks_is_read(module: ServerModule, tmp_path: Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number:0100}").touch()
    known = recorded(tmp_path)
    assert others(module, tmp_path, known) == set() and not known


def test_what_is_no_directory_is_an_error(module: ServerModule, directory: Path) -> None:
    fd = os.open(directory / "a", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        module.pass_unchanged(fd, {}, VERSION)
    os.close(fd)


# -- a small file ----------------------------------------------------------------------------------


def read(module: ServerModule, path: Path, limit: int = 1000) -> tuple[Seen, bytes, int] | None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = module.read_small(fd, os.fsencode(path.name), limit)
    finally:
        os.close(fd)
    return None if found is None else (Seen(*found[0]), *found[1:])


def test_a_small_file_comes_with_its_attributes(module: ServerModule, directory: Path) -> None:
    before = time.time_ns()
    found = read(module, directory / "a")
    assert found is not None
    seen, data, when = found
    assert data == b"a" and before <= when <= time.time_ns()
    real = os.stat(directory / "a")
    assert all(getattr(real, name) == getattr(seen, name) for name in Seen._fields)


def test_what_is_no_small_file_is_left(module: ServerModule, directory: Path) -> None:
    (directory / "large").write_bytes(bytes(1001))
    with open(directory / "sparse", "wb") as file:
        file.truncate(900)
    os.link(directory / "b", directory / "twin")
    (directory / "linked").symlink_to("a")
    os.setxattr(directory / "c", "user.name", b"value")
    for name in ("large", "sparse", "b", "linked", "c", "pipe", "inner", "absent"):
        assert read(module, directory / name) is None, name
    assert read(module, directory / "large", 1001) is not None


ATTACKER = """
import os, sys, time
path, = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
while True:
    os.fchmod(fd, 0o600)
    os.pwrite(fd, b"secret", 0)
    time.sleep(0.02)  # longer than a tick of the clock of files: a change shows in the times
    os.pwrite(fd, b"public", 0)
    os.fchmod(fd, 0o644)
"""


def test_what_is_written_for_fewer_never_comes_with_a_wider_mode(
    module: ServerModule, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"public")
    attacker = subprocess.Popen([sys.executable, "-c", ATTACKER, path])
    try:
        met = [read(module, path) for _ in range(20_000)]
    finally:
        attacker.kill()
        attacker.wait()
    found = [item for item in met if item is not None]
    assert found
    assert not [data for seen, data, _ in found if b"s" in data and seen.st_mode & 0o077]


# -- a page of LMDB's file -------------------------------------------------------------------------


@pytest.fixture
def leaves(tmp_path: Path) -> list[bytes]:
    """Leaves of a small store."""
    store = Store.create(tmp_path / "store")
    fs = Filesystem(store)
    for number in range(200):
        inode = fs.mknod(fs.head, ROOT_INO, b"name-%d" % number, 0o100644, 0, 0)
        fs.write(fs.head, inode.ino, 0, b"x" * number)
    fs.commit()
    store.close()
    data = (tmp_path / "store/data.mdb").read_bytes()
    found = [data[at : at + 4096] for at in range(8192, len(data), 4096)]
    return [page for page in found if page[10:12] == b"\x02\0" and _nodes(page)]


def _nodes(page: bytes) -> tuple[int, ...]:
    lower = int.from_bytes(page[12:14], "little")
    return tuple(int.from_bytes(page[at : at + 2], "little") for at in range(16, lower, 2))


def _in_python(page: bytes, end: int) -> pages.Ends | None:
    """As `Pages` asks: after it has looked at the head of the page."""
    lower, upper = (int.from_bytes(page[at : at + 2], "little") for at in (12, 14))
    nodes = _nodes(page) if lower <= 4096 else ()
    if not 16 < lower <= upper <= 4096 or lower % 2 or min(nodes) != upper or max(nodes) > 4088:
        return None
    return pages._sound_ends(page, nodes, True, end)


def test_both_find_the_same_keys_whatever_is_damaged(
    module: ServerModule, leaves: list[bytes]
) -> None:
    chosen = random.Random(1)
    assert sum(module.sound_ends(page, True, 4) is not None for page in leaves) > 10
    for page in leaves:
        for end in (0, 1, 4, 4096):
            assert module.sound_ends(page, True, end) == _in_python(page, end)
        for _ in range(200):
            other = bytearray(page)
            other[chosen.choice((chosen.randrange(4096), chosen.randrange(12, 80)))] ^= (
                1 << chosen.randrange(8)
            )
            expected = _in_python(bytes(other), 4)
            found = module.sound_ends(bytes(other), True, 4)
            # An odd place is left to Python, which goes by the sizes alone.
            assert found == expected or (found is None and any(n % 2 for n in _nodes(other)))


def test_a_page_of_another_size_has_none(module: ServerModule, leaves: list[bytes]) -> None:
    assert module.sound_ends(leaves[0][:512], True, 4) is None


@pytest.fixture
def grown(tmp_path: Path) -> bytes:
    """The data file of a store whose trees have branches."""
    store = Store.create(tmp_path / "grown")
    fs = Filesystem(store)
    for number in range(1_500):
        inode = fs.mknod(fs.head, ROOT_INO, b"name-%d" % number, 0o100644, 0, 0)
        fs.write(fs.head, inode.ino, 0, b"x" * (number % 200))
    fs.commit()
    store.close()
    return (tmp_path / "grown/data.mdb").read_bytes()


def _faults(path: Path, data: bytes) -> tuple[list[str], dict[bytes, set[bytes]]]:
    """What is wrong with a data file, and how the keys of its tables end."""
    path.write_bytes(data)
    ends: dict[bytes, set[bytes]] = {}

    def look(table: bytes, found: Iterator[bytes]) -> None:
        ends[table] = {end[-4:] for end in found}

    with closing(pages.Pages(path)) as opened:
        return opened.faults(look, {b"inodes", b"dirents", b"blockmap"}, 4), ends


def test_all_leaves_of_a_branch_at_once_have_the_same_faults(
    module: ServerModule, grown: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, path, at_once = random.Random(1), tmp_path / "file", []

    def noted(*args: Any) -> Any:
        at_once.append(module.sound_leaves(*args))
        return at_once[-1]

    for number in range(150):
        data = bytearray(grown)
        for _ in range(min(number, 3)):
            at = chosen.randrange(8192, len(data), 4096)
            data[at + chosen.choice((chosen.randrange(4096), chosen.randrange(80)))] ^= (
                1 << chosen.randrange(8)
            )
        monkeypatch.setattr(pages, "sound_leaves", noted)
        found = _faults(path, bytes(data))
        monkeypatch.setattr(pages, "sound_leaves", None)
        assert found == _faults(path, bytes(data))
    assert at_once[0] is not None and None in at_once


def test_leaves_behind_the_end_of_a_file_are_not_sound(module: ServerModule, grown: bytes) -> None:
    leaf = next(
        at // 4096 for at in range(8192, len(grown), 4096) if grown[at + 10 : at + 12] == b"\2\0"
    )
    with mmap.mmap(-1, len(grown)) as file:
        file[:] = grown
        assert module.sound_leaves(file, [leaf], [None, None], 4) is not None
        for numbers in ([len(grown) // 4096], [leaf, 2**40], [leaf - 1 if leaf > 2 else 1]):
            borders: list[bytes | None] = [None] * (len(numbers) + 1)
            assert module.sound_leaves(file, numbers, borders, 4) is None
        assert module.sound_leaves(file, [leaf], [None], 4) is None
        with pytest.raises(OverflowError):
            module.sound_leaves(file, [-1], [None, None], 4)
