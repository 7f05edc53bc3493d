"""A library that shifts the clock of the programs it is loaded into, so that no test has to touch
the machine's. The shift stands in a file and may change while they run."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long shift(void) {
    const char *path = getenv("CKPTFS_TEST_SHIFT");
    FILE *file = path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return failed;
}
"""


class Clock:
    """The clock of whatever runs with ``env``."""

    def __init__(self, base: Path) -> None:
        source, library, self._shift = base / "clock.c", base / "clock.so", base / "shift"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.set(0)
        self.env = {"LD_PRELOAD": str(library), "CKPTFS_TEST_SHIFT": str(self._shift)}

    def set(self, seconds: int) -> None:
        """Go so many seconds ahead of the machine's clock, or behind it."""
        fresh = self._shift.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(self._shift)
