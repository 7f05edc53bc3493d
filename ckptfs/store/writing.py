"""Writes that go on while their writer goes on: bytes on their way to a file, past the page cache.

What is to be written is copied into pieces of memory, and the kernel is ordered to write those
(`ckptfs.store.orders`). Where it takes no orders, each piece is written before the next. Knows
nothing of what the bytes are.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ckptfs.store.orders import DEPTH, WRITE, Order, Queue, give_back, memory_of, queue_of_own

if TYPE_CHECKING:
    from ckptfs.store.blocks import Buffer

#: What is written at once.
PIECE = 1 << 20


class Writer:
    """Writes bytes to a file, in the order of their places and without gaps if they come so."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._view, self._address = memory_of(DEPTH * PIECE)
        self._queue = queue_of_own()
        self._free = list(range(DEPTH))
        #: By piece: what the kernel was told, and so where it begins in the file.
        self._under_way: dict[int, Order] = {}
        self._piece, self._start, self._filled = self._free.pop(), 0, 0
        self._failure: OSError | None = None

    def put(self, data: Buffer, offset: int) -> None:
        """Write so many bytes, no more than a piece, at ``offset``; `drain` tells if it failed."""
        if offset != self._start + self._filled or self._filled + len(data) > PIECE:
            self._send()
        if not self._filled:
            self._start = offset
        begin = self._piece * PIECE + self._filled
        self._view[begin : begin + len(data)] = data
        self._filled += len(data)
        if self._filled == PIECE:
            self._send()

    def peek(self, offset: int, size: int) -> bytes | None:
        """Bytes that were put and may be on their way; None if they are in the file."""
        pieces = {order.tag: (order.offset, order.length) for order in self._under_way.values()}
        pieces[self._piece] = (self._start, self._filled)
        for piece, (start, length) in pieces.items():
            if start <= offset and offset + size <= start + length:
                begin = piece * PIECE + offset - start
                return bytes(self._view[begin : begin + size])
        return None

    def landed(self) -> int | None:
        """The place up to which everything is in the file; None if all of it is."""
        waiting = [order.offset for order in self._under_way.values()]
        if self._filled:
            waiting.append(self._start)
        return min(waiting, default=None)

    def drain(self) -> None:
        """Wait until everything is in the file, though perhaps not yet on the disk."""
        self._send()
        while self._under_way:
            self._collect()
        if self._failure is not None:
            raise self._failure

    def _send(self) -> None:
        if not self._filled:
            return
        order = Order(
            tag=self._piece,
            opcode=WRITE,
            fd=self._fd,
            address=self._address + self._piece * PIECE,
            length=self._filled,
            offset=self._start,
        )
        self._under_way[self._piece] = order
        if self._queue is None:
            self._carry_out(order)
        else:
            self._order(self._queue, order)
        while not self._free:
            self._collect()
        self._piece, self._filled = self._free.pop(), 0

    def _order(self, queue: Queue, order: Order) -> None:
        try:
            queue.submit(order)
        except OSError:  # what is wrong with it is told by the ordinary way
            self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        begin = order.tag * PIECE
        with self._view[begin : begin + order.length] as data:
            try:
                done = os.pwrite(self._fd, data, order.offset)
            except OSError as error:
                done = -(error.errno or errno.EIO)
        self._end(order.tag, done)

    def _collect(self) -> None:
        if self._queue is not None:
            for tag, result in self._queue.wait():
                self._end(tag, result)

    def _end(self, piece: int, result: int) -> None:
        order = self._under_way.pop(piece)
        self._free.append(piece)
        if result != order.length and self._failure is None:
            code = -result if result < 0 else errno.EIO
            self._failure = OSError(code, os.strerror(code))

    def close(self) -> None:
        """Wait for what is under way, whatever becomes of it."""
        while self._under_way:
            self._collect()
        if self._queue is not None:
            give_back(self._queue)
