"""Orders to the kernel that it carries out by itself: reads and writes of pieces of memory.

The kernel's asynchronous I/O, for which the C library has no names. What is ordered goes on while
whoever ordered it does something else; that is so for files that are opened past the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

#: How many orders a queue takes at once.
DEPTH = 8

#: io_setup, io_submit, io_getevents: the C library has no names for them.
_CALLS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}
READ, WRITE = 0, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Order(ctypes.Structure):
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
        ("order", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("more", ctypes.c_int64),
    )


class Queue:
    """Orders that the kernel carries out by itself."""

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

    def submit(self, order: Order) -> None:
        self._call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(_Pointer(order)))

    def wait(self) -> list[tuple[int, int]]:
        """(tag, how many bytes or a negative error) of what is done, at least of one."""
        count = self._call(
            self._get,
            self._context,
            ctypes.c_long(1),
            ctypes.c_long(len(self._events)),
            self._events,
            None,
        )
        return [(event.tag, event.result) for event in self._events[:count]]


_Pointer = ctypes.POINTER(Order)


#: Queues that nobody uses, with the process they belong to: to end one takes the kernel 30 ms.
_idle: list[tuple[int, Queue]] = []


def queue_of_own() -> Queue | None:
    """An empty queue; None on another kind of machine, or in a sandbox without. `give_back` it."""
    while _idle:
        process, queue = _idle.pop()
        if process == os.getpid():
            return queue
    try:
        return Queue()
    except (KeyError, OSError):
        return None


def give_back(queue: Queue) -> None:
    """Whoever had it has nothing under way any more."""
    _idle.append((os.getpid(), queue))


def memory_of(size: int) -> tuple[memoryview, int]:
    """Memory that begins with a page, as such orders need it, and its address."""
    memory = mmap.mmap(-1, size)
    return memoryview(memory), ctypes.addressof(ctypes.c_char.from_buffer(memory))
