"""The command line: words for people, and the only part of ckptfs that prints."""

import os
import sys

#: The options of a hook's call, as it is installed; each has a value.
_CALLS = ((), ("--agent",), ("--agent", "--event"))


def main() -> int:
    """The `ckptfs` command; returns its exit code, unless the process may just end with it."""
    if sys.argv[1:2] == ["hook"] and tuple(sys.argv[2::2]) in _CALLS and len(sys.argv) % 2 == 0:
        # Called for every step of an agent: nothing else is worth loading.
        from ckptfs.agents.hook import call

        call(*sys.argv[3::2])
    if sys.argv[1:3] == ["__complete", "--"]:
        from ckptfs.cli.candidates import answer

        return answer(sys.argv[3:])
    _have_streams()
    from ckptfs.cli.entry import run

    code = run()
    if _may_end_at_once():
        os._exit(code)
    return code


def _have_streams() -> None:
    """Open /dev/null in place of a standard stream that the parent closed: argparse of some
    supported Python versions needs one."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _may_end_at_once() -> bool:
    """Whether the process may skip the interpreter's orderly shutdown, which takes a sixth of the
    time of a short command: there are no threads, no log, and all output is written."""
    if "threading" in sys.modules or "logging" in sys.modules:
        return False
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        return False
    return True
