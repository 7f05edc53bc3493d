"""Where a listing goes on: by names, whatever happens to the directory meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from ckptfs.fuse.listings import Listings
from ckptfs.model import Inode

NODE = Inode(7, 0o40755, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b"", b"")  # type: ignore[arg-type]


class Directory:
    """Names that come and go, in order."""

    def __init__(self, names: list[bytes]) -> None:
        self.names = set(names)
        self.listings = Listings(lambda _: (NODE, NODE), self.walk)

    def walk(self, node: int, after: bytes) -> Iterator[tuple[bytes, Inode]]:
        for name in sorted(self.names):
            if name > after:
                yield name, NODE

    def read(self, cookie: int, count: int = 1000) -> list[tuple[bytes, int]]:
        found = islice(self.listings.entries(1, cookie), count)
        return [(name, cookie) for name, _, cookie in found]


@pytest.fixture
def directory() -> Directory:
    return Directory([b"a", b"b", b"c", b"d", b"e"])


def names(found: list[tuple[bytes, int]]) -> bytes:
    return b"".join(name for name, _ in found)


def test_a_listing_in_pieces_has_every_entry_once(directory: Directory) -> None:
    seen, cookie = b"", 0
    while piece := directory.read(cookie, 2):
        seen += names(piece)
        cookie = piece[-1][1]
    assert seen == b"...abcde"


def test_every_cookie_leads_on_from_its_name(directory: Directory) -> None:
    whole = directory.read(0)
    for index, (_, cookie) in enumerate(whole):
        assert directory.read(cookie) == whole[index + 1 :]


def test_a_cookie_outlives_its_name(directory: Directory) -> None:
    whole = dict(directory.read(0))
    directory.names -= {b"b", b"c"}
    assert names(directory.read(whole[b"c"])) == b"de"
    # Reading a part again did not move the places of the rest.
    assert names(directory.read(whole[b"d"])) == b"e"


def test_a_name_that_came_later_has_a_cookie_of_its_own(directory: Directory) -> None:
    whole = dict(directory.read(0))
    directory.names.add(b"bb")
    again = dict(directory.read(whole[b"a"]))
    assert list(again) == [b"b", b"bb", b"c", b"d", b"e"]
    assert again[b"bb"] not in whole.values()
    assert names(directory.read(again[b"bb"])) == b"cde"


def test_streams_do_not_meet(directory: Directory) -> None:
    first = dict(directory.read(0))
    directory.names -= {b"a", b"b"}
    second = dict(directory.read(0))
    assert not set(first.values()) & set(second.values())
    assert names(directory.read(first[b"a"])) == names(directory.read(second[b".."])) == b"cde"


def test_a_forgotten_stream_is_counted_through(directory: Directory) -> None:
    cookie = dict(directory.read(0))[b"b"]
    for _ in range(100):
        directory.read(0, 3)
    assert names(directory.read(cookie)) == b"cde"


@pytest.mark.parametrize("cookie", [1, 3, 100, (9 << 32) + 3, (1 << 62) + 4, (1 << 63) - 1])
def test_a_cookie_that_was_never_given_is_counted_to(directory: Directory, cookie: int) -> None:
    whole = names(directory.read(0))
    assert whole.endswith(names(directory.read(cookie)))
    assert names(directory.read(0)) == whole


def test_a_cookie_of_another_directory_tells_nothing_here(directory: Directory) -> None:
    listings = directory.listings
    cookie = [place for _, _, place in listings.entries(2, 0)][3]  # behind "b" in that one
    directory.names = {b"A", b"C", b"E"}
    assert [name for name, _, _ in listings.entries(3, cookie)] == [b"E"]  # the first two counted
    directory.names = {b"a", b"b", b"c", b"d", b"e"}
    assert [name for name, _, _ in listings.entries(2, cookie)] == [b"c", b"d", b"e"]
