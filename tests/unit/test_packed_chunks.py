"""Chunks of records: what goes in comes out, and damage is seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.store.packed import Chunk, ChunkError, pack_chunk, unpack_chunk

RECORDS = st.dictionaries(
    st.binary(min_size=1, max_size=300) | st.builds(lambda b: b"k" * 270 + b, st.binary()),
    st.binary(max_size=2_000),
    max_size=20,
).map(lambda found: sorted(found.items()))


@given(RECORDS)
def test_a_chunk_is_packed_and_unpacked_without_loss(records: list[tuple[bytes, bytes]]) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    assert unpack_chunk(pack_chunk(records)) == Chunk(keys, values)


def test_no_damage_changes_a_record() -> None:
    whole = pack_chunk([(b"key %d" % n, b"value" * n) for n in range(50)])
    seen = 0
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x10
        try:
            assert unpack_chunk(bytes(data)) == unpack_chunk(whole)
        except ChunkError:
            seen += 1
    assert seen > len(whole) * 0.9


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01nonsense", pack_chunk([])[:-1]])
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(ChunkError):
        unpack_chunk(data)
