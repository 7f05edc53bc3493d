"""SQLite with its defaults: every transaction is synced before it returns."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.registry import WorkDirectory, workload


def _new_database(path: Path, journal: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    if connection.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] != journal:
        raise RuntimeError(f"SQLite refuses journal_mode={journal}")
    connection.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, kind TEXT, body TEXT)")
    connection.execute("CREATE INDEX event_kind ON event (kind)")
    rows = ((f"kind{n % 50}", "x" * 200) for n in range(5_000))
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO event (kind, body) VALUES (?, ?)", rows)
    connection.execute("COMMIT")
    return connection


def _transactions(place: WorkDirectory, journal: str, count: int) -> Iterator[None]:
    with closing(_new_database(place / f"{journal}.db", journal)) as connection:
        yield
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO event (kind, body) VALUES ('new', ?)", ("y" * 200,))
            connection.execute(
                "UPDATE event SET kind = 'old' WHERE id = ?", (number * 4 % 5_000 + 1,)
            )
            connection.execute("COMMIT")


@workload(
    "sqlite-rollback",
    "SQLite, {scale.journal_transactions:,} transactions, journal",
    scene="sqlite",
    mark=2.0,
)
def rollback(place: WorkDirectory) -> Iterator[None]:
    return _transactions(place, "delete", place.scale.journal_transactions)


@workload(
    "sqlite-wal", "SQLite, {scale.transactions:,} transactions, WAL", scene="sqlite", mark=2.0
)
def wal(place: WorkDirectory) -> Iterator[None]:
    return _transactions(place, "wal", place.scale.transactions)


# -- in bulk: thousands of pages in each transaction, journal and database in turn -----------------


def _bulk(place: WorkDirectory) -> sqlite3.Connection:
    return sqlite3.connect(place / "bulk.db", isolation_level=None)


def _in_one_go(place: WorkDirectory, statement: str) -> Iterator[None]:
    with closing(_bulk(place)) as connection:
        yield
        connection.execute(statement)


@workload("sqlite-load", "SQLite, {scale.bulk_rows:,} rows in one transaction", scene="sqlite")
def load(place: WorkDirectory) -> Iterator[None]:
    with closing(_bulk(place)) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, hash INTEGER, body TEXT)")
        connection.execute("CREATE INDEX item_hash ON item (hash)")
        rows = ((n * 7919 % 100_003, f"{n}" + "x" * 100) for n in range(place.scale.bulk_rows))
        yield
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO item (hash, body) VALUES (?, ?)", rows)
        connection.execute("COMMIT")


@workload("sqlite-update", "SQLite, UPDATE of a seventh", scene="sqlite", needs=("sqlite-load",))
def update(place: WorkDirectory) -> Iterator[None]:
    return _in_one_go(place, "UPDATE item SET body = body || 'y' WHERE id % 7 = 0")


@workload("sqlite-vacuum", "SQLite, VACUUM", scene="sqlite", needs=("sqlite-load",))
def vacuum(place: WorkDirectory) -> Iterator[None]:
    return _in_one_go(place, "VACUUM")


@workload("sqlite-sort", "SQLite, an index on random text", scene="sqlite", needs=("sqlite-load",))
def sort(place: WorkDirectory) -> Iterator[None]:
    """More than its cache holds: sorted runs are written beside the database, and merged."""
    with closing(_bulk(place)) as connection:
        connection.execute(f"PRAGMA temp_store_directory = '{place.root}'")
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("CREATE TABLE random AS SELECT hex(randomblob(60)) AS text FROM item")
        yield
        connection.execute("CREATE INDEX random_text ON random (text)")
