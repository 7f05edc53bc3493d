"""Generations of files: kept only for what a kernel may know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.service import Service
from tests.direct import find, get, new_filesystem, put


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with new_filesystem(tmp_path / "store") as fs:
        yield Service(fs)


def _restore_back_and_forth(service: Service, fs: Filesystem) -> None:
    for number in range(200):
        put(fs, b"%d" % number, b"before")
    first = service.save("first", "manual").id
    for number in range(200):
        put(fs, b"%d" % number, b"after!")
    second = service.save("second", "manual").id
    for _ in range(5):
        service.restore(str(first))
        assert get(fs, b"7") == b"before"
        service.restore(str(second))
        assert get(fs, b"7") == b"after!"


def test_a_file_that_the_kernel_does_not_know_gets_no_new_generation(service: Service) -> None:
    """However many files restores change, nothing is kept of them."""
    fs = service.fs
    fs.is_used = lambda ino: False
    _restore_back_and_forth(service, fs)
    assert fs.generations == {}


def test_without_lookup_counts_every_restored_file_gets_a_new_generation(service: Service) -> None:
    """One a file, however often it is changed."""
    fs = service.fs
    _restore_back_and_forth(service, fs)
    assert len(fs.generations) == 200
    assert fs.generations[find(fs, fs.head, b"7").ino] == 10
