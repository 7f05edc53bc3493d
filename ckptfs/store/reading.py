"""Blocks read from one file, past the page cache: one at a time, or many once they come in a row.

What a program reads is kept by the kernel where the program reads it; a second copy of it would
only take memory. So a read goes to the disk. Whoever reads one block after the other has the next
ones read with it, twice as many each time, and those behind them are on their way meanwhile.
"""

from __future__ import annotations

import os

from ckptfs.model import BLOCK_SIZE
from ckptfs.store.orders import READ, Order, give_back, memory_of, queue_of_own

#: How many blocks are read at once at most, and how many such windows there are: two for each of
#: the readers in a row that are told apart.
_BLOCKS_MAX = 16
_WINDOWS = 6


class _Window:
    """Blocks that are read together, one behind the other."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.memory, self.address = memory_of(_BLOCKS_MAX * BLOCK_SIZE)
        self.first = self.count = 0
        #: What the kernel was told, as long as it is at it.
        self.order: Order | None = None

    @property
    def end(self) -> int:
        return self.first + self.count

    def has(self, number: int) -> bool:
        return self.first <= number < self.end

    def ends_before(self, number: int) -> bool:
        """Whether this block is one that a reader of the window comes to next, or nearly next:
        there may be blocks of another file between."""
        return self.end <= number < self.end + self.count

    def block(self, number: int) -> bytes:
        start = (number - self.first) * BLOCK_SIZE
        return bytes(self.memory[start : start + BLOCK_SIZE])


class Reader:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: The one that was used last is the last.
        self._windows = [_Window(tag) for tag in range(_WINDOWS)]
        self._queue = queue_of_own()

    def read(self, number: int, end: int) -> bytes:
        """The bytes of a block of the file, in which there are blocks up to ``end``; fewer if it is
        shorter than that."""
        window = self._having(number)
        if window is None:
            window = self._following(number) or self._oldest()
            self._fill(window, number, min(window.count * 2 or 1, end - number))
        if window.order is not None:
            self._wait_for(window)
            if not window.has(number):  # read alone it is told what is wrong
                self._fill(window, number, 1)
        if number == window.first and window.count > 1:
            self._look_ahead(window, end)
        return window.block(number) if window.has(number) else b""

    def _having(self, number: int) -> _Window | None:
        for window in reversed(self._windows):
            if window.has(number):
                return self._use(window)
        return None

    def _following(self, number: int) -> _Window | None:
        """The window that whoever asks for this block has come to the end of."""
        for window in reversed(self._windows):
            if window.count and window.order is None and window.ends_before(number):
                return self._use(window)
        return None

    def _oldest(self) -> _Window:
        window = self._windows[0]
        if window.order is not None:
            self._wait_for(window)
        window.count = 0
        return self._use(window)

    def _use(self, window: _Window) -> _Window:
        self._windows.remove(window)
        self._windows.append(window)
        return window

    def _fill(self, window: _Window, number: int, count: int) -> None:
        window.first, window.count = number, 0
        with window.memory[: min(count, _BLOCKS_MAX) * BLOCK_SIZE] as room:
            done = os.preadv(self._fd, [room], number * BLOCK_SIZE)
        window.count = done // BLOCK_SIZE

    def _look_ahead(self, window: _Window, end: int) -> None:
        """Have the blocks behind a window read meanwhile."""
        first = window.end
        count = min(window.count * 2, _BLOCKS_MAX, end - first)
        if self._queue is None or count < 1 or any(other.has(first) for other in self._windows):
            return
        coming = self._oldest()
        self._use(window)
        order = Order(
            tag=coming.tag,
            opcode=READ,
            fd=self._fd,
            address=coming.address,
            length=count * BLOCK_SIZE,
            offset=first * BLOCK_SIZE,
        )
        try:
            self._queue.submit(order)
        except OSError:
            return  # whoever comes there reads it, and hears what is wrong
        coming.first, coming.count, coming.order = first, count, order

    def _wait_for(self, window: _Window) -> None:
        while window.order is not None and self._queue is not None:
            for tag, result in self._queue.wait():
                done = next(other for other in self._windows if other.tag == tag)
                done.order = None
                done.count = max(result, 0) // BLOCK_SIZE

    def close(self) -> None:
        """Wait for what is under way."""
        for window in self._windows:
            self._wait_for(window)
        if self._queue is not None:
            give_back(self._queue)
