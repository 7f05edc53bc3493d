"""A scan that did not end: what it brought in is no state of the workspace, and no checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints
from ckptfs.service import Service
from ckptfs.store import Store, check
from tests.direct import Ticks, get, put

NAMES = ("one/file", "two/file")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Service, int, Path]]:
    """The service of a store, and its lower directory."""
    below = path / "below"
    store, dir_fd = Store.open(path / "store"), os.open(below, os.O_RDONLY)
    try:
        yield Service(Filesystem(store, Ticks())), dir_fd, below
    finally:
        os.close(dir_fd)
        store.close(commit=False)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A workspace in which two files of two directories were edited below."""
    for name in NAMES:
        (tmp_path / "below" / name).parent.mkdir(parents=True)
        (tmp_path / "below" / name).write_text("old")
    Store.create(tmp_path / "store").close()
    with opened(tmp_path) as (service, dir_fd, below):
        service.bring_in(dir_fd, below)
        service.write_back(dir_fd)
        service.fs.commit()
    for name in NAMES:
        (tmp_path / "below" / name).write_text("new, and longer")
    return tmp_path


def bring_in_half(service: Service, dir_fd: int, below: Path) -> None:
    """And no more, as if the process was killed."""
    scan = service.begin_scan(dir_fd, below)
    assert scan is not None
    scan.compare_next()
    assert len(scan.uncompared) == 1
    service.fs.commit()
    scan.close()


def has_two_states(service: Service) -> None:
    fs = service.fs
    found = checkpoints(fs.store)
    assert [each.message for each in found] == ["first mount", "changed while unmounted"]
    shown = [[get(fs, name.encode(), fs.view_of(each.epoch)) for name in NAMES] for each in found]
    assert shown == [[b"old", b"old"], [b"new, and longer"] * 2]
    assert check(fs.store) == []


def test_what_changed_below_is_one_checkpoint_though_its_scan_was_stopped(changed: Path) -> None:
    with opened(changed) as (service, dir_fd, below):
        bring_in_half(service, dir_fd, below)
    with opened(changed) as (service, dir_fd, below):
        service.bring_in(dir_fd, below)
        has_two_states(service)


def test_it_is_one_though_the_next_scan_finds_nothing_more(changed: Path) -> None:
    """All is brought in by then, and the process ends before the checkpoint is taken."""
    with opened(changed) as (service, dir_fd, below):
        scan = service.begin_scan(dir_fd, below)
        assert scan is not None
        while scan.uncompared:
            scan.compare_next()
        scan.end()
    with opened(changed) as (service, dir_fd, below):
        service.bring_in(dir_fd, below)
        has_two_states(service)


def test_it_is_one_though_an_unmount_came_in_between(changed: Path) -> None:
    with opened(changed) as (service, dir_fd, below):
        bring_in_half(service, dir_fd, below)
        service.write_back(dir_fd)
        service.fs.commit()
    with opened(changed) as (service, dir_fd, below):
        scan = service.begin_scan(dir_fd, below)
        assert scan is not None
        while scan.uncompared:
            scan.compare_next()
        service.end_scan(scan)
        has_two_states(service)


def test_what_the_workspace_had_of_its_own_is_saved_after_a_scan_that_ended(changed: Path) -> None:
    with opened(changed) as (service, dir_fd, below):
        bring_in_half(service, dir_fd, below)
    with opened(changed) as (service, dir_fd, below):
        service.bring_in(dir_fd, below)
        put(service.fs, b"own", b"own")
        service.fs.commit()
    with opened(changed) as (service, dir_fd, below):
        (below / "more").write_text("more")
        service.bring_in(dir_fd, below)
        words = [each.message for each in checkpoints(service.fs.store)]
    assert words[2:] == ["as it was unmounted", "changed while unmounted"]
