"""The machine and the versions a run was made with: a ratio without them says little."""

import os
import platform
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from bench.kit import Kit

_PROGRAMS = ("git", "tar", "grep", "ls", "gcc", "rg", "npm")


def machine_facts(work_dir: Path, kit: Kit) -> dict[str, str]:
    """What stands on top of the table, in its order."""
    return {
        "machine": f"{_cpu_model()}, {os.cpu_count()} cores, {_memory_gb():.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": _disk(work_dir),
        "load before": " ".join(f"{each:.2f}" for each in os.getloadavg()),
        "ckptfs": f"{_package('ckptfs')} ({_revision()})",
        "python": platform.python_version(),
        "parts": ", ".join(f"{each} {_package(each)}" for each in ("pyfuse3", "lmdb", "trio")),
        "programs": _versions(kit, _PROGRAMS) + f"; SQLite {sqlite3.sqlite_version}",
        "fuse": kit.version("fusermount3") or "no fusermount3",
    }


def rival_facts(kit: Kit, names: Sequence[str]) -> dict[str, str]:
    """The versions of those who took part."""
    found = _versions(kit, names)
    return {"rivals": found} if found else {}


def _versions(kit: Kit, names: Sequence[str]) -> str:
    return "; ".join(filter(None, map(kit.version, names)))


class Mount(NamedTuple):
    kind: str
    source: str
    options: str


def mount_of(path: Path, mountinfo: str) -> Mount:
    """The mount that holds `path`, from mountinfo's text."""
    best, found = "", Mount("unknown", "unknown", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if len(point) >= len(best) and path.is_relative_to(point):
            best, found = point, Mount(*after.split(maxsplit=2))
    return found


def file_system_of(path: Path) -> str:
    return mount_of(
        path.resolve(), Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    ).kind


def _disk(path: Path) -> str:
    mount = mount_of(
        path.resolve(), Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    )
    free_gb = shutil.disk_usage(path).free / 1e9
    return f"{mount.kind} on {mount.source} ({mount.options}), {free_gb:.0f} GB free"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no revision"
