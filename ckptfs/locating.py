"""The names of what ckptfs keeps, as plain strings: the registry, sockets, a daemon's note.

`config` and `control.runtime` make values of them for the rest of ckptfs. They stand here because
a hook call, which has a few dozen milliseconds in all, can afford nothing but `os` and `json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_REGISTRY_NAME_MAX = 200

#: Users, by name or number and with commas between them, whose stores the caller uses like its own.
TRUST_OWNER = "CKPTFS_TRUST_OWNER"


def data_dir(environ: Mapping[str, str] = os.environ) -> str:
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home(environ), ".local", "share")
    return os.path.join(base, "ckptfs")


def hook_note(agent: str, environ: Mapping[str, str] = os.environ) -> str:
    """The empty file whose time tells when this agent's hook called last."""
    return os.path.join(data_dir(environ), "hooks", agent)


def home(environ: Mapping[str, str] = os.environ) -> str:
    named = environ.get("HOME", "")
    if os.path.isabs(named):
        return named
    import pwd  # late: needed only where HOME is not set

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def trusted_owners(environ: Mapping[str, str] = os.environ) -> frozenset[int]:
    """The users, other than the caller, whose stores may be used; unknown names are ignored."""
    words = environ.get(TRUST_OWNER, "").split(",")
    return frozenset(uid for word in words if (uid := user_id(word.strip())) is not None)


def user_id(word: str) -> int | None:
    """The number of a user who is named by it or by name; None if there is no such user."""
    if not word or (word.isascii() and word.isdecimal()):
        return int(word) if word else None
    import pwd

    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        return None


def user_name(uid: int) -> str:
    """What to call a user: its name, or its number if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def socket_of(store: str) -> str:
    """The control socket: always in the store, where client and daemon cannot disagree about it and
    no other user can put one. The path may be too long for a socket (`ckptfs.unixsocket`)."""
    return os.path.join(store, "control.sock")


def registry_entry(path: str, environ: Mapping[str, str] = os.environ) -> str:
    """The path itself, escaped, is the name as long as it fits: no digest on the usual way."""
    raw = os.fsencode(path)
    name = os.fsdecode(raw.replace(b"%", b"%25").replace(b"/", b"%2F"))
    if len(os.fsencode(name)) > _REGISTRY_NAME_MAX:
        name = digest(raw)
    return os.path.join(data_dir(environ), "workspaces", f"{name}.json")


def store_of(path: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The store that the registry has for exactly this resolved path; it may be gone by now."""
    try:
        record = read_entry(registry_entry(path, environ), environ)
        # The name of the entry may be a digest; the path inside it decides.
        if record["v"] == 1 and record["workspace"] == path:
            return str(record["store"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged is the same: not known here
    return None


def read_entry(entry: str, environ: Mapping[str, str] = os.environ):  # type: ignore[no-untyped-def]
    """What an entry of the registry says. Raises OSError and ValueError.

    An entry of another user is none: with HOME kept by sudo, the registry is that user's, who
    could lead root to any store of root's, and so what is in that one to a directory of his own.
    """
    believed = {0, os.geteuid(), *trusted_owners(environ)}
    with _opened(entry) as file:
        if os.fstat(file.fileno()).st_uid not in believed:
            raise PermissionError("another user's entry")
        return json.load(file)


def directory_id(place: str | int) -> str | None:
    """What a directory, by path or descriptor, is known by wherever it is moved: its inode and when
    that was made, so that a later one of the same number does not pass for it. None where the
    file system does not say when."""
    import ctypes  # late: only those that mount, or find nothing, ask
    import struct

    at_fdcwd, at_empty_path, basic_and_born = -100, 0x1000, 0xFFF
    answer = ctypes.create_string_buffer(256)
    where = (place, b"") if isinstance(place, int) else (at_fdcwd, os.fsencode(place))
    statx = ctypes.CDLL(None, use_errno=True).statx
    if statx(*where, at_empty_path, basic_and_born, answer) != 0:
        return None
    (known,) = struct.unpack_from("=I", answer)
    (ino,) = struct.unpack_from("=Q", answer, 32)
    born = struct.unpack_from("=qI", answer, 80)
    return f"{ino}-{born[0]}.{born[1]:09}" if known & 0x800 and any(born) else None


def note_of(store: str) -> dict[str, object] | None:
    """What the daemon that has this store says of itself; None if no such process runs.

    From another pid namespace the process cannot be seen. Then the daemon lives if it listens, or,
    before and after it does, if it holds the store's lock.
    """
    try:
        note = _json(os.path.join(store, "daemon.json"))
        if note["start_ticks"] == start_ticks(note["pid"]):
            return dict(note)
        if note.get("pid_namespace", "") in ("", pid_namespace()):
            return None
        if is_listening(socket_of(store)) or _is_locked_by(store, note["pid"]):
            return dict(note)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note is no daemon
    return None


def failure_of(store: str) -> str:
    """Why the last daemon of a store failed, if it left that behind."""
    try:
        note = _json(os.path.join(store, "daemon.json"))
        return str(note["reason"]) if note["state"] == "failed" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def pid_namespace() -> str:
    """What the kernel calls the namespace that process ids are counted in, or nothing."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_listening(address: str) -> bool:
    """Whether a process takes connections at a socket's path."""
    import _socket  # late: only those ask who cannot see the process

    from ckptfs import unixsocket

    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
    except OSError:
        return False  # a sandbox that forbids it
    try:
        unixsocket.connect(connection, address)
    except BlockingIOError:
        return True  # its queue is full
    except OSError:
        return False
    finally:
        connection.close()
    return True


def _is_locked_by(store: str, pid: object) -> bool:
    """Whether the store's lock is held, and by the process of this number."""
    import fcntl  # late, like the socket

    # As of `_json`: it may be a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(os.path.join(store, "lock"), flags)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(lock, 32).strip() == str(pid).encode()
    finally:
        os.close(lock)
    return False


def start_ticks(pid: object) -> int | None:
    """When the process began, or None if there is none (a zombie counts as none)."""
    try:
        with open(f"/proc/{int(str(pid))}/stat", "rb") as stat:
            # The command's name stands in parentheses and may hold anything, even a parenthesis.
            fields = stat.read().rpartition(b")")[2].split()
        state, ticks = fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return None if state in (b"Z", b"X") else ticks


def digest(raw: bytes) -> str:
    import hashlib  # late: OpenSSL takes some milliseconds to load

    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def _json(path: str):  # type: ignore[no-untyped-def]
    with _opened(path) as file:
        return json.load(file)


def _opened(path: str) -> BinaryIO:
    # In another user's store this may be anything, even a pipe without a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(path, flags), "rb")
