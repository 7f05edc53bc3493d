"""SQLite with its defaults: every transaction is synced before it returns."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench.registry import Place, workload


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


def _transactions(place: Place, journal: str, count: int) -> Iterator[None]:
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
def rollback(place: Place) -> Iterator[None]:
    return _transactions(place, "delete", place.scale.journal_transactions)


@workload(
    "sqlite-wal", "SQLite, {scale.transactions:,} transactions, WAL", scene="sqlite", mark=2.0
)
def wal(place: Place) -> Iterator[None]:
    return _transactions(place, "wal", place.scale.transactions)
