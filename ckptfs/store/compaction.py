"""Giving free pages back to the disk: a copy of the data file without them takes its place.

The copy is written beside the data file, synced, and renamed over it. So at any moment the data
file is whole, the old one or the new one; a copy that was not finished is removed by the next
opening. It is written record by record, in order, which fills pages to the brim where LMDB's own
copy keeps them as full as they were; and nothing but records that are there gets into it, so what
was deleted before is not in the new file.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb

from ckptfs import interrupts

#: The copy while it is written.
COPY_SUFFIX = ".compact"
#: A backup while it is made, in its own directory, and what makes it a store.
_PART = "ckptfs.backup"
_DATA = "data.mdb"

#: Records that are copied at once, and bytes in a transaction of the copy.
_BATCH = 1_000
_BATCH_BYTES = 64 << 20


def write_copy(env: lmdb.Environment, tables: Iterable[bytes], data_file: Path) -> None:
    """Write the durable copy. The environment must have no write transaction under way."""
    fresh = _copy_of(data_file)
    fresh.unlink(missing_ok=True)
    names = list(tables)
    try:
        # Synced once, at the end: until it is adopted nothing needs it.
        copy = lmdb.open(
            os.fspath(fresh),
            subdir=False,
            lock=False,
            sync=False,
            map_size=env.info()["map_size"],
            max_dbs=len(names),
            mode=0o600,
        )
        try:
            _copy_tables(env, copy, names)
        finally:
            copy.close()
        sync(fresh)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _copy_tables(env: lmdb.Environment, copy: lmdb.Environment, names: list[bytes]) -> None:
    """In as few transactions as can be: a page that two of them write is in the copy twice."""
    sources = {name: env.open_db(name) for name in names}
    writing = copy.begin(write=True)
    try:
        size = 0
        for name in names:
            target = copy.open_db(name, txn=writing)
            with env.begin(buffers=True) as reading:
                records = iter(reading.cursor(sources[name]))
                while batch := list(itertools.islice(records, _BATCH)):
                    interrupts.between()
                    writing.cursor(target).putmulti(batch, append=True)
                    size += sum(len(key) + len(value) for key, value in batch)
                    if size > _BATCH_BYTES:
                        writing.commit()
                        writing, size = copy.begin(write=True), 0
        writing.commit()
    except BaseException:
        writing.abort()
        raise


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def snapshot(env: lmdb.Environment, dest: Path, complete: Callable[[Path], None]) -> None:
    """A durable copy of the last commit in the directory ``dest``. By LMDB itself, beside a writer
    and without holding up this process's other threads. ``complete`` puts what else belongs to it
    into the directory that it is given. The data file comes last: without one there is no store.
    The name of ``dest`` itself is the caller's to sync."""
    part = dest / _PART
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        env.copy(os.fspath(part), compact=True)
        complete(part)
        (part / _DATA).chmod(0o600)
        sync(part / _DATA)
        for name in sorted(os.listdir(part), key=lambda name: name == _DATA):
            os.replace(part / name, dest / name)
        part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(dest)


def copy_file(source: Path, dest: Path) -> None:
    """A durable copy of a small file. A link in its place is not followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(source, flags), "rb") as file:
        content = file.read()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(dest, flags, 0o600), "wb") as file:
        file.write(content)
    sync(dest)


def adopt_copy(data_file: Path) -> None:
    """Put the copy in the data file's place. The data file must not be mapped."""
    os.replace(_copy_of(data_file), data_file)
    sync(data_file.parent)


def remove_leftover(data_file: Path) -> None:
    """Remove the copy of a compaction that did not end."""
    _copy_of(data_file).unlink(missing_ok=True)


def _copy_of(data_file: Path) -> Path:
    return data_file.with_name(data_file.name + COPY_SUFFIX)
