"""Extended attributes: an option of the mount, and a clear no without it."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, workspace
from tests.support.programs import run
from tests.support.trees import plant
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def with_xattrs(served_by: str) -> Iterator[Workspace]:
    with workspace("--xattrs", "--no-write-back") as made:
        yield made


@pytest.fixture
def file(with_xattrs: Workspace, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = with_xattrs.path / request.node.name
    path.write_text("x")
    yield path
    with_xattrs.quiet()


def test_set_get_list_remove(file: Path) -> None:
    assert os.listxattr(file) == []
    os.setxattr(file, "user.one", b"1")
    os.setxattr(file, "user.two", b"\0\xff binary \n")
    assert sorted(os.listxattr(file)) == ["user.one", "user.two"]
    assert os.getxattr(file, "user.one") == b"1"
    assert os.getxattr(file, "user.two") == b"\0\xff binary \n"
    os.removexattr(file, "user.one")
    assert os.listxattr(file) == ["user.two"]


def test_a_value_is_replaced(file: Path) -> None:
    for value in (b"first", b"", b"a longer one than before", b"short"):
        os.setxattr(file, "user.name", value)
        assert os.getxattr(file, "user.name") == value
    assert os.listxattr(file) == ["user.name"]


def test_an_attribute_that_is_not_there_is_an_error(file: Path) -> None:
    with fails(errno.ENODATA):
        os.getxattr(file, "user.none")
    with fails(errno.ENODATA):
        os.removexattr(file, "user.none")
    with fails(errno.ENOENT):
        os.getxattr(f"{file}-none", "user.none")


def test_the_flags_create_and_replace_are_obeyed(file: Path) -> None:
    with fails(errno.ENODATA):
        os.setxattr(file, "user.name", b"1", os.XATTR_REPLACE)
    os.setxattr(file, "user.name", b"1", os.XATTR_CREATE)
    with fails(errno.EEXIST):
        os.setxattr(file, "user.name", b"2", os.XATTR_CREATE)
    assert os.getxattr(file, "user.name") == b"1"
    os.setxattr(file, "user.name", b"3", os.XATTR_REPLACE)
    assert os.getxattr(file, "user.name") == b"3"


def test_a_large_value_is_kept_or_clearly_refused(file: Path) -> None:
    value = os.urandom(60_000)
    try:
        os.setxattr(file, "user.large", value)
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.E2BIG, errno.ERANGE)
        assert os.listxattr(file) == []
    else:
        assert os.getxattr(file, "user.large") == value


def test_more_than_the_kernel_takes(file: Path) -> None:
    with fails(errno.E2BIG, errno.ENOSPC, errno.ERANGE):
        os.setxattr(file, "user.large", b"x" * 65_537)
    with fails(errno.ERANGE, errno.ENAMETOOLONG):
        os.setxattr(file, "user." + "n" * 251, b"x")


def test_a_file_has_many_attributes(file: Path) -> None:
    expected = {f"user.name{number}": str(number).encode() * 5 for number in range(30)}
    for name, value in expected.items():
        os.setxattr(file, name, value)
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == expected


def test_directories_have_them_too(file: Path) -> None:
    directory = file.with_name("directory")
    directory.mkdir()
    os.setxattr(directory, "user.name", b"value")
    assert os.getxattr(directory, "user.name") == b"value"
    assert os.listxattr(directory) == ["user.name"]


def test_hard_links_share_them_and_renames_keep_them(file: Path) -> None:
    os.setxattr(file, "user.name", b"value")
    os.link(file, f"{file}-link")
    os.rename(file, f"{file}-moved")
    assert os.getxattr(f"{file}-link", "user.name") == b"value"
    os.setxattr(f"{file}-link", "user.name", b"other")
    assert os.getxattr(f"{file}-moved", "user.name") == b"other"
    file.write_text("a new file has none")
    assert os.listxattr(file) == []


def test_setting_one_changes_ctime_only(file: Path) -> None:
    before = file.stat()

    def moved() -> bool:
        os.setxattr(file, "user.name", b"value")
        return file.stat().st_ctime_ns > before.st_ctime_ns

    wait_until(moved, "setting an attribute moves ctime")
    assert file.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.needs_root
def test_trusted_and_security_attributes_of_root_are_kept_or_refused(file: Path) -> None:
    """Kept, or clearly refused."""
    for name in ("trusted.name", "security.name"):
        try:
            os.setxattr(file, name, b"value")
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP
        else:
            assert os.getxattr(file, name) == b"value"


def test_an_unknown_name_space_is_refused(file: Path) -> None:
    with fails(errno.EOPNOTSUPP):
        os.setxattr(file, "nonsense.name", b"value")
    with fails(errno.EPERM, errno.EOPNOTSUPP):
        os.symlink("x", f"{file}-link")
        os.setxattr(f"{file}-link", "user.name", b"value", follow_symlinks=False)


def test_copies_keep_their_modes(file: Path) -> None:
    """cp and others set modes through POSIX ACLs, which are attributes, if they seem to work."""
    file.chmod(0o645)
    run("cp", "-a", file, f"{file}-copy", cwd=file.parent)
    assert stat.S_IMODE(os.stat(f"{file}-copy").st_mode) == 0o645


def test_an_access_list_is_obeyed_or_refused(file: Path) -> None:
    """Never just stored: whoever set it would think that it protects."""
    entry = struct.Struct("<HHI")
    nobody = 0xFFFFFFFF
    access = struct.pack("<I", 2) + b"".join(
        entry.pack(tag, rights, nobody) for tag, rights in ((1, 6), (4, 0), (0x20, 0))
    )
    file.chmod(0o644)
    try:
        os.setxattr(file, "system.posix_acl_access", access)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    else:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_they_survive_a_remount(make_workspace: Callable[..., Workspace]) -> None:
    own = make_workspace("--xattrs")
    plant(own.path, {"file": "x", "dir": {}, "cleared": "y"})
    os.setxattr(own.path / "file", "user.name", b"value\0")
    os.setxattr(own.path / "dir", "user.other", b"z" * 3000)
    os.setxattr(own.path / "cleared", "user.name", b"")
    os.removexattr(own.path / "cleared", "user.name")
    own.remount()
    assert os.getxattr(own.path / "file", "user.name") == b"value\0"
    assert os.getxattr(own.path / "dir", "user.other") == b"z" * 3000
    assert os.listxattr(own.path / "cleared") == []


@pytest.mark.needs_mount
def test_without_the_option_they_are_not_supported(
    make_workspace: Callable[..., Workspace],
) -> None:
    own = make_workspace("--no-xattrs")
    plant(own.path, {"file": "x"})
    with fails(errno.EOPNOTSUPP):
        os.setxattr(own.path / "file", "user.name", b"value")
    with fails(errno.EOPNOTSUPP):
        os.getxattr(own.path / "file", "user.name")
    with fails(errno.EOPNOTSUPP):
        os.removexattr(own.path / "file", "user.name")
    try:
        assert os.listxattr(own.path / "file") == []
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
    assert (own.path / "file").read_text() == "x"
