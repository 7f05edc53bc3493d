"""Direct and asynchronous file I/O: reads and writes past the page cache, by the kernel's own AIO.

The heap is read and written here: the kernel keeps what a program reads where the program reads it,
and a second copy would only take memory. A request of `io_submit` goes on while its caller goes on;
that is so for files that are opened past the page cache. On machines and in sandboxes without it
every request is carried out at once. Knows nothing of what the bytes are.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE

if TYPE_CHECKING:
    from ckptfs.store.blocks import Buffer

#: How many requests a queue takes at once.
DEPTH = 8

#: io_setup, io_submit, io_getevents: the C library has no names for them.
_CALLS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}
READ, WRITE = 0, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Request(ctypes.Structure):
    """The kernel's `struct iocb`, as it is on little-endian machines."""

    _fields_ = (
        ("tag", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("tag", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("more", ctypes.c_int64),
    )


class Queue:
    """A context of the kernel's asynchronous I/O."""

    def __init__(self) -> None:
        setup, self._submit, self._get = _CALLS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._call(setup, ctypes.c_long(DEPTH), ctypes.byref(self._context))
        self._events = (_Event * DEPTH)()

    def _call(self, number: int, *words: object) -> int:
        while (done := _libc.syscall(ctypes.c_long(number), *words)) < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
        return int(done)

    def submit(self, request: Request) -> None:
        self._call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(_Pointer(request)))

    def wait(self) -> list[tuple[int, int]]:
        """(tag, bytes done or a negative errno) of each completed request, at least of one."""
        count = self._call(
            self._get,
            self._context,
            ctypes.c_long(1),
            ctypes.c_long(len(self._events)),
            self._events,
            None,
        )
        return [(event.tag, event.result) for event in self._events[:count]]


_Pointer = ctypes.POINTER(Request)


#: Unused queues, with the process they belong to: the kernel takes 30 ms to end one.
_idle: list[tuple[int, Queue]] = []


def acquire_queue() -> Queue | None:
    """An empty queue, to be given to `release_queue`; None on another kind of machine, or in a
    sandbox without."""
    while _idle:
        process, queue = _idle.pop()
        if process == os.getpid():
            return queue
    try:
        return Queue()
    except (KeyError, OSError):
        return None


def release_queue(queue: Queue) -> None:
    """Keep a queue without requests for its next user."""
    _idle.append((os.getpid(), queue))


def aligned_buffer(size: int) -> tuple[memoryview, int]:
    """Memory that begins with a page, as direct I/O needs it, and its address."""
    memory = mmap.mmap(-1, size)
    return memoryview(memory), ctypes.addressof(ctypes.c_char.from_buffer(memory))


def open_direct(path: Path, flags: int) -> int:
    """Open a file past the page cache where the file system can do that. A link in its place is not
    followed."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o600)


# -- reading ---------------------------------------------------------------------------------------

#: Read-ahead: blocks in a window at most, and windows: two for each of three sequential readers.
_BLOCKS_MAX = 16
_WINDOWS = 6


class _Window:
    """Blocks that are read together, one behind the other."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.memory, self.address = aligned_buffer(_BLOCKS_MAX * BLOCK_SIZE)
        self.first = self.count = 0
        #: The read that fills it, while that is in flight.
        self.request: Request | None = None

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
    """Reads blocks of a file: one at a time, and ahead of a sequential reader twice as many each
    time, up to a window."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: The one that was used last is the last.
        self._windows = [_Window(tag) for tag in range(_WINDOWS)]
        self._queue = acquire_queue()

    def read(self, number: int, end: int) -> bytes:
        """The bytes of a block of the file, in which there are blocks up to ``end``; fewer if it is
        shorter than that."""
        window = self._having(number)
        if window is None:
            window = self._following(number) or self._oldest()
            self._fill(window, number, min(window.count * 2 or 1, end - number))
        if window.request is not None:
            self._wait_for(window)
            if not window.has(number):  # read alone, it says what is wrong
                self._fill(window, number, 1)
        if number == window.first and window.count > 1:
            self._read_ahead(window, end)
        return window.block(number) if window.has(number) else b""

    def _having(self, number: int) -> _Window | None:
        for window in reversed(self._windows):
            if window.has(number):
                return self._use(window)
        return None

    def _following(self, number: int) -> _Window | None:
        """The window whose reader comes to this block next."""
        for window in reversed(self._windows):
            if window.count and window.request is None and window.ends_before(number):
                return self._use(window)
        return None

    def _oldest(self) -> _Window:
        window = self._windows[0]
        if window.request is not None:
            self._wait_for(window)
        window.count = 0
        return self._use(window)

    def _use(self, window: _Window) -> _Window:
        self._windows.remove(window)
        self._windows.append(window)
        return window

    def _fill(self, window: _Window, number: int, count: int) -> None:
        window.first, window.count = number, 0
        with window.memory[: min(count, _BLOCKS_MAX) * BLOCK_SIZE] as space:
            done = os.preadv(self._fd, [space], number * BLOCK_SIZE)
        window.count = done // BLOCK_SIZE

    def _read_ahead(self, window: _Window, end: int) -> None:
        """Read ahead: the blocks behind a window."""
        first = window.end
        count = min(window.count * 2, _BLOCKS_MAX, end - first)
        if self._queue is None or count < 1 or any(other.has(first) for other in self._windows):
            return
        coming = self._oldest()
        self._use(window)
        request = Request(
            tag=coming.tag,
            opcode=READ,
            fd=self._fd,
            address=coming.address,
            length=count * BLOCK_SIZE,
            offset=first * BLOCK_SIZE,
        )
        try:
            self._queue.submit(request)
        except OSError:
            return  # the read that comes there says what is wrong
        coming.first, coming.count, coming.request = first, count, request

    def _wait_for(self, window: _Window) -> None:
        while window.request is not None and self._queue is not None:
            for tag, result in self._queue.wait():
                done = next(other for other in self._windows if other.tag == tag)
                done.request = None
                done.count = max(result, 0) // BLOCK_SIZE

    def close(self) -> None:
        """Wait for what is in flight."""
        for window in self._windows:
            self._wait_for(window)
        if self._queue is not None:
            release_queue(self._queue)


# -- writing ---------------------------------------------------------------------------------------

#: What is written at once.
SEGMENT = 1 << 20


class Writer:
    """Writes bytes to a file while its caller goes on, a segment at a time, in the order in which
    they are put."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._view, self._address = aligned_buffer(DEPTH * SEGMENT)
        self._queue = acquire_queue()
        self._free = list(range(DEPTH))
        #: Requests by segment.
        self._in_flight: dict[int, Request] = {}
        self._segment, self._start, self._filled = self._free.pop(), 0, 0
        self._failure: OSError | None = None

    def put(self, data: Buffer, offset: int) -> None:
        """Write bytes, no more than a segment, at ``offset``; `drain` says if that failed."""
        if offset != self._start + self._filled or self._filled + len(data) > SEGMENT:
            self._send()
        if not self._filled:
            self._start = offset
        begin = self._segment * SEGMENT + self._filled
        self._view[begin : begin + len(data)] = data
        self._filled += len(data)
        if self._filled == SEGMENT:
            self._send()

    def peek(self, offset: int, size: int) -> bytes | None:
        """Bytes that were put and may be on their way; None if they are in the file."""
        segments = {tag: (sent.offset, sent.length) for tag, sent in self._in_flight.items()}
        segments[self._segment] = (self._start, self._filled)
        for segment, (start, length) in segments.items():
            if start <= offset and offset + size <= start + length:
                begin = segment * SEGMENT + offset - start
                return bytes(self._view[begin : begin + size])
        return None

    def landed(self) -> int | None:
        """The place up to which everything is in the file; None if all of it is."""
        waiting = [request.offset for request in self._in_flight.values()]
        if self._filled:
            waiting.append(self._start)
        return min(waiting, default=None)

    def drain(self) -> None:
        """Wait until everything is in the file, though perhaps not yet on the disk."""
        self._send()
        while self._in_flight:
            self._collect()
        if self._failure is not None:
            raise self._failure

    def _send(self) -> None:
        if not self._filled:
            return
        request = Request(
            tag=self._segment,
            opcode=WRITE,
            fd=self._fd,
            address=self._address + self._segment * SEGMENT,
            length=self._filled,
            offset=self._start,
        )
        self._in_flight[self._segment] = request
        if self._queue is None:
            self._write_now(request)
        else:
            self._submit(self._queue, request)
        while not self._free:
            self._collect()
        self._segment, self._filled = self._free.pop(), 0

    def _submit(self, queue: Queue, request: Request) -> None:
        try:
            queue.submit(request)
        except OSError:  # an ordinary write says what is wrong
            self._write_now(request)

    def _write_now(self, request: Request) -> None:
        begin = request.tag * SEGMENT
        with self._view[begin : begin + request.length] as data:
            try:
                done = os.pwrite(self._fd, data, request.offset)
            except OSError as error:
                done = -(error.errno or errno.EIO)
        self._end(request.tag, done)

    def _collect(self) -> None:
        if self._queue is not None:
            for tag, result in self._queue.wait():
                self._end(tag, result)

    def _end(self, segment: int, result: int) -> None:
        request = self._in_flight.pop(segment)
        self._free.append(segment)
        if result != request.length and self._failure is None:
            code = -result if result < 0 else errno.EIO
            self._failure = OSError(code, os.strerror(code))

    def close(self) -> None:
        """Wait for what is in flight, whatever becomes of it."""
        while self._in_flight:
            self._collect()
        if self._queue is not None:
            release_queue(self._queue)
