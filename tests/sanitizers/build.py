"""A copy of the project whose C is compiled with AddressSanitizer and UndefinedBehaviorSanitizer.

It stands in a directory of its own: what `make setup` built stays as it is. Programs that run there
write what the sanitizers find into files, since a daemon's stderr is nobody's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FLAGS = [
    "-fsanitize=address,undefined",
    # Where both are, the second one writes to stderr whatever it is told. So it ends the process,
    # and the first one reports where. What is too short for an access is the first one's to find.
    "-fsanitize-undefined-trap-on-error",
    "-fno-sanitize=object-size",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
    "-DCKPTFS_SANITIZED",
]
_COPIED = ("ckptfs", "tests", "bench", "docs", "pyproject.toml")


class Sanitized:
    """The copy, and how to run something in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reports = directory / "reports"
        self._reports.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__", "*.so")
        for name in _COPIED:
            source, target = ROOT / name, directory / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignore)
            else:
                shutil.copy(source, target)
        self._compile()

    def _compile(self) -> None:
        config = tomllib.loads((ROOT / "pyproject.toml").read_text())
        (extension,) = config["tool"]["setuptools"]["ext-modules"]
        name = extension["name"].replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX")
        include = f"-I{sysconfig.get_path('include')}"
        flags = [*extension["extra-compile-args"], "-fPIC", include, *_FLAGS]
        command = ["gcc", "-shared", *flags, *extension["sources"], "-o", name]
        subprocess.run(command, cwd=self.directory, check=True)

    def environment(self, **more: str) -> dict[str, str]:
        log = self._reports / "report"
        # Python frees little of what it has at its end. Children are not ours to judge, and some of
        # them leave no room where the sanitizer wants its own.
        options = f"log_path={log}:handle_sigill=1:detect_leaks=0:verify_asan_link_order=0"
        return {
            **os.environ,
            "LD_PRELOAD": _library("libasan.so"),
            "ASAN_OPTIONS": options,
            # So that every object of Python is one of malloc, with its borders.
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(self.directory),
            **more,
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python, with these arguments, in the copy."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def take_reports(self) -> list[str]:
        """What was found since the last time."""
        found = sorted(self._reports.iterdir())
        reports = [path.read_text(errors="replace") for path in found]
        for path in found:
            path.unlink()
        return reports


def _library(name: str) -> str:
    """The path of the compiler's own library."""
    done = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    )
    return os.path.realpath(done.stdout.strip())


def is_possible() -> bool:
    """Whether the compiler has the libraries."""
    return shutil.which("gcc") is not None and os.path.isfile(_library("libasan.so"))
