"""Attributes, plain and extended: what is asked for is kept exactly, and what follows from it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fs.inodes import VALUE_MAX, XATTR_CREATE, XATTR_REPLACE
from ckptfs.model import NAME_MAX, ROOT_INO, Attributes, Ino
from ckptfs.store import check
from tests.direct import Life, find, mkdir, put
from tests.support.errnos import fails


def mode_of(fs: Filesystem, ino: Ino) -> int:
    return stat.S_IMODE(fs.getattr(fs.head, ino).mode)


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time_ns", [0, 1, -1, 999_999_999, -(2**31) * 10**9 - 1, 2**31 * 10**9, 2**63 - 1, -(2**63)]
)
def test_times_are_kept_to_the_nanosecond(life: Life, time_ns: int) -> None:
    ino = put(life.fs, b"file")
    start = life.fs.clock()
    wanted = Attributes(atime_ns=time_ns, mtime_ns=time_ns)
    made = life.fs.setattr(life.fs.head, ino, wanted)
    assert (made.atime_ns, made.mtime_ns) == (time_ns, time_ns) and made.ctime_ns > start
    again = life.reopen()
    assert again.getattr(again.head, ino) == made


@pytest.mark.parametrize("time_ns", [2**63, -(2**63) - 1, 10**19, 2**64 * 10**9])
def test_times_that_no_record_can_hold(life: Life, time_ns: int) -> None:
    """`touch -d 2300-01-01` is one. Refused or brought to the nearest, but the store can still be
    committed."""
    fs = life.fs
    ino = put(fs, b"file")
    try:
        fs.setattr(fs.head, ino, Attributes(mtime_ns=time_ns))
    except OSError as refused:
        assert refused.errno in (errno.EINVAL, errno.EOVERFLOW, errno.ERANGE)
    put(fs, b"other", b"data")
    fs.commit()
    assert find(life.reopen(), life.fs.head, b"other").size == 4


def test_ctime_is_now_unless_it_is_given(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    assert fs.setattr(fs.head, ino, Attributes(ctime_ns=5)).ctime_ns == 5
    now = fs.clock()
    assert fs.setattr(fs.head, ino, Attributes(mode=0o600)).ctime_ns > now


def test_one_time_leaves_the_other(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    before = fs.getattr(fs.head, ino)
    after = fs.setattr(fs.head, ino, Attributes(atime_ns=7))
    assert after.mtime_ns == before.mtime_ns and after.atime_ns == 7
    assert after.btime_ns == before.btime_ns


def test_a_size_given_with_times_has_those_times(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    after = fs.setattr(fs.head, ino, Attributes(size=2, mtime_ns=7))
    assert (after.size, after.mtime_ns) == (2, 7)


@pytest.mark.parametrize("size", [0, 2, 4, 100])
def test_a_new_size_is_a_modification(fs: Filesystem, size: int) -> None:
    ino = put(fs, b"file", b"data")
    now = fs.clock()
    after = fs.setattr(fs.head, ino, Attributes(size=size))
    assert after.mtime_ns > now and after.ctime_ns > now


# -- modes and owners ------------------------------------------------------------------------------


def test_a_mode_never_changes_the_type(fs: Filesystem) -> None:
    for ino in (put(fs, b"file"), mkdir(fs, b"dir")):
        kind = stat.S_IFMT(fs.getattr(fs.head, ino).mode)
        made = fs.setattr(fs.head, ino, Attributes(mode=stat.S_IFLNK | 0o7777))
        assert made.mode == kind | 0o7777


@pytest.mark.parametrize(
    "before, after",
    [
        (0o4755, 0o755),
        (0o2755, 0o755),
        (0o6755, 0o755),
        (0o2745, 0o2745),
        (0o6745, 0o2745),
        (0o1755, 0o1755),
    ],
)
def test_set_id_bits_go(fs: Filesystem, before: int, after: int) -> None:
    """With a change of owner always, with a write or a new size unless the writer may keep them.
    Without the group's execute bit, set-gid stands for mandatory locking and stays."""
    ino = put(fs, b"file", b"data")

    def with_bits(change: Callable[[], object]) -> int:
        fs.setattr(fs.head, ino, Attributes(mode=before))
        change()
        return mode_of(fs, ino)

    head = fs.head
    for wanted in (Attributes(uid=1), Attributes(gid=1), Attributes(uid=1, gid=1)):
        assert with_bits(lambda wanted=wanted: fs.setattr(head, ino, wanted)) == after
    cut = Attributes(size=2)
    assert with_bits(lambda: fs.write(head, ino, 0, b"x", keep_set_id=False)) == after
    assert with_bits(lambda: fs.setattr(head, ino, cut, keep_set_id=False)) == after
    assert with_bits(lambda: fs.write(head, ino, 0, b"x")) == before
    assert with_bits(lambda: fs.setattr(head, ino, cut)) == before
    assert with_bits(lambda: fs.setattr(head, ino, Attributes(uid=1, mode=before))) == before
    assert with_bits(lambda: fs.write(head, ino, 0, b"", keep_set_id=False)) == before


def test_a_directory_keeps_its_bits(fs: Filesystem) -> None:
    ino = mkdir(fs, b"dir")
    fs.setattr(fs.head, ino, Attributes(mode=0o7777))
    fs.setattr(fs.head, ino, Attributes(uid=1, gid=1))
    assert mode_of(fs, ino) == 0o7777


def test_the_largest_owner_and_group_are_kept(life: Life) -> None:
    ino = put(life.fs, b"file")
    life.fs.setattr(life.fs.head, ino, Attributes(uid=2**32 - 2, gid=2**32 - 2))
    fs = life.reopen()
    assert (fs.getattr(fs.head, ino).uid, fs.getattr(fs.head, ino).gid) == (2**32 - 2, 2**32 - 2)


def test_nothing_wanted_touches_only_ctime(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    before = fs.getattr(fs.head, ino)
    after = fs.setattr(fs.head, ino, Attributes())
    assert after._replace(ctime_ns=before.ctime_ns) == before


def test_attributes_of_an_unknown_inode_are_refused(fs: Filesystem) -> None:
    with fails(errno.ESTALE):
        fs.getattr(fs.head, Ino(99))
    with fails(errno.ESTALE):
        fs.setattr(fs.head, Ino(99), Attributes(mode=0o600))


def test_the_root_has_attributes_too(life: Life) -> None:
    wanted = Attributes(mode=0o1711, uid=5, gid=6, mtime_ns=7)
    life.fs.setattr(life.fs.head, ROOT_INO, wanted)
    fs = life.reopen()
    root = fs.getattr(fs.head, ROOT_INO)
    assert (root.mode, root.uid, root.gid, root.mtime_ns) == (stat.S_IFDIR | 0o1711, 5, 6, 7)


def test_more_inodes_can_change_than_wait_in_memory(life: Life) -> None:
    fs = life.fs
    directory = mkdir(fs, b"dir")
    inos = [fs.mknod(fs.head, directory, b"%d" % n, 0o644, 0, 0).ino for n in range(5_000)]
    for ino in inos:
        fs.setattr(fs.head, ino, Attributes(mode=0o600))
    assert len(fs.head.dirty_inodes) <= 4_096
    fs = life.reopen()
    assert {inode.mode for _, inode in fs.entries(fs.head, directory)} == {stat.S_IFREG | 0o600}
    assert fs.head.inodes == 5_002


# -- extended attributes ---------------------------------------------------------------------------


@pytest.fixture
def ino(fs: Filesystem) -> Ino:
    return put(fs, b"file", b"data")


def test_values_come_back(fs: Filesystem, ino: Ino) -> None:
    values = {b"user.a": b"", b"user.ab": b"\0\1", b"user." + b"n" * 250: os.urandom(VALUE_MAX)}
    for name, value in values.items():
        fs.setxattr(fs.head, ino, name, value)
    assert fs.listxattr(fs.head, ino) == sorted(values)
    assert {name: fs.getxattr(fs.head, ino, name) for name in values} == values
    fs.setxattr(fs.head, ino, b"user.a", b"new")
    assert fs.getxattr(fs.head, ino, b"user.a") == b"new"
    fs.removexattr(fs.head, ino, b"user.a")
    assert b"user.a" not in fs.listxattr(fs.head, ino)


def test_an_xattr_is_created_or_replaced_as_the_flag_says(fs: Filesystem, ino: Ino) -> None:
    with fails(errno.ENODATA):
        fs.setxattr(fs.head, ino, b"user.a", b"1", XATTR_REPLACE)
    fs.setxattr(fs.head, ino, b"user.a", b"", XATTR_CREATE)
    with fails(errno.EEXIST):
        fs.setxattr(fs.head, ino, b"user.a", b"2", XATTR_CREATE)
    fs.setxattr(fs.head, ino, b"user.a", b"3", XATTR_REPLACE)
    assert fs.getxattr(fs.head, ino, b"user.a") == b"3"


def test_what_is_refused(fs: Filesystem, ino: Ino) -> None:
    before = fs.getattr(fs.head, ino)
    with fails(errno.ERANGE):
        fs.setxattr(fs.head, ino, b"user." + b"n" * NAME_MAX, b"")
    for name in (b"", b"a", b"system.posix_acl_access"):
        with fails(errno.EOPNOTSUPP):
            fs.setxattr(fs.head, ino, name, b"")
    with fails(errno.E2BIG):
        fs.setxattr(fs.head, ino, b"user.a", bytes(VALUE_MAX + 1))
    with fails(errno.ENODATA):
        fs.getxattr(fs.head, ino, b"user.a")
    with fails(errno.ENODATA):
        fs.removexattr(fs.head, ino, b"user.a")
    assert fs.getattr(fs.head, ino) == before and fs.listxattr(fs.head, ino) == []


def test_only_ctime_moves(fs: Filesystem, ino: Ino) -> None:
    for change in (
        lambda: fs.setxattr(fs.head, ino, b"user.a", b"1"),
        lambda: fs.removexattr(fs.head, ino, b"user.a"),
    ):
        before = fs.getattr(fs.head, ino)
        change()
        after = fs.getattr(fs.head, ino)
        assert after.ctime_ns > before.ctime_ns
        assert after._replace(ctime_ns=before.ctime_ns) == before
    fs.setxattr(fs.head, ino, b"user.a", b"1")
    before = fs.getattr(fs.head, ino)
    fs.getxattr(fs.head, ino, b"user.a")
    assert fs.getattr(fs.head, ino) == before


def test_a_value_on_nothing_leaves_nothing(fs: Filesystem) -> None:
    with fails(errno.ESTALE):
        fs.setxattr(fs.head, Ino(99), b"user.a", b"1")
    assert list(fs.store.xattrs.versions(b"")) == []


def test_values_belong_to_the_inode_and_not_to_its_name(fs: Filesystem, ino: Ino) -> None:
    fs.setxattr(fs.head, ino, b"user.a", b"1")
    fs.link(fs.head, ino, ROOT_INO, b"link")
    fs.unlink(fs.head, ROOT_INO, b"file")
    assert fs.getxattr(fs.head, find(fs, fs.head, b"link").ino, b"user.a") == b"1"
    fs.unlink(fs.head, ROOT_INO, b"link")
    assert list(fs.store.xattrs.versions(b"")) == []
    put(fs, b"file")
    assert fs.listxattr(fs.head, find(fs, fs.head, b"file").ino) == []


def test_checkpoints_keep_their_values(life: Life) -> None:
    fs = life.fs
    ino = put(fs, b"file")
    fs.setxattr(fs.head, ino, b"user.kept", b"1")
    fs.setxattr(fs.head, ino, b"user.gone", b"1")
    first = history.seal(fs, "manual", "", 0)
    fs.setxattr(fs.head, ino, b"user.kept", b"2")
    fs.removexattr(fs.head, ino, b"user.gone")
    fs.setxattr(fs.head, ino, b"user.new", b"2")
    with fails(errno.ENODATA):
        fs.setxattr(fs.head, ino, b"user.gone", b"2", XATTR_REPLACE)
    second = history.seal(fs, "manual", "", 0)
    fs.unlink(fs.head, ROOT_INO, b"file")
    fs.commit()
    assert check(fs.store) == []
    fs = life.reopen()

    def values(epoch: int) -> dict[bytes, bytes]:
        view = fs.view_of(epoch)
        return {name: fs.getxattr(view, ino, name) for name in fs.listxattr(view, ino)}

    assert values(first.epoch) == {b"user.kept": b"1", b"user.gone": b"1"}
    assert values(second.epoch) == {b"user.kept": b"2", b"user.new": b"2"}
