"""Running a command where another tree stands in the place of its workspace.

`python -m ckptfs.cli.inside TREE WORKSPACE -- COMMAND...` makes a mount namespace of its own,
mounts the tree over the workspace there, and becomes the command: absolute paths hold, and no
other process sees it. Without root a user namespace makes that possible, where the kernel allows
it. Where it does not, the command is run in the tree's own directory, and a line says so.
"""

from __future__ import annotations

import ctypes
import os
import sys

_NEW_MOUNTS = 0x0002_0000
_NEW_USERS = 0x1000_0000
_BIND, _RECURSIVE, _PRIVATE, _SLAVE = 4096, 16384, 1 << 18, 1 << 19

#: What a shell ends with for a command that it cannot start.
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def words_inside(tree: str, workspace: str, words: list[str]) -> list[str]:
    """The command that runs another one with the tree in the place of the workspace."""
    return [sys.executable, "-P", "-m", "ckptfs.cli.inside", tree, workspace, "--", *words]


def main() -> int:
    tree, workspace, dashes, *words = sys.argv[1:]
    if dashes != "--" or not words:
        raise SystemExit(2)
    below = os.path.relpath(os.getcwd(), workspace)
    within = below if not below.startswith("..") else "."
    try:
        _mount_over(tree, workspace)
        os.chdir(os.path.join(workspace, within))
    except OSError as error:
        reason = error.strerror or error
        sys.stderr.write(
            f"ckptfs: No mount namespace of our own here ({reason}): the command runs in {tree}, "
            f"and absolute paths lead to {workspace} itself.\n"
        )
        os.chdir(os.path.join(tree, within))
    try:
        os.execvp(words[0], words)
    except FileNotFoundError:
        sys.stderr.write(f"ckptfs: Cannot run {words[0]!r}: it was not found.\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"ckptfs: Cannot run {words[0]!r}: {error.strerror}.\n")
        return NOT_EXECUTABLE


def _mount_over(tree: str, workspace: str) -> None:
    is_root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    _require(libc.unshare(_NEW_MOUNTS if is_root else _NEW_MOUNTS | _NEW_USERS))
    if not is_root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    how = _PRIVATE if is_root else _SLAVE
    _require(libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | how), None))
    source, target = os.fsencode(tree), os.fsencode(workspace)
    _require(libc.mount(source, target, None, ctypes.c_ulong(_BIND), None))


def _require(returned: int) -> None:
    if returned:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    raise SystemExit(main())
