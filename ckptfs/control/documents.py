"""State documents on the client's side: on their way into a checkpoint and back.

A request is a short line, and a conversation may be long. So documents go in through files in the
store's own directory, which is never inside a mount and open to its owner only, and come back in
pieces. From a sandbox that cannot write to the store the daemon takes them in pieces, too. The
standard library only.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import Client, Session
from ckptfs.control.protocol import JsonObject
from ckptfs.errors import CkptfsError, StateInvalid

#: Puts a document down; the name of the file that it is in.
Lay = Callable[[bytes], str]

#: How the name of a file with a document begins and ends.
PREFIX, SUFFIX = "state-", ".tmp"
#: A document larger than this is refused.
SIZE_MAX = 256 << 20
NAME_MAX = 200

#: How much of a document one answer carries.
_PIECE = 1 << 20
#: How much of it one request carries: as base64, well below the longest request.
_PIECE_SENT = 128 << 10
#: A file that its writer did not take away is removed after so many seconds.
_STALE = 86_400


class Json(bytes):
    """A document that is JSON already and shall come back to the byte."""


def encode(name: str, value: Any) -> tuple[bytes, bool]:
    """The bytes of a document, and whether they are JSON."""
    if isinstance(value, Json):
        return value, True
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), False
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode(), True
    except (TypeError, ValueError, RecursionError) as error:
        raise StateInvalid(name, f"it is neither bytes nor JSON ({error})") from error


def require_name(name: object) -> str:
    """A document's name as it may be: one line of text that could be a file's name."""
    if not isinstance(name, str) or not name:
        raise StateInvalid(str(name), "its name is empty or no text")
    if len(name.encode(errors="surrogatepass")) > NAME_MAX:
        raise StateInvalid(name[:40] + "...", f"its name is longer than {NAME_MAX} bytes")
    if name in (".", "..") or "/" in name or not name.isprintable():
        raise StateInvalid(name, "its name has characters that no file name should have")
    return name


@contextmanager
def staged(workspace: Workspace, state: Mapping[str, Any]) -> Iterator[list[JsonObject]]:
    """Lay documents down where the store's holder can read them; what to send to `save`."""
    records: list[JsonObject] = []
    with _stage(workspace) if state else nullcontext(_nowhere) as lay:
        for name, value in state.items():
            data, is_json = encode(require_name(name), value)
            if len(data) > SIZE_MAX:
                raise StateInvalid(name, f"it is larger than {SIZE_MAX >> 20} MiB")
            records.append({"name": name, "json": is_json, "file": lay(data)})
        yield records


def new_name() -> str:
    """A name for a file with a document."""
    return f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}{SUFFIX}"


def _nowhere(data: bytes) -> str:
    raise AssertionError("there is no document")


def _stage(workspace: Workspace) -> AbstractContextManager[Lay]:
    if not os.access(workspace.store, os.W_OK) and runtime.living(workspace) is not None:
        return _by_daemon(workspace)
    return _in_store(workspace.store)


@contextmanager
def _in_store(store: Path) -> Iterator[Lay]:
    files: list[Path] = []

    def lay(data: bytes) -> str:
        files.append(store / new_name())
        _write(files[-1], data)
        return files[-1].name

    sweep(store)
    try:
        yield lay
    finally:
        for path in files:
            path.unlink(missing_ok=True)


@contextmanager
def _by_daemon(workspace: Workspace) -> Iterator[Lay]:
    """Where we may not write to the store, as in a sandbox, the daemon does."""
    files: list[str] = []
    with Client(workspace) as client:

        def lay(data: bytes) -> str:
            files.append(client.call("state_stage", {"data": ""})["file"])
            for start in range(0, len(data), _PIECE_SENT):
                piece = b64encode(data[start : start + _PIECE_SENT]).decode()
                client.call("state_stage", {"file": files[-1], "data": piece})
            return files[-1]

        try:
            yield lay
        finally:
            with suppress(CkptfsError):  # the daemon sweeps up what is left
                for name in files:
                    client.call("state_unstage", {"file": name})


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        if os.geteuid() == 0:  # the daemon may be another user's
            owner = os.stat(path.parent)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def sweep(store: Path) -> None:
    """Take away what processes that were killed have left."""
    with suppress(OSError):
        for path in store.glob(f"{PREFIX}*{SUFFIX}"):
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink(missing_ok=True)


def fetch_bytes(session: Session, checkpoint: str) -> dict[str, tuple[bytes, bool]]:
    """The documents of a checkpoint: bytes, and whether they are JSON."""
    record = session.call("state", {"checkpoint": checkpoint})
    number = str(record["checkpoint"])
    # The names may become those of files, so they are looked at on this side, too.
    return {
        require_name(item["name"]): (_read(session, number, item), item["json"])
        for item in record["documents"]
    }


def fetch(session: Session, checkpoint: str) -> dict[str, Any]:
    """The documents of a checkpoint as they were given."""
    found = fetch_bytes(session, checkpoint)
    return {name: json.loads(data) if is_json else data for name, (data, is_json) in found.items()}


def _read(session: Session, number: str, item: JsonObject) -> bytes:
    pieces = []
    for offset in range(0, item["bytes"], _PIECE):
        asked = {"checkpoint": number, "name": item["name"], "offset": offset, "length": _PIECE}
        pieces.append(b64decode(session.call("state_read", asked)["data"]))
    return b"".join(pieces)
