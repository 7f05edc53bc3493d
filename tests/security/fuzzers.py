"""What atheris fuzzes, one target a run: `python -m tests.security.fuzzers TARGET [options]`.

A target is given any bytes. It may refuse them in the way that its callers expect; everything else
that it raises is a finding, which ends the run with the bytes that led to it. `planted` is there to
show that a finding is one.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ckptfs"]):
    from ckptfs.control import protocol
    from ckptfs.errors import CkptfsError
    from ckptfs.model import BLOCK_SIZE, Ino
    from ckptfs.store import codec, pages
    from ckptfs.store import format as fmt
    from ckptfs.sync import ledger

_PAGE = 4096
_scratch = Path(tempfile.mkdtemp(prefix="ckptfs-fuzz-")) / "data.mdb"


def wire(data: bytes) -> None:
    """Lines on the control socket, either way."""
    for decode in (protocol.decode_request, protocol.decode_answer):
        with contextlib.suppress(CkptfsError):
            decode(data)


def nearly(data: bytes) -> None:
    """Lines that begin as they should."""
    wire(b'{"v":1,"op":"save","args":' + data)
    wire(b'{"v":1,"error":{"kind":' + data)


def records(data: bytes) -> None:
    """Records of the store; what decodes is packed to what decodes to the same."""
    with contextlib.suppress(fmt.CorruptRecord):
        inode = fmt.unpack_inode(Ino(1), data)
        if len(inode.name) < 256:
            assert fmt.unpack_inode(Ino(1), fmt.pack_inode(inode)) == inode
    with contextlib.suppress(fmt.CorruptRecord, IndexError):
        fmt.unpack_mapping(data)
    with contextlib.suppress(ValueError, struct.error, RecursionError):
        fmt.unpack_epoch(data)
    with contextlib.suppress(struct.error):
        fmt.unpack_slice(data)
    with contextlib.suppress(fmt.CorruptRecord):
        fmt.unpack_u64(data)


def frames(data: bytes) -> None:
    """Compressed blocks: an error, or no more bytes than a block has."""
    with contextlib.suppress(codec.FrameError):
        assert len(codec.decompress(data)) <= BLOCK_SIZE
    with contextlib.suppress(codec.FrameError):
        assert len(codec.decompress_against(data, b"base" * 99)) <= BLOCK_SIZE


def lower(data: bytes) -> None:
    """The ledger of the lower directory."""
    found = ledger.decode(data)
    assert found is None or ledger.decode(ledger.encode(found)) == found


def lmdb_pages(data: bytes) -> None:
    """Pages of an LMDB file, behind two that say that the third is the root."""
    tree = struct.pack("=IHHQQQQQ", _PAGE, 8, 1, 0, 1, 0, 1, 2)
    main = struct.pack("=IHHQQQQQ", 0, 0, 1, 0, 1, 0, 1, 2)
    head = b"".join(
        (
            struct.pack("=QHHHH", number, 0, 8, 0, 0)
            + struct.pack("=IIQQ", 0xBEEFC0DE, 1, 0, 1 << 30)
            + tree
            + main
            + struct.pack("=QQ", 4, number)
        ).ljust(_PAGE, b"\0")
        for number in (0, 1)
    )
    # A page of the right number and kind, or nearly every input would end there.
    page = (struct.pack("=QHH", 2, 0, 2) + data).ljust(_PAGE, b"\0")
    _scratch.write_bytes(head + page)
    with contextlib.closing(pages.Pages(_scratch)) as found:
        assert isinstance(found.faults(), list)


def planted(data: bytes) -> None:
    if data[:1] == b"{" and len(data) > 2:
        raise AssertionError("found")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (wire, nearly, records, frames, lower, lmdb_pages, planted)
}


def main() -> None:
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
