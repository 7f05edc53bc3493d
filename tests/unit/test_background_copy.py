"""A data file is exchanged for a smaller one while its store is written to."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from ckptfs import errors, history
from ckptfs.fs import Filesystem
from ckptfs.fuse.server.interface import CompiledServer
from ckptfs.history import removal
from ckptfs.service import Service
from ckptfs.store import Store, check, compaction, journal_format
from ckptfs.store.pages import Pages
from ckptfs.store.tables import require_whole
from ckptfs.store.transaction import ChangedKeys
from tests.direct import Life, get, put

SECRET = b"the secret that must not stay in the file"
_DATA = "data.mdb"


def fill(fs: Filesystem, count: int = 400) -> None:
    """A store of which most is free pages."""
    for number in range(count):
        put(fs, b"gone %d" % number, SECRET + os.urandom(9_000))
        put(fs, b"kept %d" % number, b"%d" % number * 50)
    fs.commit()
    for number in range(count):
        fs.unlink(fs.head, 1, b"gone %d" % number)
    fs.commit()


class Writer:
    """Changes files at random, and knows what they hold."""

    def __init__(self, fs: Filesystem, seed: int) -> None:
        self.fs = fs
        self.random = random.Random(seed)
        self.there: dict[bytes, bytes] = {}

    def work(self) -> None:
        name = b"file %d" % self.random.randrange(60)
        if name in self.there:
            self.fs.unlink(self.fs.head, 1, name)
            del self.there[name]
        if self.random.random() < 0.7:
            self.there[name] = self.random.randbytes(self.random.choice([10, 3_000, 20_000]))
            put(self.fs, name, self.there[name])
        if self.random.random() < 0.2:
            history.seal(self.fs, "manual", "", 0)
        if self.random.random() < 0.1 and (found := list(history.checkpoints(self.fs.store))):
            removal.delete(self.fs, [self.random.choice(found)])
        self.random.choice([self.fs.sync, self.fs.sync, self.fs.commit, self.fs.flush])()

    def assert_all_there(self, fs: Filesystem) -> None:
        names = {name for name, _ in fs.entries(fs.head, 1) if name.startswith(b"file")}
        assert names == set(self.there)
        for name, data in self.there.items():
            assert get(fs, name) == data


def _children() -> set[int]:
    """Copiers of this process that run, or wait to be reaped."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            found |= set(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return found


def _copier(before: set[int]) -> int:
    (pid,) = _children() - before
    return pid


def _work_beside(steps: Iterator[float], work: Callable[[], None]) -> None:
    for _ in steps:
        work()


def _steps(store: Store) -> Generator[float, None, float]:
    """Those of a compaction; a wait is a short one."""
    steps = compaction.steps(store)
    for pause in steps:
        time.sleep(min(pause, 0.002))
        yield pause
    return 0.0


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_meanwhile_is_in_the_new_file(life: Life, seed: int) -> None:
    fs = life.fs
    fill(fs)
    writer = Writer(fs, seed)
    before = (fs.store.path / _DATA).stat()
    for _ in _steps(fs.store):
        writer.work()
    after = (fs.store.path / _DATA).stat()
    assert after.st_ino != before.st_ino and after.st_size < before.st_size
    writer.assert_all_there(fs)
    for _ in range(10):
        writer.work()
    fs.sync()
    writer.assert_all_there(life.crash())
    assert check(life.fs.store) == []


def test_what_was_synced_is_there_whenever_it_ends(memory: Path) -> None:
    """The process ends after each step, and after each write beside it."""
    for end in itertools.count():
        path = memory / f"store {end}"
        fs = Filesystem(Store.create(path))
        fill(fs, 50)
        writer = Writer(fs, end)
        steps = _steps(fs.store)
        done = 0
        for done, _ in enumerate(steps):
            writer.work()
            if done == end:
                break
        fs.sync()
        left = memory / "left"
        shutil.copytree(path, left)  # as a kill leaves it
        steps.close()
        again = Filesystem(Store.open(left))
        writer.assert_all_there(again)
        assert check(again.store) == []
        assert not list(left.glob("*.compact"))
        again.store.close()
        fs.store.close()
        shutil.rmtree(left)
        if done < end:
            break
    assert end > 4


def test_given_up_at_any_step_everything_is_as_it_was(life: Life) -> None:
    fs = life.fs
    fill(fs, 100)
    writer = Writer(fs, 7)
    before, children = (fs.store.path / _DATA).stat().st_ino, _children()
    for end in itertools.count():
        steps = _steps(fs.store)
        count = sum(1 for _ in itertools.islice(steps, end))
        steps.close()
        if (fs.store.path / _DATA).stat().st_ino != before:
            break
        assert count == end and _children() == children
        assert not list(fs.store.path.glob("*.compact"))
        writer.work()
        writer.assert_all_there(fs)
    assert end > 3
    writer.assert_all_there(fs)
    fs.sync()
    writer.assert_all_there(life.crash())


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_copier_that_is_killed_changes_nothing(life: Life, step: int) -> None:
    fs = life.fs
    fill(fs)
    before, children = (fs.store.path / _DATA).stat().st_ino, _children()
    writer = Writer(fs, step)
    steps = compaction.steps(fs.store)
    for _ in range(step):
        next(steps)
        writer.work()
    os.kill(_copier(children), signal.SIGKILL)
    with pytest.raises(errors.CompactFailed, match="The store is as it was"):
        _work_beside(steps, writer.work)
    assert (fs.store.path / _DATA).stat().st_ino == before
    assert _children() == children
    writer.assert_all_there(fs)
    fs.store.compact()
    assert (fs.store.path / _DATA).stat().st_ino != before
    writer.assert_all_there(fs)


def test_the_copier_ends_with_the_process_that_wanted_it(life: Life) -> None:
    fs, children = life.fs, _children()
    fill(fs, 20)
    steps = compaction.steps(fs.store)
    next(steps)
    pid = _copier(children)
    fds = os.listdir(f"/proc/{pid}/fd")
    assert len(fds) < 10, "it has what it needs, and nothing of the daemon's"
    steps.close()
    assert not Path(f"/proc/{pid}").exists()


def test_too_many_changes_end_it_and_memory_stays_bounded(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_KEYS_BYTES", 200_000)
    fs = life.fs
    fill(fs, 20)

    def change_much() -> None:
        for number in range(8_000):
            fs.store.metadata.put(b"%d" % number, b"")

    with pytest.raises(errors.StoreBusy, match="faster than it can be copied"):
        _work_beside(compaction.steps(fs.store), change_much)
    assert not list(fs.store.path.glob("*.compact"))
    fs.store.compact()


def test_changed_keys_are_given_back_once_and_in_order() -> None:
    changed = ChangedKeys(1 << 20)
    keys = {(n % 3, b"key %d" % n) for n in range(10_000)}
    for _ in range(2):
        for table, key in keys:
            changed.note(table, key)
    found: set[tuple[int, bytes]] = set()
    while taken := changed.take():
        assert taken == sorted(taken)
        found |= set(taken)
    assert found == keys and len(changed) == 0 and not changed.are_too_many


def test_a_second_one_takes_over(life: Life) -> None:
    """As after a purge: what it removed must not be in the copy that another one began."""
    fs = life.fs
    put(fs, b"secret", SECRET)
    fill(fs, 20)
    first = compaction.steps(fs.store)
    next(first)
    Service(fs).purge([b"secret"])
    with pytest.raises(errors.StoreBusy, match="another copy"):
        for _ in first:
            pass
    assert SECRET not in (fs.store.path / _DATA).read_bytes()


def test_what_went_while_a_copy_was_made_is_gone_after_the_next(life: Life) -> None:
    """Free pages of the copy have it, so that is not the last word of a purge."""
    fs = life.fs
    fill(fs, 20)
    put(fs, b"secret", SECRET)
    steps = _steps(fs.store)
    while not (fs.store._copy and fs.store._copy.is_copied):
        next(steps)
    fs.unlink(fs.head, 1, b"secret")
    _run(steps)
    assert not fs.store.is_fresh  # so that a compaction copies it once more
    fs.store.compact()
    assert SECRET not in (fs.store.path / _DATA).read_bytes()
    assert fs.store.is_fresh


def _run(steps: Iterator[float]) -> bool:
    """To its end; False if another copy took over."""
    try:
        for pause in steps:
            time.sleep(min(pause, 0.002))
    except errors.StoreBusy:
        return False
    return True


@pytest.mark.parametrize("step_s", [0.0, 0.005])
def test_a_second_one_may_begin_at_any_step_of_the_first(
    life: Life, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    monkeypatch.setattr(compaction, "_STEP_S", step_s)
    monkeypatch.setattr(compaction, "_FEW_KEYS", 1)  # so that there are several rounds
    fs = life.fs
    put(fs, b"secret", SECRET)
    for step in itertools.count(1):
        fill(fs, 20)
        first = _steps(fs.store)
        done = 0
        for done, _ in enumerate(itertools.islice(first, step), 1):
            put(fs, b"meanwhile", b"%d" % done)
        if done < step:
            break
        second = compaction.steps(fs.store)
        next(second)
        _run(first)
        assert _run(second)
        assert get(fs, b"secret") == SECRET
        assert check(fs.store) == []
    fs.commit()
    assert get(life.crash(), b"secret") == SECRET


def test_a_second_one_may_begin_while_the_copier_of_the_first_ends(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction.Copy, "dismiss", lambda copy: None)  # so that it takes long
    monkeypatch.setattr(compaction, "_ENDING_S", 0.05)
    fs = life.fs
    fill(fs, 20)
    before = (fs.store.path / _DATA).stat().st_ino
    first = _steps(fs.store)
    while (fs.store.path / _DATA).stat().st_ino == before:
        next(first)
    second = compaction.steps(fs.store)
    next(second)
    assert _run(first) and _run(second)
    assert get(fs, b"kept 7") == b"7" * 50
    assert check(fs.store) == []
    assert get(life.crash(), b"kept 7") == b"7" * 50


def test_another_file_in_the_place_of_the_copy_is_not_adopted(life: Life) -> None:
    fs = life.fs
    fill(fs, 20)
    steps = compaction.steps(fs.store)
    next(steps)
    (fs.store.path / (_DATA + compaction.COPY_SUFFIX)).unlink()
    with pytest.raises(errors.CompactFailed):
        _run(steps)
    assert get(fs, b"kept 7") == b"7" * 50
    assert check(fs.store) == []


def test_the_journal_of_the_old_file_is_not_taken_for_that_of_the_new(memory: Path) -> None:
    """After a power cut the rename may be there, and the removal of the journal not."""
    fs = Filesystem(Store.create(memory / "store"))
    fill(fs, 20)
    for number in range(6):
        put(fs, b"synced", b"%d" % number)
        fs.sync()
    journal = fs.store.path / journal_format.FILE
    old = journal.read_bytes()
    put(fs, b"synced", b"last")
    fs.sync()
    fs.store.compact()
    assert not journal.exists()
    fs.store.close(commit=False)
    journal.write_bytes(old)
    journal.chmod(0o600)
    again = Filesystem(Store.open(memory / "store"))
    assert get(again, b"synced") == b"last" and check(again.store) == []
    again.store.close()


def test_a_repair_may_go_back_one_commit(life: Life) -> None:
    """Both of the states that the new file has are whole."""
    fs = life.fs
    fill(fs, 50)
    writer = Writer(fs, 3)
    for _ in _steps(fs.store):
        writer.work()
    copy = fs.store.path.parent / "copy.mdb"
    for _ in _steps(fs.store):
        pass
    shutil.copy(fs.store.path / _DATA, copy)
    with contextlib.closing(Pages(copy)) as pages:
        newer, older = ({n: list(r) for n, r in pages.tables(meta)} for meta in pages.metas)
    assert newer == older and newer


def test_the_exchange_waits_for_a_backup(life: Life) -> None:
    fs = life.fs
    fill(fs, 50)
    before = (fs.store.path / _DATA).stat().st_ino
    with fs.store.hold_snapshot():
        steps = compaction.steps(fs.store)
        while next(steps) != compaction._READ_S:
            pass
        next(steps)
        assert (fs.store.path / _DATA).stat().st_ino == before
    for _ in steps:
        pass
    assert (fs.store.path / _DATA).stat().st_ino != before


def test_a_backup_beside_it_is_whole(life: Life) -> None:
    fs = life.fs
    fill(fs, 50)
    dest = fs.store.path.parent / "backup"
    beside: threading.Thread | None = None
    for _ in compaction.steps(fs.store):
        if beside is None:
            beside = threading.Thread(target=fs.store.backup, args=(dest,))
            beside.start()
        time.sleep(0.001)
    assert beside is not None
    beside.join()
    copy = Store.open(dest)
    assert check(copy) == []
    copy.close()


def test_a_disk_that_is_nearly_full_ends_it(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy must not take what the writes of others need."""
    fs = life.fs
    fill(fs, 20)
    steps = compaction.steps(fs.store)
    next(steps)
    monkeypatch.setattr("ckptfs.store.data_file.BESIDE_COPY", 1 << 62)
    with pytest.raises(errors.StoreFull, match="beside the compact copy"):
        for _ in steps:
            pass
    assert not list(fs.store.path.glob("*.compact"))


def test_pages_of_the_new_file_are_known_before_it_is_adopted(
    life: Life, compiled: CompiledServer
) -> None:
    """A bit that flips in any of them is noticed; and the exchange itself looks at few of them."""
    fs = life.fs
    fill(fs)
    fs.store.attach_reader(compiled)
    writer = Writer(fs, 11)
    for _ in _steps(fs.store):
        writer.work()
    fs.commit()
    _assert_flips_are_noticed(fs.store)
    time.sleep(0.04)
    writer.assert_all_there(fs)
    compiled.detach()


def _assert_flips_are_noticed(store: Store) -> None:
    flipped = 0
    for table, number in _leaves(store):
        time.sleep(0.04)  # what was right a moment ago is not looked at again
        with _flipped(store.path / _DATA, number), pytest.raises(OSError, match="damaged"):
            require_whole(store._tables[table])
        flipped += 1
    assert flipped > 3


def test_after_an_exchange_that_failed_the_next_one_knows_its_own_pages(
    life: Life, compiled: CompiledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next copy has the name of the one that was not adopted."""
    fs = life.fs
    fill(fs)
    fs.store.attach_reader(compiled)
    writer = Writer(fs, 12)
    with monkeypatch.context() as failing:
        failing.setattr(os, "replace", _refuse)
        with pytest.raises(errors.CompactFailed, match="as it was"):
            _work_beside(_steps(fs.store), writer.work)
    writer.work()
    writer.assert_all_there(fs)
    assert not list(fs.store.path.glob("*.compact"))
    assert "data.mdb.compact" not in Path("/proc/self/maps").read_text(), "it takes space"
    before = (fs.store.path / _DATA).stat().st_ino
    _work_beside(_steps(fs.store), writer.work)
    assert (fs.store.path / _DATA).stat().st_ino != before
    fs.commit()
    _assert_flips_are_noticed(fs.store)
    time.sleep(0.04)
    writer.assert_all_there(fs)
    compiled.detach()


def _refuse(source: Path, dest: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_exchange_that_may_not_last_ends_everything(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new name is not known to be on disk: what is acknowledged next could be lost."""
    fs = life.fs
    fill(fs, 20)
    sync = compaction.sync

    def fail_for_the_directory(path: Path) -> None:
        if path == fs.store.files:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    with monkeypatch.context() as failing:
        failing.setattr(compaction, "sync", fail_for_the_directory)
        with pytest.raises(errors.StoreUnwritten):
            _run(_steps(fs.store))
    assert fs.store.failed
    with pytest.raises(errors.StoreUnwritten):
        fs.commit()
    assert get(life.crash(), b"kept 7") == b"7" * 50


def _leaves(store: Store) -> Iterator[tuple[int, int]]:
    """A page of each of some tables."""
    with contextlib.closing(Pages(store.path / _DATA)) as pages:
        pages._seen = {0, 1}
        for table, name in enumerate(store._dbs):
            seen = set(pages._seen)
            tables = dict(pages.tables(pages.metas[0]))
            pages._seen = {0, 1}
            list(tables.get(name, ()))
            own = sorted(pages._seen - {0, 1})
            if own and name in (b"inodes", b"dirents", b"blocks", b"changes", b"facts"):
                yield table, next(n for n in own if _is_leaf(store, n))
            pages._seen = seen


def _is_leaf(store: Store, number: int) -> bool:
    with (store.path / _DATA).open("rb") as file:
        file.seek(number * 4096)
        head = file.read(16)
    return head[:8] == number.to_bytes(8, "little") and head[10] == 2


@contextlib.contextmanager
def _flipped(data: Path, number: int) -> Iterator[None]:
    with data.open("r+b", buffering=0) as file:
        at = number * 4096 + 4095
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), byte, at)


def test_damage_that_the_copy_may_have_taken_over_ends_it(
    life: Life, compiled: CompiledServer
) -> None:
    fs = life.fs
    fill(fs)
    fs.store.attach_reader(compiled)
    before = (fs.store.path / _DATA).stat().st_ino
    _, number = next(iter(_leaves(fs.store)))
    steps = compaction.steps(fs.store)
    next(steps)
    time.sleep(0.04)
    with _flipped(fs.store.path / _DATA, number), pytest.raises(OSError, match="damaged"):
        for _ in steps:
            pass
    assert (fs.store.path / _DATA).stat().st_ino == before
    compiled.detach()


def test_how_long_a_copy_would_be_is_known_about(life: Life) -> None:
    fs = life.fs
    fill(fs, 2_000)
    outlook = fs.store.outlook()
    fs.store.compact()
    after = (fs.store.path / _DATA).stat().st_size
    assert outlook.bytes > 20 << 20
    assert 0.8 * after < outlook.copy_bytes < 1.2 * after
    assert fs.store.outlook().gain_bytes < after // 8
