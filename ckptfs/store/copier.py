"""A process of its own that copies a data file without its free pages, for `compaction`.

Run as a script, by its path, with lmdb as its only import: it starts in some 15 milliseconds, and
has nothing of the daemon but the directory. The caller holds the snapshot (a read transaction of
its own environment), so no lock file is needed here.

It reports on stdout, a line each: ``p DONE TOTAL`` in records, ``c SECONDS`` when the copy is
complete and on disk, ``s SECONDS`` when it was synced once more, ``e TEXT`` before it ends in
failure; the seconds are those of CPU that it took so far. A line on stdin asks for a sync; the end
of stdin ends it, wherever it is.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

#: Records that are copied at once, and bytes in a transaction of the copy.
_BATCH = 1_000
_BATCH_BYTES = 64 << 20
_REPORT_S = 0.1


def _report(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def _require_caller() -> None:
    """End if the caller has: it closes its end, or is no more."""
    if select.select([0], [], [], 0)[0]:
        os._exit(1)


def _copy(data_file: str, target: str, map_size: int, names: list[bytes]) -> None:
    """In as few transactions as can be: a page that two of them write is in the copy twice."""
    import lmdb

    options: dict[str, Any] = {"map_size": map_size, "max_dbs": len(names)}
    source = lmdb.open(data_file, readonly=True, subdir=False, lock=False, **options)
    # Synced once, at the end: until it is adopted nothing needs it.
    copy = lmdb.open(target, sync=False, mode=0o600, subdir=False, lock=False, **options)
    tables = [(source.open_db(name, create=False), copy.open_db(name)) for name in names]
    with source.begin(buffers=True) as reading:
        total = sum(reading.stat(table)["entries"] for table, _ in tables)
        writing, size, done, due = copy.begin(write=True), 0, 0, 0.0
        for table, counterpart in tables:
            for batch in _batches(iter(reading.cursor(table))):
                _require_caller()
                added = writing.cursor(counterpart).putmulti(batch, append=True)
                if added[1] != len(batch):
                    raise ValueError("records are out of order")
                done += len(batch)
                size += sum(len(key) + len(value) for key, value in batch)
                if size > _BATCH_BYTES:
                    writing.commit()
                    writing, size = copy.begin(write=True), 0
                if time.monotonic() > due:
                    _report(f"p {done} {total}")
                    due = time.monotonic() + _REPORT_S
        writing.commit()
    copy.close()
    source.close()


def _batches(records: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(records, _BATCH)):
        yield batch


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)


def main(
    library: str, data_file: str, target: str, map_size: str, niceness: str, *names: str
) -> None:
    sys.path.append(library)
    os.nice(int(niceness))
    # The process that closes a deleted file last waits for the disk to free it: this one.
    os.open(data_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _copy(data_file, target, int(map_size), [name.encode() for name in names])
        _sync(target)
        _report(f"c {time.process_time()}")
        while os.read(0, 1):
            _sync(target)
            _report(f"s {time.process_time()}")
    except Exception as error:  # noqa: BLE001 - the caller hears of it, whatever it is
        _report(f"e {error}")
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
