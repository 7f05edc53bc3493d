"""SQLite: rollback journal, write-ahead log, memory mapping, several connections and processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.peer import peer

JOURNALS = ["DELETE", "TRUNCATE", "PERSIST", "WAL"]


def connect(path: Path, journal: str = "DELETE", mmap_size: int = 0) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    (mode,) = database.execute(f"PRAGMA journal_mode={journal}").fetchone()
    assert mode.upper() == journal
    if mmap_size:
        (size,) = database.execute(f"PRAGMA mmap_size={mmap_size}").fetchone()
        assert size == mmap_size
    return database


def fill(database: sqlite3.Connection, rows: int) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB)")
    database.execute("BEGIN")
    for number in range(rows):
        row = (number, f"name {number}", bytes([number % 256]) * (number % 700))
        database.execute("INSERT INTO t VALUES (?, ?, ?)", row)
    database.execute("COMMIT")


def sound(database: sqlite3.Connection) -> None:
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("mmap_size", [0, 64 << 20], ids=["read", "mmap"])
@pytest.mark.parametrize("journal", JOURNALS)
def test_a_database_lives_through_all_that_sqlite_does(
    mount: Path, journal: str, mmap_size: int
) -> None:
    with closing(connect(mount / "db", journal, mmap_size)) as database:
        fill(database, 1500)
        sound(database)
        database.execute("BEGIN")
        database.execute("DELETE FROM t WHERE id % 3 = 0")
        database.execute("ROLLBACK")
        assert database.execute("SELECT count(*) FROM t").fetchone() == (1500,)
        database.execute("DELETE FROM t WHERE id % 2 = 0")
        database.execute("UPDATE t SET data = zeroblob(length(data) * 3)")
        database.execute("VACUUM")
        sound(database)
    with closing(connect(mount / "db", journal, mmap_size)) as database:
        total = database.execute("SELECT count(*), sum(length(data)) FROM t").fetchone()
        assert total == (750, 3 * sum(number % 700 for number in range(1, 1500, 2)))
        sound(database)


def test_wal_lets_one_write_while_another_reads(mount: Path) -> None:
    with (
        closing(connect(mount / "db", "WAL")) as writer,
        closing(connect(mount / "db", "WAL")) as reader,
    ):
        fill(writer, 100)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (100,)
        writer.execute("DELETE FROM t WHERE id < 50")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (100,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (50,)
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert (mount / "db-wal").stat().st_size == 0
        sound(reader)


def insert(path: Path, journal: str, start: int, count: int) -> None:
    with closing(connect(path, journal)) as database:
        for number in range(start, start + count):
            database.execute("INSERT INTO t VALUES (?, ?, ?)", (number, f"name {number}", b""))


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_two_processes_write(mount: Path, journal: str) -> None:
    with closing(connect(mount / "db", journal)) as database:
        fill(database, 10)
        with peer() as one, peer() as other:
            one.begin(insert, mount / "db", journal, 1000, 40)
            other.begin(insert, mount / "db", journal, 2000, 40)
            one.finish(60)
            other.finish(60)
        assert database.execute("SELECT count(*) FROM t").fetchone() == (90,)
        sound(database)


def begin_and_leave(path: Path) -> None:
    """A transaction that reached the file and was never committed: a crash of the program."""
    database = connect(path)
    database.execute("PRAGMA cache_size=5")
    database.execute("BEGIN")
    database.execute("UPDATE t SET data = zeroblob(5000)")
    globals()["kept_open"] = database


def test_a_hot_journal_is_rolled_back(mount: Path) -> None:
    with closing(connect(mount / "db")) as database:
        fill(database, 500)
        before = database.execute("SELECT sum(length(data)) FROM t").fetchone()
    with peer() as crashing:
        crashing(begin_and_leave, mount / "db")
        assert (mount / "db-journal").stat().st_size > 0
    with closing(connect(mount / "db")) as database:
        assert database.execute("SELECT sum(length(data)) FROM t").fetchone() == before
        sound(database)
    assert not (mount / "db-journal").exists()


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_committed_transaction_survives_the_death_of_the_daemon(
    own_mount: Workspace, journal: str
) -> None:
    database = connect(own_mount.path / "db", journal)
    # EXTRA also syncs the directory after deleting the journal; without it a commit is not yet
    # durable on any file system, since the journal may come back and roll it back.
    database.execute("PRAGMA synchronous=EXTRA")
    fill(database, 300)
    database.execute("INSERT INTO t VALUES (1000, 'last', zeroblob(100000))")
    own_mount.kill()
    if not own_mount.plain:
        with pytest.raises(sqlite3.Error):
            database.execute("INSERT INTO t VALUES (1001, 'lost', NULL)")
    with suppress(sqlite3.Error):  # the file it wants to write its last page to has gone
        database.close()
    own_mount.mount()
    with closing(connect(own_mount.path / "db", journal)) as again:
        sound(again)
        rows = again.execute("SELECT count(*), max(id) FROM t").fetchone()
        assert rows == (301, 1000)
