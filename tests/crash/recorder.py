"""What a process writes into a store and when it syncs, recorded; and disks as a power cut leaves
them, made from the recording.

A library that is loaded before the process's own records every write, cut, sync and rename of the
store's files, in order. A disk is then what was synced up to some moment, and of the writes behind
it any choice, in any order, each of them whole or in part.
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
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static void put(const void *data, size_t size) {
    if (REAL(write, write_t)(trace, data, size) != (ssize_t)size) abort();
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
    put(&kind, 1); put(&length, 4); put(&offset, 8); put(&size, 8); put(path, length);
    for (int i = 0; i < count; i++) put(data[i].iov_base, data[i].iov_len);
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
    int failed = REAL(rename, rename_t)(from, to);
    struct iovec target = {(void *)to, strlen(to)};
    if (!failed && is_ours(from)) note('r', from, 0, &target, 1);
    return failed;
}
int unlink(const char *path) {
    int failed = REAL(unlink, int (*)(const char *))(path);
    if (!failed && is_ours(path)) note('u', path, 0, NULL, 0);
    return failed;
}
"""

_HEADER = struct.Struct("<cIQQ")
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
        for event in self.pending:
            _apply(self.durable, event)
        self.pending = []

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
        for path, file in self._removed:
            if rng.random() < 0.5:
                files.setdefault(path, file)
        return {path: file.cut(rng) for path, file in files.items()}


def _apply(data: bytearray, event: Event) -> None:
    if event.kind == "t":
        del data[event.offset :]
        data.extend(bytes(event.offset - len(data)))
        return
    data.extend(bytes(max(0, event.offset - len(data))))
    data[event.offset : event.offset + len(event.data)] = event.data


def _torn(event: Event, rng: random.Random) -> Event:
    """A part of a write: from one sector to another."""
    sectors = len(event.data) // _SECTOR
    first = rng.randint(0, sectors)
    last = rng.randint(first, sectors)
    return Event(
        "w",
        event.path,
        event.offset + first * _SECTOR,
        event.data[first * _SECTOR : last * _SECTOR],
    )
