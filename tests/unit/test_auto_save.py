"""What processes say to the daemon by the control files, without a kernel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.control.events import Hub
from ckptfs.daemon.autosave import AutoSave
from ckptfs.fs import Filesystem
from ckptfs.history import Cause, checkpoints
from ckptfs.history.auto import parse_policy
from ckptfs.history.processes import read_argv
from ckptfs.service import Service
from tests.direct import new_filesystem, put
from tests.support.waiting import wait_until


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with new_filesystem(tmp_path / "store") as found:
        yield found


@pytest.fixture
def auto(fs: Filesystem, tmp_path: Path) -> AutoSave:
    return AutoSave(Service(fs), parse_policy("command"), Hub(tmp_path))


def test_a_mark_by_somebody_who_cannot_be_seen(fs: Filesystem, auto: AutoSave) -> None:
    put(fs, b"file", b"x")
    number = auto.mark(0, "from another namespace")
    (found,) = checkpoints(fs.store)
    assert (found.id, found.message, found.cause) == (number, "from another namespace", Cause())


def test_a_mark_that_is_taken_back(fs: Filesystem, auto: AutoSave) -> None:
    auto.mark(os.getpid(), "one")
    auto.take_back(auto.mark(os.getpid(), "tw"))
    auto.mark(os.getpid(), "two")
    assert [found.message for found in checkpoints(fs.store)] == ["one", "two"]
    auto.take_back(1)  # it is gone already


def test_what_a_shell_says_that_it_does_names_its_builtins_and_what_it_starts(
    fs: Filesystem, auto: AutoSave
) -> None:
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        wait_until(lambda: read_argv(shell.pid) == [b"bash"], "it is a shell")
        for text in ("export TOKEN=hunter2; make", "rm -rf build"):
            put(fs, b"file", text.encode())
            auto.name_step(shell.pid, text)
            auto(shell.pid, None)
        shell.stdin.write(b"sleep 60 &\n")
        shell.stdin.flush()
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
        wait_until(lambda: children.read_text().split(), "it has a child")
        put(fs, b"file", b"again")
        auto(int(children.read_text()), None)
        os.kill(int(children.read_text()), signal.SIGKILL)
        shell.kill()
    messages = [found.message for found in checkpoints(fs.store)]
    assert messages == ["before: export TOKEN=***; make", "before: rm -rf build"]
