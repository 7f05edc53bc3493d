"""From the command line's words to a verb, and from its outcome to an exit code.

One of the three edges that catch everything: an expected error is one sentence, a fault of ckptfs
is one sentence with a log, and no traceback reaches a user who did not set CKPTFS_DEBUG=1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Sequence
from contextlib import suppress

from ckptfs import locating, notices
from ckptfs.cli import output
from ckptfs.errors import CkptfsError, SystemRefused, UsageError

INTERRUPTED = 130
#: How an error ends if the verb changed nothing. A verb that only reads need not say so.
_UNCHANGED = " Nothing was changed."
#: What a shell reports for a command whose reader went away.
PIPE_CLOSED = 141


def run(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(words) if words else _help()
        if sys.stdout is not None:  # None if the parent closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt as interrupt:
        # A verb that was interrupted half-way says what became of it.
        output.note(f"ckptfs: {output.safe(interrupt) or 'Interrupted.'}")
        return INTERRUPTED


def _help() -> int:
    """`ckptfs` alone: where to begin. A script that lost its words must not take it for success."""
    from ckptfs.cli.words.examples import SHORT_HELP

    print(SHORT_HELP)
    return UsageError.exit_code


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    doing = "go on"
    try:
        from ckptfs.cli.verbs import (
            VERBS,
            asked_for_help,
            function_of,
            is_hook_call,
            make_parser,
        )

        words = asked_for_help(words)
        _require_own_helper(words, VERBS)
        args = make_parser(words).parse_args(words)
        doing = args.verb
        _trust(args.trust_owner)
        notices.on_conflicts = _remark_conflicts
        return function_of(args.verb)(args)
    except SystemExit as leaving:  # argparse, after --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except CkptfsError as error:
        if isinstance(error, UsageError) and is_hook_call(words):
            from ckptfs.agents import hook

            hook.decline(words, error.message)
            return 0
        if doing in VERBS and VERBS[doing].reads:
            error.message = error.message.removesuffix(_UNCHANGED)
        output.failure(error, as_json=as_json)
        return error.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except OSError as error:
        if os.environ.get("CKPTFS_DEBUG"):
            raise
        refused = _refused(doing, error, words)
        output.failure(refused, as_json=as_json)
        return refused.exit_code
    except Exception as error:
        if os.environ.get("CKPTFS_DEBUG"):
            raise
        output.failure(_fault(error), as_json=as_json)
        return CkptfsError.exit_code


def _remark_conflicts(record: output.JsonObject) -> None:
    from ckptfs.cli import output

    for line in output.remarks(record):
        output.note(line)


def _require_own_helper(words: list[str], verbs: Container[str]) -> None:
    """Refuse the words that mount.fuse3 has for a file system: it adds suid and dev to them."""
    if len(words) == 4 and words[2] == "-o" and words[0] not in verbs:
        raise UsageError(
            f"Cannot mount {words[1]} for mount(8): its helper mount.fuse.ckptfs is missing. "
            "Nothing was changed.",
            hint="As root, in the checkout of ckptfs: make install",
        )


def _trust(owner: str | None) -> None:
    """Take stores of this user for the caller's own, in this process and in what it starts."""
    if owner is None:
        return
    if locating.user_id(owner) is None:
        raise UsageError(
            f"Cannot trust {owner!r}: there is no such user.", hint="Name a user, or its number."
        )
    known = os.environ.get(locating.TRUST_OWNER)
    os.environ[locating.TRUST_OWNER] = f"{known},{owner}" if known else owner


def _refused(doing: str, error: OSError, words: list[str]) -> CkptfsError:
    """What the system said no to; of a dead mount, what there is to do about it."""
    import errno

    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        from ckptfs.cli.verbs import make_parser
        from ckptfs.cli.workspace import find_workspace
        from ckptfs.control import runtime
        from ckptfs.errors import DaemonGone

        with suppress(CkptfsError):
            found = find_workspace(make_parser(words).parse_args(words))
            if runtime.living(found) is None and runtime.is_dead(found.path):
                return DaemonGone(found.path, runtime.why_gone(found))
    return SystemRefused(doing, error)


def _fault(error: Exception) -> CkptfsError:
    """The error to show for a bug, with its traceback put where a report can pick it up."""
    import traceback

    from ckptfs import config

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    path = config.data_dir() / "faults.log"
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), errors="backslashreplace")
        return CkptfsError(f"ckptfs itself failed: {what}.", hint=f"Details are in {path}.")
    return CkptfsError(
        f"ckptfs itself failed: {what}.", hint="Set CKPTFS_DEBUG=1 to see the details."
    )


def _silence_stdout() -> None:
    """The reader of our output has gone; the interpreter must not complain when it flushes."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
