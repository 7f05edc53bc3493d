"""How a command ends: with all that it said, whoever reads it, and with its exit code."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import ScratchHome

_CKPTFS = f"{sys.executable} -m ckptfs"


def _shell(place: ScratchHome, script: str) -> subprocess.CompletedProcess[str]:
    env = {**place.env, "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["sh", "-c", script], cwd=place.base, env=env, capture_output=True, text=True, check=False
    )


def test_all_that_it_said_reaches_a_pipe(place: ScratchHome) -> None:
    done = _shell(place, f"{_CKPTFS} --help | cat")
    assert done.stdout.startswith("usage: ckptfs") and done.stdout.endswith("lists them).\n")


def test_its_exit_code_is_the_errors(place: ScratchHome) -> None:
    done = _shell(place, f"{_CKPTFS} status --json")
    assert done.returncode == 40
    assert "workspace-unknown" in done.stdout and done.stderr.startswith("ckptfs: ")


def test_closed_output_streams_are_no_error(place: ScratchHome) -> None:
    done = _shell(place, f"{_CKPTFS} --version >&- 2>&-; echo $?")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_result_that_cannot_be_written_is_an_error(place: ScratchHome) -> None:
    """What could not be written is not passed over."""
    done = _shell(place, f"{_CKPTFS} workspaces --json >/dev/full")
    assert done.returncode != 0 and "No space left" in done.stderr
