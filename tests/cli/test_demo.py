"""`ckptfs demo`: the session is real, and nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def untouched(place: ScratchHome) -> Iterator[ScratchHome]:
    """A home in which, at the end, is what was there before, and below which nothing is mounted."""
    (place / "tmp").mkdir()
    place.env["TMPDIR"] = str(place / "tmp")
    before = sorted(place.base.rglob("*"))
    yield place
    assert sorted(place.base.rglob("*")) == before
    assert f"{place.base}/" not in Path("/proc/self/mountinfo").read_text()


def test_it_plays_to_its_end_and_leaves_nothing(untouched: ScratchHome) -> None:
    done = succeed(untouched.run("demo", "--fast"))
    told = done.stdout
    accident, rewind = told.index("$ rm -rf src\n"), told.index("$ ckptfs rewind --force\n")
    assert accident < told.index("before: rm -rf src") < rewind
    assert "$ cat src/main.c\nint answer = 42;\n" in told[rewind:]
    assert f"The demo made {untouched / 'tmp'}/ckptfs-demo-" in told
    assert done.stderr == ""


def test_programs_get_the_commands_and_what_they_printed(untouched: ScratchHome) -> None:
    record = json.loads(succeed(untouched.run("demo", "--json")).stdout)
    assert {"command": "cat src/main.c", "output": "int answer = 42;\n"} in record["commands"]
    assert record["directory"].startswith(str(untouched / "tmp"))


@contextmanager
def playing(place: ScratchHome) -> Iterator[subprocess.Popen[str]]:
    """The demo at its own pace, which a signal is to end: alone it would go on for a while."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "ckptfs", "demo"],
        env=os.environ | place.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield demo
    finally:
        _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert stderr == "ckptfs: Stopped. What the demo made is removed.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_its_middle_leaves_nothing(
    untouched: ScratchHome, number: signal.Signals
) -> None:
    with playing(untouched) as demo:
        assert demo.stdout is not None
        while not demo.stdout.readline().startswith("Mounted "):
            assert demo.poll() is None
        demo.send_signal(number)


def test_an_interrupt_while_it_mounts_leaves_nothing(untouched: ScratchHome) -> None:
    with playing(untouched) as demo:
        wait_until(lambda: any((untouched / "tmp").glob("*/data")), "the store is begun")
        demo.send_signal(signal.SIGINT)


def test_a_command_that_fails_is_named_and_leaves_nothing(untouched: ScratchHome) -> None:
    """`cat` is another one here: it fails once the workspace is mounted."""
    (untouched / "tmp" / "bin").mkdir()
    other = untouched / "tmp" / "bin" / "cat"
    other.write_text("#!/bin/sh\necho no such luck\nexit 7\n")
    other.chmod(0o755)
    try:
        done = untouched.run("demo", "--fast", PATH=f"{other.parent}:{os.environ['PATH']}")
    finally:
        other.unlink()
        other.parent.rmdir()
    assert done.returncode == 1
    assert "`cat .checkpoints/1/src/main.c` ended with 7 and said: no such luck." in done.stderr
    assert "ckptfs doctor" in done.stderr
