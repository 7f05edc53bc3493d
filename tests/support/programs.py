"""Running other people's programs, with their own settings kept out of the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: Programs read the environment of whoever runs the tests; these settings make them all alike.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "A U Thor",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "GIT_TERMINAL_PROMPT": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    """Run a program to its end in `cwd` and return what it printed; it must succeed."""
    program = str(command[0])
    if shutil.which(program) is None:
        raise AssertionError(f"{program} is not installed; `make setup` installs it")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **extra},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=180,
    )
    shown = " ".join(map(str, command))
    assert done.returncode == 0, f"{shown}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
