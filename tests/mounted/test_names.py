"""Names of files: any bytes but "/" and NUL, up to 255 of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.errnos import fails

ODD_NAMES = {
    "not utf-8": b"\xff\xfe caf\xe9",
    "newline": b"line one\nline two",
    "only spaces": b"   ",
    "backslash and quotes": b"\\ \" ' `",
    "control characters": bytes(range(1, 32)),
    "dashes": b"--help",
    "three dots": b"...",
    "trailing dot": b"name.",
    "every high byte": bytes(range(128, 256)),
    "255 bytes": b"n" * 255,
    "255 high bytes": b"\xe2" * 255,
    "emoji": "\N{PILE OF POO}".encode(),
    "one byte": b"\x01",
}


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_any_bytes_name_a_file(mount: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(mount), name)
    with open(path, "xb") as file:
        file.write(name)
    assert os.listdir(os.fsencode(mount)) == [name]
    with open(path, "rb") as file:
        assert file.read() == name
    os.unlink(path)
    assert os.listdir(mount) == []


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES.keys())
def test_any_bytes_name_a_directory_a_link_and_a_rename(mount: Path, name: bytes) -> None:
    here = os.fsencode(mount)
    os.mkdir(os.path.join(here, name))
    os.symlink(name, os.path.join(here, b"link"))
    assert os.path.isdir(os.path.join(here, b"link"))
    os.rename(os.path.join(here, name), os.path.join(here, b"plain"))
    assert sorted(os.listdir(here)) == [b"link", b"plain"]


def test_all_odd_names_exist_side_by_side(mount: Path) -> None:
    here = os.fsencode(mount)
    for name in ODD_NAMES.values():
        with open(os.path.join(here, name), "xb"):
            pass
    assert sorted(os.listdir(here)) == sorted(ODD_NAMES.values())


def test_upper_and_lower_case_and_unicode_forms_are_different_names(mount: Path) -> None:
    names = ["a", "A", "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"]
    for name in names:
        (mount / name).write_text(name)
    assert {name: (mount / name).read_text() for name in os.listdir(mount)} == {
        name: name for name in names
    }


TOO_LONG = "n" * 256
MAKERS = {
    "open": lambda path: os.open(path, os.O_CREAT | os.O_WRONLY),
    "mkdir": os.mkdir,
    "symlink": lambda path: os.symlink("target", path),
    "mkfifo": os.mkfifo,
    "stat": os.stat,
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "rename to": lambda path: os.rename(path.parent / "file", path),
    "rename from": lambda path: os.rename(path, path.parent / "other"),
    "link": lambda path: os.link(path.parent / "file", path),
}


@pytest.mark.parametrize("call", MAKERS.values(), ids=MAKERS.keys())
def test_256_bytes_are_too_long(mount: Path, call: object) -> None:
    (mount / "file").touch()
    with fails(errno.ENAMETOOLONG):
        call(mount / TOO_LONG)  # type: ignore[operator]
    assert os.listdir(mount) == ["file"]


def test_a_path_longer_than_path_max_is_refused(mount: Path) -> None:
    with fails(errno.ENAMETOOLONG):
        os.stat(str(mount) + "/." * 2100)


def test_a_directory_deeper_than_path_max_works_step_by_step(mount: Path) -> None:
    """Deeper than PATH_MAX: reached step by step, and removed the same way."""
    step, depth = "d" * 200, 30
    top = os.open(mount, os.O_RDONLY)
    levels = [top]
    for _ in range(depth):
        os.mkdir(step, dir_fd=levels[-1])
        levels.append(os.open(step, os.O_RDONLY, dir_fd=levels[-1]))
    bottom = os.open("file", os.O_CREAT | os.O_RDWR, dir_fd=levels[-1])
    os.write(bottom, b"deep")
    assert os.pread(bottom, 9, 0) == b"deep"
    os.close(bottom)
    os.unlink("file", dir_fd=levels[-1])
    for level in reversed(levels[:-1]):
        os.rmdir(step, dir_fd=level)
    for level in levels:
        os.close(level)
    assert os.listdir(mount) == []


def test_dot_and_dotdot_lead_home_and_cannot_be_removed(mount: Path) -> None:
    (mount / "dir").mkdir()
    assert os.stat(f"{mount}/dir/.").st_ino == os.stat(mount / "dir").st_ino
    assert os.stat(f"{mount}/dir/..").st_ino == os.stat(mount).st_ino
    with fails(errno.EINVAL):
        os.rmdir(f"{mount}/dir/.")
    with fails(errno.ENOTEMPTY, errno.EINVAL):
        os.rmdir(f"{mount}/dir/..")
    with fails(errno.EBUSY, errno.EINVAL):
        os.rename(f"{mount}/dir/.", mount / "other")
    with fails(errno.EEXIST):
        os.mkdir(f"{mount}/dir/.")
    assert os.listdir(mount) == ["dir"]


def test_an_empty_path_names_nothing(mount: Path) -> None:
    here = os.open(mount, os.O_RDONLY)
    try:
        with fails(errno.ENOENT):
            os.stat("", dir_fd=here)
    finally:
        os.close(here)
