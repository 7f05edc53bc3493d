"""The codecs: what is packed comes back, and keys lie in the order that the store reads them in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.model import ContentId, Epoch, Ino, Inode
from ckptfs.store import format as fmt

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 0x2F} & set(name))
EPOCHS = st.integers(1, fmt.EPOCH_MAX).map(Epoch)
INODES = st.builds(
    Inode,
    ino=U64,
    mode=st.integers(0, 2**16 - 1),
    nlink=U32,
    uid=U32,
    gid=U32,
    rdev=U64,
    size=U64,
    allocated=U64,
    atime_ns=I64,
    mtime_ns=I64,
    ctime_ns=I64,
    btime_ns=I64,
    content=U64,
    content_epoch=U32,
    parent=U64,
    name=NAMES | st.just(b""),
    target=st.binary(max_size=300),
)


@given(INODES)
def test_an_inode_comes_back(inode: Inode) -> None:
    packed = fmt.pack_inode(inode)
    assert fmt.unpack_inode(inode.ino, packed) == inode
    assert packed != fmt.GONE


@settings(max_examples=30)
@given(INODES, st.data())
def test_a_flipped_bit_of_an_inode_is_noticed_and_can_be_put_right(
    inode: Inode, data: st.DataObject
) -> None:
    packed = fmt.pack_inode(inode)
    flipped = _flip(packed, data.draw(st.integers(0, 8 * len(packed) - 1)))
    with pytest.raises(fmt.CorruptRecord):
        fmt.unpack_inode(inode.ino, flipped)
    assert fmt.bit_corrected(flipped) == packed


@pytest.mark.parametrize("info", [{}, {"id": 7, "message": "x"}])
def test_a_flipped_bit_of_an_epoch_is_noticed_and_can_be_put_right(info: dict[str, object]) -> None:
    packed = fmt.pack_epoch(fmt.EpochRecord(Epoch(3), True, 12, info))
    for bit in range(8 * len(packed)):
        flipped = _flip(packed, bit)
        with pytest.raises(ValueError):  # noqa: PT011 -- of JSON, or CorruptRecord
            fmt.unpack_epoch(flipped)
        assert fmt.bit_corrected(flipped) == packed


def _flip(record: bytes, bit: int) -> bytes:
    flipped = bytearray(record)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@pytest.mark.parametrize("record", [b"", b"x", b"B" + bytes(19), b"C" + bytes(20)])
def test_what_is_no_record_of_the_block_map_is_refused(record: bytes) -> None:
    with pytest.raises((fmt.CorruptRecord, IndexError)):
        fmt.unpack_mapping(record)


@given(U32, U64)
def test_numbers_come_back(small: int, large: int) -> None:
    assert fmt.unpack_u32(fmt.pack_u32(small)) == small
    assert fmt.unpack_u64(fmt.pack_u64(large)) == large


@given(EPOCHS)
def test_an_epoch_comes_back_from_its_suffix(epoch: Epoch) -> None:
    suffix = fmt.suffix_of(epoch)
    assert len(suffix) == fmt.SUFFIX_SIZE
    assert fmt.epoch_of(suffix) == epoch


@given(U64, NAMES)
def test_names_come_back_from_their_entities(ino: int, name: bytes) -> None:
    assert fmt.dirent_name(fmt.dirent_entity(Ino(ino), name)) == name
    assert fmt.xattr_name(fmt.xattr_entity(Ino(ino), name)) == name


@given(U64, U64, NAMES)
def test_a_place_comes_back_from_a_link(ino: int, parent: int, name: bytes) -> None:
    entity = fmt.link_entity(Ino(ino), Ino(parent), name)
    assert fmt.link_place(entity) == (parent, name)
    assert entity.startswith(fmt.pack_u64(ino))


@given(U64, U64)
def test_a_block_number_comes_back(content: int, number: int) -> None:
    entity = fmt.block_entity(ContentId(content), number)
    assert fmt.block_number(entity) == number
    assert entity.startswith(fmt.pack_u64(content))


@given(st.integers(1, 2**32 - 1), st.binary(min_size=16, max_size=16))
def test_a_reference_comes_back(length: int, key: bytes) -> None:
    assert fmt.unpack_mapping(fmt.pack_reference(length, key)) == (length, key, b"", b"")


@given(st.binary(max_size=fmt.INLINE_MAX))
def test_inline_bytes_come_back(data: bytes) -> None:
    mapping = fmt.unpack_mapping(fmt.pack_inline(data))
    assert mapping[:3] == (len(data), b"", data) and mapping.is_whole
    assert not mapping._replace(inline=data + b"x").is_whole


@pytest.mark.parametrize(
    "record", [fmt.PRESENT, fmt.pack_inline(b""), fmt.pack_reference(1, bytes(16))]
)
def test_no_record_looks_like_a_tombstone(record: bytes) -> None:
    assert record != fmt.GONE


@given(
    st.builds(
        fmt.EpochRecord,
        parent=U32.map(Epoch),
        sealed=st.booleans(),
        inodes=U64,
        info=st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()),
    )
)
def test_an_epoch_record_comes_back(record: fmt.EpochRecord) -> None:
    assert fmt.unpack_epoch(fmt.pack_epoch(record)) == record


# -- order -----------------------------------------------------------------------------------------


@given(NAMES, EPOCHS, EPOCHS)
def test_newer_versions_come_first(name: bytes, one: Epoch, other: Epoch) -> None:
    entity = fmt.dirent_entity(Ino(7), name)
    keys = sorted(entity + fmt.suffix_of(epoch) for epoch in {one, other})
    found = [fmt.epoch_of(key[-fmt.SUFFIX_SIZE :]) for key in keys]
    assert found == sorted({one, other}, reverse=True)


@given(st.lists(st.tuples(NAMES, EPOCHS), unique=True))
def test_entries_lie_in_name_order_whatever_their_epochs(
    entries: list[tuple[bytes, Epoch]],
) -> None:
    keys = sorted(fmt.dirent_entity(Ino(7), name) + fmt.suffix_of(e) for name, e in entries)
    found = [fmt.dirent_name(key[: -fmt.SUFFIX_SIZE]) for key in keys]
    assert found == sorted(name for name, _ in entries)


@given(st.lists(st.tuples(U64, U64), unique=True))
def test_blocks_lie_in_the_order_of_the_file(places: list[tuple[int, int]]) -> None:
    keys = sorted(fmt.block_entity(ContentId(content), number) for content, number in places)
    assert keys == [fmt.block_entity(ContentId(c), n) for c, n in sorted(places)]


@given(NAMES, NAMES)
def test_no_entity_begins_another_key(one: bytes, other: bytes) -> None:
    """Else the versions of one name would lie among those of another."""
    if one != other:
        first, second = fmt.dirent_entity(Ino(7), one), fmt.dirent_entity(Ino(7), other)
        assert not first.startswith(second) and not second.startswith(first)


def test_the_longest_key_fits_lmdb() -> None:
    entity = fmt.link_entity(Ino(2**64 - 1), Ino(2**64 - 1), b"n" * 255)
    assert len(fmt.pack_u32(1) + b"l" + entity + fmt.suffix_of(Epoch(1))) <= 511
