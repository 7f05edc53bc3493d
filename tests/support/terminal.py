"""A user at a terminal, who answers what a command asks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import NamedTuple

from tests.support.mounting import Workspace


class Answered(NamedTuple):
    code: int
    #: What it printed, on either stream.
    said: str


def asked(work: Workspace, *words: str, answer: bytes) -> Answered:
    """Run a verb on a terminal, and answer its question."""
    mine, its = pty.openpty()
    command = [sys.executable, "-m", "ckptfs", *words, "-w", str(work.path)]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | work.env,
    )
    os.close(its)
    os.write(mine, answer + b"\n")
    said, _ = process.communicate(timeout=60)
    os.close(mine)
    return Answered(process.returncode, said.decode())
