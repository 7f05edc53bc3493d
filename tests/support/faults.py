"""A disk that fails: a library that makes writes to files of a store fail in the programs it is
loaded into. Which error they meet stands in a file and may change while they run."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int failing(int fd)
{
    const char *path = getenv("CKPTFS_TEST_FAULT");
    FILE *file = path ? fopen(path, "r") : NULL;
    int number = 0;
    if (!file)
        return 0;
    if (fscanf(file, "%d", &number) != 1)
        number = 0;
    fclose(file);
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    if (!number || !strstr(target, "/data.mdb"))
        return 0;
    errno = number;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "pwrite64");
    return failing(fd) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *data, int count, off_t offset)
{
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "pwritev");
    return failing(fd) ? -1 : real(fd, data, count, offset);
}
"""


class Faults:
    """The disk of whatever runs with ``env``."""

    def __init__(self, base: Path) -> None:
        source, library, self._number = base / "faults.c", base / "faults.so", base / "fault"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.env = {"LD_PRELOAD": str(library), "CKPTFS_TEST_FAULT": str(self._number)}

    def begin(self, number: int) -> None:
        """From here on a commit meets this errno."""
        fresh = self._number.with_suffix(".new")
        fresh.write_text(str(number))
        fresh.rename(self._number)

    def end(self) -> None:
        self._number.unlink(missing_ok=True)
