"""What the compiled server and Python must agree on: constants, record layouts, callbacks."""

from __future__ import annotations

import inspect
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckptfs.fuse import adapter, serving
from ckptfs.fuse.server import binding, interface
from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import ContentId, Epoch, Ino, Inode
from ckptfs.store import format as fmt

SOURCES = Path(interface.__file__).parent

#: Every field has another value, so that two that change places are noticed.
INODE = Inode(
    Ino(0x1122334455),
    0o100751,
    3,
    1001,
    1002,
    0x0901,
    0x0A0B0C0D0E,
    0x0102030405,
    1_700_000_000_000_000_001,
    -1_700_000_000_000_000_002,
    1_700_000_000_000_000_003,
    1_700_000_000_000_000_004,
    ContentId(0x3132333435),
    Epoch(0x41424344),
    Ino(0x5152535455),
    b"a name",
    b"",
)


def test_both_sides_have_the_same_constants(module: ServerModule) -> None:
    assert {name: module.CONSTANTS[name] for name in binding.CONSTANTS} == binding.CONSTANTS
    assert module.CONSTANTS["FOREVER"] == adapter.FOREVER


def test_a_module_with_other_constants_is_refused(
    module: ServerModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.CONSTANTS, "INO_BITS", 41)
    loaded = binding.load()
    assert loaded.module is None
    assert "other sources" in loaded.reason


@pytest.mark.parametrize("name", [b"a name", b"", b"x" * 255])
def test_c_reads_the_record_of_an_inode_as_python_writes_it(
    module: ServerModule, name: bytes
) -> None:
    inode = INODE._replace(name=name)
    record = fmt.pack_inode(inode)
    assert module.decode_inode(inode.ino, record) == (tuple(inode[:11]), inode.parent, name)
    for place in range(len(record)):
        broken = bytearray(record)
        broken[place] ^= 1
        assert module.decode_inode(inode.ino, bytes(broken)) is None


def test_the_fields_that_c_reads_by_position_are_those_of_an_inode() -> None:
    header = (SOURCES / "server.h").read_text()
    (names,) = re.findall(r"enum \{ (INO, [^}]*) \}", header)
    fields = [name.removesuffix("_ns").upper() for name in Inode._fields]
    assert names.split(", ") == fields[: len(names.split(", "))]


def test_keys_of_the_store_are_those_that_c_searches() -> None:
    """As `snapshot.c` builds them."""
    parent, name = Ino(0x0102030405), b"name"
    assert fmt.inode_entity(parent) == struct.pack(">Q", parent)
    assert fmt.dirent_entity(parent, name) == struct.pack(">Q", parent) + name + b"\0"
    assert len(fmt.suffix_of(Epoch(1))) == fmt.SUFFIX_SIZE
    assert fmt.suffix_of(Epoch(2)) < fmt.suffix_of(Epoch(1)), "the newest comes first"


def test_c_takes_exactly_the_callbacks_that_are_written_down() -> None:
    header = (SOURCES / "server.h").read_text()
    (block,) = re.findall(r"#define METHODS\(X\)((?:.*\\\n)*.*)\n", header)
    written = {
        name
        for name, value in inspect.getmembers(interface.Callbacks, inspect.isfunction)
        if not name.startswith("_")
    }
    assert set(re.findall(r"X\((\w+)\)", block)) == written
    (state,) = re.findall(r"PyObject \*(unlinked, .*);", header)
    assert set(state.split(", *")) == set(interface.Callbacks.__annotations__)


def test_the_server_has_every_method_that_is_written_down(module: ServerModule) -> None:
    protocol = interface.CompiledServer
    written = {name for name, _ in inspect.getmembers(protocol, inspect.isfunction)}
    has = set(dir(module.Server))
    assert {name for name in written if not name.startswith("_")} <= has


@pytest.mark.parametrize(
    "release, is_old", [("5.10.0-28-amd64", True), ("5.11.0", False), ("6.1.0-18", False)]
)
def test_a_kernel_that_is_too_old_for_the_server_is_known_by_its_version(
    release: str, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(release=release))
    assert serving._is_old_kernel() == is_old
