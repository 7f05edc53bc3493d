"""Parts of files: holes that are made and found, room that is asked for, blocks that are shared."""

from __future__ import annotations

import errno
import os

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem, ranges
from ckptfs.fs.ranges import Spot
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, ROOT_INO, Attributes, Ino
from tests.direct import get, mkdir, put
from tests.support.effort import lines_of
from tests.support.errnos import fails

B = BLOCK_SIZE
PATTERN = bytes(range(1, 252)) * 2_000
DATA = PATTERN[: 4 * B + 100]


def whole(fs: Filesystem, ino: Ino) -> bytes:
    return bytes(fs.read(fs.head, ino, 0, FILE_SIZE_MAX))


def allocated(fs: Filesystem, ino: Ino) -> int:
    return fs.getattr(fs.head, ino).allocated


def stamps(fs: Filesystem, ino: Ino) -> tuple[int, int]:
    inode = fs.getattr(fs.head, ino)
    return inode.mtime_ns, inode.ctime_ns


def copy(
    fs: Filesystem, source: Ino, target: Ino, offset: int = 0, place: int = 0, length: int = 1 << 41
) -> int:
    return fs.copy_range(Spot(fs.head, source, offset), Spot(fs.head, target, place), length)


# -- holes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "start, stop",
    [(0, 1), (0, B), (B, 3 * B), (5, 10), (B - 1, B + 1), (10, 3 * B + 7), (3 * B, 9 * B)],
)
def test_a_hole_is_zeros_that_take_no_room(
    fs: Filesystem, start: int, stop: int, sealed: bool
) -> None:
    ino = put(fs, b"file", DATA)
    if sealed:
        history.seal(fs, "manual", "", 0)
    before = stamps(fs, ino)
    fs.punch(fs.head, ino, start, stop - start)
    end = min(stop, len(DATA))
    assert whole(fs, ino) == DATA[:start] + bytes(end - start) + DATA[end:]
    whole_blocks = sum(start <= n * B and min((n + 1) * B, len(DATA)) <= stop for n in range(5))
    assert allocated(fs, ino) <= len(DATA) - (whole_blocks - 1) * B
    assert all(now > then for now, then in zip(stamps(fs, ino), before, strict=True))


def test_a_hole_behind_the_end_changes_no_size_unless_it_is_to(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    fs.punch(fs.head, ino, 100, 50)
    assert whole(fs, ino) == b"data"
    fs.punch(fs.head, ino, 2, 8, keep_size=False)
    assert whole(fs, ino) == b"da" + bytes(8)


def test_a_hole_is_punched_in_a_partial_block(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"")
    fs.write(fs.head, ino, 10, b"gathered")
    fs.punch(fs.head, ino, 12, 2)
    assert whole(fs, ino) == bytes(10) + b"ga\0\0ered"


def test_a_checkpoint_keeps_what_was_punched(fs: Filesystem) -> None:
    ino = put(fs, b"file", DATA)
    view = fs.head
    history.seal(fs, "manual", "", 0)
    fs.punch(fs.head, ino, 0, 2 * B)
    assert bytes(fs.read(view, ino, 0, len(DATA))) == DATA
    with fails(errno.EROFS):
        fs.punch(view, ino, 0, 1)


def test_the_next_data_and_the_next_hole_are_found(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"")
    fs.write(fs.head, ino, 2 * B, b"x" * 10)
    fs.write(fs.head, ino, 3 * B, b"y" * B)
    fs.setattr(fs.head, ino, Attributes(size=6 * B))
    found = [fs.seek_data(fs.head, ino, at) for at in (0, 2 * B + 3, 2 * B + 10, 3 * B + 1)]
    assert found == [2 * B, 2 * B + 3, 3 * B, 3 * B + 1]
    holes = [fs.seek_hole(fs.head, ino, at) for at in (0, 7, 2 * B, 3 * B, 5 * B)]
    assert holes == [0, 7, 2 * B + 10, 4 * B, 5 * B]
    with fails(errno.ENXIO):
        fs.seek_data(fs.head, ino, 4 * B)
    for seek in (fs.seek_data, fs.seek_hole):
        with fails(errno.ENXIO):
            seek(fs.head, ino, 6 * B)


def test_a_file_without_holes_has_one_at_its_end(fs: Filesystem) -> None:
    ino = put(fs, b"file", DATA)
    assert fs.seek_hole(fs.head, ino, 5) == len(DATA)
    assert fs.seek_data(fs.head, ino, B + 1) == B + 1


# -- room ------------------------------------------------------------------------------------------


def test_asking_for_room_makes_the_file_long_enough(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    fs.allocate(fs.head, ino, 2, 98, keep_size=False)
    assert whole(fs, ino) == b"data" + bytes(96)
    fs.allocate(fs.head, ino, 0, 1_000, keep_size=True)
    fs.allocate(fs.head, ino, 0, 10, keep_size=False)
    assert len(whole(fs, ino)) == 100
    assert allocated(fs, ino) == 4


def test_room_that_the_disk_does_not_have(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    with fails(errno.ENOSPC):
        fs.allocate(fs.head, ino, 0, fs.store.free_bytes() + (1 << 30), keep_size=False)
    assert whole(fs, ino) == b"data"


def test_room_for_what_is_there_already_is_not_needed_again(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    ino = put(fs, b"file", DATA)
    monkeypatch.setattr(fs.store, "free_bytes", lambda: len(DATA) // 2 + fs.store.dirty_bytes)
    fs.allocate(fs.head, ino, 0, len(DATA), keep_size=False)
    with fails(errno.ENOSPC):
        fs.allocate(fs.head, ino, 0, 2 * len(DATA), keep_size=False)
    assert whole(fs, ino) == DATA


@pytest.mark.parametrize("change", ["allocate", "punch"])
def test_ranges_that_no_file_has_are_refused(fs: Filesystem, change: str) -> None:
    ino, directory = put(fs, b"file", b"data"), mkdir(fs, b"dir")
    for offset, length, number in (
        (-1, 5, errno.EINVAL),
        (0, 0, errno.EINVAL),
        (FILE_SIZE_MAX, 1, errno.EFBIG),
    ):
        with fails(number):
            getattr(fs, change)(fs.head, ino, offset, length, keep_size=False)
    with fails(errno.EISDIR):
        getattr(fs, change)(fs.head, directory, 0, 1, keep_size=True)
    assert whole(fs, ino) == b"data"


def test_all_that_follows_may_become_a_hole(fs: Filesystem) -> None:
    ino = put(fs, b"file", DATA)
    fs.punch(fs.head, ino, 5, 2**63 - 6)
    assert whole(fs, ino) == DATA[:5] + bytes(len(DATA) - 5)


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1_920, 1_921, B - 1, B, B + 1, 4 * B + 100])
def test_a_copy_shares_all_blocks(fs: Filesystem, size: int) -> None:
    source, target = put(fs, b"one", DATA[:size]), put(fs, b"other", b"")
    fs.commit()
    blocks = fs.store.blocks.count()
    assert copy(fs, source, target) == size
    assert whole(fs, target) == DATA[:size]
    assert allocated(fs, target) == size
    assert fs.store.blocks.count() == blocks


def test_what_is_shared_is_not_changed_for_both(fs: Filesystem) -> None:
    source, target = put(fs, b"one", DATA), put(fs, b"other", b"")
    copy(fs, source, target)
    fs.write(fs.head, target, B + 5, b"changed")
    assert whole(fs, source) == DATA
    fs.unlink(fs.head, ROOT_INO, b"one")
    assert whole(fs, target) == DATA[: B + 5] + b"changed" + DATA[B + 12 :]


@pytest.mark.parametrize(
    "offset, place, length",
    [
        (0, 0, 10),
        (0, 0, B),
        (B, 0, B + 7),
        (B, 2 * B, 2 * B),
        (5, 5, 3 * B),
        (5, 0, 3 * B),
        (0, 7, 2 * B),
        (4 * B, 4 * B, 100),
        (4 * B, 3 * B, 1_000),
        (0, 9 * B, B),
    ],
)
def test_a_part_is_copied_into_a_file_that_has_bytes(
    fs: Filesystem, offset: int, place: int, length: int
) -> None:
    other = PATTERN[1 : 5 * B]
    source, target = put(fs, b"one", DATA), put(fs, b"other", other)
    piece = DATA[offset : offset + length]
    assert copy(fs, source, target, offset, place, length) == len(piece)
    before = other[:place] + bytes(max(place - len(other), 0))
    assert whole(fs, target) == before + piece + other[place + len(piece) :]
    assert whole(fs, source) == DATA


def test_holes_are_copied_as_holes(fs: Filesystem) -> None:
    source, target = put(fs, b"one", b""), put(fs, b"other", DATA)
    fs.write(fs.head, source, 2 * B, b"x" * B)
    fs.setattr(fs.head, source, Attributes(size=4 * B))
    assert copy(fs, source, target) == 4 * B
    assert whole(fs, target) == bytes(2 * B) + b"x" * B + bytes(B) + DATA[4 * B :]
    assert allocated(fs, target) == B + 100


def test_a_file_that_is_all_hole_is_copied_without_bytes(fs: Filesystem) -> None:
    source, target = put(fs, b"one", b""), put(fs, b"other", b"")
    fs.setattr(fs.head, source, Attributes(size=3 * B + 5))
    assert copy(fs, source, target) == 3 * B + 5
    assert whole(fs, target) == bytes(3 * B + 5)
    assert allocated(fs, target) == 0


def test_a_partial_block_is_copied_into_a_partial_block(fs: Filesystem) -> None:
    source, target = put(fs, b"one", b""), put(fs, b"other", b"")
    fs.write(fs.head, source, 0, b"gathered")
    fs.write(fs.head, target, 3, b"too")
    assert copy(fs, source, target) == 8
    assert whole(fs, target) == b"gathered"


def test_a_part_is_copied_within_a_file(fs: Filesystem) -> None:
    ino = put(fs, b"file", DATA)
    assert copy(fs, ino, ino, 0, 2 * B, B) == B
    assert whole(fs, ino) == DATA[: 2 * B] + DATA[:B] + DATA[3 * B :]


def test_a_part_is_copied_out_of_a_checkpoint(fs: Filesystem) -> None:
    ino = put(fs, b"file", DATA)
    view = fs.head
    history.seal(fs, "manual", "", 0)
    fs.write(fs.head, ino, 0, os.urandom(len(DATA)))
    target = put(fs, b"back", b"")
    assert fs.copy_range(Spot(view, ino, 0), Spot(fs.head, target, 0), len(DATA)) == len(DATA)
    assert get(fs, b"back") == DATA
    with fails(errno.EROFS):
        fs.copy_range(Spot(fs.head, target, 0), Spot(view, ino, 0), 1)


@pytest.mark.parametrize("shift", [0, 7])
def test_much_is_copied_in_steps(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    monkeypatch.setattr(ranges, "EFFORT_MAX", 1)
    source, target = put(fs, b"one", DATA), put(fs, b"other", b"")
    done, steps = 0, 0
    while step := copy(fs, source, target, done, done + shift):
        done, steps = done + step, steps + 1
    assert (done, steps) == (len(DATA), 5)
    assert whole(fs, target) == bytes(shift) + DATA


def test_a_hole_of_a_tebibyte_is_one_step(fs: Filesystem) -> None:
    source, target = put(fs, b"one", b"first"), put(fs, b"other", b"")
    fs.write(fs.head, source, 1 << 40, b"last")
    effort = lines_of(lambda: copy(fs, source, target))
    assert effort < 3_000
    assert fs.read(fs.head, target, 1 << 40, 9) == b"last"
    assert fs.getattr(fs.head, target).size == (1 << 40) + 4
    assert fs.read(fs.head, target, 0, 9) == b"first" + bytes(4)


def test_copies_that_cannot_be(fs: Filesystem) -> None:
    source, target = put(fs, b"one", b"data"), put(fs, b"other", b"kept")
    assert copy(fs, source, target, 4) == 0
    with fails(errno.EINVAL):
        copy(fs, source, target, -1)
    with fails(errno.EFBIG):
        copy(fs, source, target, 0, FILE_SIZE_MAX)
    with fails(errno.EISDIR):
        copy(fs, mkdir(fs, b"dir"), target)
    assert whole(fs, target) == b"kept"
