"""The kernel's mount table as it is read."""

from __future__ import annotations

import pytest

from ckptfs.mountinfo import entries

TABLE = rb"""22 28 0:20 / /proc rw,relatime - proc proc rw
51 28 0:40 /part /mnt/a\040b\012c rw,nosuid shared:7 master:2 - fuse.ckptfs /st\134ore rw,user_id=0
broken line
"""


def test_every_field_of_a_line_is_read_and_a_broken_line_passed_over() -> None:
    first, second = entries(TABLE)
    assert (first.path, first.fstype, first.source, first.propagation) == (
        "/proc",
        "proc",
        "proc",
        (),
    )
    assert (second.number, second.parent, second.device) == ("51", "28", "0:40")
    assert (second.root, second.path, second.source) == ("/part", "/mnt/a b\nc", "/st\\ore")
    assert second.options == ["rw", "nosuid", "rw", "user_id=0"]
    assert second.propagation == ("shared:7", "master:2")


@pytest.mark.parametrize("source", [rb"\\server\share", rb"\08x", rb"a\1"])
def test_a_source_that_its_file_system_did_not_escape_stays_as_it_is(source: bytes) -> None:
    (found,) = entries(b"51 28 0:40 / /w rw - cifs " + source + b" rw\n")
    assert found.source == source.decode()


def test_a_carriage_return_in_a_path_ends_no_line() -> None:
    (found,) = entries(b"51 28 0:40 / /a\rb rw - fuse.ckptfs /s rw\n")
    assert found.path == "/a\rb"
