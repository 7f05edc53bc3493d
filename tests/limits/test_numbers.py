"""Numbers that run out: an error that says so, and nothing is lost."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.model import CHECKPOINT_MAX, INO_MAX
from ckptfs.store import Store, check
from ckptfs.store.format import EPOCH_MAX, pack_number
from ckptfs.store.metadata import NEXT_CHECKPOINT
from tests.direct import get, put


@pytest.fixture
def fs() -> Iterator[Filesystem]:
    with tempfile.TemporaryDirectory() as base:
        store = Store.create(Path(base) / "store")
        fs = Filesystem(store)
        put(fs, b"kept", b"content")
        yield fs
        fs.commit()
        assert check(store) == []
        store.close()


def test_the_last_inode_number_is_used_and_no_other_is_given_out(fs: Filesystem) -> None:
    fs.store.ids.ino = INO_MAX
    put(fs, b"last", b"x")
    with pytest.raises(OSError, match="inode numbers") as caught:
        put(fs, b"one too many", b"x")
    assert caught.value.errno == errno.ENOSPC
    assert get(fs, b"kept") == b"content" and get(fs, b"last") == b"x"
    assert {name for name, _ in fs.entries(fs.head, 1)} == {b"kept", b"last"}
    fs.unlink(fs.head, 1, b"last")


def test_the_last_epoch_is_used_and_no_other_is_given_out(fs: Filesystem) -> None:
    fs.store.ids.epoch = EPOCH_MAX
    history.seal(fs, "manual", "the last", 0)
    with pytest.raises(OSError, match="epoch numbers"):
        history.seal(fs, "manual", "one too many", 0)
    put(fs, b"still", b"works")
    assert get(fs, b"still") == b"works"
    assert [item.message for item in history.checkpoints(fs.store)] == ["the last"]


def test_the_last_checkpoint_number_is_used_and_no_other_is_given_out(fs: Filesystem) -> None:
    fs.store.metadata.put(NEXT_CHECKPOINT, pack_number(CHECKPOINT_MAX))
    history.seal(fs, "manual", "the last", 0)
    with pytest.raises(OSError, match="checkpoint numbers"):
        history.seal(fs, "manual", "one too many", 0)
    put(fs, b"still", b"works")
    assert [item.id for item in history.checkpoints(fs.store)] == [CHECKPOINT_MAX]
