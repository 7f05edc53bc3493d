"""The forks of a store: what is known of each, and which epoch its head is.

A fork is a second head whose parent is an epoch. Its number is given out once; its name may change.
Each is a fact of the store. What a line of work means to people is not known here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfs.model import Epoch
from ckptfs.store import format as fmt
from ckptfs.store.metadata import NEXT_FORK

if TYPE_CHECKING:
    from ckptfs.store.metadata import Metadata


class Fork(NamedTuple):
    """``head`` is the epoch that it writes, ``base`` the one where it parted. ``at`` is where it is
    mounted, empty for the usual place; ``without`` are the patterns that it was made without."""

    number: int
    name: str
    head: Epoch
    base: Epoch
    time_ns: int
    at: str = ""
    without: tuple[str, ...] = ()
    #: The epoch of whose view nothing is packed, as the main line has one (`Store.anchor`).
    anchor: Epoch = fmt.NO_EPOCH


class Forks:
    """By number. Every change of one goes through here, into the write transaction."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._records: dict[int, Fork] = {}
        #: By the number of how many forks an epoch is the base.
        self.bases: dict[Epoch, int] = {}

    def load(self) -> None:
        """Read what the store has. Raises `CorruptRecord`."""
        for name, value in self._metadata.walk(fmt.FORK):
            number = int(name.removeprefix(fmt.FORK))
            self._keep(_fork(number, fmt.unpack_fork(value)))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Fork]:
        """In the order in which they were made."""
        return iter(list(self._records.values()))

    def __contains__(self, number: int) -> bool:
        return number in self._records

    def __getitem__(self, number: int) -> Fork:
        return self._records[number]

    def next_number(self) -> int:
        """A number that no fork had."""
        number = self._metadata.number(NEXT_FORK, 1)
        if number >= fmt.LINES_MAX:
            raise OSError(errno.ENOSPC, "the store has no numbers of forks left")
        self._metadata.put_number(NEXT_FORK, number + 1)
        return number

    def put(self, fork: Fork) -> None:
        self._keep(fork)
        self._metadata.put(fmt.fork_key(fork.number), fmt.pack_fork(_record(fork)))

    def remove(self, number: int) -> None:
        """Forget a fork, with the facts that are its own."""
        self._drop(number)
        self._metadata.delete(fmt.fork_key(number))
        self._metadata.of_line(number).clear()

    def _keep(self, fork: Fork) -> None:
        before = self._records.get(fork.number)
        if before is not None:
            self._count(before.base, -1)
        self._records[fork.number] = fork
        self._count(fork.base, 1)

    def _drop(self, number: int) -> None:
        self._count(self._records.pop(number).base, -1)

    def _count(self, base: Epoch, more: int) -> None:
        count = self.bases.get(base, 0) + more
        if count:
            self.bases[base] = count
        else:
            del self.bases[base]


def _record(fork: Fork) -> dict[str, Any]:
    """The fact, without empty fields; the number is in its name."""
    found = {**fork._asdict(), "without": list(fork.without)}
    del found["number"]
    return {key: value for key, value in found.items() if value or key in ("head", "base")}


def _fork(number: int, record: dict[str, Any]) -> Fork:
    return Fork(
        number,
        record["name"],
        Epoch(record["head"]),
        Epoch(record["base"]),
        record.get("time_ns", 0),
        record.get("at", ""),
        tuple(record.get("without", ())),
        Epoch(record.get("anchor", fmt.NO_EPOCH)),
    )
