from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.sync.pair")

import ckptfs.fuse  # noqa: E402, F401 (lends the compiled loops, as in a daemon)
from tests.sync.pair import Pair  # noqa: E402


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory where a commit does not wait for a disk, for tests that make hundreds of them."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="ckptfs-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
