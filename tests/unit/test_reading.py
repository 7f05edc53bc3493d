"""The reader process: it answers as this process would, writes nothing, and leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio

from ckptfs import interrupts
from ckptfs.control.protocol import Request, encode_result
from ckptfs.daemon.reading import Client, Readers, _process
from ckptfs.errors import CheckpointUnknown, Interrupted, ReaderEnded
from ckptfs.history import checkpoints, packing, removal
from ckptfs.service import Service, verbs
from ckptfs.service.service import perform
from ckptfs.store import Store, check
from tests.history.edits import Edits
from tests.support.readers import readers_of
from tests.support.waiting import wait_for_exit, wait_until

#: Every verb that may be carried out in either process, and what it is asked.
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("figures", {}),
    ("forks", {}),
    ("list", {"moments": True}),
    ("list", {"path": "d/f3", "limit": 2}),
    ("get", {"checkpoint": "2"}),
    ("diff", {"older": "1", "files": True, "times": True}),
    ("diff", {"paths": ["d"]}),
    ("show", {"checkpoint": "2", "files": True}),
    ("log", {"path": "large"}),
    ("restores", {}),
    ("state", {"checkpoint": "2"}),
    ("plan", {"checkpoint": "1"}),
    ("plan", {"checkpoint": "1", "paths": ["d"]}),
    ("space", {}),
    ("check", {"deep": False}),
    ("check", {"deep": True}),
    ("task_list", {}),
    ("purge", {"paths": ["large"], "dry_run": True}),
    ("prune", {"dry_run": True}),
    ("compare", {"states": ["1", "@"]}),
    ("merge", {"source": "1", "dry_run": True}),
]
#: They are asked with what others answer.
FOLLOWING = {"contents", "state_read", "task_revert"}


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    """Files of several sizes, some of them in the heap, with branches and packed records."""
    choose = random.Random(1)
    work = Edits(tmp_path / "store")
    work.mkdir("d")
    for number in range(100):
        work.put(f"d/f{number}", b"%d\n" % number * (number + 1))
    large = choose.randbytes(3 << 20)
    work.put("large", large)
    first = work.save("one")
    for number in range(12):
        work.put(f"d/f{number}", b"again")
    work.write("large", 100_000, choose.randbytes(100_000))
    work.save("two")
    packing.pack_records(work.fs)
    work.go_back(first)
    work.remove("d/f39")
    work.put("new", b"in the branch")
    work.fs.commit()
    yield work
    assert readers_of(os.getpid()) == []
    assert check(work.store) == []
    work.store.close()


def ask(work: Edits, op: str, args: dict[str, Any], **client: Any) -> bytes:
    async def asked() -> bytes:
        client.setdefault("has_gone", lambda: False)
        request = Request(op, args)
        return await Readers(work.store).perform(verbs.find(op), request, Client(**client))

    return trio.run(asked)


@pytest.mark.parametrize(("op", "args"), ASKED, ids=lambda value: str(value)[:60])
def test_a_verb_answers_the_same_in_both_processes(
    work: Edits, op: str, args: dict[str, Any]
) -> None:
    assert verbs.find(op).reads(args)
    here = encode_result(perform(Service(work.fs), op, args))
    there = ask(work, op, args)
    assert json.loads(there) == json.loads(here)


def test_every_verb_that_only_reads_is_asked_both_ways() -> None:
    reading = {verb.name for verb in verbs.VERBS.values() if verb.module and verb.only_reads}
    drying = {name for name, verb in verbs.VERBS.items() if "dry_run" in str(verb.parameters)}
    assert reading | drying == {op for op, _ in ASKED} | FOLLOWING


def test_the_contents_of_files_are_the_same_in_both_processes(work: Edits) -> None:
    args = {"view": int(work.fs.head.epoch), "paths": ["large", "d/f1"], "limit": 4 << 20}
    here = perform(Service(work.fs), "contents", args)
    assert json.loads(ask(work, "contents", args))["result"] == here


def test_an_error_is_the_verbs_own(work: Edits) -> None:
    with pytest.raises(CheckpointUnknown, match="77"):
        ask(work, "get", {"checkpoint": "77"})


def test_progress_comes_while_it_goes_on(work: Edits) -> None:
    heard: list[dict[str, Any]] = []
    ask(work, "check", {"deep": True}, on_progress=heard.append)
    assert {record["phase"] for record in heard} == {"check records", "check blocks"}


def test_nothing_is_written_to_the_store(work: Edits) -> None:
    def digests() -> dict[str, str]:
        files = [path for path in work.store.path.iterdir() if path.is_file()]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    caller = {"pid": os.getpid(), "command": "ckptfs"}
    for op, args in ASKED:
        ask(work, op, args | caller)
    assert digests() == before


def open_files(pid: int) -> set[str]:
    """What the process has open; what it closes meanwhile is left out."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0])
    return found


def test_what_is_open_here_is_closed_there(work: Edits, tmp_path: Path) -> None:
    inherited = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    store = os.fspath(work.store.path)
    wanted = {"/dev/null", "socket", store, "/memfd", "/memfd:ckptfs-reader (deleted)"}

    async def look() -> None:
        async with _process("check", work.store.directory_fd) as (process, _, _):
            pid = process.pid
            # While it starts, it has modules open as well.
            await trio.to_thread.run_sync(
                lambda: wait_until(
                    lambda: {store, "socket"} <= open_files(pid) <= wanted, "only these are open"
                )
            )
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert os.getsid(pid) == pid

    try:
        trio.run(look)
    finally:
        os.close(inherited)


def test_modules_of_the_current_directory_and_of_the_workspace_are_not_imported(
    work: Edits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "lmdb", "ckptfs"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(66)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".:")
    assert b"problems" in ask(work, "check", {"deep": False})


# -- beside a writer -------------------------------------------------------------------------------


def test_a_writer_beside_it_does_not_disturb_it(work: Edits) -> None:
    """Pages and slots of the heap that go meanwhile stay until it is done."""
    choose = random.Random(2)

    async def write(done: trio.Event) -> None:
        while not done.is_set():
            work.put("large", choose.randbytes(300_000))
            work.put(f"d/f{choose.randrange(40)}", choose.randbytes(5_000))
            work.save("meanwhile")
            if choose.random() < 0.3:
                removal.delete(work.fs, [choose.choice(checkpoints(work.store))])
            work.fs.commit()
            await trio.sleep(0.001)

    async def read(done: trio.Event) -> list[object]:
        readers = Readers(work.store)
        client, request = Client(lambda: False), Request("check", {"deep": True})
        lines = [await readers.perform(verbs.find("check"), request, client) for _ in range(5)]
        done.set()
        return [json.loads(line)["result"]["problems"] for line in lines]

    async def both() -> list[object]:
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, done)
            return await read(done)

    assert trio.run(both) == [[]] * 5


def test_what_was_held_for_it_is_used_again_afterwards(work: Edits) -> None:
    """The file does not go on growing once no process reads."""
    choose = random.Random(3)

    def write() -> int:
        for _ in range(30):
            work.put("d/f1", choose.randbytes(60_000))
            work.fs.commit()
        return (work.store.path / "data.mdb").stat().st_size

    write()
    before = write()
    with work.store.hold_snapshot():
        held = write()
    ask(work, "check", {"deep": False})
    assert before < held
    assert write() == write() == held


# -- ends ------------------------------------------------------------------------------------------


def the_reader() -> int:
    """The reader process, as soon as there is one."""
    wait_until(lambda: readers_of(os.getpid()), "a reader process runs")
    return readers_of(os.getpid())[0]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, r"was killed, perhaps for want of memory \(SIGKILL\)"),
        (signal.SIGSEGV, r"crashed \(SIGSEGV\)"),
    ],
)
def test_the_death_of_the_process_is_a_clear_error(
    work: Edits, number: signal.Signals, words: str
) -> None:
    killer = Thread(target=lambda: os.kill(the_reader(), number))
    killer.start()
    with pytest.raises(ReaderEnded, match=words) as caught:
        ask(work, "check", {"deep": True})
    killer.join()
    assert "Nothing was changed" in caught.value.message


def test_a_process_that_cannot_be_started_is_a_clear_error(work: Edits) -> None:
    """With no descriptor to spare, and with one more each time until it can be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    failures = []

    async def asked() -> None:
        readers, request = Readers(work.store), Request("check", {"deep": False})
        open_now = len(os.listdir("/proc/self/fd"))
        spare = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
        os.close(spare)
        for limit in range(spare, spare + 100):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
            try:
                await readers.perform(verbs.find("check"), request, Client(lambda: False))
                return
            except ReaderEnded as error:
                failures.append(str(error))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert len(os.listdir("/proc/self/fd")) == open_now
            assert not work.store.is_read

    trio.run(asked)
    assert failures
    assert all("could not be started (Too many open files)" in text for text in failures)
    assert all("Nothing was changed" in text for text in failures)


def test_it_ends_when_its_client_goes(work: Edits) -> None:
    """Also if it does not listen."""

    def has_gone() -> bool:
        (pid,) = readers_of(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        return True

    with pytest.raises(Interrupted):
        ask(work, "check", {"deep": True}, has_gone=has_gone)


def test_a_client_that_waits_for_its_turn_may_go(work: Edits) -> None:
    async def asked() -> None:
        readers = Readers(work.store)
        for other in range(int(readers._long.total_tokens)):
            readers._long.acquire_on_behalf_of_nowait(other)
        request, client = Request("check", {"deep": False}), Client(lambda: True)
        with pytest.raises(Interrupted):
            await readers.perform(verbs.find("check"), request, client)

    trio.run(asked)


def test_it_ends_when_it_is_no_longer_wanted(work: Edits) -> None:
    async def cancelled() -> None:
        request, client = Request("check", {"deep": True}), Client(lambda: False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Readers(work.store).perform, verbs.find("check"), request, client)
            await trio.to_thread.run_sync(the_reader)
            nursery.cancel_scope.cancel()

    trio.run(cancelled)
    assert readers_of(os.getpid()) == []


def test_it_ends_with_the_process_that_began_it(work: Edits) -> None:
    """Killed, that one cannot end it."""
    store = work.store.path
    work.store.close()
    program = f"""
import trio
from pathlib import Path
from ckptfs.daemon.reading import _process
from ckptfs.store import Store
async def main():
    store = Store.open(Path({os.fspath(store)!r}))
    async with _process('check', store.directory_fd) as (process, _, _):
        print(process.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        reader = int(parent.stdout.readline())
        parent.kill()
    wait_for_exit(reader)
    work.store = Store.open(store)


# -- the limit on this thread ----------------------------------------------------------------------


def test_a_verb_that_reads_too_long_gives_way(work: Edits) -> None:
    with pytest.raises(interrupts.OverBudget):
        limited(work, "diff", {"older": "1"})


def test_a_part_that_may_not_be_left_does_not_give_way(work: Edits) -> None:
    limited(work, "restore", {"checkpoint": "1"})
    limited(work, "prune", {})


def test_without_a_limit_nothing_gives_way(work: Edits) -> None:
    with interrupts.watching(lambda: False):
        perform(Service(work.fs), "diff", {"older": "1"})


def limited(work: Edits, op: str, args: dict[str, Any]) -> None:
    with interrupts.watching(lambda: False), interrupts.limited(0.0), suppress(Interrupted):
        perform(Service(work.fs), op, args)
