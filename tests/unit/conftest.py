"""File systems without a kernel, for the tests of this directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.fuse.server import binding
from ckptfs.fuse.server.interface import CompiledServer, ServerModule
from ckptfs.store import Store
from tests.direct import Life, new_filesystem
from tests.support.kernel import Owner

#: Where there is memory for files: these tests ask what is committed, not how fast a disk syncs.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty directory, in memory if possible."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-test-", dir=_MEMORY) as path:
        yield Path(path)


@pytest.fixture
def module() -> ServerModule:
    """The extension module of the compiled server."""
    found = binding.load()
    if found.module is None:
        pytest.skip(f"no compiled server: {found.reason}")
    return found.module


@pytest.fixture
def compiled(module: ServerModule) -> Iterator[CompiledServer]:
    """A compiled server without a mount."""
    server = module.Server(Owner())  # type: ignore[arg-type]
    yield server
    server.close()


@pytest.fixture
def fs(memory: Path) -> Iterator[Filesystem]:
    """An empty file system; at the end `check` must find nothing."""
    with new_filesystem(memory / "store") as fs:
        yield fs


@pytest.fixture
def life(memory: Path) -> Iterator[Life]:
    """A file system whose store can be closed and opened again."""
    life = Life(memory / "store")
    yield life
    life.end()


@pytest.fixture
def store(memory: Path) -> Iterator[Store]:
    """A bare store, for tests that write records as they like; it is not checked."""
    store = Store.create(memory / "store")
    yield store
    store.close(commit=False)
