"""How real programs are started: without the user's settings, their output thrown away."""

import os
import subprocess
import tarfile
from pathlib import Path

# A background gc would still run when the next row starts.
GIT = (
    "git",
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "init.defaultBranch=main"),
    *("-c", "user.name=bench"),
    *("-c", "user.email=bench@localhost"),
)
_ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


class ProgramFailed(Exception):
    """A program ended in another way than it should; the text is the end of what it said."""


def exit_code(*command: str | Path) -> int:
    return _start(command).returncode


def run(*command: str | Path, expect: int = 0, stdin: bytes | None = None) -> None:
    done = _start(command, stdin)
    if done.returncode != expect:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise ProgramFailed(f"{command[0]} ended with {done.returncode}: {said[-1]}")


def _start(
    command: tuple[str | Path, ...], stdin: bytes | None = None
) -> "subprocess.CompletedProcess[bytes]":
    given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(
        command,
        **given,
        env=_ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )


def unpack(archive: tarfile.TarFile, target: Path) -> None:
    """As files of a project, nothing beyond. Debian 12's Python has no filter for that."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(target)
