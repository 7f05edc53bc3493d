"""What a team command trusts: files by their owner, names by their form.

A data directory of teams may be shared. A file there that says what to do with workspaces (a
snapshot, the list of the members) counts only if the caller or root owns it. What must not be
shared at all (the journal of a restore, the lock) is in the caller's own state directory. Names
from outside are checked before they become parts of paths.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from ckptfs import config, locating
from ckptfs.errors import TeamInvalid

# None follows a link, or waits for the writer of a FIFO.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Of group and others.
_OTHERS_WRITE = 0o022


def require_own(seen: os.stat_result, what: str) -> None:
    """Refuse what is owned neither by the caller, nor by root, nor by a user whom the caller trusts
    by name."""
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
    """The bytes of a file of the caller's own; a refusal calls it ``what``."""
    with open(os.open(name, FILE, dir_fd=dir_fd), "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode):
            raise TeamInvalid(what, "it is no file")
        require_own(seen, what)
        return file.read()


def write(dir_fd: int, name: str, data: bytes) -> None:
    """Replace a file atomically and durably. An entry under the temporary name, a leftover or a
    planted link, is removed and never written to."""
    temp = f".ckptfs-{name}"
    with suppress(FileNotFoundError):
        os.unlink(temp, dir_fd=dir_fd)
    with open(os.open(temp, _NEW, 0o600, dir_fd=dir_fd), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.fsync(dir_fd)


def remove(dir_fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)
    os.fsync(dir_fd)


# -- the caller's state directory ------------------------------------------------------------------


def private_path(data_dir: Path, team: str) -> Path:
    """The directory of the caller's lock and journal for a team of a data directory."""
    which = locating.digest(os.fsencode(os.path.realpath(data_dir)))
    return config.state_dir() / "teams" / f"{team}-{which}"


def open_private(path: Path, *, make: bool) -> int | None:
    """The directory, if only the caller can write to it; None if it is absent and not made."""
    if make:
        _require_own_above(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, DIRECTORY)
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
    """Refuse to make anything in a place that another user controls."""
    nearest = next(above for above in (path, *path.parents) if above.exists())
    require_own(os.stat(nearest), f"the state directory {path}")


# -- names -----------------------------------------------------------------------------------------

#: Of a team, a member, an inbox: no separator, no leading dot, nothing that a shell splits.
_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}", re.ASCII)
_STATE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,200}\.(json|consumed)", re.ASCII)
_SNAPSHOT = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}", re.ASCII)

TAG_MAX = 200


def require_identifier(name: object, what: str) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise TeamInvalid(
            f"{name!r} as the name of {what}",
            "it may have letters, digits and ._@- only, up to 128, and not begin with a dot",
        )
    return name


def is_state_file(name: str) -> bool:
    """Whether a name is that of a team's state file, complete."""
    return _STATE_FILE.fullmatch(name) is not None


def is_snapshot(name: str) -> bool:
    return _SNAPSHOT.fullmatch(name) is not None


def require_tag(tag: str) -> str:
    """A tag is kept as given: it never becomes a path."""
    if len(tag) > TAG_MAX or not (tag.isprintable() or not tag):
        raise TeamInvalid(f"{tag[:40]!r} as a tag", f"up to {TAG_MAX} characters on one line")
    return tag
