"""Names: the corners of POSIX that deserve a test of their own, whatever the machines find."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem, names, renames
from ckptfs.model import NAME_MAX, ROOT_INO, TARGET_MAX, Attributes, Ino, Inode
from tests.direct import Life, find, get, mkdir, place, put, shown
from tests.support.effort import lines_of
from tests.support.errnos import fails

NOREPLACE, EXCHANGE = renames.RENAME_NOREPLACE, renames.RENAME_EXCHANGE


def nlink(fs: Filesystem, path: bytes) -> int:
    return find(fs, fs.head, path).nlink


def rename(fs: Filesystem, old: bytes, new: bytes, flags: int = 0) -> Ino | None:
    return fs.rename(fs.head, *place(fs, fs.head, old), *place(fs, fs.head, new), flags)


def listing(fs: Filesystem, path: bytes = b"") -> list[bytes]:
    return [name for name, _ in fs.entries(fs.head, find(fs, fs.head, path).ino)]


# -- valid names -----------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Filesystem, Ino, bytes], Inode]] = {
    "mknod": lambda fs, parent, name: fs.mknod(fs.head, parent, name, 0o644, 0, 0),
    "mkdir": lambda fs, parent, name: fs.mkdir(fs.head, parent, name, 0o755, 0, 0),
    "symlink": lambda fs, parent, name: fs.symlink(fs.head, parent, name, b"to", 0, 0),
    "link": lambda fs, parent, name: fs.link(fs.head, put(fs, b"source"), parent, name),
}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[[Filesystem, Ino, bytes], Inode]:
    return MAKERS[request.param]


def test_names_may_have_any_bytes(fs: Filesystem, make: Callable[..., Inode]) -> None:
    wanted = [b"\x01", b"\xff" * NAME_MAX, b"a\nb", b" ", b"...", b"\\", b"-rf", "ü".encode()]
    for name in wanted:
        make(fs, ROOT_INO, name)
        assert fs.lookup(fs.head, ROOT_INO, name).name in (name, b"source")
    assert set(listing(fs)) - {b"source"} == set(wanted)
    assert listing(fs) == sorted(listing(fs))


def test_names_that_cannot_be(fs: Filesystem, make: Callable[..., Inode]) -> None:
    before = set(listing(fs))
    with fails(errno.ENAMETOOLONG):
        make(fs, ROOT_INO, b"n" * (NAME_MAX + 1))
    for name in (b"", b".", b"..", b"a/b", b"a\0b"):
        with fails(errno.EINVAL):
            make(fs, ROOT_INO, name)
    assert set(listing(fs)) - {b"source"} == before


def test_a_name_that_is_taken(fs: Filesystem, make: Callable[..., Inode]) -> None:
    put(fs, b"file", b"kept")
    mkdir(fs, b"dir")
    for name in (b"file", b"dir"):
        with fails(errno.EEXIST):
            make(fs, ROOT_INO, name)
    assert get(fs, b"file") == b"kept"


def test_a_name_in_a_file_or_in_nothing_is_refused(
    fs: Filesystem, make: Callable[..., Inode]
) -> None:
    ino = put(fs, b"file")
    with fails(errno.ENOTDIR):
        make(fs, ino, b"name")
    with fails(errno.ESTALE):
        make(fs, Ino(999), b"name")


def test_a_name_in_a_directory_that_is_gone_is_refused(
    fs: Filesystem, make: Callable[..., Inode]
) -> None:
    """It is somebody's current directory, so it still has an inode."""
    ino = mkdir(fs, b"dir")
    fs.hold(ino)
    fs.rmdir(fs.head, ROOT_INO, b"dir")
    with fails(errno.ENOENT):
        make(fs, ino, b"name")
    put(fs, b"file")
    with fails(errno.ENOENT):
        fs.rename(fs.head, ROOT_INO, b"file", ino, b"name")
    assert list(fs.entries(fs.head, ino)) == []
    fs.drop(ino)


def test_lookup_finds_a_name_or_says_why_not(fs: Filesystem) -> None:
    ino = put(fs, b"file")
    assert fs.lookup(fs.head, ROOT_INO, b"file").ino == ino
    assert fs.seek(fs.head, ROOT_INO, b"absent") is None
    with fails(errno.ENOENT):
        fs.lookup(fs.head, ROOT_INO, b"absent")
    with fails(errno.ENOTDIR):
        fs.lookup(fs.head, ino, b"absent")
    with fails(errno.ESTALE):
        fs.lookup(fs.head, Ino(999), b"absent")
    with fails(errno.ENAMETOOLONG):
        fs.lookup(fs.head, ROOT_INO, b"n" * (NAME_MAX + 1))


def test_a_symlink_target_has_its_limits(fs: Filesystem) -> None:
    longest = fs.symlink(fs.head, ROOT_INO, b"long", b"t" * TARGET_MAX, 0, 0)
    assert fs.readlink(fs.head, longest.ino) == b"t" * TARGET_MAX
    assert longest.size == TARGET_MAX and stat.S_IMODE(longest.mode) == 0o777
    with fails(errno.ENAMETOOLONG):
        fs.symlink(fs.head, ROOT_INO, b"longer", b"t" * (TARGET_MAX + 1), 0, 0)
    with fails(errno.ENOENT):
        fs.symlink(fs.head, ROOT_INO, b"empty", b"", 0, 0)
    with fails(errno.EINVAL):
        fs.readlink(fs.head, put(fs, b"file"))


def test_special_files_keep_their_device_and_owner(fs: Filesystem) -> None:
    for kind in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
        name = b"%o" % kind
        made = fs.mknod(fs.head, ROOT_INO, name, kind | 0o640, 5, 6, 0x1234567)
        again = fs.lookup(fs.head, ROOT_INO, name)
        assert again == made and again.rdev == 0x1234567
        assert (again.mode, again.uid, again.gid) == (kind | 0o640, 5, 6)


def test_a_mode_without_a_type_is_a_file(fs: Filesystem) -> None:
    assert stat.S_ISREG(fs.mknod(fs.head, ROOT_INO, b"file", 0o644, 0, 0).mode)


# -- set-gid directories ---------------------------------------------------------------------------


def test_a_set_gid_directory_hands_its_group_down(fs: Filesystem) -> None:
    ino = mkdir(fs, b"dir")
    fs.setattr(fs.head, ino, Attributes(mode=0o2775, gid=77))
    fs.setattr(fs.head, ino, Attributes(mode=0o2775))
    file = fs.mknod(fs.head, ino, b"file", 0o644, 5, 5)
    sub = fs.mkdir(fs.head, ino, b"sub", 0o755, 5, 5)
    link = fs.symlink(fs.head, ino, b"link", b"to", 5, 5)
    assert {made.gid for made in (file, sub, link)} == {77}
    assert {made.uid for made in (file, sub, link)} == {5}
    assert sub.mode & stat.S_ISGID and not file.mode & stat.S_ISGID
    assert fs.mkdir(fs.head, sub.ino, b"deeper", 0o700, 5, 5).mode & stat.S_ISGID


# -- link counts and hard links --------------------------------------------------------------------


def test_a_directory_counts_its_subdirectories(fs: Filesystem) -> None:
    assert nlink(fs, b"") == 2
    mkdir(fs, b"a")
    mkdir(fs, b"a/b")
    mkdir(fs, b"c")
    put(fs, b"file")
    assert (nlink(fs, b""), nlink(fs, b"a"), nlink(fs, b"a/b")) == (4, 3, 2)
    rename(fs, b"a/b", b"c/b")
    assert (nlink(fs, b""), nlink(fs, b"a"), nlink(fs, b"c")) == (4, 2, 3)
    rename(fs, b"a", b"c/b")
    assert (nlink(fs, b""), nlink(fs, b"c"), nlink(fs, b"c/b")) == (3, 3, 2)
    rename(fs, b"c/b", b"file", EXCHANGE)
    assert (nlink(fs, b""), nlink(fs, b"c"), nlink(fs, b"file")) == (4, 2, 2)
    fs.rmdir(fs.head, ROOT_INO, b"file")
    assert nlink(fs, b"") == 3


def test_the_other_name_takes_over_when_the_first_goes(life: Life) -> None:
    """An inode knows one of its names; which one must not matter."""
    fs = life.fs
    mkdir(fs, b"dir")
    ino = put(fs, b"first", b"data")
    fs.link(fs.head, ino, *place(fs, fs.head, b"dir/second"))
    fs.link(fs.head, ino, *place(fs, fs.head, b"third"))
    fs.unlink(fs.head, ROOT_INO, b"first")
    assert nlink(fs, b"third") == 2
    fs = life.reopen()
    rename(fs, b"dir/second", b"dir/moved")
    rename(fs, b"third", b"dir/third")
    fs.commit()
    fs.unlink(fs.head, *place(fs, fs.head, b"dir/moved"))
    assert get(fs, b"dir/third") == b"data" and nlink(fs, b"dir/third") == 1
    inode = find(fs, fs.head, b"dir/third")
    assert (inode.parent, inode.name) == place(fs, fs.head, b"dir/third")
    fs.unlink(fs.head, *place(fs, fs.head, b"dir/third"))
    assert fs.head.inodes == 2


def test_links_to_what_may_not_be_linked(fs: Filesystem) -> None:
    directory = mkdir(fs, b"dir")
    with fails(errno.EPERM):
        fs.link(fs.head, directory, ROOT_INO, b"link")
    with fails(errno.ESTALE):
        fs.link(fs.head, Ino(999), ROOT_INO, b"link")
    ino = put(fs, b"file")
    fs.hold(ino)
    fs.unlink(fs.head, ROOT_INO, b"file")
    with fails(errno.ENOENT):
        fs.link(fs.head, ino, ROOT_INO, b"link")
    fs.drop(ino)
    assert listing(fs) == [b"dir"]


def test_links_and_pipes_can_be_linked(fs: Filesystem) -> None:
    for made in (
        fs.symlink(fs.head, ROOT_INO, b"symlink", b"to", 0, 0),
        fs.mknod(fs.head, ROOT_INO, b"pipe", stat.S_IFIFO | 0o644, 0, 0),
    ):
        linked = fs.link(fs.head, made.ino, ROOT_INO, made.name + b"2")
        assert linked.ino == made.ino and linked.nlink == 2


def test_too_many_links_are_refused(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LINK_MAX", 3)
    ino = put(fs, b"file")
    fs.link(fs.head, ino, ROOT_INO, b"two")
    fs.link(fs.head, ino, ROOT_INO, b"three")
    with fails(errno.EMLINK):
        fs.link(fs.head, ino, ROOT_INO, b"four")
    assert nlink(fs, b"file") == 3 and b"four" not in listing(fs)
    fs.unlink(fs.head, ROOT_INO, b"two")
    fs.link(fs.head, ino, ROOT_INO, b"four")


# -- removing --------------------------------------------------------------------------------------


def test_the_wrong_kind_is_not_removed(fs: Filesystem) -> None:
    put(fs, b"file")
    mkdir(fs, b"dir")
    with fails(errno.EISDIR):
        fs.unlink(fs.head, ROOT_INO, b"dir")
    with fails(errno.ENOTDIR):
        fs.rmdir(fs.head, ROOT_INO, b"file")
    for remove in (fs.unlink, fs.rmdir):
        with fails(errno.ENOENT):
            remove(fs.head, ROOT_INO, b"absent")
    assert listing(fs) == [b"dir", b"file"]


def test_a_directory_must_be_empty(fs: Filesystem) -> None:
    mkdir(fs, b"dir")
    put(fs, b"dir/file")
    with fails(errno.ENOTEMPTY):
        fs.rmdir(fs.head, ROOT_INO, b"dir")
    fs.unlink(fs.head, *place(fs, fs.head, b"dir/file"))
    fs.rmdir(fs.head, ROOT_INO, b"dir")
    assert listing(fs) == []


def test_a_removal_and_a_renaming_say_when_they_are_sure(fs: Filesystem) -> None:
    """Once, before anything changes, and not at all if they are refused."""
    said: list[list[bytes]] = []
    fs.acknowledge = lambda: said.append(listing(fs))
    mkdir(fs, b"full")
    for path in (b"full/file", b"a", b"b", b"c"):
        put(fs, path)
    mkdir(fs, b"empty")
    head = fs.head
    for number, refused in (
        (errno.ENOENT, lambda: fs.unlink(head, ROOT_INO, b"absent")),
        (errno.EISDIR, lambda: fs.unlink(head, ROOT_INO, b"full")),
        (errno.ENOTEMPTY, lambda: fs.rmdir(head, ROOT_INO, b"full")),
        (errno.ENOTDIR, lambda: fs.rmdir(head, ROOT_INO, b"a")),
        (errno.ENOENT, lambda: rename(fs, b"absent", b"a")),
        (errno.EEXIST, lambda: rename(fs, b"a", b"b", NOREPLACE)),
        (errno.EINVAL, lambda: rename(fs, b"full", b"full/below")),
        (errno.ENOTEMPTY, lambda: rename(fs, b"empty", b"full")),
    ):
        with fails(number):
            refused()
    assert said == []
    for made in (
        lambda: rename(fs, b"a", b"d"),
        lambda: rename(fs, b"b", b"c"),
        lambda: fs.unlink(head, ROOT_INO, b"c"),
        lambda: fs.rmdir(head, ROOT_INO, b"empty"),
    ):
        said.clear()
        before = listing(fs)
        made()
        assert said
        assert all(each == before for each in said)


def test_after_a_failure_nothing_is_acknowledged(life: Life) -> None:
    said: list[None] = []
    put(life.fs, b"file")
    life.fs.commit()
    life.fs.acknowledge = lambda: said.append(None)
    life.fs.store.fail()
    for refused in (
        lambda: life.fs.unlink(life.fs.head, ROOT_INO, b"file"),
        lambda: rename(life.fs, b"file", b"other"),
    ):
        with fails(errno.EIO):
            refused()
    assert said == []
    life.crash()


def test_an_unlinked_file_lives_until_it_is_closed(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    fs.hold(ino)
    fs.hold(ino)
    fs.unlink(fs.head, ROOT_INO, b"file")
    assert fs.getattr(fs.head, ino).nlink == 0
    fs.write(fs.head, ino, 4, b" and more")
    fs.drop(ino)
    assert fs.read(fs.head, ino, 0, 100) == b"data and more"
    fs.drop(ino)
    with fails(errno.ESTALE):
        fs.getattr(fs.head, ino)
    assert fs.head.inodes == 1


@pytest.mark.parametrize("forget_first", [False, True])
def test_an_unlinked_inode_lives_while_the_kernel_knows_it(
    fs: Filesystem, forget_first: bool
) -> None:
    """It ends when it has neither a handle nor the kernel, whichever goes first."""
    fs.keep_unlinked = True
    ino = put(fs, b"file", b"data")
    fs.hold(ino)
    fs.unlink(fs.head, ROOT_INO, b"file")
    last, first = (fs.drop, fs.forget) if forget_first else (fs.forget, fs.drop)
    first(ino)
    assert fs.getattr(fs.head, ino).nlink == 0
    last(ino)
    with fails(errno.ESTALE):
        fs.getattr(fs.head, ino)


def test_forgetting_what_has_a_name_changes_nothing(fs: Filesystem) -> None:
    ino = put(fs, b"file", b"data")
    fs.forget(ino)
    assert get(fs, b"file") == b"data"


# -- renaming --------------------------------------------------------------------------------------


def test_a_directory_cannot_go_below_itself(fs: Filesystem) -> None:
    for path in (b"a", b"a/b", b"a/b/c"):
        mkdir(fs, path)
    put(fs, b"a/b/c/file")
    before = shown(fs, fs.head)
    for new in (b"a/new", b"a/b/new", b"a/b/c/new"):
        for flags in (0, NOREPLACE):
            with fails(errno.EINVAL):
                rename(fs, b"a", new, flags)
    with fails(errno.EINVAL):
        rename(fs, b"a", b"a/b/c", EXCHANGE)
    with fails(errno.EINVAL):
        rename(fs, b"a/b/c/file", b"a", EXCHANGE)
    assert shown(fs, fs.head) == before
    rename(fs, b"a/b/c", b"c")
    rename(fs, b"a", b"c/a")
    assert listing(fs, b"c") == [b"a", b"file"]


def test_a_rename_replaces_only_what_it_may(fs: Filesystem) -> None:
    mkdir(fs, b"empty")
    mkdir(fs, b"full")
    put(fs, b"full/file")
    put(fs, b"file", b"old")
    before = shown(fs, fs.head)
    with fails(errno.EISDIR):
        rename(fs, b"file", b"empty")
    with fails(errno.ENOTDIR):
        rename(fs, b"empty", b"file")
    with fails(errno.ENOTEMPTY):
        rename(fs, b"empty", b"full")
    with fails(errno.EEXIST):
        rename(fs, b"file", b"empty", NOREPLACE)
    with fails(errno.ENOENT):
        rename(fs, b"absent", b"file")
    with fails(errno.ENOENT):
        rename(fs, b"file", b"absent", EXCHANGE)
    with fails(errno.ENAMETOOLONG):
        rename(fs, b"file", b"n" * (NAME_MAX + 1))
    for flags in (3, 4, 8):
        with fails(errno.EINVAL):
            rename(fs, b"file", b"new", flags)
    assert shown(fs, fs.head) == before
    rename(fs, b"full", b"empty")
    assert listing(fs, b"empty") == [b"file"] and listing(fs) == [b"empty", b"file"]


def test_rename_tells_who_has_the_name_now(fs: Filesystem) -> None:
    new = put(fs, b"new", b"new")
    put(fs, b"old", b"old")
    assert rename(fs, b"new", b"old") == new
    assert rename(fs, b"old", b"free") == new
    assert get(fs, b"free") == b"new" and fs.head.inodes == 2


def test_a_replaced_open_file_lives_on(fs: Filesystem) -> None:
    put(fs, b"new", b"new")
    old = put(fs, b"old", b"old")
    fs.hold(old)
    rename(fs, b"new", b"old")
    assert fs.read(fs.head, old, 0, 10) == b"old" and get(fs, b"old") == b"new"
    fs.drop(old)


def test_renaming_a_name_onto_another_of_the_same_file_does_nothing(fs: Filesystem) -> None:
    """POSIX: both names stay."""
    ino = put(fs, b"one", b"data")
    fs.link(fs.head, ino, ROOT_INO, b"two")
    before = shown(fs, fs.head)
    for flags in (0, EXCHANGE):
        assert rename(fs, b"one", b"two", flags) == ino
        assert rename(fs, b"one", b"one", flags) == ino
    assert shown(fs, fs.head) == before
    with fails(errno.EEXIST):
        rename(fs, b"one", b"two", NOREPLACE)


def test_an_exchange_swaps_two_names_for_good(life: Life) -> None:
    fs = life.fs
    mkdir(fs, b"dir")
    put(fs, b"dir/inside", b"inside")
    ino = put(fs, b"file", b"file")
    fs.link(fs.head, ino, *place(fs, fs.head, b"dir/link"))
    rename(fs, b"dir", b"file", EXCHANGE)
    assert get(fs, b"dir") == b"file" and get(fs, b"file/inside") == b"inside"
    rename(fs, b"file/link", b"file/inside", EXCHANGE)
    assert get(fs, b"file/inside") == b"file" and get(fs, b"file/link") == b"inside"
    fs.commit()
    fs = life.reopen()
    assert get(fs, b"file/inside") == get(fs, b"dir") == b"file"
    assert nlink(fs, b"dir") == 2


# -- times -----------------------------------------------------------------------------------------


def _times(fs: Filesystem, *paths: bytes) -> list[tuple[int, int]]:
    return [(i.mtime_ns, i.ctime_ns) for i in (find(fs, fs.head, path) for path in paths)]


def _later(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> list[str]:
    """For each, which times moved on."""
    return ["m" * (b[0] > a[0]) + "c" * (b[1] > a[1]) for a, b in zip(before, after, strict=True)]


def test_a_change_of_names_moves_the_times_that_posix_says(fs: Filesystem) -> None:
    mkdir(fs, b"a")
    mkdir(fs, b"b")
    ino = put(fs, b"a/file")
    paths = [b"", b"a", b"b", b"a/file"]

    def after(change: Callable[[], object], now: list[bytes] = paths) -> list[str]:
        before = _times(fs, *paths)
        change()
        return _later(before, _times(fs, *now))

    inside = find(fs, fs.head, b"a").ino
    assert after(lambda: fs.link(fs.head, ino, inside, b"link")) == ["", "mc", "", "c"]
    assert after(lambda: fs.unlink(fs.head, inside, b"link")) == ["", "mc", "", "c"]
    assert after(lambda: mkdir(fs, b"a/sub")) == ["", "mc", "", ""]
    assert after(lambda: fs.rmdir(fs.head, inside, b"sub")) == ["", "mc", "", ""]
    assert after(lambda: put(fs, b"a/other")) == ["", "mc", "", ""]
    assert after(lambda: rename(fs, b"a/other", b"a/again")) == ["", "mc", "", ""]
    moved = [*paths[:3], b"b/file"]
    assert after(lambda: rename(fs, b"a/file", b"b/file"), moved) == ["", "mc", "mc", "c"]


# -- readdir ---------------------------------------------------------------------------------------


def test_entries_from_the_middle_while_they_come_and_go(fs: Filesystem) -> None:
    """More than a batch: what stays is given once, wherever the reader stands."""
    directory = mkdir(fs, b"dir")
    for n in range(700):
        fs.mknod(fs.head, directory, b"%04d" % n, 0o644, 0, 0)
    seen = []
    for name, inode in fs.entries(fs.head, directory):
        seen.append(name)
        assert inode.name == name
        number = int(name)
        if number % 2:
            fs.unlink(fs.head, directory, name)
        if number + 300 < 700 and number % 3 == 0:
            fs.unlink(fs.head, directory, b"%04d" % (number + 300))
            fs.mknod(fs.head, directory, b"%04d" % (number + 300), 0o644, 0, 0)
    assert seen == [b"%04d" % n for n in range(700)]


def test_a_listing_goes_on_behind_a_name_that_is_gone(fs: Filesystem) -> None:
    for name in (b"a", b"a\x01", b"ab", b"b"):
        put(fs, name)
    assert [name for name, _ in fs.entries(fs.head, ROOT_INO, b"a")] == [b"a\x01", b"ab", b"b"]
    fs.unlink(fs.head, ROOT_INO, b"a")
    assert [name for name, _ in fs.entries(fs.head, ROOT_INO, b"a")] == [b"a\x01", b"ab", b"b"]
    assert list(fs.entries(fs.head, ROOT_INO, b"b")) == []


def test_many_names_go_in_order_after_a_checkpoint(fs: Filesystem) -> None:
    """Each of them leaves a record that says so, and none of those is looked at again."""
    ino = put(fs, b"a", b"bytes")
    names = [b"name%04d" % number for number in range(2_000)]
    for name in names:
        fs.link(fs.head, ino, ROOT_INO, name)
    history.seal(fs, "manual", "", 0)
    first = lines_of(lambda: fs.unlink(fs.head, ROOT_INO, b"a"))
    for name in names[:-2]:
        fs.unlink(fs.head, ROOT_INO, name)
    last = lines_of(lambda: fs.unlink(fs.head, ROOT_INO, names[-2]))
    assert last < 2 * first
    assert get(fs, names[-1]) == b"bytes"
    assert fs.getattr(fs.head, ino).nlink == 1


def test_a_name_is_left_that_comes_before_the_one_that_goes(fs: Filesystem) -> None:
    ino = put(fs, b"z", b"bytes")
    fs.link(fs.head, ino, ROOT_INO, b"a")
    fs.unlink(fs.head, ROOT_INO, b"z")
    assert fs.getattr(fs.head, ino).name == b"a"


# -- files without a name --------------------------------------------------------------------------


def test_a_nameless_file_gets_a_name_once(fs: Filesystem) -> None:
    made = fs.make_nameless(fs.head, ROOT_INO, 0o4640, 1, 2)
    fs.hold(made.ino)
    assert (made.nlink, made.mode & 0o7777, made.uid, made.gid) == (0, 0o4640, 1, 2)
    fs.write(fs.head, made.ino, 0, b"bytes")
    fs.commit()
    assert fs.link(fs.head, made.ino, ROOT_INO, b"file").nlink == 1
    assert get(fs, b"file") == b"bytes"
    fs.unlink(fs.head, ROOT_INO, b"file")
    with fails(errno.ENOENT):
        fs.link(fs.head, made.ino, ROOT_INO, b"again")
    fs.drop(made.ino)


def test_a_nameless_file_without_a_user_goes(fs: Filesystem) -> None:
    count = fs.head.inodes
    made = fs.make_nameless(fs.head, ROOT_INO, 0o600, 0, 0)
    fs.hold(made.ino)
    fs.write(fs.head, made.ino, 0, b"x" * 100_000)
    fs.commit()
    fs.drop(made.ino)
    assert fs.head.inodes == count
    with fails(errno.ESTALE):
        fs.getattr(fs.head, made.ino)


def test_a_nameless_file_in_a_directory_that_is_gone_is_refused(fs: Filesystem) -> None:
    directory = mkdir(fs, b"dir")
    fs.hold(directory)
    fs.rmdir(fs.head, ROOT_INO, b"dir")
    with fails(errno.ENOENT):
        fs.make_nameless(fs.head, directory, 0o600, 0, 0)
    fs.drop(directory)
