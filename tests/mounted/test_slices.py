"""Verbs that change much give way: what else comes is answered between two of their slices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from ckptfs.errors import Interrupted
from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

_FILES = 2_000
_VERBS: dict[str, dict[str, Any]] = {
    "delete": {"checkpoints": ["1"]},
    "purge": {"paths": ["tree"]},
    "restore": {"checkpoint": "1"},
}


@pytest.fixture
def work() -> Iterator[Workspace]:
    """A checkpoint that has thousands of files, which the workspace has changed since."""
    with scratch() as base:
        made = Workspace(base, "--no-write-back", "--auto", "off")
        made.mount()
        try:
            _fill(made.path / "tree", "first")
            with _client(made) as client:
                client.call("save", {"message": "all"})
                _fill(made.path / "tree", "second")
                client.call("save", {"message": "changed"})
            yield made
            made.quiet()
        finally:
            made.finish()


def _fill(tree: Path, word: str) -> None:
    for number in range(_FILES):
        directory = tree / f"d{number % 20}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_text(f"{word} {number}\n" * 200)


def _client(made: Workspace) -> Client:
    return Client(config.Workspace(made.path, made.store))


def _numbers(made: Workspace) -> list[int]:
    done = succeed(made.cli("list", "-w", made.path, "--json"))
    return [item["id"] for item in json.loads(done.stdout)["checkpoints"]]


class _Asked(Thread):
    """Asks for a verb, and notes how far it is by each word that it hears of it."""

    def __init__(self, made: Workspace, verb: str) -> None:
        super().__init__()
        self._made, self._verb = made, verb
        self.heard: list[int] = []
        self.result: dict[str, Any] | None = None

    def run(self) -> None:
        with _client(self._made) as client:
            self.result = client.call(self._verb, _VERBS[self._verb], on_progress=self._hear)

    def _hear(self, progress: dict[str, Any]) -> None:
        self.heard.append(progress["files"])

    def is_at_work(self) -> None:
        wait_until(lambda: bool(self.heard), f"{self._verb} is at work")

    @property
    def longest_slice(self) -> float:
        """The largest part of all that was done without a word, and so without giving way."""
        steps = [after - before for before, after in pairwise([0, *self.heard])]
        return max(steps) / max(self.heard)


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_programs_are_served_between_the_slices_of_a_verb(work: Workspace, verb: str) -> None:
    """Each of these files is made, read and removed while it is at work, one after the other at
    different points of it; and no slice does a good part of all that is to be done."""
    asked, made = _Asked(work, verb), 0
    points: set[int] = set()
    asked.start()
    asked.is_at_work()
    while asked.is_alive():
        points.add(len(asked.heard))
        file = work.path / f"file {made}"
        file.write_text(f"{made}")
        assert file.read_text() == f"{made}"
        file.unlink()
        made += 1
    asked.join()
    assert asked.result is not None
    assert len(points) > 10
    assert asked.longest_slice < 0.2  # 5 ms are a tenth on a quick machine


def test_programs_are_served_while_it_is_found_out_what_a_restore_changes(work: Workspace) -> None:
    """What they do until it begins goes with it, as what they did before."""
    asked, made = _Asked(work, "restore"), 0
    points: set[int] = set()
    asked.start()
    asked.is_at_work()
    while asked.is_alive():
        points.add(len(asked.heard))
        file = work.path / "tree" / f"file {made}"
        file.write_text(f"{made}")
        made += 1
    asked.join()
    assert asked.result is not None
    assert len(points) > 2
    assert asked.longest_slice < 0.5
    assert (work.path / "tree/d3/f3").read_text() == "first 3\n" * 200
    assert not (work.path / "tree/file 0").exists()
    assert (work.path / ".checkpoints" / f"{asked.result['before']}" / "tree/file 0").exists()


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_saves_are_answered_between_the_slices_of_a_verb(work: Workspace, verb: str) -> None:
    asked = _Asked(work, verb)
    asked.start()
    asked.is_at_work()
    saved = []
    with _client(work) as client:
        while asked.is_alive() and len(saved) < 5:
            (work.path / "other").write_text(f"{len(saved)}")
            saved.append(client.call("save", {"message": "meanwhile"})["id"])
    asked.join()
    assert asked.result is not None and len(saved) > 1
    assert set(saved) <= set(_numbers(work))
    assert (work.path / ".checkpoints" / f"{saved[1]}" / "other").read_text() == "1"


def test_a_deleted_checkpoint_is_out_of_sight_before_it_is_freed(work: Workspace) -> None:
    asked = _Asked(work, "delete")
    asked.start()
    asked.is_at_work()
    assert 1 not in _numbers(work)
    assert not (work.path / ".checkpoints" / "1").exists()
    asked.join()


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_a_client_that_leaves_ends_the_verb(work: Workspace, verb: str) -> None:
    """What is left is whole, and can be done later."""
    client = _client(work)
    client.send_request(verb, _VERBS[verb], progress=True)
    assert client._socket.recv(1)  # the first progress: it is at work
    client.close()
    with _client(work) as other:
        assert other.call("check", {"deep": True})["problems"] == []
        if verb == "purge":
            other.call(verb, _VERBS[verb])
    assert (work.path / "tree").exists() == (verb == "delete")


@pytest.mark.parametrize("verb", ["delete", "purge"])
def test_a_verb_is_gone_on_with_after_the_daemon_was_killed(work: Workspace, verb: str) -> None:
    client = _client(work)
    client.send_request(verb, _VERBS[verb], progress=True)
    assert client._socket.recv(1)
    work.kill()
    client.close()
    work.check()
    work.mount()
    if verb == "purge":
        wait_until(lambda: not (work.path / "tree").exists(), "the purge is gone on with")
        assert not (work.path / ".checkpoints" / "2" / "tree").exists()
    else:
        assert 1 not in _numbers(work)
        assert (work.path / "tree/d3/f3").read_text() == "second 3\n" * 200


def test_two_of_them_follow_each_other(work: Workspace) -> None:
    both = [_Asked(work, verb) for verb in ("delete", "purge")]
    for asked in both:
        asked.start()
    for asked in both:
        asked.join()
        assert asked.result is not None
    assert _numbers(work) == [2, 0] and not (work.path / "tree").exists()


@pytest.mark.compiled_only
def test_a_purge_from_a_fork_that_ends_is_left_whole(work: Workspace) -> None:
    """It says what it left, and can be done from elsewhere."""
    succeed(work.cli("fork", "f", "-w", work.path))
    fork = Path(os.readlink(work.path / ".forks/f"))
    command = [sys.executable, "-m", "ckptfs", "purge", fork / "tree", "--force", "-w", fork]
    environment = {**os.environ, **work.env}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as purge:
        some = work.path / "tree/d0"
        wait_until(lambda: len(os.listdir(some)) < _FILES // 20, "it is at work")
        subprocess.run(["umount", "--lazy", fork], check=True)
        _, said = purge.communicate(timeout=60)
    assert purge.returncode == Interrupted.exit_code and "files were purged" in said
    succeed(work.cli("check", "-w", work.path))
    succeed(work.cli("purge", work.path / "tree", "--force", "-w", work.path))
    assert not (work.path / "tree").exists()
    assert not (work.path / ".checkpoints/1/tree").exists()
