"""File systems without a kernel, for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.store import Store
from tests.direct import Life, new_filesystem


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    """An empty file system; at the end `check` must find nothing."""
    with new_filesystem(tmp_path / "store") as fs:
        yield fs


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """A file system whose store can be closed and opened again."""
    life = Life(tmp_path / "store")
    yield life
    life.end()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A bare store, for tests that write records as they like; it is not checked."""
    store = Store.create(tmp_path / "store")
    yield store
    store.close(commit=False)
