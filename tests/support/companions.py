"""A process that serves several mounts by one loop: a workspace, and forks of it, in one store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import trio
import trio.lowlevel

from ckptfs import fuse
from ckptfs.fs import Filesystem
from ckptfs.fuse.forks_dir import ForkPoint
from ckptfs.history import forks, references
from ckptfs.model import ROOT_INO
from ckptfs.service import Service
from tests.direct import new_filesystem
from tests.support.mounting import detach, is_mounted, scratch
from tests.support.waiting import wait_until


class History:
    """mkdir and rmdir in `.checkpoints`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def save(self, name: str) -> int:
        await trio.lowlevel.checkpoint()
        references.require_plain_tag(name)
        return self._service.save(name, tag=name).id

    async def delete(self, number: int, pid: int) -> None:
        await trio.lowlevel.checkpoint()
        self._service.delete_named([str(number)])


async def serve_all(base: Path, filesystems: list[Filesystem]) -> None:
    main, *others = filesystems
    connections = fuse.Connections()
    options = fuse.MountOptions(xattrs=True)
    points = {
        b"fork%d" % number: ForkPoint(number, os.fsencode(tree_path(base, number)))
        for number, _ in enumerate(others, 1)
    }

    async def add(number: int, fs: Filesystem) -> None:
        tree = fuse.Tree(fs, options, History(Service(fs)))
        await connections.add(tree, tree_path(base, number), f"/tree/{number}")

    async with trio.open_nursery() as nursery:

        def started() -> None:
            for number, fs in enumerate(others, 1):
                nursery.start_soon(add, number, fs)

        await fuse.serve(
            main,
            tree_path(base, 0),
            options,
            started=started,
            history=History(Service(main)),
            connections=connections,
            forks=lambda: points,
        )
        nursery.cancel_scope.cancel()


def tree_path(base: Path, number: int) -> Path:
    return base / f"tree{number}"


def serve(base: Path, count: int) -> None:
    with new_filesystem(base / "store") as main:
        made = main.mknod(main.head, ROOT_INO, b"inherited", 0o100644, os.getuid(), os.getgid(), 0)
        main.link(main.head, made.ino, ROOT_INO, b"inherited.too")
        lines = [forks.create(main, f"fork{number}").number for number in range(1, count)]
        filesystems = [Filesystem(main.store, main.clock, line=line) for line in lines]
        trio.run(serve_all, base, [main, *filesystems])
        for fs in filesystems:
            fs.close()


class Trees(NamedTuple):
    """The directories, the first one that of the workspace; and the process that serves them."""

    paths: list[Path]
    server: subprocess.Popen[bytes]


@contextmanager
def trees(count: int, *, status: int = 0) -> Iterator[Trees]:
    """``status`` is the process's at its end."""
    with scratch() as base:
        paths = [tree_path(base, number) for number in range(count)]
        for path in paths:
            path.mkdir()
        command = [sys.executable, "-m", "tests.support.companions", str(base), str(count)]
        server = subprocess.Popen(command)
        try:
            wait_until(lambda: all(map(is_mounted, paths)), "all are mounted")
            yield Trees(paths, server)
        finally:
            for path in reversed(paths):
                detach(str(path))
            assert server.wait(60) == status


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
