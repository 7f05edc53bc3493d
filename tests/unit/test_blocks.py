"""Blocks: stored once, counted, freed with the last use, and never mistaken for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, check, codec
from ckptfs.store.blocks import Buffer, CorruptBlock
from ckptfs.store.format import CODEC_RAW, INLINE_MAX, block_header
from tests.direct import find, get, new_filesystem, put


def test_equal_bytes_are_one_block_counted(store: Store) -> None:
    blocks = store.blocks
    key = blocks.add(b"data")
    assert blocks.uses(key) == 1
    assert blocks.add(bytearray(b"data")) == key
    assert blocks.add(memoryview(b"data")) == key
    assert blocks.uses(key) == 3
    assert list(blocks.keys()) == [key]
    assert blocks.read(key) == b"data"


def test_the_last_release_frees(store: Store) -> None:
    blocks = store.blocks
    key = blocks.add(b"data")
    blocks.add(b"data")
    blocks.release(key)
    assert blocks.has(key) and blocks.uses(key) == 1
    assert list(blocks.counted()) == []
    blocks.release(key)
    assert not blocks.has(key) and list(blocks.keys()) == []
    with pytest.raises(CorruptBlock):
        blocks.read(key)


def test_a_share_is_a_use(store: Store) -> None:
    blocks = store.blocks
    key = blocks.add(b"data")
    blocks.share(key)
    assert blocks.uses(key) == 2
    blocks.release(key)
    blocks.release(key)
    assert not blocks.has(key)


def test_an_unknown_codec_is_an_error_of_the_disk(store: Store) -> None:
    key = bytes(16)
    store.blocks._blocks.put(key, bytes((CODEC_RAW + 7, 0)) + b"data")
    with pytest.raises(CorruptBlock) as caught:
        store.blocks.read(key)
    assert caught.value.errno == 5


def test_a_changed_byte_is_not_whole(store: Store) -> None:
    key = store.blocks.add(b"data")
    assert store.blocks.is_whole(key)
    store.blocks._blocks.put(key, block_header(CODEC_RAW, 0) + b"dat4")
    assert not store.blocks.is_whole(key)


# -- through files ---------------------------------------------------------------------------------


def test_equal_files_share_their_blocks(fs: Filesystem) -> None:
    data = os.urandom(3 * BLOCK_SIZE)
    put(fs, b"a", data)
    put(fs, b"b", data)
    fs.flush()
    keys = list(fs.store.blocks.keys())
    assert len(keys) == 3 and {fs.store.blocks.uses(key) for key in keys} == {2}
    fs.unlink(fs.head, 1, b"a")
    assert {fs.store.blocks.uses(key) for key in keys} == {1}
    fs.unlink(fs.head, 1, b"b")
    assert list(fs.store.blocks.keys()) == []


def test_a_file_of_equal_blocks_takes_one(fs: Filesystem) -> None:
    put(fs, b"a", b"x" * (10 * BLOCK_SIZE))
    fs.flush()
    (key,) = fs.store.blocks.keys()
    assert fs.store.blocks.uses(key) == 10
    assert find(fs, fs.head, b"a").allocated == 10 * BLOCK_SIZE


def test_overwriting_frees_at_once(fs: Filesystem) -> None:
    ino = put(fs, b"a", os.urandom(BLOCK_SIZE))
    for _ in range(5):
        fs.write(fs.head, ino, 0, os.urandom(BLOCK_SIZE))
    assert len(list(fs.store.blocks.keys())) == 1


def test_short_content_takes_no_block(fs: Filesystem) -> None:
    put(fs, b"a", b"x" * INLINE_MAX)
    put(fs, b"b", b"x" * (INLINE_MAX + 1))
    fs.flush()
    assert len(list(fs.store.blocks.keys())) == 1


# -- collisions ------------------------------------------------------------------------------------


def two_bits(data: Buffer, seed: int) -> bytes:
    """A digest with only four values: nearly everything collides."""
    return bytes(15) + bytes((xxh3_128_digest(data, seed)[0] & 3,))


def eight_bits(data: Buffer, seed: int) -> bytes:
    return bytes(15) + xxh3_128_digest(data, seed)[:1]


@pytest.fixture
def colliding(memory: Path) -> Iterator[Filesystem]:
    with new_filesystem(memory / "store") as fs:
        fs.store.blocks.digest = eight_bits
        yield fs


def test_different_blocks_of_one_digest_stay_apart(colliding: Filesystem) -> None:
    fs = colliding
    wanted = {b"file %d" % n: b"%04d" % n * 1_000 for n in range(120)}
    for name, data in wanted.items():
        put(fs, name, data)
    fs.commit()
    assert len(list(fs.store.blocks.keys())) == len(wanted)
    assert {name: get(fs, name) for name in wanted} == wanted
    assert check(fs.store) == []


def test_colliding_blocks_are_still_shared_and_freed(colliding: Filesystem) -> None:
    """Every second file goes, which leaves gaps in the chains of seeds; the rest reads back, and
    equal files go on being found or stored again, but never become another."""
    fs = colliding
    wanted = {b"file %d" % n: b"%04d" % (n // 2) * 1_000 for n in range(160)}
    for name, data in wanted.items():
        put(fs, name, data)
    fs.flush()
    assert len(list(fs.store.blocks.keys())) == 80
    for n in range(0, 160, 3):
        fs.unlink(fs.head, 1, b"file %d" % n)
        del wanted[b"file %d" % n]
    for n in range(60):
        put(fs, b"again %d" % n, b"%04d" % n * 1_000)
        wanted[b"again %d" % n] = b"%04d" % n * 1_000
    assert {name: get(fs, name) for name in wanted} == wanted
    fs.commit()
    assert check(fs.store) == []


def test_a_digest_of_two_bits_holds_four_blocks_and_then_refuses(store: Store) -> None:
    """Where not even the seeds find a free key the write fails; nothing is mixed up."""
    blocks = store.blocks
    blocks.digest = two_bits
    kept = {}
    refused = 0
    for n in range(20):
        data = b"block %d" % n
        try:
            kept[blocks.add(data)] = data
        except CorruptBlock:
            refused += 1
    assert len(kept) == 4 and refused == 16
    assert {key: bytes(blocks.read(key)) for key in kept} == kept
    assert all(blocks.is_whole(key) for key in kept)


def test_a_write_that_finds_no_key_leaves_the_file_as_it_was(fs: Filesystem) -> None:
    digest = fs.store.blocks.digest
    ino = put(fs, b"a", b"a" * BLOCK_SIZE)
    fs.flush()
    fs.store.blocks.digest = lambda data, seed: next(iter(fs.store.blocks.keys()))
    with pytest.raises(OSError, match="share one digest"):
        fs.write(fs.head, ino, 0, b"b" * BLOCK_SIZE)
    fs.store.blocks.digest = digest
    assert get(fs, b"a") == b"a" * BLOCK_SIZE


def test_a_block_that_only_another_one_of_a_pack_needed_goes_with_its_need(store: Store) -> None:
    blocks = store.blocks
    text = b"".join(b"line %d of a text\n" % number for number in range(3000))
    base, new = blocks.add(text), blocks.add(text.replace(b"17", b"seventeen"))
    assert blocks.relate(new, base) and blocks.uses(base) == 2
    blocks.release(base)  # the last version that had it is gone; the difference still needs it
    members = [member for key in (new, base) if (member := blocks.member(key)) is not None]
    whole = b"".join(member.data for member in members)
    blocks.put_pack(members, whole, codec.compress_pack(whole))
    assert not blocks.has(base)
    assert bytes(blocks.read(new)) == text.replace(b"17", b"seventeen")
    pack = blocks.pack_of(new)
    assert pack is not None and blocks.uses(pack) == 1
