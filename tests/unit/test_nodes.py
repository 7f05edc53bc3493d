"""Node ids of checkpoints: what is kept of them."""

from __future__ import annotations

import errno
import os

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fuse import nodes
from ckptfs.fuse.nodes import Nodes, checkpoint_base
from ckptfs.history import removal
from ckptfs.model import ROOT_INO
from tests.direct import put


def test_views_of_checkpoints_that_come_and_go_are_not_kept(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_VIEWS_MAX", 5)
    found = Nodes(fs)
    for number in range(20):
        put(fs, b"%d" % number, b"x")
        saved = history.seal(fs, "manual", "", fs.clock())
        place = found.place(checkpoint_base(saved.id) | ROOT_INO)
        assert place.view.epoch == saved.epoch
    assert len(found._views) <= 5


def test_a_deleted_checkpoint_is_stale_and_forgotten(fs: Filesystem) -> None:
    found = Nodes(fs)
    put(fs, b"file", b"x")
    saved = history.seal(fs, "manual", "", fs.clock())
    node = checkpoint_base(saved.id) | ROOT_INO
    found.place(node)
    removal.delete(fs, [saved])
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            found.place(node)
    assert not found._views
