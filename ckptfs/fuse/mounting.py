"""Mounting without libfuse: a FUSE descriptor for one more mount of the daemon.

libfuse, through pyfuse3, mounts one directory in a process. Another is mounted as libfuse does it:
root opens /dev/fuse and calls mount(2); others ask fusermount3, which passes the descriptor back
over a socket. Both take a path, which may lead through a mount of this very process: so this runs
in a thread, while requests are answered.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from pathlib import Path

from ckptfs import errors
from ckptfs.control_file import FSTYPE
from ckptfs.fuse.hooks import MountOptions
from ckptfs.sync import lower

#: As in sys/mount.h; what a mount has unless it asks for the opposite comes first.
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1024
_MS_RDONLY, _MS_NOEXEC = 1, 8


def mount(path: Path, options: MountOptions, source: str) -> int:
    """Mount on a resolved path that leads to a directory; return the FUSE descriptor. ``source`` is
    what the table of mounts shows."""
    if os.geteuid() == 0:
        return _mount_directly(path, options, source)
    return _mount_by_helper(path, options, source)


def _mount_directly(path: Path, options: MountOptions, source: str) -> int:
    # By descriptor: a link that was put into the path must not have root cover any directory.
    try:
        place = lower.open_root(path)
    except OSError as error:
        raise errors.MountFailed(path, errors.reason_of(error)) from error
    device = -1
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        _mount2(lower.by_descriptor(place), source, _flags(options), _data(device, options))
    except OSError as error:
        if device >= 0:
            os.close(device)
        raise errors.MountFailed(path, errors.reason_of(error)) from error
    finally:
        os.close(place)
    return device


def _mount2(path: str, source: str, flags: int, data: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [os.fsencode(word) for word in (source, path, FSTYPE)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _flags(options: MountOptions) -> int:
    wanted = options.flags
    flags = _MS_NOATIME
    flags |= 0 if "suid" in wanted else _MS_NOSUID
    flags |= 0 if "dev" in wanted else _MS_NODEV
    flags |= _MS_RDONLY if "ro" in wanted else 0
    return flags | (_MS_NOEXEC if "noexec" in wanted else 0)


def _data(device: int, options: MountOptions) -> str:
    words = [f"fd={device}", "rootmode=40000", f"user_id={os.getuid()}", f"group_id={os.getgid()}"]
    words.append("default_permissions")
    if options.allow_other:
        words.append("allow_other")
    return ",".join(words)


def _mount_by_helper(path: Path, options: MountOptions, source: str) -> int:
    program = shutil.which("fusermount3")
    if program is None:
        raise errors.MountFailed(path, "fusermount3 is not installed")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [program, "-o", _words(options, source), "--", str(path)],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno()), "LC_ALL": "C"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            said = os.fsdecode(done.stderr).strip().removeprefix("fusermount3: ")
            raise errors.MountFailed(path, said or "fusermount3 failed")
        _, passed, _, _ = socket.recv_fds(ours, 1, 1)
    if not passed:
        raise errors.MountFailed(path, "fusermount3 passed no descriptor")
    os.set_inheritable(passed[0], False)
    return passed[0]


def _words(options: MountOptions, source: str) -> str:
    # It takes a backslash before what means something in an option.
    escaped = source.replace("\\", "\\\\").replace(",", "\\,")
    words = [f"fsname={escaped}", f"subtype={FSTYPE.partition('.')[2]}"]
    words += ["default_permissions", "noatime", "ro" if "ro" in options.flags else "rw"]
    words += ["suid" if "suid" in options.flags else "nosuid"]
    words += ["dev" if "dev" in options.flags else "nodev"]
    words += ["noexec"] if "noexec" in options.flags else []
    words += ["allow_other"] if options.allow_other else []
    return ",".join(words)
