"""The command line: words for people, and the only part of ckptfs that prints."""

import os
import sys


def main() -> int:
    """The `ckptfs` command; returns its exit code, unless the process may just end with it."""
    if sys.argv[1:] == ["hook"]:
        # Called for every step of an agent: nothing else is worth loading.
        from ckptfs.cli.hook import call

        call()
    from ckptfs.cli.entry import run

    code = run()
    if _may_end_at_once():
        os._exit(code)
    return code


def _may_end_at_once() -> bool:
    """Whether nobody needs the interpreter taken apart in order, which takes a sixth of the time of
    a short command: there are no threads, no log, and all output is written."""
    if "threading" in sys.modules or "logging" in sys.modules:
        return False
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed by whoever started us
                stream.flush()
    except OSError:
        return False
    return True
