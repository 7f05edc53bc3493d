"""Running a command so that nobody notices that we are there: its terminal, signals and end.

The command stays in our process group, so the terminal talks to it as to us: Ctrl-C reaches it and
not us, Ctrl-Z stops both. What is sent to us alone is handed on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

#: The terminal sends these to the whole group; what a process sends to us is meant for the command.
_HANDED_ON = frozenset(
    {
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
#: Python ignores these, and what a program ignores its children ignore, too.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)

#: How long a command that the terminal stopped may take to be seen continued, in seconds.
_SETTLE = 0.05


def supervise(words: Sequence[str]) -> int:
    """Run a command to its end. Returns its exit code, or 128 and the signal that ended it.

    Raises OSError if it cannot be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {signal.SIGCHLD, *(s for s in _HANDED_ON if signal.getsignal(s) != signal.SIG_IGN)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = os.posix_spawnp(
            words[0], list(words), os.environ, setsigmask=before, setsigdef=_RESTORED
        )
        return _watch(child, watched)
    finally:
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # it was meant for the command, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int, watched: set[signal.Signals]) -> int:
    while True:
        heard = signal.sigwaitinfo(watched)
        if heard.si_signo != signal.SIGCHLD:
            # A positive code is the kernel's own: then the whole group has heard it.
            if heard.si_code <= 0:
                os.kill(child, heard.si_signo)
            continue
        while (found := os.waitpid(child, os.WNOHANG | os.WUNTRACED))[0]:
            if not os.WIFSTOPPED(found[1]):
                code = os.waitstatus_to_exitcode(found[1])
                return code if code >= 0 else 128 - code
            _stop_with(child)


def _stop_with(child: int) -> None:
    """The command was stopped: stop as well, so that the shell sees it, and go on with it."""
    time.sleep(_SETTLE)
    if _is_stopped(child):
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"T"
