"""The command line: words for people, and the only part of ckptfs that prints."""

import sys


def main() -> int:
    """The `ckptfs` command; returns its exit code."""
    if sys.argv[1:] == ["hook"]:
        # Called for every step of an agent: nothing else is worth loading.
        from ckptfs.cli.hook import call

        call()
    from ckptfs.cli.entry import run

    return run()
