"""Files that only the caller can have written, below the descriptor of a directory.

A data directory of teams may be shared. What stands there and says what to do with workspaces
(snapshots, the list of the members) is believed only if the caller or root owns it; what must not
be shared at all (the journal of a restore, the lock) is in the caller's own state directory.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ckptfs import config, locating
from ckptfs.errors import TeamInvalid

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Of group and others.
_OTHERS_WRITE = 0o022


def require_own(seen: os.stat_result, what: str) -> None:
    """Refuse what another user owns; root's is as good as one's own, and so is that of a user whom
    the caller trusts by name."""
    uid = seen.st_uid
    if uid in (os.geteuid(), 0) or uid in locating.trusted_owners():
        return
    name = locating.user_name(uid)
    raise TeamInvalid(
        what,
        f"{name} owns it, not you",
        hint=f"Run the command as {name}, or take it away if it should not be there. If you trust "
        f"{name} with all your workspaces: --trust-owner {uid}",
    )


# -- files -----------------------------------------------------------------------------------------


def read(dir_fd: int, name: str, what: str) -> bytes:
    """A file of the caller's own; ``what`` is it called in a refusal."""
    with open(os.open(name, _READ, dir_fd=dir_fd), "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode):
            raise TeamInvalid(what, "it is no file")
        require_own(seen, what)
        return file.read()


def write(dir_fd: int, name: str, data: bytes) -> None:
    """Replace a file so that it is there whole, also after a power cut. What stands under the name
    for the unfinished file, a killed one's or a planted link, is removed and never written to."""
    fresh = f".ckptfs-{name}"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=dir_fd)
    with open(os.open(fresh, _NEW, 0o600, dir_fd=dir_fd), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(fresh, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)


def remove(dir_fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)
    os.fsync(dir_fd)


# -- the caller's state directory ------------------------------------------------------------------


def private_path(data_dir: Path, team: str) -> Path:
    """Where the caller's lock and journal for a team of a data directory are."""
    which = locating.digest(os.fsencode(os.path.realpath(data_dir)))
    return config.state_dir() / "teams" / f"{team}-{which}"


def open_private(path: Path, *, make: bool) -> int | None:
    """The directory, if nobody else can write to it; None if it is absent and not to be made."""
    if make:
        _require_own_above(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    seen = os.fstat(fd)
    if seen.st_uid != os.geteuid() or seen.st_mode & _OTHERS_WRITE:
        os.close(fd)
        raise TeamInvalid(
            f"the state directory {path}",
            "others own it, or can write to it",
            hint="Set XDG_STATE_HOME, or HOME, to a directory that is yours alone.",
        )
    return fd


def _require_own_above(path: Path) -> None:
    """Nothing is made in a place that another user controls."""
    nearest = next(above for above in (path, *path.parents) if above.exists())
    require_own(os.stat(nearest), f"the state directory {path}")
