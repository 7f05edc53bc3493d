"""Everything that takes several transactions, killed before each of its steps.

A step is a commit of the store, or a call that changes names on the disk below, or how long the
heap is and where it has holes; between two of them nothing happens on the disk that anybody would
miss, so before one is after another. Whatever was killed at whichever of them, the next start finds
a whole store in which it is done, or not, or goes on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ckptfs import history, interrupts
from ckptfs.errors import PathUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import compression, removal, settings, upkeep
from ckptfs.model import BLOCK_SIZE
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store, check, compaction, heap, repair
from ckptfs.sync import ingest
from tests.direct import Ticks, find, get, mkdir, put, shown

#: So long that a part of it goes to the heap.
SECRET = b"a password that leaked " * 16_000
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_CALLS = ("rename", "replace", "unlink", "link", "mkdir", "rmdir", "fsync", "ftruncate")
_KILLED = 9
_KEEP_TWO = '[retention]\nmax_checkpoints = "2"\nkeep_all = "0s"\n'

Shown = dict[int, object]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A store with five checkpoints, a directory to import beside it."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-fail-", dir=_MEMORY) as base:
        store = Store.create(Path(base) / "store")
        fs = Filesystem(store, Ticks())
        mkdir(fs, b"dir")
        for number in range(5):
            put(fs, b"dir/file %d" % number, os.urandom(2 * BLOCK_SIZE))
            put(fs, b"small %d" % number, b"text %d\n" % number * 600)
            if number in (2, 3):
                put(fs, b"large", os.urandom(6 * BLOCK_SIZE + number))
            if number == 1:
                put(fs, b"secret", SECRET)
            history.seal(fs, "auto", "", number * 10**9)
            fs.write(fs.head, find(fs, fs.head, b"dir/file 0").ino, number * 100, b"changed")
            if number:
                fs.unlink(fs.head, 1, b"small %d" % (number - 1))
        fs.commit()
        store.close()
        source = Path(base) / "source"
        source.mkdir()
        for number in range(6):
            (source / f"in {number}").write_bytes(os.urandom(BLOCK_SIZE + number))
        (source / "in large").write_bytes(os.urandom(7 * BLOCK_SIZE + 1))
        yield Path(base)


def see(fs: Filesystem) -> Shown:
    """What each checkpoint shows, and the workspace, as -1."""
    found: Shown = {c.id: shown(fs, fs.view_of(c.epoch)) for c in history.checkpoints(fs.store)}
    return {**found, -1: shown(fs, fs.head)}


def _killed_at(step: int, path: Path, work: Callable[[Service], object]) -> bool:
    """Do the work in a process that is killed before a step; say whether it was."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            _arm(step)
            store = Store.open(path)
            work(Service(Filesystem(store, Ticks(10**18))))
            store.close()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, _KILLED), f"the work itself failed at step {step}"
    return status == _KILLED


def _arm(last: int) -> None:
    count = 0

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == last:
                os._exit(_KILLED)
            return call(*args, **options)

        return step

    for name in _CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    Store.commit = wrap(Store.commit)  # type: ignore[method-assign]
    heap.fallocate = wrap(heap.fallocate)
    # As many transactions as there can be.
    removal._COMMIT_BYTES = removal._STRIDE = 1
    upkeep.COMMIT_BYTES = ingest.COMMIT_BYTES = 1


@pytest.fixture(params=[5, pytest.param(1, marks=pytest.mark.deep)])
def stride(request: pytest.FixtureRequest) -> int:
    """Of what has dozens of steps: before one in how many it is killed."""
    return int(request.param)


def _each_step(
    made: Path,
    work: Callable[[Service], object],
    begin: Callable[[], object] = lambda: None,
    stride: int = 1,
) -> Iterator[tuple[Filesystem, Shown]]:
    """The file system as the next start finds it, for each step or one in so many, and what was
    shown before."""
    store = Store.open(made / "store")
    before = see(Filesystem(store, Ticks()))
    store.close(commit=False)
    step, killed = 0, True
    while killed:
        step += stride
        path = made / "work"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made / "store", path)
        begin()
        killed = _killed_at(step, path, work)
        store = Store.open(path)
        fs = Filesystem(store, Ticks(2 * 10**18))
        assert check(store) == [], f"step {step}"
        yield fs, before
        fs.commit()
        assert check(store) == []
        store.close()
        assert [name for name in os.listdir(path) if "compact" in name] == []
    assert step > stride


def _finish(fs: Filesystem) -> None:
    """What housekeeping does after a start."""
    removal.reap(fs)
    assert fs.store.epoch_tree.hidden.isdisjoint(_removable(fs))


def _removable(fs: Filesystem) -> list[Any]:
    """Hidden epochs with several children wait for them."""
    parents = [record.parent for record in fs.store.epochs.values()]
    return [epoch for epoch in fs.store.epochs if parents.count(epoch) < 2]


def test_a_deletion_killed_at_any_step_can_be_gone_on_with(made: Path, stride: int) -> None:
    def delete(service: Service) -> None:
        service.delete_named(["1", "3"])

    for fs, before in _each_step(made, delete, stride=stride):
        now = see(fs)
        assert now == {number: before[number] for number in now}
        assert before.keys() - now.keys() in (set(), {1, 3})
        _finish(fs)
        assert see(fs) == now
        _assert_no_more_room_than_needed(fs)


def _assert_no_more_room_than_needed(fs: Filesystem) -> None:
    """Whatever was forgotten when it was killed, `compact` finds it."""
    Service(fs).compact()
    slots = [slot for _, slot in fs.store.blocks.slots()]
    assert slots and fs.store.heap.size_bytes() == len(slots) * BLOCK_SIZE


def test_a_prune_killed_at_any_step_leaves_whole_checkpoints(made: Path, stride: int) -> None:
    def prune(service: Service) -> None:
        (service.fs.store.path / settings.FILE).write_text(_KEEP_TWO)
        service.prune()

    for fs, before in _each_step(made, prune, stride=stride):
        now = see(fs)
        assert now == {number: before[number] for number in now} and -1 in now
        _finish(fs)
        assert see(fs) == now


def test_a_compaction_killed_at_any_step_changes_nothing_that_is_seen(
    made: Path, stride: int
) -> None:
    for fs, before in _each_step(made, lambda service: service.compact(), stride=stride):
        assert see(fs) == before
        Service(fs).compact()
        assert see(fs) == before


@pytest.fixture
def shifted() -> Iterator[Path]:
    """A store with versions of a large file, the older ones in other places of the newest."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-fail-", dir=_MEMORY) as base:
        store = Store.create(Path(base) / "store")
        fs = Filesystem(store, Ticks())
        data = os.urandom(18 * BLOCK_SIZE)
        for number in range(3):
            put(fs, b"large", os.urandom(number * 30_000) + data)
            history.seal(fs, "auto", "", number * 10**9)
        fs.commit()
        store.close()
        yield Path(base)


def test_packing_versions_of_a_large_file_killed_at_any_step_changes_nothing_that_is_seen(
    shifted: Path, stride: int
) -> None:
    def pack(service: Service) -> None:
        compression.compress(service.fs)
        compression.repack(service.fs)

    ended = set()
    for fs, before in _each_step(shifted, pack, stride=stride):
        kept = [len(fs.store.blocks.differs_from(key)) for key in fs.store.blocks.keys()]
        ended.add(kept.count(2))
        assert see(fs) == before
        pack(Service(fs))
        assert see(fs) == before
    assert len(ended) > 2, "it was not killed in the middle"


def test_a_compaction_beside_a_writer_killed_at_any_step_keeps_what_was_synced(
    made: Path, stride: int
) -> None:
    """What the writer had synced is there, whichever file is the data file now."""
    synced = made / "synced"

    def work(service: Service) -> None:
        fs = service.fs
        for number, pause in enumerate(compaction.steps(fs.store)):
            put(fs, b"beside", b"%9d" % number)
            fs.sync() if number % 3 else fs.commit()
            synced.write_text(str(number))
            time.sleep(pause)

    exchanged = set()
    for fs, before in _each_step(made, work, lambda: synced.write_text("-1"), stride):
        now, last = see(fs), int(synced.read_text())
        assert {**now, -1: None} == {**before, -1: None}
        assert last < 0 or int(get(fs, b"beside")) >= last
        exchanged.add(fs.store.outlook().bytes)
        assert check(fs.store) == []
    assert len(exchanged) > 1


def test_a_purge_killed_at_any_step_can_be_done_again(made: Path, stride: int) -> None:
    for fs, before in _each_step(made, lambda service: service.purge([b"secret"]), stride=stride):
        assert see(fs).keys() == before.keys()
        if Service(fs).owes_purge():
            interrupts.finish(Service(fs).finishing_purge())
        else:
            with suppress(PathUnknown):  # it was done, or not begun
                Service(fs).purge([b"secret"])
        for file in ("data.mdb", heap.FILE):
            assert SECRET[:200] not in (fs.store.path / file).read_bytes()
        for number, tree in see(fs).items():
            assert b"secret" not in tree.nodes  # type: ignore[attr-defined]
            assert b"dir/file 0" in tree.nodes, number  # type: ignore[attr-defined]


def test_an_import_killed_at_any_step_can_be_done_again(made: Path) -> None:
    source = made / "source"
    wanted = {os.fsencode(path.name): path.read_bytes() for path in source.iterdir()}
    for fs, before in _each_step(made, lambda service: service.import_tree(source, merge=True)):
        now = see(fs)
        old = set(before) - {-1}
        assert {number: now[number] for number in old} == {number: before[number] for number in old}
        # What was in the workspace before is still there, whatever else is.
        assert before[-1].nodes.keys() <= now[-1].nodes.keys()  # type: ignore[attr-defined]
        Service(fs).import_tree(source, merge=True)
        for name, data in wanted.items():
            assert bytes(fs.read(fs.head, find(fs, fs.head, name).ino, 0, 1 << 20)) == data


def test_a_restore_killed_at_any_step_happened_or_did_not(made: Path) -> None:
    """One transaction: the old state or the new one, and a log that says which."""
    for fs, before in _each_step(made, lambda service: service.restore("2")):
        now, told = see(fs), history.restore_log(fs)
        where = now[-1].nodes  # type: ignore[attr-defined]
        assert where == before[2 if told else -1].nodes  # type: ignore[attr-defined]


def test_a_merge_killed_at_any_step_happened_or_did_not(made: Path) -> None:
    """After a restore of the first checkpoint nothing is ours, so all becomes theirs."""

    def work(service: Service) -> None:
        service.restore("0")
        perform(service, "merge", {"source": "4"})

    found = set()
    for fs, before in _each_step(made, work):
        now, told = see(fs), history.restore_log(fs)
        found.add(len(told))
        where = now[-1].nodes  # type: ignore[attr-defined]
        assert where == before[(-1, 0, 4)[len(told)]].nodes  # type: ignore[attr-defined]
        if len(told) == 2:
            assert perform(Service(fs), "merge", {"source": "4"})["changed"] is False
            Service(fs).undo()
            assert see(fs)[-1].nodes == before[0].nodes  # type: ignore[attr-defined]
    assert found == {0, 1, 2}


def test_a_backup_killed_at_any_step_leaves_the_store_alone(made: Path) -> None:
    def backup(service: Service) -> None:
        shutil.rmtree(made / "copy", ignore_errors=True)
        service.backup(made / "copy")

    for fs, before in _each_step(made, backup):
        assert see(fs) == before
    store = Store.open(made / "copy")
    assert check(store) == []
    assert see(Filesystem(store, Ticks())) == before
    store.close()


def test_a_repair_killed_at_any_step_leaves_one_whole_store(made: Path) -> None:
    """Killed in a repair, the store is the damaged one or the new one."""
    step, killed = 0, True
    while killed:
        step += 1
        path = made / "work"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made / "store", path)
        killed = _killed_alone(step, path)
        store = Store.open(path)
        assert check(store) == []
        assert len(see(Filesystem(store, Ticks()))) == 6
        store.close()
        repair.repair(path)
        Store.open(path).close()
    assert step > 2


def _killed_alone(step: int, path: Path) -> bool:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            _arm(step)
            repair.repair(path)
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, _KILLED)
    return status == _KILLED
