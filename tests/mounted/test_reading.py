"""Verbs that read much, beside the requests.

Requests are answered while such a verb is held, and whatever ends, the others go on or say so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints
from ckptfs.model import ROOT_INO
from ckptfs.store import Store
from ckptfs.store.format import block_entity
from tests.support.mounting import Workspace, is_mounted, scratch, workspace
from tests.support.readers import readers_of
from tests.support.waiting import wait_for_exit, wait_until

FILES = 4_000
#: They begin in a process of their own, or take more time than requests may wait for.
VERBS = {
    "check": ("check",),
    "check --deep": ("check", "--deep"),
    "space": ("status", "--space"),
    "diff --stat": ("diff", "--stat", "1"),
}


@pytest.fixture(scope="module")
def made() -> Iterator[Workspace]:
    """Some thousand files since the first checkpoint. Every test leaves it mounted."""
    with scratch() as base:
        made = Workspace(base, "--no-write-back", "--auto", "off")
        made.mount()
        made.cli("save", "first", "--allow-empty", "-w", made.path)
        for number in range(FILES):
            directory = made.path / f"d{number % 20}"
            directory.mkdir(exist_ok=True)
            (directory / f"f{number}").write_text(f"{number}\n" * 5)
        made.cli("save", "second", "-w", made.path)
        try:
            yield made
        finally:
            made.finish()


@contextmanager
def held(made: Workspace, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A command that waits for its answer, and the process that reads for it, which is stopped."""
    assert made.pid is not None
    command = [sys.executable, "-m", "ckptfs", *words, "--json", "-w", made.path]
    client = subprocess.Popen(
        command,
        env={**os.environ, **made.env},
        cwd=made.path.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: readers_of(made.pid or 0), "a process reads")
        (reader,) = readers_of(made.pid)
        os.kill(reader, signal.SIGSTOP)
        yield client, reader
    finally:
        client.kill()
        client.communicate()


def use(path: Path) -> None:
    """What every program does: create, write, look, flush, rename, remove."""
    with (path / "new").open("w") as file:
        file.write("meanwhile")
        file.flush()
        os.fsync(file.fileno())
    (path / "new").rename(path / "newer")
    assert (path / "newer").read_text() == "meanwhile"
    assert "newer" in os.listdir(path)
    (path / "newer").unlink()


@pytest.mark.parametrize("verb", VERBS)
def test_requests_and_other_verbs_are_answered_while_a_verb_reads(
    made: Workspace, verb: str
) -> None:
    with held(made, *VERBS[verb]) as (client, reader):
        use(made.path)
        assert made.cli("save", "meanwhile", "--allow-empty", "-w", made.path).returncode == 0
        assert made.status()["state"] == "serving"
        os.kill(reader, signal.SIGCONT)
        stdout, stderr = client.communicate(timeout=60)
    assert client.returncode == 0, stderr
    assert json.loads(stdout)
    assert readers_of(made.pid or 0) == []


def test_the_death_of_the_process_that_reads_ends_nothing_else(made: Workspace) -> None:
    with held(made, "check") as (client, reader):
        os.kill(reader, signal.SIGKILL)
        stdout, _ = client.communicate(timeout=60)
    error = json.loads(stdout)["error"]
    assert (client.returncode, error["kind"]) == (67, "reader-ended")
    assert "(SIGKILL). Nothing was changed, and the mount goes on." in error["message"]
    use(made.path)
    assert made.cli("check", "-w", made.path).returncode == 0


def test_the_death_of_the_daemon_ends_the_process_that_reads(made: Workspace) -> None:
    with held(made, "check") as (client, reader):
        made.kill()
        os.kill(reader, signal.SIGCONT)  # it may have been stopped in its first milliseconds
        wait_for_exit(reader)
        stdout, _ = client.communicate(timeout=60)
    assert json.loads(stdout)["error"]["kind"] == "daemon-gone"
    made.mount()


def test_an_interrupt_of_the_client_ends_the_process_that_reads(made: Workspace) -> None:
    with held(made, "check", "--deep") as (client, reader):
        client.send_signal(signal.SIGINT)
        _, stderr = client.communicate(timeout=60)
        wait_for_exit(reader)
    assert (client.returncode, stderr) == (130, "ckptfs: Stopped. Nothing was changed.\n")
    use(made.path)


def test_an_unmount_ends_the_process_that_reads(made: Workspace) -> None:
    with held(made, "check") as (client, reader):
        made.umount()
        wait_for_exit(reader)
        stdout, _ = client.communicate(timeout=60)
    assert not is_mounted(made.path)
    made.mount()
    assert client.returncode != 0 and json.loads(stdout)["error"]["message"]


def test_a_repair_says_that_it_needs_the_workspace_unmounted(made: Workspace) -> None:
    done = made.cli("check", "--repair", "-w", made.path)
    assert done.returncode != 0
    assert "umount" in done.stderr and "Traceback" not in done.stderr
    use(made.path)


def test_programs_go_on_while_the_names_are_found_that_a_restore_changed(made: Workspace) -> None:
    with held(made, "restore", "1", "--force") as (client, reader):
        use(made.path)
        assert not (made.path / "d0").exists()
        os.kill(reader, signal.SIGCONT)
        stdout, stderr = client.communicate(timeout=60)
    assert client.returncode == 0, stderr
    assert len(json.loads(stdout)["deleted_paths"]) == FILES + 20
    assert made.cli("undo", "-w", made.path).returncode == 0
    assert (made.path / "d3/f3").read_text() == "3\n" * 5


def test_who_watches_hears_of_a_restore_whose_client_hung_up(made: Workspace) -> None:
    with Client(config.Workspace(made.path, made.store)) as watching:
        events = watching.watch()
        with held(made, "restore", "1", "--force") as (client, reader):
            client.kill()
            wait_for_exit(reader)
        assert made.cli("save", "--allow-empty", "-w", made.path).returncode == 0
        told = next(events)
    assert (told["event"], told["data"]["changed"]) == ("checkpoint_restored", True)
    assert told["data"]["deleted_paths"] is None
    assert made.cli("undo", "-w", made.path).returncode == 0


def test_what_a_process_counted_is_kept() -> None:
    """Else a list would count thousands of files again and again."""
    with workspace("--no-write-back", "--auto", "off") as work:
        for number in range(FILES):
            (work.path / f"{number}").touch()
        assert work.cli("save", "-w", work.path).returncode == 0
        with closing(Client(config.Workspace(work.path, work.store))) as client:
            (_, listed) = client.call("list")["checkpoints"]
        assert listed["added"] == FILES
        work.umount()
        with closing(Store.open(work.store)) as store:
            cached = [json.loads(record) for _, record in store.metadata.walk(b"counts")]
        assert FILES in [added for span in cached for _, added, _, _ in span.values()]


def exchange(store: Path, number: int, record: bytes) -> bytes:
    """Put a record into the block map of the file in a checkpoint; the one that was there."""
    with closing(Store.open(store)) as opened:
        fs = Filesystem(opened)
        view = opened.view(checkpoints(opened)[number].epoch)
        entity = block_entity(fs.lookup(view, ROOT_INO, b"file").content, 0)
        was = opened.blockmap.get(view, entity)
        assert was is not None
        opened.blockmap.rewrite(entity + view.suffix, record)
        opened.dirty = True
        fs.commit()
    return was


def test_a_restore_that_is_done_is_no_failure_whatever_is_damaged() -> None:
    """The state that is left may have a record that no restore reads, but the names do."""
    with workspace("--no-write-back", "--auto", "off") as work:
        for text in ("the old", "the new"):
            (work.path / "file").write_text(text)
            (work.path / text).touch()
            assert work.cli("save", "-w", work.path).returncode == 0
        work.umount()
        was = exchange(work.store, 2, b"?damaged")
        work.mount()
        done = work.cli("restore", "1", "--force", "--json", "-w", work.path)
        assert done.returncode == 0, done.stdout
        found = json.loads(done.stdout)
        assert (found["changed"], found["modified_paths"]) == (True, None)
        assert (work.path / "file").read_text() == "the old"
        assert "restore is done, but what it changed is not told" in work.trouble()
        pid, work.pid = work.pid or 0, None
        assert work.cli("umount", work.path).returncode == 0
        wait_for_exit(pid)
        assert exchange(work.store, 2, was) == b"?damaged"
        work.check()
