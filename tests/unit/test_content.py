"""The bytes of files: block borders, holes, cutting and growing, and partial blocks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fs.buffers import PARTIAL_MAX
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, ROOT_INO, Attributes, Ino
from ckptfs.store import check
from ckptfs.store.format import INLINE_MAX, block_entity
from tests.direct import Life, find, get, mkdir, put
from tests.support.errnos import fails

#: Where things may go wrong by one.
BORDERS = [
    border + difference
    for border in (INLINE_MAX, BLOCK_SIZE, 2 * BLOCK_SIZE)
    for difference in (-1, 0, 1)
]
PATTERN = bytes(range(1, 252)) * 2_000


def truncate(fs: Filesystem, ino: Ino, size: int) -> None:
    fs.setattr(fs.head, ino, Attributes(size=size))


def whole(fs: Filesystem, ino: Ino) -> bytes:
    return bytes(fs.read(fs.head, ino, 0, FILE_SIZE_MAX))


def extents(fs: Filesystem, ino: Ino) -> list[tuple[int, int]]:
    return list(fs.extents(fs.head, ino))


def allocated(fs: Filesystem, ino: Ino) -> int:
    return fs.getattr(fs.head, ino).allocated


# -- reading and writing ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, *BORDERS, 5 * BLOCK_SIZE + 7])
def test_what_is_written_is_read(fs: Filesystem, size: int) -> None:
    ino = put(fs, b"file", PATTERN[:size])
    assert whole(fs, ino) == PATTERN[:size]
    assert fs.getattr(fs.head, ino).size == allocated(fs, ino) == size
    fs.commit()
    assert whole(fs, ino) == PATTERN[:size]
    assert check(fs.store) == []


@pytest.mark.parametrize("offset", [0, 1, *BORDERS])
@pytest.mark.parametrize("size", [1, 2, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_an_overwrite_changes_only_its_range(fs: Filesystem, offset: int, size: int) -> None:
    ino = put(fs, b"file", PATTERN[: 3 * BLOCK_SIZE])
    piece = b"\xff" * size
    assert fs.write(fs.head, ino, offset, piece) == size
    wanted = bytearray(PATTERN[: 3 * BLOCK_SIZE])
    wanted[offset : offset + size] = piece
    assert whole(fs, ino) == wanted


@pytest.mark.parametrize("start", [0, 1, *BORDERS])
@pytest.mark.parametrize("size", [1, BLOCK_SIZE, 2 * BLOCK_SIZE])
def test_a_read_of_a_range_is_exact(fs: Filesystem, start: int, size: int) -> None:
    data = PATTERN[: 2 * BLOCK_SIZE + 10]
    ino = put(fs, b"file", data)
    assert fs.read(fs.head, ino, start, size) == data[start : start + size]


def test_a_read_at_or_behind_the_end_gives_nothing(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    assert fs.read(fs.head, ino, 4, 10) == b""
    assert fs.read(fs.head, ino, 2**60, 10) == b""
    assert fs.read(fs.head, ino, 2, 0) == b""
    assert fs.read(fs.head, put(fs, b"empty"), 0, 10) == b""


def test_bytes_of_any_kind_are_taken_and_copied(fs: Filesystem) -> None:
    """The caller may use its buffer again at once."""
    buffer = bytearray(PATTERN[: BLOCK_SIZE + 100])
    ino = put(fs, b"file")
    fs.write(fs.head, ino, 0, memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert whole(fs, ino) == PATTERN[: BLOCK_SIZE + 100]


def test_a_long_append_in_small_pieces_is_whole(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    data = PATTERN[: 2 * BLOCK_SIZE + 500]
    for position in range(0, len(data), 777):
        fs.write(fs.head, ino, position, data[position : position + 777])
    assert whole(fs, ino) == data and allocated(fs, ino) == len(data)


def test_writes_from_the_end_to_the_beginning_are_whole(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    data = PATTERN[: 2 * BLOCK_SIZE + 500]
    for position in reversed(range(0, len(data), 7_777)):
        fs.write(fs.head, ino, position, data[position : position + 7_777])
    assert whole(fs, ino) == data


def test_two_ends_of_a_file_are_written_in_turn(fs: Filesystem) -> None:
    """Each write is to another block than the partial one."""
    ino = put(fs, b"file")
    for n in range(20):
        fs.write(fs.head, ino, n, b"a")
        fs.write(fs.head, ino, 2 * BLOCK_SIZE + n, b"b")
    assert whole(fs, ino) == (b"a" * 20).ljust(2 * BLOCK_SIZE, b"\0") + b"b" * 20
    assert extents(fs, ino) == [(0, 20), (2 * BLOCK_SIZE, 20)]


def test_writing_nothing_does_nothing(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    before = fs.getattr(fs.head, ino)
    assert fs.write(fs.head, ino, 1_000, b"") == 0
    assert fs.getattr(fs.head, ino) == before


def test_what_has_no_bytes_is_neither_read_nor_written(fs: Filesystem) -> None:
    directory = mkdir(fs, b"dir")
    pipe = fs.mknod(fs.head, ROOT_INO, b"pipe", 0o010644, 0, 0).ino
    link = fs.symlink(fs.head, ROOT_INO, b"link", b"to", 0, 0).ino
    for ino, number in ((directory, errno.EISDIR), (pipe, errno.EINVAL), (link, errno.EINVAL)):
        with fails(number):
            fs.write(fs.head, ino, 0, b"data")
        with fails(number):
            fs.read(fs.head, ino, 0, 1)
        with fails(number):
            truncate(fs, ino, 0)
    for use in (lambda: fs.write(fs.head, Ino(99), 0, b"x"), lambda: whole(fs, Ino(99))):
        with fails(errno.ESTALE):
            use()


# -- large offsets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [2**32 - 2, 2**32, 2**40 + 3, FILE_SIZE_MAX - 4])
def test_bytes_far_out_leave_a_hole_before_them(fs: Filesystem, offset: int) -> None:
    ino = put(fs, b"file", b"near")
    fs.write(fs.head, ino, offset, b"far!")
    assert fs.getattr(fs.head, ino).size == offset + 4
    assert fs.read(fs.head, ino, offset, 10) == b"far!"
    assert fs.read(fs.head, ino, offset - 10, 12) == bytes(10) + b"fa"
    assert fs.read(fs.head, ino, 0, 10) == b"near" + bytes(6)
    # A block is stored from its beginning, so the zeros before the bytes in it are, too.
    assert allocated(fs, ino) == 4 + offset % BLOCK_SIZE + 4


def test_bytes_too_far_out_are_refused(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    before = fs.getattr(fs.head, ino)
    for offset in (FILE_SIZE_MAX, FILE_SIZE_MAX - 3, 2**63 - 1):
        with fails(errno.EFBIG):
            fs.write(fs.head, ino, offset, b"data")
    with fails(errno.EFBIG):
        truncate(fs, ino, FILE_SIZE_MAX + 1)
    for number in (-1, -(2**40)):
        with fails(errno.EINVAL):
            fs.write(fs.head, ino, number, b"data")
        with fails(errno.EINVAL):
            truncate(fs, ino, number)
    assert fs.getattr(fs.head, ino) == before
    truncate(fs, ino, FILE_SIZE_MAX)
    assert fs.getattr(fs.head, ino).size == FILE_SIZE_MAX and allocated(fs, ino) == 4


# -- holes -----------------------------------------------------------------------------------------


def test_holes_stay_holes(life: Life) -> None:
    fs = life.fs
    ino = put(fs, b"file")
    fs.write(fs.head, ino, 10 * BLOCK_SIZE, b"x" * BLOCK_SIZE)
    truncate(fs, ino, 100 * BLOCK_SIZE)
    for _ in range(2):
        assert extents(fs, ino) == [(10 * BLOCK_SIZE, BLOCK_SIZE)]
        assert allocated(fs, ino) == BLOCK_SIZE
        assert fs.read(fs.head, ino, 9 * BLOCK_SIZE, BLOCK_SIZE) == bytes(BLOCK_SIZE)
        assert fs.read(fs.head, ino, 99 * BLOCK_SIZE, 2 * BLOCK_SIZE) == bytes(BLOCK_SIZE)
        fs = life.reopen()


def test_a_file_that_is_all_hole_reads_as_zeros(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    truncate(fs, ino, 3 * BLOCK_SIZE + 5)
    assert whole(fs, ino) == bytes(3 * BLOCK_SIZE + 5)
    assert extents(fs, ino) == [] and allocated(fs, ino) == 0
    fs.write(fs.head, ino, BLOCK_SIZE + 3, b"x")
    assert extents(fs, ino) == [(BLOCK_SIZE, 4)] and allocated(fs, ino) == 4


def test_extents_end_with_the_file(fs: Filesystem) -> None:
    ino = put(fs, b"file", PATTERN[: 2 * BLOCK_SIZE + 5])
    assert extents(fs, ino) == [
        (0, BLOCK_SIZE),
        (BLOCK_SIZE, BLOCK_SIZE),
        (2 * BLOCK_SIZE, 5),
    ]
    assert extents(fs, put(fs, b"empty")) == []


# -- cutting and growing ---------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True], ids=["one epoch", "two epochs"])
@pytest.mark.parametrize("size", [0, 1, *BORDERS])
def test_what_is_cut_off_is_zero_when_it_comes_back(
    fs: Filesystem, size: int, sealed: bool
) -> None:
    data = PATTERN[: 2 * BLOCK_SIZE + 100]
    ino = put(fs, b"file", data)
    if sealed:
        checkpoint = history.seal(fs, "manual", "", 0)
    truncate(fs, ino, size)
    assert whole(fs, ino) == data[:size] and allocated(fs, ino) == size
    truncate(fs, ino, len(data))
    assert whole(fs, ino) == data[:size].ljust(len(data), b"\0")
    assert allocated(fs, ino) == size
    fs.write(fs.head, ino, len(data) - 1, b"!")
    assert whole(fs, ino) == data[:size].ljust(len(data) - 1, b"\0") + b"!"
    if sealed:
        assert get(fs, b"file", fs.view_of(checkpoint.epoch)) == data


def test_emptying_takes_a_new_content(fs: Filesystem) -> None:
    """A large file is emptied without a tombstone for every block."""
    ino = put(fs, b"file", PATTERN[: 5 * BLOCK_SIZE])
    history.seal(fs, "manual", "", 0)
    old = fs.getattr(fs.head, ino).content
    truncate(fs, ino, 0)
    assert list(fs.store.changes.walk(fs.head.epoch, b"b")) == []
    fs.write(fs.head, ino, 0, b"new" * 1_000)
    assert fs.getattr(fs.head, ino).content != old
    assert whole(fs, ino) == b"new" * 1_000


def test_cutting_frees_blocks(fs: Filesystem) -> None:
    ino = put(fs, b"file", os.urandom(4 * BLOCK_SIZE))
    truncate(fs, ino, 2 * BLOCK_SIZE)
    assert len(list(fs.store.blocks.keys())) == 2
    truncate(fs, ino, INLINE_MAX)
    assert list(fs.store.blocks.keys()) == []


# -- partial blocks --------------------------------------------------------------------------------

Use = Callable[[Filesystem, Ino], object]

#: Everything that must not miss a short write that still waits in memory.
USES: dict[str, Use] = {
    "read": lambda fs, ino: fs.read(fs.head, ino, 0, 1),
    "getattr": lambda fs, ino: fs.getattr(fs.head, ino),
    "lookup": lambda fs, ino: fs.lookup(fs.head, ROOT_INO, b"file"),
    "entries": lambda fs, ino: list(fs.entries(fs.head, ROOT_INO)),
    "extents": lambda fs, ino: list(fs.extents(fs.head, ino)),
    "setattr": lambda fs, ino: fs.setattr(fs.head, ino, Attributes(mode=0o600)),
    "truncate up": lambda fs, ino: truncate(fs, ino, 10 * BLOCK_SIZE),
    "link": lambda fs, ino: fs.link(fs.head, ino, ROOT_INO, b"link"),
    "rename": lambda fs, ino: fs.rename(fs.head, ROOT_INO, b"file", ROOT_INO, b"new"),
    "unlink another": lambda fs, ino: fs.unlink(fs.head, ROOT_INO, b"other"),
    "setxattr": lambda fs, ino: fs.setxattr(fs.head, ino, b"user.a", b""),
    "a block elsewhere": lambda fs, ino: fs.write(fs.head, ino, 5 * BLOCK_SIZE, PATTERN[:10]),
    "a whole block": lambda fs, ino: fs.write(fs.head, ino, BLOCK_SIZE, PATTERN[:BLOCK_SIZE]),
    "flush": lambda fs, ino: fs.flush(),
    "commit": lambda fs, ino: fs.commit(),
    "seal": lambda fs, ino: history.seal(fs, "manual", "", 0),
}


@pytest.fixture(params=sorted(USES))
def use(request: pytest.FixtureRequest) -> Use:
    return USES[request.param]


def _partial(fs: Filesystem, before: bytes) -> Ino:
    """A file with a short write in memory, on top of what was committed."""
    put(fs, b"other", b"other")
    ino = put(fs, b"file", before)
    fs.commit()
    fs.write(fs.head, ino, 3, b"gathered")
    assert ino in fs.partial
    return ino


@pytest.mark.parametrize("before", [b"", b"old" * 100, PATTERN[:BLOCK_SIZE]])
def test_bytes_of_a_partial_block_are_never_missed(life: Life, use: Use, before: bytes) -> None:
    fs = life.fs
    ino = _partial(fs, before)
    use(fs, ino)
    wanted = before[:3].ljust(3, b"\0") + b"gathered"
    assert whole(fs, ino)[:11] == wanted
    fs.commit()
    assert check(fs.store) == []
    fs = life.reopen()
    assert whole(fs, ino)[:11] == wanted
    assert whole(fs, ino)[11 : len(before)] == before[11:]


def test_bytes_of_a_partial_block_that_are_cut_off_are_gone(fs: Filesystem) -> None:
    ino = _partial(fs, b"")
    truncate(fs, ino, 5)
    truncate(fs, ino, 20)
    assert whole(fs, ino) == b"\0\0\0ga" + bytes(15)
    fs.write(fs.head, ino, 10, b"more")
    truncate(fs, ino, 0)
    assert whole(fs, ino) == b"" and allocated(fs, ino) == 0


@pytest.mark.parametrize("held", [False, True])
def test_a_partial_block_goes_with_its_file(fs: Filesystem, held: bool) -> None:
    ino = _partial(fs, b"old" * 1_000)
    if held:
        fs.hold(ino)
    fs.unlink(fs.head, ROOT_INO, b"file")
    if held:
        assert whole(fs, ino)[3:11] == b"gathered"
        fs.write(fs.head, ino, 0, b"again")
        fs.drop(ino)
    assert ino not in fs.partial
    fs.commit()
    assert list(fs.store.blocks.keys()) == []


def test_a_partial_block_goes_with_a_file_that_is_replaced(fs: Filesystem) -> None:
    ino = _partial(fs, b"old")
    fs.rename(fs.head, ROOT_INO, b"other", ROOT_INO, b"file")
    assert ino not in fs.partial
    assert get(fs, b"file") == b"other"


def test_a_partial_block_that_is_written_whole(fs: Filesystem) -> None:
    ino = _partial(fs, b"")
    fs.write(fs.head, ino, 0, PATTERN[:BLOCK_SIZE])
    assert whole(fs, ino) == PATTERN[:BLOCK_SIZE] and allocated(fs, ino) == BLOCK_SIZE


def test_more_partial_blocks_can_be_written_than_the_buffer_holds(fs: Filesystem) -> None:
    many = PARTIAL_MAX + 20
    inos = [put(fs, b"%d" % n) for n in range(many)]
    for turn in range(3):
        for n, ino in enumerate(inos):
            fs.write(fs.head, ino, turn * 2, b"%02d" % (n % 100))
        assert len(fs.partial) <= PARTIAL_MAX
    for n, ino in enumerate(inos):
        assert whole(fs, ino) == b"%02d" % (n % 100) * 3


@pytest.mark.parametrize("before", [b"", PATTERN[:100]])
def test_a_write_that_fails_between_two_blocks_is_written_up_to_there(
    fs: Filesystem, before: bytes
) -> None:
    """To make room, another file's block is stored whose record is damaged. What is opened for a
    write that fails must not be in the way of the next one."""
    others = [put(fs, b"%d" % n, PATTERN[:5_000]) for n in range(PARTIAL_MAX)]
    ino = put(fs, b"file", before)
    entity = block_entity(fs.getattr(fs.head, others[1]).content, 0)
    fs.commit()
    record = fs.store.blockmap.get(fs.head, entity)
    assert record is not None
    for other in others:
        fs.write(fs.head, other, 10, b"more")
    fs.store.blockmap.put_unlisted(fs.head, entity, b"damaged")
    with fails(errno.EIO):
        fs.write(fs.head, ino, BLOCK_SIZE - 5, PATTERN[:20])
    fs.store.blockmap.put_unlisted(fs.head, entity, record)
    # A file that had bytes was looked at first, and the write was refused.
    wanted = bytearray(before or bytes(BLOCK_SIZE - 5) + PATTERN[:5])
    assert whole(fs, ino) == wanted
    fs.write(fs.head, ino, 2, b"again")
    wanted[2:7] = b"again"
    fs.commit()
    assert whole(fs, ino) == wanted
    assert check(fs.store) == []


def test_a_block_that_is_filled_in_order_is_stored_at_once(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    for start in range(0, BLOCK_SIZE, 16_384):
        fs.write(fs.head, ino, start, PATTERN[:16_384])
    assert ino not in fs.partial


def test_a_block_that_is_written_here_and_there_waits(fs: Filesystem) -> None:
    ino = put(fs, b"file", bytes(BLOCK_SIZE))
    for start in (0, 49_152):
        fs.write(fs.head, ino, start, PATTERN[:16_384])
    assert ino in fs.partial
    assert whole(fs, ino) == PATTERN[:16_384] + bytes(32_768) + PATTERN[:16_384]


def test_bytes_that_are_written_again_before_they_are_stored_count_once(fs: Filesystem) -> None:
    ino = put(fs, b"file", bytes(BLOCK_SIZE))
    fs.write(fs.head, ino, 8_192, bytes(8_192))
    before = fs.store.dirty_bytes
    for _ in range(100):
        fs.write(fs.head, ino, 12_288, PATTERN[:4_096])
    assert fs.store.dirty_bytes < before + 100 * 4_096
    fs.write(fs.head, ino, 20_480, PATTERN[:4_096])
    assert fs.store.dirty_bytes > before + 4_096
    assert whole(fs, ino)[12_288:16_384] == PATTERN[:4_096]


def test_a_checkpoint_does_not_see_what_is_written_after_it(fs: Filesystem) -> None:
    ino = _partial(fs, b"")
    checkpoint = history.seal(fs, "manual", "", 0)
    fs.write(fs.head, ino, 3, b"later on")
    view = fs.view_of(checkpoint.epoch)
    assert fs.read(view, ino, 0, 100) == b"\0\0\0gathered"
    assert fs.getattr(view, ino).allocated == 11
    assert whole(fs, ino) == b"\0\0\0later on"


def test_reading_a_block_that_is_missing_is_an_error_and_no_zeros(fs: Filesystem) -> None:
    ino = put(fs, b"file", PATTERN[:BLOCK_SIZE])
    fs.flush()
    (key,) = fs.store.blocks.keys()
    record = fs.store.blocks._blocks.get(key)
    fs.store.blocks._blocks.delete(key)
    with fails(errno.EIO):
        whole(fs, ino)
    fs.store.blocks._blocks.put(key, record)
    assert whole(fs, ino) == PATTERN[:BLOCK_SIZE]


# -- times and bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ns", [-(10**18), 10**18], ids=["past", "future"])
def test_a_write_sets_the_times_whatever_they_were(fs: Filesystem, ahead_ns: int) -> None:
    ino = put(fs, b"file", b"data")
    strange = fs.clock() + ahead_ns
    fs.setattr(fs.head, ino, Attributes(mtime_ns=strange))
    start = fs.clock()
    fs.write(fs.head, ino, 0, b"x")
    inode = fs.getattr(fs.head, ino)
    assert start < inode.mtime_ns < fs.clock() and inode.ctime_ns == inode.mtime_ns


def test_a_read_leaves_the_times(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    before = find(fs, fs.head, b"file")
    whole(fs, ino)
    assert find(fs, fs.head, b"file") == before


def test_a_block_that_cannot_be_replaced_keeps_what_waits(fs: Filesystem) -> None:
    """Its record on disk is damaged; what was written into it last is there still."""
    ino = put(fs, b"file", PATTERN[: 2 * BLOCK_SIZE])
    fs.commit()
    entity = block_entity(fs.getattr(fs.head, ino).content, 1)
    record = fs.store.blockmap.get(fs.head, entity)
    assert record is not None
    fs.write(fs.head, ino, BLOCK_SIZE + 100, b"acknowledged")
    fs.store.blockmap.put_unlisted(fs.head, entity, b"damaged")
    with pytest.raises((OSError, ValueError)):
        fs.write(fs.head, ino, BLOCK_SIZE, b"x" * BLOCK_SIZE)
    fs.store.blockmap.put_unlisted(fs.head, entity, record)
    assert bytes(fs.read(fs.head, ino, BLOCK_SIZE + 100, 12)) == b"acknowledged"
