"""Ctrl-C, and the end of a client by other means: what it asked for ends with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, scratch, succeed, workspace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

NOTHING = "ckptfs: Stopped. Nothing was changed.\n"
#: recvfrom and poll on x86-64 and aarch64: a client that waits for its answer is in one of them.
_WAITING = {"45", "7", "207", "73"}


@pytest.fixture(scope="module")
def large() -> Iterator[Workspace]:
    """Many checkpoints of some thousand files: to check it takes seconds."""
    with workspace("--no-write-back", "--auto", "off") as made:
        for top in range(10):
            (made.path / f"d{top}").mkdir()
            for number in range(300):
                (made.path / f"d{top}" / f"f{number}").write_text(f"{top} {number}\n" * 20)
        with Client(config.Workspace(made.path, made.store)) as client:
            for number in range(60):
                (made.path / "d0" / "f0").write_text(str(number))
                client.call("save", {"message": str(number)})
        yield made


@contextmanager
def _stopped(made: Workspace) -> Iterator[None]:
    """Hold the daemon, so that a request waits for it, and go on at the end."""
    assert made.pid is not None
    for path in (made.path, made.path / "d0", made.path / "d9"):
        os.stat(path)  # from here on the kernel knows, and the client need not wait for it
    shutil.rmtree(made.path.parent / "out", ignore_errors=True)
    os.kill(made.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(made.pid, signal.SIGCONT)


def _start(made: Workspace, *words: str | Path) -> subprocess.Popen[str]:
    """A client that has asked and waits for the answer."""
    client = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", *map(str, words)],
        env={**os.environ, **made.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    syscall = Path(f"/proc/{client.pid}/syscall")
    try:
        wait_until(lambda: syscall.read_text().split()[0] in _WAITING, "the client waits")
    except BaseException:
        client.kill()
        raise
    return client


def _interrupt(client: subprocess.Popen[str]) -> None:
    """Interrupt a client, and wait until it has told the daemon and waits for what comes of it."""
    syscall = Path(f"/proc/{client.pid}/syscall")
    before = syscall.read_text()
    client.send_signal(signal.SIGINT)

    def has_told() -> bool:
        now = syscall.read_text()  # with the arguments, and so with how long it waits
        return now != before and now.split()[0] in _WAITING

    wait_until(has_told, "the client has told the daemon")


def _verbs(made: Workspace) -> dict[str, tuple[list[str | Path], str]]:
    out = made.path.parent / "out"
    place: list[str | Path] = ["-w", made.path]
    stays = f"ckptfs: Stopped. What was written to {out} so far stays there; the workspace was not"
    smaller = "ckptfs: Stopped. What is smaller by now stays so; no file was changed."
    return {
        "check": (["check", *place], NOTHING),
        "check --deep": (["check", "--deep", *place], NOTHING),
        "diff": (["diff", "0", *place], NOTHING),
        "purge": (["purge", "--force", made.path / "d9", *place], NOTHING),
        "restore": (["restore", "0", "--force", *place], NOTHING),
        "compact": (["compact", *place], smaller),
        "export": (["export", out, *place], stays),
    }


@pytest.mark.parametrize("verb", ["check", "check --deep", "diff", "purge", "compact", "export"])
def test_an_interrupt_ends_the_verb_in_the_daemon(large: Workspace, verb: str) -> None:
    words, said = _verbs(large)[verb]
    with _stopped(large):
        client = _start(large, *words)
        _interrupt(client)
    stdout, stderr = client.communicate(timeout=20)
    assert (client.returncode, stdout) == (130, "")
    assert stderr.startswith(said) and "Traceback" not in stderr


@pytest.mark.parametrize("verb", ["check --deep", "diff", "compact"])
def test_the_end_of_the_client_ends_the_verb_in_the_daemon(large: Workspace, verb: str) -> None:
    words, _ = _verbs(large)[verb]
    log = large.store / "ckptfs.log"
    before = log.read_text().count("with its client")
    with _stopped(large):
        client = _start(large, *words)
        client.kill()
        client.communicate()
    wait_until(lambda: log.read_text().count("with its client") > before, "the verb has ended")
    assert large.status()["state"] == "serving"


def test_nothing_is_exported_for_a_client_that_has_gone(large: Workspace) -> None:
    """Nobody can tell any more what its paths meant."""
    with _stopped(large):
        client = _start(large, "export", large.path.parent / "out", "-w", large.path)
        client.kill()
        client.communicate()
    assert large.status()["state"] == "serving"  # which is answered after it
    assert not (large.path.parent / "out").exists()


def test_what_is_done_when_the_interrupt_comes_is_said_to_be_done(large: Workspace) -> None:
    (large.path / "new").touch()
    with _stopped(large):
        client = _start(large, "save", "late", "-w", large.path)
        _interrupt(client)
    _, stderr = client.communicate(timeout=20)
    assert (client.returncode, stderr) == (130, "ckptfs: Too late: save was done already.\n")


def test_a_daemon_that_does_not_stop_is_not_waited_for(large: Workspace) -> None:
    with _stopped(large):
        client = _start(large, "check", "-w", large.path)
        client.send_signal(signal.SIGINT)
        _, stderr = client.communicate(timeout=20)
    assert client.returncode == 130
    assert "has to finish check and goes on with it" in stderr


def _wait_for_lock(lock: Path, pid: int) -> None:
    wait_until(lambda: lock.read_text().strip() == str(pid), "it has the store")


def test_an_interrupt_in_a_store_without_a_daemon_leaves_it_whole() -> None:
    """Also in the middle of what changes it: what was committed is what is there."""
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        for number in range(500):
            (made.path / f"f{number}").write_text(f"{number}\n" * 50)
        made.mount("--no-write-back")
        made.umount()
        words = ["purge", "--force", str(made.path / "f7"), "-w", str(made.path)]
        for delay in (0.05, 0.15):
            client = subprocess.Popen(
                [sys.executable, "-m", "ckptfs", *words],
                env={**os.environ, **made.env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            _wait_for_lock(made.store / "lock", client.pid)
            time.sleep(delay)
            client.send_signal(signal.SIGINT)
            _, stderr = client.communicate(timeout=30)
            assert "Traceback" not in stderr
            made.check()


@pytest.mark.parametrize("verb", ["import", "mount"])
@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
def test_an_interrupt_while_the_store_is_made_leaves_none(verb: str, delay: float) -> None:
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        (base / "source").mkdir()
        for number in range(300):
            (base / "source" / f"f{number}").write_text(f"{number}\n")
        words = {
            "import": ("import", base / "source", "--store", made.store),
            "mount": ("mount", made.path, "--from", base / "source", "--store", made.store),
        }[verb]
        client = subprocess.Popen(
            [sys.executable, "-m", "ckptfs", *map(str, words)],
            env={**os.environ, **made.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(made.store.exists, "it begins to make the store")
        time.sleep(delay)
        client.send_signal(signal.SIGINT)
        _, stderr = client.communicate(timeout=30)
        if client.returncode == 130 and "already" not in stderr:
            assert stderr.startswith("ckptfs: Stopped. Nothing was ")
            assert not made.store.exists()
            succeed(made.cli(*words))
        if is_mounted(made.path):
            succeed(made.cli("umount", made.path))


@pytest.mark.parametrize("verb", ["import", "mount"])
def test_what_a_power_cut_left_of_making_a_store_is_taken_over(verb: str) -> None:
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        made.store.mkdir(mode=0o700)
        (made.store / "data.mdb").touch(mode=0o600)
        words = ("import", made.path) if verb == "import" else ("mount", made.path)
        refused = made.cli("check", "--store", made.store)
        assert "the making of it was interrupted" in refused.stderr
        succeed(made.cli(*words, "--store", made.store))
        if verb == "mount":
            succeed(made.cli("umount", made.path))
