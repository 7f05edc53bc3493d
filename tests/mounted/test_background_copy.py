"""The data file is copied beside a mounted workspace: whatever happens meanwhile, nothing waits for
the copier and nothing is lost. The copier is stopped here, so that there is a meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

_DATA = "data.mdb"


@pytest.fixture
def work() -> Iterator[Workspace]:
    """A workspace whose data file is mostly free pages."""
    with scratch() as base:
        made = Workspace(base, "--no-write-back", "--auto", "off")
        made.mount()
        try:
            for number in range(300):
                (made.path / f"gone {number}").write_bytes(os.urandom(20_000))
            (made.path / "kept").write_text("kept")
            succeed(made.cli("save", "-w", made.path, "with all"))
            for number in range(300):
                (made.path / f"gone {number}").unlink()
            succeed(made.cli("delete", "1", "-w", made.path))
            yield made
        finally:
            made.finish()


def _daemon(made: Workspace) -> int:
    return int(made.status()["pid"])


def _copiers(daemon: int) -> list[int]:
    """The processes that copy for a daemon."""
    found = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    return [pid for pid in map(int, found) if "copier" in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except FileNotFoundError:
        return ""


class _Compacting:
    """`ckptfs compact` that waits for a copier which was stopped."""

    def __init__(self, made: Workspace) -> None:
        self.daemon = _daemon(made)
        self._others = _copiers(self.daemon)
        words = [sys.executable, "-m", "ckptfs", "compact", "-w", str(made.path)]
        self.client = subprocess.Popen(
            words, env={**os.environ, **made.env}, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.copier = 0
        wait_until(self._is_stopped, "the copier is stopped")

    def _is_stopped(self) -> bool:
        for pid in _copiers(self.daemon):
            if pid not in self._others:
                os.kill(pid, signal.SIGSTOP)
                self.copier = pid
        return self.copier > 0

    def go_on(self) -> None:
        os.kill(self.copier, signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        out, err = self.client.communicate(timeout=60)
        return self.client.returncode, (out + err).decode()

    def has_gone(self) -> bool:
        return not Path(f"/proc/{self.copier}").exists()


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def test_programs_are_served_and_what_they_write_is_brought_over(work: Workspace) -> None:
    before = (work.store / _DATA).stat()
    compacting = _Compacting(work)
    for number in range(50):
        _write(work.path / f"new {number}", f"{number}")
        assert (work.path / f"new {number}").read_text() == f"{number}"
    (work.path / "new 0").rename(work.path / "renamed")
    succeed(work.cli("save", "-w", work.path, "meanwhile"))
    (work.path / "kept").write_text("changed")
    compacting.go_on()
    code, said = compacting.end()
    assert code == 0 and "it was" in said, said
    after = (work.store / _DATA).stat()
    assert after.st_ino != before.st_ino and after.st_size < before.st_size // 2
    assert compacting.has_gone()
    work.kill()
    work.mount()
    assert {path.name for path in work.path.glob("new *")} == {f"new {n}" for n in range(1, 50)}
    assert (work.path / "renamed").read_text() == "0"
    assert (work.path / ".checkpoints/2/kept").read_text() == "kept"
    work.quiet()


def test_an_interrupt_ends_it_at_once(work: Workspace) -> None:
    before = (work.store / _DATA).stat()
    compacting = _Compacting(work)
    _write(work.path / "new", "new")
    compacting.client.send_signal(signal.SIGINT)
    code, said = compacting.end()
    assert code == 130 and "What is smaller by now stays so; no file was changed." in said, said
    assert compacting.has_gone() and not list(work.store.glob("*.compact"))
    assert (work.store / _DATA).stat().st_ino == before.st_ino
    assert (work.path / "new").read_text() == "new"
    work.quiet()


@pytest.mark.parametrize("how", ["umount", "SIGTERM", "SIGKILL"])
def test_the_end_of_the_daemon_is_the_end_of_the_copier(work: Workspace, how: str) -> None:
    compacting = _Compacting(work)
    _write(work.path / "new", "new")
    if how == "umount":
        succeed(work.umount())
    elif how == "SIGTERM":
        os.kill(compacting.daemon, signal.SIGTERM)
    else:
        work.kill()
    code, _ = compacting.end()
    assert code != 0
    if how == "SIGKILL":
        compacting.go_on()
    wait_until(compacting.has_gone, "the copier is gone")
    wait_until(lambda: not Path(f"/proc/{compacting.daemon}").exists(), "the daemon is gone")
    work.mount()
    assert not list(work.store.glob("*.compact"))
    assert (work.path / "new").read_text() == "new"


def test_a_copier_that_is_killed_is_an_error_of_the_verb_alone(work: Workspace) -> None:
    before = (work.store / _DATA).stat()
    compacting = _Compacting(work)
    _write(work.path / "new", "new")
    os.kill(compacting.copier, signal.SIGKILL)
    code, said = compacting.end()
    assert code == 85 and "The store is as it was." in said, said
    assert not list(work.store.glob("*.compact"))
    assert (work.store / _DATA).stat().st_ino == before.st_ino
    assert (work.path / "new").read_text() == "new"
    succeed(work.cli("compact", "-w", work.path))
    assert (work.store / _DATA).stat().st_size < before.st_size // 2
    assert (work.path / "new").read_text() == "new"


def test_a_purge_takes_the_copy_over(work: Workspace) -> None:
    """What is purged must not be in a copy that was begun before."""
    secret = b"a secret of some length" * 20
    _write(work.path / "secret", secret.decode())
    succeed(work.cli("save", "-w", work.path, "with a secret"))
    compacting = _Compacting(work)
    succeed(work.cli("purge", "--force", work.path / "secret", "-w", work.path))
    code, said = compacting.end()
    assert code == 19 and "another copy" in said, said
    assert secret not in (work.store / _DATA).read_bytes()
    assert not list(work.store.glob("*.compact"))


def test_the_end_of_a_copy_leaves_the_next_one_alone(work: Workspace) -> None:
    first = _Compacting(work)
    _write(work.path / "new", "with the first")
    second = _Compacting(work)
    copy = work.store / "data.mdb.compact"
    before = copy.stat().st_ino
    code, said = first.end()
    assert code == 19 and "another copy" in said, said
    _write(work.path / "newer", "with the second")
    assert copy.stat().st_ino == before
    second.go_on()
    code, said = second.end()
    assert code == 0 and "it was" in said, said
    assert (work.store / _DATA).stat().st_ino == before and not copy.exists()
    work.kill()
    work.mount()
    assert (work.path / "new").read_text() == "with the first"
    assert (work.path / "newer").read_text() == "with the second"
    assert (work.path / "kept").read_text() == "kept"
