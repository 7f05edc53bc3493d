"""Several servers in one loop: a socket in place of each one's kernel."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

import pytest

from ckptfs.fuse.server import binding
from tests.support.kernel import FORGET, GETATTR, LOOKUP, STATFS, Kernel, Owner

MODULE = binding.load().module

pytestmark = pytest.mark.skipif(MODULE is None, reason="the server is not compiled")


class Companion(Kernel):
    """One that is served by another's loop."""

    def join(self, leader: Kernel) -> Companion:
        self.server.open(self.theirs)
        leader.server.join(self.server)
        return self


class Order(Owner):
    """Notes whose request came when."""

    def __init__(self, name: str, order: list[str]) -> None:
        super().__init__()
        self._name = name
        self._order = order

    def getattr(self, node: int) -> object:
        self._order.append(self._name)
        raise OSError(errno.ENOENT, "none")


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def kernels(order: list[str]) -> Iterator[list[Kernel]]:
    assert MODULE is not None
    leader = Kernel(MODULE, Order("a", order))
    others = [Companion(MODULE, Order(name, order)).join(leader) for name in "bc"]
    yield [leader, *others]
    for kernel in (leader, *others):
        kernel.close()


def test_mounts_with_many_requests_are_served_in_turn(
    kernels: list[Kernel], order: list[str]
) -> None:
    for kernel in kernels:
        for _ in range(6):
            kernel.send(GETATTR, b"")

    kernels[0].serve()

    assert len(order) == 18
    assert all(sorted(order[start : start + 3]) == ["a", "b", "c"] for start in range(0, 18, 3))


def test_a_companion_that_was_idle_is_found_by_its_next_request(
    kernels: list[Kernel], order: list[str]
) -> None:
    kernels[1].send(GETATTR, b"")
    kernels[0].serve()
    for _ in range(3):  # turns without a request of its own
        kernels[0].ask(GETATTR, b"")
    kernels[1].send(GETATTR, b"")
    kernels[0].serve()

    assert order == ["b", "a", "a", "a", "b"]


def test_what_has_no_handler_goes_to_the_fallback_and_may_be_answered_later(
    kernels: list[Kernel],
) -> None:
    _, companion, _ = kernels

    companion.send(STATFS, b"", node=3)
    kernels[0].serve()

    assert companion.owner.calls == [("other", STATFS, 7, 3, 0, 42, b"")]
    assert companion.is_silent()
    companion.server.reply(7, 0, b"answer")
    assert companion.answer() == (0, b"answer")
    companion.server.reply(7, errno.EROFS, b"nothing of this")
    assert companion.answer() == (errno.EROFS, b"")


def test_lookups_are_counted_for_each_mount_alone(kernels: list[Kernel]) -> None:
    _, one, other = kernels
    for kernel in (one, other):
        kernel.send(LOOKUP, b"1000\0")
    one.send(FORGET, struct.pack("=Q", 1), node=1000)

    kernels[0].serve()

    assert not one.server.is_referenced(1000)
    assert other.server.is_referenced(1000)
    assert ("forget", 1000) in one.owner.calls
    assert ("forget", 1000) not in other.owner.calls


def test_the_end_of_one_mount_ends_the_turn_and_no_other_mount(
    kernels: list[Kernel], order: list[str]
) -> None:
    leader, gone, other = kernels
    # The end of a file in place of ENODEV, which only a kernel gives.
    closed = os.open("/", os.O_RDONLY)
    os.dup2(closed, gone.theirs)
    os.close(closed)
    gone.server.open(gone.theirs)
    leader.server.part(gone.server)
    other.send(GETATTR, b"")

    leader.ask(GETATTR, b"")

    assert sorted(order) == ["a", "c"]


def test_one_that_has_left_is_not_served(kernels: list[Kernel], order: list[str]) -> None:
    leader, companion, _ = kernels
    companion.send(GETATTR, b"")
    leader.serve()
    leader.server.part(companion.server)
    companion.send(GETATTR, b"")
    leader.serve()

    assert order == ["b"]


def test_only_an_open_server_joins(kernels: list[Kernel]) -> None:
    assert MODULE is not None
    stranger = Kernel(MODULE)
    with pytest.raises(ValueError, match="an open server"):
        kernels[0].server.join(stranger.server)
    stranger.close()
