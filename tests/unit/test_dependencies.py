"""What ckptfs relies on in other packages beyond their documented interface.

A new version that behaves otherwise fails here, by name, before it fails at a user's mount. Each
package in `RELIED_ON` has an upper bound in pyproject.toml: its next major version.
"""

from __future__ import annotations

import errno
import re
import select
import tomllib
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pyfuse3
import pytest
import trio
import xxhash
import zstandard

from ckptfs.fuse import loop
from ckptfs.store.pages import Pages

RELIED_ON = ["lmdb", "pyfuse3", "trio", "xxhash", "zstandard"]

#: Of trio, what pyfuse3 calls where ckptfs never leads it: notifications and an end from threads.
_NEVER_CALLED = {"from_thread.run_sync", "run_sync_in_worker_thread"}


@pytest.fixture
def env(tmp_path: Path) -> Iterator[lmdb.Environment]:
    with lmdb.open(str(tmp_path / "env"), max_dbs=4, map_size=1 << 20) as env:
        yield env


@pytest.mark.parametrize("package", RELIED_ON)
def test_a_package_whose_internals_are_used_has_an_upper_bound(package: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = (item for item in project["dependencies"] if re.match(rf"{package}\b", item))
    assert re.search(r"<\d+$", wanted), wanted


# -- pyfuse3 ---------------------------------------------------------------------------------------


def test_pyfuse3_looks_for_trio_in_its_own_module() -> None:
    """`loop.install` puts a stand-in there."""
    assert pyfuse3.trio is trio  # type: ignore[attr-defined]


def test_the_stand_in_has_everything_that_pyfuse3_takes_from_trio() -> None:
    folder = Path(pyfuse3.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.p[yx][xi]"))
    used = set(re.findall(r"(?<![/.`\w])trio\.([a-zA-Z_.]*[a-zA-Z_])", source))
    assert "lowlevel.wait_readable" in used, "pyfuse3 waits for requests in another way"
    stand_in = loop.stand_in(loop.RequestWaiter(lambda: None, None))
    for name in used - _NEVER_CALLED - {"readthedocs.io"}:
        found: object = stand_in
        for part in name.split("."):
            found = getattr(found, part, None)
        assert found is not None, f"pyfuse3 now uses trio.{name}, which the stand-in lacks"


def test_pyfuse3_asks_libfuse_for_requests_by_the_call_that_the_server_answers() -> None:
    module = Path(pyfuse3.__file__).read_bytes()
    for name in (b"fuse_session_receive_buf", b"fuse_session_mount"):
        assert name in module, f"pyfuse3 does not call {name.decode()} any more"


# -- trio ------------------------------------------------------------------------------------------


def test_trio_waits_by_a_descriptor_that_can_be_polled() -> None:
    """Without it the other tasks wait for their turn while requests are served."""

    async def main() -> int:
        descriptor = loop._trios_own()
        if descriptor >= 0:
            select.poll().register(descriptor, select.POLLIN)
        return descriptor

    assert trio.run(main) >= 0


# -- LMDB ------------------------------------------------------------------------------------------


def test_lmdb_is_of_the_series_whose_pages_are_read(env: lmdb.Environment) -> None:
    """`store/pages.py` and the snapshot reader read its file without it."""
    assert lmdb.version()[:2] == (0, 9)
    table = env.open_db(b"table")
    with env.begin(write=True) as txn:
        for number in range(500):
            txn.put(b"%05d" % number, b"x" * (number % 90), db=table)
        txn.put(b"long", b"y" * 9_000, db=table)
    pages = Pages(Path(env.path()) / "data.mdb")
    assert pages.faults() == []
    records = {name: dict(found) for name, found in pages.tables(pages.metas[0])}
    with env.begin() as txn:
        assert records[b"table"] == {bytes(k): bytes(v) for k, v in txn.cursor(table)}
    pages.close()


def test_lmdb_numbers_its_commits_and_leaves_out_empty_ones(env: lmdb.Environment) -> None:
    """The journal's batches name the commit that they follow."""
    with env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    before = env.info()["last_txnid"]
    with env.begin(write=True):
        pass
    assert env.info()["last_txnid"] == before
    with env.begin(write=True) as txn:
        txn.put(b"key", b"another")
    assert env.info()["last_txnid"] == before + 1
    assert env.info()["last_pgno"] > 1 and env.stat()["psize"] == 4096


def test_an_error_of_lmdb_has_its_number(env: lmdb.Environment) -> None:
    """A full quota is known by it."""
    with pytest.raises(lmdb.MapFullError) as caught, env.begin(write=True) as txn:
        txn.put(b"key", bytes(2 << 20))
    assert isinstance(caught.value.code, int) and caught.value.code < 0
    with pytest.raises(lmdb.Error) as missing:
        lmdb.open("/dev/null/none", create=False)
    assert missing.value.code == errno.ENOTDIR


# -- digests and frames ----------------------------------------------------------------------------


def test_digests_are_those_that_stand_in_stores() -> None:
    assert xxhash.xxh32_digest(b"ckptfs").hex() == "d088f3a1"
    assert xxhash.xxh3_64_digest(b"ckptfs").hex() == "f1430404450c02b1"
    assert xxhash.xxh3_128_digest(b"ckptfs", 3).hex() == "5cc3e9f841b593035de5d2d149a008d5"


def test_a_frame_tells_how_long_it_will_be_before_it_is_read() -> None:
    frame = zstandard.ZstdCompressor(level=3).compress(bytes(70_000))
    assert zstandard.frame_content_size(frame) == 70_000
    base = zstandard.ZstdCompressionDict(bytes(100), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    delta = zstandard.ZstdCompressor(level=3, dict_data=base).compress(bytes(100))
    assert zstandard.ZstdDecompressor(dict_data=base).decompress(delta) == bytes(100)
