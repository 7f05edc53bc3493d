"""flock and fcntl locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.peer import peer

EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB

LOCKS = {"flock": fcntl.flock, "fcntl": fcntl.lockf}


@pytest.fixture
def fd(mount: Path) -> object:
    opened = os.open(mount / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
def test_an_exclusive_lock_keeps_others_out(mount: Path, fd: int, lock: object) -> None:
    assert callable(lock)
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        lock(fd, EXCLUSIVE)
        for kind in (EXCLUSIVE, SHARED):
            with fails(errno.EAGAIN, errno.EACCES):
                other(lock, theirs, kind)
        lock(fd, fcntl.LOCK_UN)
        other(lock, theirs, EXCLUSIVE)
        with fails(errno.EAGAIN, errno.EACCES):
            lock(fd, EXCLUSIVE)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
def test_shared_locks_stand_side_by_side(mount: Path, fd: int, lock: object) -> None:
    assert callable(lock)
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        lock(fd, SHARED)
        other(lock, theirs, SHARED)
        with fails(errno.EAGAIN, errno.EACCES):
            lock(fd, EXCLUSIVE)
        other(os.close, theirs)
        lock(fd, EXCLUSIVE)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
def test_a_waiting_lock_gets_its_turn(mount: Path, fd: int, lock: object) -> None:
    assert callable(lock)
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        lock(fd, EXCLUSIVE)
        other.begin(lock, theirs, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            other.finish(0.1)
        lock(fd, fcntl.LOCK_UN)
        other.finish(10)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
def test_a_lock_goes_with_its_process(mount: Path, fd: int, lock: object) -> None:
    assert callable(lock)
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        other(lock, theirs, EXCLUSIVE)
        with fails(errno.EAGAIN, errno.EACCES):
            lock(fd, EXCLUSIVE)
    lock(fd, EXCLUSIVE)


def test_fcntl_locks_of_ranges(mount: Path, fd: int) -> None:
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        fcntl.lockf(fd, EXCLUSIVE, 100, 1000)
        other(fcntl.lockf, theirs, EXCLUSIVE, 100, 0)
        other(fcntl.lockf, theirs, EXCLUSIVE, 0, 1100)
        with fails(errno.EAGAIN, errno.EACCES):
            other(fcntl.lockf, theirs, EXCLUSIVE, 1, 1099)
        with fails(errno.EAGAIN, errno.EACCES):
            fcntl.lockf(fd, EXCLUSIVE, 1, 2**40)


def test_flock_belongs_to_the_open_file_and_fcntl_to_the_process(mount: Path, fd: int) -> None:
    second = os.open(mount / "file", os.O_RDWR)
    try:
        fcntl.lockf(fd, EXCLUSIVE)
        fcntl.lockf(second, EXCLUSIVE)
        fcntl.flock(fd, EXCLUSIVE)
        with fails(errno.EAGAIN):
            fcntl.flock(second, EXCLUSIVE)
    finally:
        os.close(second)


def test_flock_works_on_a_directory(mount: Path) -> None:
    first, second = os.open(mount, os.O_RDONLY), os.open(mount, os.O_RDONLY)
    try:
        fcntl.flock(first, EXCLUSIVE)
        with fails(errno.EAGAIN):
            fcntl.flock(second, EXCLUSIVE)
    finally:
        os.close(first)
        os.close(second)
