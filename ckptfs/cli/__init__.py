"""The command line: words for people, and the only part of ckptfs that prints."""


def main() -> int:
    """The `ckptfs` command; returns its exit code."""
    from ckptfs.cli.entry import run

    return run()
