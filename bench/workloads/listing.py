"""Directories with few and with very many entries."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.programs import run
from bench.registry import MICRO, WorkDirectory, workload

#: Names that are read in all, however many directories that takes.
_READ = 100_000


def _directory(place: WorkDirectory, entries: int) -> Path:
    root = place / f"with-{entries}"
    if not root.exists():
        root.mkdir()
        for number in range(entries):
            os.close(os.open(f"{root}/entry{number:06}", os.O_CREAT | os.O_WRONLY, 0o644))
    return root


def _readdir(place: WorkDirectory, which: int) -> Iterator[None]:
    """Names alone, as often as makes 100,000 of them."""
    entries = place.scale.readdir_entries[which]
    root = _directory(place, entries)
    os.listdir(root)
    yield
    for _ in range(max(1, _READ // entries)):
        os.listdir(root)


def _register_readdir() -> None:
    for which, size in enumerate(("small", "medium", "large")):
        title = f"list {{scale.readdir_entries[{which}]:,}} names, warm"
        steps = partial(_readdir, which=which)
        # The largest takes long to make, and nothing else needs it.
        scene = "many" if size == "large" else "ls"
        workload(f"readdir-{size}", title, scene=scene, kind=MICRO)(steps)


def _ls(place: WorkDirectory) -> Iterator[None]:
    root = _directory(place, place.scale.listing_entries)
    run("ls", "-l", root)
    yield
    run("ls", "-l", root)


_register_readdir()
workload(
    "ls-warm", "ls -l of {scale.listing_entries:,} entries, warm", scene="ls", kind=MICRO, mark=3.0
)(_ls)
workload(
    "ls-cold",
    "ls -l of {scale.listing_entries:,} entries, cold",
    scene="ls",
    kind=MICRO,
    mark=3.0,
    cold=True,
)(_ls)
