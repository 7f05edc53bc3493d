"""Nonsense on the socket and on disk: refused or told, never obeyed, and nothing dies of it."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.control import protocol
from ckptfs.errors import CkptfsError
from ckptfs.fs import Filesystem
from ckptfs.history import compression
from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.service.verbs import VERBS
from ckptfs.store import Store, check, codec
from ckptfs.store import format as fmt
from ckptfs.store.pages import Pages
from ckptfs.store.repair.consistency import make_consistent
from tests.direct import Ticks, find, mkdir, put

#: `make test-deep` looks much longer.
DEEP = settings(max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
WORDS = st.sampled_from(
    "checkpoint checkpoints message tag paths patterns token steps older newer cause metadata pin "
    "limit newest dry_run view move backup allow_empty deep name files since until path".split()
)
ARGS = st.dictionaries(WORDS, JSON | st.sampled_from(["0", "@", "latest", ["0"], "file", 0, -1]))


def _decode(line: bytes) -> None:
    for decode in (protocol.decode_request, protocol.decode_answer):
        with contextlib.suppress(CkptfsError):
            decode(line)


@QUICK
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_the_wire_takes_anything(line: bytes) -> None:
    _decode(line)


@QUICK
@given(
    st.fixed_dictionaries(
        {"v": st.just(1) | JSON},
        optional={"op": JSON, "args": JSON, "result": JSON, "error": JSON, "progress": JSON},
    )
)
def test_the_wire_takes_lines_that_are_nearly_right(record: dict[str, Any]) -> None:
    _decode(json.dumps(record).encode())


@pytest.mark.parametrize("depth", [10, 1_000, 100_000])
def test_deep_nesting_is_decoded_or_refused(depth: int) -> None:
    _decode(b'{"v":1,"op":"save","args":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")
    nested = b'{"v":1,"op":"save","args":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    _decode(nested)
    if depth == 10:
        assert protocol.decode_request(nested).args == {"a": json.loads("[" * 10 + "]" * 10)}


# -- verbs -----------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as base:
        store = Store.create(Path(base) / "store")
        fs = Filesystem(store, Ticks())
        put(fs, b"file", b"content")
        history.seal(fs, "manual", "", 0)
        yield Service(fs)
        fs.commit()
        assert check(store) == []
        store.close()


#: These name places outside of the store.
_ELSEWHERE = {"import", "export", "backup"}


def _ask(service: Service, op: str, args: dict[str, Any]) -> None:
    """The daemon answers whatever is an Exception in one sentence and goes on."""
    try:
        answer = perform(service, op, args, None)
    except Exception:
        return
    assert isinstance(json.dumps(answer), str)


@QUICK
@given(st.data())
def test_verbs_take_any_arguments(service: Service, data: st.DataObject) -> None:
    names = sorted(VERBS.keys() - _ELSEWHERE)
    _ask(service, data.draw(st.sampled_from(names) | st.text()), data.draw(ARGS))


@pytest.mark.deep
@DEEP
@given(st.data())
def test_verbs_take_any_arguments_for_long(service: Service, data: st.DataObject) -> None:
    names = sorted(VERBS.keys() - _ELSEWHERE)
    _ask(service, data.draw(st.sampled_from(names)), data.draw(ARGS))


# -- the store -------------------------------------------------------------------------------------

_REFUSALS = (struct.error, ValueError, IndexError, KeyError, TypeError)


@QUICK
@given(st.binary(max_size=200))
def test_decoders_refuse_what_they_cannot_read(data: bytes) -> None:
    decoders = [
        lambda: fmt.unpack_inode(Ino(1), data),
        lambda: fmt.unpack_mapping(data),
        lambda: fmt.unpack_epoch(data),
        lambda: fmt.unpack_slice(data),
        lambda: fmt.unpack_u64(data),
    ]
    for decode in decoders:
        with contextlib.suppress(_REFUSALS):
            decode()
    for unpack in (codec.decompress, lambda frame: codec.decompress_against(frame, b"base" * 99)):
        with contextlib.suppress(codec.FrameError):
            assert len(unpack(data)) <= BLOCK_SIZE


@QUICK
@given(st.binary(max_size=3 * 4096), st.binary(max_size=200))
def test_pages_of_anything_end_no_reader(noise: bytes, more: bytes) -> None:
    with tempfile.TemporaryDirectory() as base:
        path = Path(base) / "data.mdb"
        meta = struct.pack("=QHHHH", 0, 0, 8, 0, 0) + struct.pack(
            "=IIQQ", 0xBEEFC0DE, 1, 0, 1 << 30
        )
        tree = struct.pack("=IHHQQQQQ", 4096, 0, 1, 0, 1, 0, 1, 2)
        head = (meta + tree + tree + struct.pack("=QQ", 4, 1)).ljust(4096, b"\0")
        path.write_bytes(head + head + noise + more + b"\0")
        pages = Pages(path)
        assert isinstance(pages.faults(), list)
        pages.close()


TABLES = ["inodes", "dirents", "links", "blockmap", "xattrs"]
PLAIN = ["blocks", "refs", "changes", "orphans"]


def _garbage(store: Store, table: str, key: bytes, value: bytes) -> None:
    chosen = {
        "blocks": store.blocks._blocks,
        "refs": store.blocks._refs,
        "changes": store.changes._table,
        "orphans": store.orphans,
    }
    if table in chosen:
        chosen[table].put(key, value)
    else:
        getattr(store, table).rewrite(key, value)


def _spoil_and_mend(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as base:
        store = Store.create(Path(base) / "store")
        try:
            _fill(Filesystem(store, Ticks()))
            for _ in range(data.draw(st.integers(1, 4))):
                table = data.draw(st.sampled_from(TABLES + PLAIN))
                raw = store._dbs[table.encode()]
                known = [bytes(key) for key, _ in store._txn.cursor(raw)]
                some = st.binary(min_size=1, max_size=60)
                key = data.draw(some | st.sampled_from(known or [b"k"]))
                _garbage(store, table, key, data.draw(st.binary(max_size=150)))
            check(store)
            assert make_consistent(store) == []
            store.commit()
        finally:
            store.close(commit=False)


def _fill(fs: Filesystem) -> None:
    mkdir(fs, b"dir")
    put(fs, b"dir/file", os.urandom(BLOCK_SIZE + 5))
    put(fs, b"small", b"x")
    fs.link(fs.head, find(fs, fs.head, b"small").ino, 1, b"link")
    history.seal(fs, "manual", "", 0)
    put(fs, b"text", b"many lines\n" * 900)
    history.seal(fs, "manual", "", 0)
    compression.compress(fs)
    put(fs, b"new", b"y" * 3_000)
    fs.flush()


_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@settings(QUICK, max_examples=60)
@given(st.data())
def test_records_of_anything_are_found_and_repaired(data: st.DataObject) -> None:
    _spoil_and_mend(data)


@pytest.mark.deep
@DEEP
@given(st.data())
def test_records_of_anything_are_found_and_repaired_for_long(data: st.DataObject) -> None:
    _spoil_and_mend(data)
