"""The parts that the passes are made of: records, digests, the way down."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.sync import lower
from ckptfs.sync.content import Digest, data_ranges, digest_lower, digest_of_one
from ckptfs.sync.ledger import (
    RACY_NS,
    SIGNATURE_SIZE,
    STORED_SLICE,
    agreement,
    decode,
    encode,
    ino_of,
    is_directory,
    seen_again,
    signature,
    stored,
)
from ckptfs.sync.lower import Descent
from tests.sync.pair import Pair

# -- records ---------------------------------------------------------------------------------------


def test_a_record_is_decoded_as_it_was_encoded(pair: Pair) -> None:
    pair.plant({"f": "x", "d": {}})
    for name, digest in (("f", b"d" * 16), ("d", b"")):
        seen = os.lstat(pair.lower / name)
        inode = pair.mkdir(name) if name == "d" else pair.write(name, "x")
        for xattrs in (b"", b"x" * 8):
            value = agreement(seen, inode, digest=digest, xattrs=xattrs)
            record = decode(value)
            assert record is not None and encode(record) == value
            assert (record.digest, record.xattrs) == (digest, xattrs)
            assert record.matches(seen) and record.is_of(inode) and not record.doubtful
            assert record.is_dir == is_directory(value) == (name == "d")
            assert ino_of(value) == inode.ino
            assert value[:SIGNATURE_SIZE] == signature(seen)
            assert value[STORED_SLICE] == stored(inode)


def test_a_record_matches_nothing_but_its_entry(pair: Pair) -> None:
    pair.plant({"f": "x"})
    seen = os.lstat(pair.lower / "f")
    inode = pair.write("f", "x")
    dirty = decode(agreement(seen, inode, digest=b"d" * 16, clean=False))
    assert dirty is not None and dirty.matches(seen) and not dirty.is_of(inode)
    assert not dirty._replace(ino=Ino(99)).is_of(inode)
    record = decode(seen_again(dirty, os.lstat(pair.lower), xattrs=b""))
    assert record is not None and record.ino == inode.ino and record.is_dir


def test_recent_changes_are_doubtful(pair: Pair) -> None:
    pair.plant({"f": "x"})
    seen = os.lstat(pair.lower / "f")
    inode = pair.write("f", "x")
    for age, doubtful in ((0, True), (RACY_NS - 1, True), (RACY_NS, False)):
        value = agreement(seen, inode, digest=b"d" * 16, now_ns=seen.st_ctime_ns + age)
        record = decode(value)
        assert record is not None and record.doubtful is doubtful
        assert (value[:SIGNATURE_SIZE] == signature(seen)) is not doubtful
        assert encode(record) == value


def test_records_of_a_later_version_are_no_agreement() -> None:
    assert decode(b"") is None
    assert decode(b"\x02" + b"x" * 200) is None


# -- digests ---------------------------------------------------------------------------------------


def written(path: Path, data: bytes) -> tuple[int, os.stat_result]:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    return fd, os.fstat(fd)


def test_holes_and_zeros_are_the_same(tmp_path: Path) -> None:
    fd, seen = written(tmp_path / "zeros", bytes(3 * BLOCK_SIZE) + b"x")
    other = tmp_path / "hole"
    with other.open("wb") as file:
        file.seek(3 * BLOCK_SIZE)
        file.write(b"x")
    hole = os.open(other, os.O_RDONLY)
    try:
        assert digest_lower(fd, seen) == digest_lower(hole, os.fstat(hole))
    finally:
        os.close(fd)
        os.close(hole)


def test_digests_tell_sizes_and_places_apart() -> None:
    a, b = b"a" * BLOCK_SIZE, b"b" * BLOCK_SIZE
    cases = [(a, b), (b, a), (a,), (a, a), (a, bytes(BLOCK_SIZE)), (a, bytes(1)), ()]
    digests = set()
    for blocks in cases:
        digest = Digest(sum(map(len, blocks)))
        for number, data in enumerate(blocks):
            digest.add(number, data)
        digests.add(digest.value())
    assert len(digests) == len(cases)
    assert digest_of_one(b"") != digest_of_one(b"\0") != digest_of_one(b"\0\0")


def test_the_data_ranges_of_a_sparse_file_are_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(100 * BLOCK_SIZE + 7)
        for offset in (0, 10 * BLOCK_SIZE - 1, 50 * BLOCK_SIZE + 9, 100 * BLOCK_SIZE):
            file.seek(offset)
            file.write(b"x")
    fd = os.open(path, os.O_RDONLY)
    try:
        ranges = list(data_ranges(fd, os.fstat(fd)))
    finally:
        os.close(fd)
    covered = {
        n for start, end in ranges for n in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE))
    }
    assert {0, 9, 50, 100} <= covered and len(covered) < 20
    assert ranges[-1][1] == 100 * BLOCK_SIZE + 7
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))


# -- the way down ----------------------------------------------------------------------------------


def test_a_deep_descent_closes_directories_and_finds_the_way_back(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(10):
        path = path / "d"
    path.mkdir(parents=True)
    root = os.open(tmp_path, os.O_RDONLY)
    down = Descent(root, limit=3)
    try:
        for _ in range(10):
            down.enter(b"d")
        assert sum(fd is not None for fd in down._fds) <= 4
        for depth in range(9, -1, -1):
            down.leave()
            assert os.fstat(down.fd).st_ino == os.stat(tmp_path / "/".join("d" * depth)).st_ino
    finally:
        down.close()
        os.close(root)


def test_a_descent_notices_a_directory_that_was_moved(tmp_path: Path) -> None:
    (tmp_path / "a/b/c/d/e").mkdir(parents=True)
    root = os.open(tmp_path, os.O_RDONLY)
    down = Descent(root, limit=2)
    try:
        for name in (b"a", b"b", b"c", b"d"):
            down.enter(name)
        os.rename(tmp_path / "a/b/c", tmp_path / "away")
        down.leave()
        with pytest.raises(OSError, match="moved"):
            down.leave()
    finally:
        down.close()
        os.close(root)


@pytest.mark.parametrize("what", ["open_directory", "open_file", "read_small"])
def test_a_link_swapped_in_leads_nowhere(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Between the look and the opening, someone puts a link to the outside in the place."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    pair.plant({"d": {"secret": "mine"}, "f": "mine"})
    opened = getattr(lower, what)
    if what == "open_file":
        monkeypatch.setattr(lower, "read_small", None)  # it opens by itself

    def swap(dir_fd: int, name: bytes, *args: int) -> object:
        target = outside if what == "open_directory" else outside / "secret"
        os.rename(name, tmp_path / f"aside-{os.fsdecode(name)}", src_dir_fd=dir_fd)
        os.symlink(target, name, dir_fd=dir_fd)
        return opened(dir_fd, name, *args)

    monkeypatch.setattr(lower, what, swap)
    result = pair.scan()
    assert b"s" not in {entry.content for entry in pair.stored().values()}
    assert result.skipped
    monkeypatch.undo()
    pair.scan()
    pair.assert_equal()


def test_a_record_that_was_cut_short_is_no_agreement() -> None:
    """Found by fuzzing. Without one, nothing is deleted and nothing overwritten unseen."""
    for length in range(60):
        assert decode(b"\x01" + bytes(length)) is None
