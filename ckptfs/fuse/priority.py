"""The daemon's place among the processes that want a CPU.

On a crowded machine, one with twice as many runnable processes as CPUs, each request waits twice:
the daemon for a CPU, then the program. The program waits as it would anyway; the daemon need not,
since it works for programs alone and briefly. So the compiled server takes, while that lasts
(`server/waiting.c`),

* a short slice (Linux 6.12): what is woken with a shorter one than what runs goes first, as long as
  it has not used more than its share. Every process may ask for that;
* a niceness below zero, which makes its share larger. Root only. Where the kernel weighs sessions
  (`sched_autogroup_enabled`), the niceness of a process counts in its session alone, where the
  daemon has no rival: there the session's counts.

The setting `serve.priority` leaves out the second. docs/design/performance.md has the figures.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckptfs.fuse.server.interface import CompiledServer

_RAISED = -10


def prepare(server: CompiledServer, *, wanted: bool) -> None:
    """For the calling thread, which is to serve. One that the user made nice stays so."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    is_raised = wanted and niceness == 0 and os.geteuid() == 0
    raised = _RAISED if is_raised else niceness
    server.set_priority(niceness, raised, is_raised and _has_own_session())


def _has_own_session() -> bool:
    """Not the user's: the leader of a daemon's own is itself, or has ended when it was detached."""
    leader = os.getsid(0)
    return leader == os.getpid() or not Path(f"/proc/{leader}").exists()
