"""What mount(8) calls for the type fuse.ckptfs, so that lines of fstab(5) work.

    mount.fuse.ckptfs STORE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]

It translates to `ckptfs mount`, and is silent if all went well. umount(8) has no such helper: it
asks statfs(2) for the type, which for every file system of FUSE is fuse.
"""

from __future__ import annotations

import getopt
import os
import subprocess
import sys
from collections.abc import Sequence

from ckptfs.cli import output
from ckptfs.cli.entry import run
from ckptfs.errors import CkptfsError, UsageError

#: mount(8): what to end with if the words make no sense, and if it failed.
_USAGE, _FAILED = 1, 32

#: Sources that name no store: then the workspace has its own, or a new one.
_NO_STORE = ("none", "ckptfs", "")
#: Options of `ckptfs mount` that a list may have, and what they are called there.
_OWN = {
    "xattrs": "--xattrs",
    "noxattrs": "--no-xattrs",
    "no_write_back": "--no-write-back",
    "auto=": "--auto",
    "exclude=": "--exclude",
    "trust_owner=": "--trust-owner",
}
#: mount(8) has let the user in, and has put what these imply into the list.
_OF_MOUNT = frozenset({"user", "users", "owner", "group"})


def main() -> int:
    """The program mount.fuse.ckptfs; ends with the codes that mount(8) has."""
    try:
        code = _mount(sys.argv[1:])
    except CkptfsError as error:
        output.failure(error, as_json=False)
        code = error.exit_code
    if code == UsageError.exit_code:
        return _USAGE
    return _FAILED if code else 0


def _mount(argv: Sequence[str]) -> int:
    given, words = _parsed(argv)
    if len(words) != 2:
        raise UsageError("Cannot mount: mount.fuse.ckptfs takes a store and a directory.")
    source, directory = words
    listed = [word for name, text in given if name == "-o" for word in text.split(",") if word]
    switches = {name for name, _ in given}
    if "-f" in switches:
        return 0
    if "remount" in listed:
        return _remount(directory, listed)
    words, rest = _translated(listed, sloppy="-s" in switches)
    if source not in _NO_STORE and os.path.realpath(source) != os.path.realpath(directory):
        words += ["--store", source]
    return _quietly(["mount", directory, *words, "-o", ",".join(rest)], loud="-v" in switches)


def _translated(listed: Sequence[str], *, sloppy: bool) -> tuple[list[str], list[str]]:
    """Words for the command line, and the options that stay one list. ``sloppy`` is mount's -s:
    leave out what is not known."""
    from ckptfs.daemon import preflight

    words: list[str] = []
    rest: list[str] = []
    for option in listed:
        name, equals, value = option.partition("=")
        own = _OWN.get(name + equals)
        if own is not None:
            words += [own, value] if equals else [own]
        elif option not in _OF_MOUNT and (preflight.is_known_option(option) or not sloppy):
            rest.append(option)
    return words, rest


def _remount(directory: str, listed: Sequence[str]) -> int:
    """The kernel's own: what is not in the list stays as it is."""
    from ckptfs.config import resolve
    from ckptfs.daemon import mounts, preflight

    mount = mounts.mount_at(resolve(directory))
    if mount is None or not mount.is_ours:
        raise UsageError(f"Cannot remount {directory}: no workspace is mounted there.")
    words = preflight.flags_after(mount.options, listed)
    command = ["mount", "-i", "-o", ",".join(["remount", *words]), "--", directory]
    return subprocess.run(command, check=False).returncode


def _parsed(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        given, words = getopt.gnu_getopt(list(argv), "sfnvN:o:t:")
    except getopt.GetoptError as error:
        raise UsageError(f"Cannot understand what mount(8) asks for: {error}.") from error
    if any(name == "-N" for name, _ in given):
        raise UsageError(
            "Cannot mount in another namespace. Nothing was changed.",
            hint="Enter it first: nsenter --mount=NAMESPACE ckptfs mount DIR",
        )
    return given, words


def _quietly(words: list[str], *, loud: bool) -> int:
    """Run a verb; mount(8) says nothing if all is well, unless it is asked to."""
    if not loud:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    return run(words)
