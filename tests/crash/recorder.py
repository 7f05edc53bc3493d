"""What a process writes into a store and when it syncs, recorded; and disks as a power cut leaves
them, made from the recording.

A library that is loaded before the process's own records everything that is done to the store's
files, in order. A disk is then what was synced up to some moment, and of what was done behind it
any choice, in any order, each of it whole or in part.

The kinds of events:

    o    a file is made: until its directory is synced it may have no name
    w    a write; d is one that is synced by itself
    a    a write that the kernel was ordered to do by itself; c says that it is done. A sync in
         between makes nothing of it sure
    t    a file is cut, or made longer; e makes it longer only
    p    a range becomes a hole; the data is its length
    s    a file or a directory is synced
    r u  a name is changed to the one in the data, or removed
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, #name))
typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
typedef ssize_t (*write_t)(int, const void *, size_t);
typedef ssize_t (*writev_t)(int, const struct iovec *, int);
typedef ssize_t (*pwritev_t)(int, const struct iovec *, int, off_t);
typedef int (*sync_t)(int);
typedef int (*truncate_t)(int, off_t);
typedef int (*rename_t)(const char *, const char *);
typedef int (*open_t)(const char *, int, ...);
typedef int (*fallocate_t)(int, int, off_t, off_t);
typedef long (*syscall_t)(long, ...);

/* LMDB writes 64 pages at once. */
#define PARTS 512

static int trace = -2;

static int is_ours(const char *path) {
    const char *store = getenv("CKPTFS_TEST_STORE");
    return store && !strncmp(path, store, strlen(store)) && !strstr(path, "lock");
}

static int name_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 4095);
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

/* A name in the store by whichever way it is called: also by the descriptor of a directory. */
static int resolve(const char *path, char *name) {
    char above[4096];
    const char *last = strrchr(path, '/');
    if (!last || last == path) return 0;
    snprintf(above, sizeof above, "%.*s", (int)(last - path), path);
    if (!realpath(above, name)) return 0;
    strncat(name, last, 4095 - strlen(name));
    return is_ours(name);
}

/* Several processes record: each event is one write to the end. */
static void put(struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (REAL(writev, writev_t)(trace, parts, count) != (ssize_t)size) abort();
}

static void note(char kind, const char *path, uint64_t offset, const struct iovec *data,
                 int count) {
    if (trace == -2) {
        const char *name = getenv("CKPTFS_TEST_TRACE");
        trace = name ? open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (trace < 0) return;
    uint32_t length = strlen(path);
    uint64_t size = 0;
    for (int i = 0; i < count; i++) size += data[i].iov_len;
    if (count > PARTS) abort();
    struct iovec parts[PARTS + 5] = {
        {&kind, 1}, {&length, 4}, {&offset, 8}, {&size, 8}, {(void *)path, length}};
    for (int i = 0; i < count; i++) parts[5 + i] = data[i];
    put(parts, 5 + count);
}

static void note_write(int fd, uint64_t offset, const struct iovec *data, int count, ssize_t done) {
    char path[4096];
    if (done <= 0 || fd == trace || !name_of(fd, path)) return;
    note(fcntl(fd, F_GETFL) & O_DSYNC ? 'd' : 'w', path, offset, data, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    ssize_t done = REAL(pwrite, pwrite_t)(fd, data, size, offset);
    struct iovec one = {(void *)data, done > 0 ? done : 0};
    note_write(fd, offset, &one, 1, done);
    return done;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    return pwrite(fd, data, size, offset);
}
ssize_t write(int fd, const void *data, size_t size) {
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(write, write_t)(fd, data, size);
    struct iovec one = {(void *)data, done > 0 ? done : 0};
    if (offset >= 0) note_write(fd, offset, &one, 1, done);
    return done;
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(writev, writev_t)(fd, data, count);
    if (offset >= 0) note_write(fd, offset, data, count, done);
    return done;
}
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t offset) {
    ssize_t done = REAL(pwritev, pwritev_t)(fd, data, count, offset);
    note_write(fd, offset, data, count, done);
    return done;
}
ssize_t pwritev64(int fd, const struct iovec *data, int count, off_t offset) {
    return pwritev(fd, data, count, offset);
}
int ftruncate(int fd, off_t size) {
    char path[4096];
    int failed = REAL(ftruncate, truncate_t)(fd, size);
    if (!failed && name_of(fd, path)) note('t', path, size, NULL, 0);
    return failed;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
static int synced(int fd, int failed) {
    char path[4096];
    if (!failed && name_of(fd, path)) note('s', path, 0, NULL, 0);
    return failed;
}
int fsync(int fd) { return synced(fd, REAL(fsync, sync_t)(fd)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync, sync_t)(fd)); }
int rename(const char *from, const char *to) {
    char old[4096], new[4096];
    int known = resolve(from, old) && resolve(to, new);
    int failed = REAL(rename, rename_t)(from, to);
    if (failed || !known) return failed;
    struct iovec target = {new, strlen(new)};
    note('r', old, 0, &target, 1);
    return failed;
}
int unlink(const char *path) {
    char name[4096];
    int known = resolve(path, name);
    int failed = REAL(unlink, int (*)(const char *))(path);
    if (!failed && known) note('u', name, 0, NULL, 0);
    return failed;
}
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    char name[4096];
    int is_new = flags & O_CREAT && resolve(path, name) && access(name, F_OK);
    int fd = REAL(open, open_t)(path, flags, mode);
    if (fd >= 0 && is_new) note('o', name, 0, NULL, 0);
    return fd;
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    return open(path, flags, mode);
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
    char path[4096];
    int failed = REAL(fallocate, fallocate_t)(fd, mode, offset, length);
    if (failed || !name_of(fd, path)) return failed;
    struct iovec size = {&length, sizeof length};
    if (mode & FALLOC_FL_PUNCH_HOLE) note('p', path, offset, &size, 1);
    else if (!mode) note('e', path, offset + length, NULL, 0);
    else abort();
    return failed;
}
int fallocate64(int fd, int mode, off_t offset, off_t length) {
    return fallocate(fd, mode, offset, length);
}

/* Of the orders to the kernel, the writes that it has not said to be done. */
#define ORDERS 256
static struct { uint64_t order; uint64_t offset; char path[4096]; } ordered[ORDERS];

static void note_order(const struct iocb *order) {
    if (order->aio_lio_opcode == IOCB_CMD_PREAD) return;
    int at = 0;
    while (at < ORDERS && ordered[at].order) at++;
    if (at == ORDERS || order->aio_lio_opcode != IOCB_CMD_PWRITE) abort();
    if (!name_of(order->aio_fildes, ordered[at].path)) return;
    ordered[at].order = (uint64_t)order;
    ordered[at].offset = order->aio_offset;
    struct iovec data = {(void *)order->aio_buf, order->aio_nbytes};
    note('a', ordered[at].path, order->aio_offset, &data, 1);
}
static void note_done(const struct io_event *event) {
    for (int at = 0; at < ORDERS; at++)
        if (ordered[at].order == event->obj) {
            ordered[at].order = 0;
            if (event->res > 0) note('c', ordered[at].path, ordered[at].offset, NULL, 0);
            return;
        }
}
long syscall(long number, ...) {
    long word[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) word[i] = va_arg(more, long);
    va_end(more);
    long done = REAL(syscall, syscall_t)(number, word[0], word[1], word[2], word[3], word[4],
                                         word[5]);
    for (long i = 0; number == SYS_io_submit && i < done; i++)
        note_order(((struct iocb **)word[2])[i]);
    for (long i = 0; number == SYS_io_getevents && i < done; i++)
        note_done((struct io_event *)word[3] + i);
    return done;
}
"""

_HEADER = struct.Struct("<cIQQ")
_HOLE = struct.Struct("<q")
#: What a disk writes at once.
_SECTOR = 512


class Event(NamedTuple):
    kind: str
    path: str
    offset: int
    data: bytes


def library(base: Path) -> Path:
    """The recorder, built."""
    source, made = base / "recorder.c", base / "recorder.so"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def environment(library: Path, store: Path, trace: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "CKPTFS_TEST_STORE": str(store),
        "CKPTFS_TEST_TRACE": str(trace),
    }


def events(trace: Path) -> Iterator[Event]:
    data = trace.read_bytes()
    at = 0
    while at < len(data):
        kind, length, offset, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        path = os.fsdecode(data[at : at + length])
        at += length
        yield Event(kind.decode(), path, offset, data[at : at + size])
        at += size


class _File:
    """A file's bytes as they are sure to be on disk, and the changes that are not."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Event] = []

    def sync(self) -> None:
        """But for what the kernel was ordered to write and has not said to be done."""
        for event in self.pending:
            if event.kind != "a":
                _apply(self.durable, event)
        self.pending = [event for event in self.pending if event.kind == "a"]

    def done(self, offset: int) -> None:
        """What was ordered is an ordinary write now."""
        for at, event in enumerate(self.pending):
            if event.kind == "a" and event.offset == offset:
                self.pending[at] = event._replace(kind="w")
                return
        raise AssertionError(f"nobody ordered a write at {offset}")

    def cut(self, rng: random.Random) -> bytes:
        """What a power cut may leave of it."""
        left = bytearray(self.durable)
        kept = [event for event in self.pending if rng.random() < 0.6]
        rng.shuffle(kept)
        for event in kept:
            _apply(left, _torn(event, rng) if rng.random() < 0.2 else event)
        return bytes(left)


class Disk:
    """The store's directory as the events made it so far."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        #: What names were before the renames that no sync of the directory covers, and the names
        #: that were removed.
        self._renamed: list[tuple[str, str, _File | None]] = []
        self._removed: list[tuple[str, _File]] = []
        #: Names that are new, and that no such sync covers either.
        self._made: set[str] = set()

    def happen(self, event: Event) -> None:
        if event.kind == "r":
            target = os.fsdecode(event.data)
            self._renamed.append((event.path, target, self._files.get(target)))
            self._files[target] = self._files.pop(event.path)
        elif event.kind == "u":
            if event.path in self._files:
                self._removed.append((event.path, self._files.pop(event.path)))
        elif event.kind == "s":
            if event.path in self._files:
                self._files[event.path].sync()
            else:
                self._renamed.clear()
                self._removed.clear()
                self._made.clear()
        elif event.kind == "o":
            self._files[event.path] = _File()
            self._made.add(event.path)
        elif event.kind == "c":
            self._files[event.path].done(event.offset)
        elif event.kind == "d":
            _apply(self._files.setdefault(event.path, _File()).durable, event)
        else:
            self._files.setdefault(event.path, _File()).pending.append(event)

    def under_way(self, event: Event, rng: random.Random) -> dict[str, bytes]:
        """What a cut leaves while this event happens."""
        if event.kind != "d":
            return self.left(rng)
        file = self._files.setdefault(event.path, _File())
        file.pending.append(event)
        try:
            return self.left(rng)
        finally:
            file.pending.pop()

    def left(self, rng: random.Random) -> dict[str, bytes]:
        """A choice of what a power cut now may leave, by path."""
        files = dict(self._files)
        for source, target, before in reversed(self._renamed):
            if rng.random() < 0.5:  # the rename did not get through
                files[source] = files.pop(target)
                if before is not None:
                    files[target] = before
        for path in sorted(self._made):
            if rng.random() < 0.5:
                files.pop(path, None)
        for path, file in self._removed:
            if rng.random() < 0.5:
                files.setdefault(path, file)
        return {path: file.cut(rng) for path, file in files.items()}


def _apply(data: bytearray, event: Event) -> None:
    if event.kind in ("t", "e"):
        if event.kind == "t":
            del data[event.offset :]
        data.extend(bytes(max(0, event.offset - len(data))))
    elif event.kind == "p":
        end = min(event.offset + _length(event), len(data))
        data[event.offset : end] = bytes(max(0, end - event.offset))
    else:
        data.extend(bytes(max(0, event.offset - len(data))))
        data[event.offset : event.offset + len(event.data)] = event.data


def _length(hole: Event) -> int:
    (length,) = _HOLE.unpack(hole.data)
    return int(length)


def _torn(event: Event, rng: random.Random) -> Event:
    """A part of a write, or of a hole: from one sector to another. A file is made longer, or cut,
    at once."""
    if event.kind in ("t", "e"):
        return event
    sectors = (_length(event) if event.kind == "p" else len(event.data)) // _SECTOR
    first = rng.randint(0, sectors)
    last = rng.randint(first, sectors)
    offset = event.offset + first * _SECTOR
    if event.kind == "p":
        return event._replace(offset=offset, data=_HOLE.pack((last - first) * _SECTOR))
    return event._replace(offset=offset, data=event.data[first * _SECTOR : last * _SECTOR])
