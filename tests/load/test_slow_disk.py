"""A disk on which every sync takes a second: requests wait for it, and every one is answered."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest

from tests.support.mounting import HAVE_FUSE, Workspace, scratch

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

_SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
typedef int (*sync_t)(int);
int fdatasync(int fd) { usleep(300000); return ((sync_t)dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""


def test_every_request_is_answered() -> None:
    with scratch() as base:
        (base / "slow.c").write_text(_SLOW)
        command = ["cc", "-shared", "-fPIC", "-o", base / "slow.so", base / "slow.c", "-ldl"]
        subprocess.run(command, check=True)
        workspace = Workspace(base, "--no-write-back")
        workspace.env["LD_PRELOAD"] = str(base / "slow.so")
        workspace.mount()
        try:
            counts = _work(workspace)
        finally:
            del workspace.env["LD_PRELOAD"]
            workspace.finish()
    # Commits came between, and the requests behind them did not get lost.
    assert min(counts) >= 3


def _work(workspace: Workspace) -> list[int]:
    until = time.monotonic() + 3
    counts = [0] * 4
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while time.monotonic() < until:
                path = workspace.path / f"{number}-{counts[number]}"
                path.write_bytes(b"%d" % counts[number] * 1_000)
                assert path.read_bytes() == b"%d" % counts[number] * 1_000
                if number == 0:
                    fd = os.open(path, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a request was never answered"
    assert not failures, failures
    return counts
