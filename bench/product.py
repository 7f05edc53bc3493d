"""ckptfs as a user has it: its command line. The only module that knows how it is called."""

import compileall
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckptfs.config import Workspace
from ckptfs.control.client import Client

_CHECKOUT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Installation:
    """A revision of ckptfs that can be run: what it is called, its checkout and its Python."""

    name: str
    checkout: Path
    python: Path
    mount_options: tuple[str, ...] = ()
    """What its mounts for rows have beyond the usual."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of its commands, and so of its daemon."""


#: The one this benchmark is part of.
HERE = Installation("ckptfs", _CHECKOUT, Path(sys.executable))
#: The same, taking no checkpoints by itself.
AUTO_OFF = replace(HERE, name="ckptfs --auto off", mount_options=("--auto", "off"))


class ProductFailed(Exception):
    """A ckptfs command did not succeed; the text is what it said."""


def ckptfs(*arguments: str | Path, by: Installation = HERE) -> str:
    """Run one command and return its standard output.

    The output goes through files: a daemon that kept a pipe open would keep us waiting.
    """
    command = [str(by.python), "-m", "ckptfs", *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            done = subprocess.run(
                command,
                cwd=by.checkout,
                env=os.environ | dict(by.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_TIMEOUT_S,
                # A Ctrl-C ends the harness, which then unmounts; not the command that unmounts.
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProductFailed(f"ckptfs {arguments[0]} did not finish in time") from error
        out.seek(0)
        err.seek(0)
        if done.returncode != 0:
            said = err.read().strip().splitlines() or ["nothing"]
            raise ProductFailed(f"ckptfs {arguments[0]} ended with {done.returncode}: {said[-1]}")
        return out.read()


def compile_sources() -> None:
    """As a user has it: bytecode is there, whatever the environment of the benchmark says."""
    compileall.compile_dir(_CHECKOUT / "ckptfs", quiet=1)


def mount(workspace: Path, store: Path, *options: str, by: Installation = HERE) -> None:
    ckptfs("mount", workspace, "--store", store, *options, by=by)


def umount(workspace: Path, by: Installation = HERE) -> None:
    ckptfs("umount", workspace, by=by)


def status(workspace: Path, by: Installation = HERE) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ckptfs("status", "-w", workspace, "--json", by=by))
    return answer


def connect(workspace: Path, store: Path) -> Client:
    """A connection to the daemon of a mounted workspace, as a Python program has it."""
    return Client(Workspace(workspace, store))


def configure(workspace: Path, setting: str, value: str) -> None:
    ckptfs("config", setting, value, "-w", workspace)


def newest_checkpoint(workspace: Path, store: Path) -> int:
    """The number of the checkpoint that was taken last, moments among them; 0 if none was."""
    with connect(workspace, store) as client:
        newest = client.call("list", {"limit": 1, "moments": True})["checkpoints"]
    return max((int(each["id"]) for each in newest), default=0)


def import_into(store: Path, source: Path) -> None:
    ckptfs("import", source, "--store", store)
