"""What the daemon does for a client in a sandbox, and what it refuses.

A client that comes through the mount may see nothing but the workspace, and its sandbox may be all
that keeps it from the rest of the machine. The daemon stands outside of it. So through the mount
only those verbs are done that act on the workspace and its history. Paths of other places mean
something else in another mount namespace, so verbs that take such paths are refused from there,
whichever way they come. Process ids mean something else in another pid namespace, and are
translated.
"""

from __future__ import annotations

import os

from ckptfs.control.protocol import Request
from ckptfs.control.server import Peer
from ckptfs.errors import RefusedInSandbox
from ckptfs.locating import start_ticks
from ckptfs.service.arguments import JsonObject
from ckptfs.service.verbs import SAME_PATHS, SANDBOX, VERBS

#: How far up the parents of a client are looked at.
_PARENTS_MAX = 64


def admit(request: Request, peer: Peer) -> Request:
    """The request as it is to be done for this client. Raises `RefusedInSandbox`."""
    verb = VERBS.get(request.op)
    if peer.through_mount and (verb is None or verb.clients != SANDBOX):
        raise RefusedInSandbox(request.op, inside=not _has_our_paths(peer))
    is_outside_matter = verb is not None and verb.clients == SAME_PATHS
    if is_outside_matter and not _is_forced_umount(request) and not _has_our_paths(peer):
        raise RefusedInSandbox(request.op)
    pid = request.args.get("pid")
    if not isinstance(pid, int):
        return request
    args: JsonObject = {**request.args, "pid": _translate(pid, peer.pid)}
    return request._replace(args=args)


def _is_forced_umount(request: Request) -> bool:
    """A mount of which a sandbox has a copy ends only with the sandbox, so an unmount would wait
    for its own client; a forced one does not wait."""
    return request.op == "umount" and bool(request.args.get("force"))


def _has_our_paths(peer: Peer) -> bool:
    """Whether a path means the same to the client as to us."""
    try:
        # Not stat: the root of a client may be our own mount, and we would wait for ourselves.
        for name in ("ns/mnt", "root"):
            if os.readlink(f"/proc/{peer.pid}/{name}") != os.readlink(f"/proc/self/{name}"):
                return False
    except PermissionError:
        # Only root may look at root's processes. A process of our own user that hides from
        # us has no good reason.
        return peer.uid == 0
    except OSError:
        return False  # it has gone
    # Last: a process that has had the number since then had it while we looked.
    began = start_ticks(peer.pid)
    return began is not None and began / os.sysconf("SC_CLK_TCK") <= peer.since


def _translate(pid: int, client: int) -> int:
    """A process id as the client says it, as we know it; 0 if that process cannot be found.

    It is the client itself or one of its parents."""
    found = _ids(client)
    if found is None:
        return 0
    depth = len(found[0])
    if depth == 1:
        return pid
    for _ in range(_PARENTS_MAX):
        if found is None or len(found[0]) < depth:
            return 0  # outside of the client's namespace, where it cannot see
        if found[0][-1] == pid:
            return found[0][0]
        found = _ids(found[1])
    return 0


def _ids(pid: int) -> tuple[list[int], int] | None:
    """The ids of a process in our namespace and in those below it, and its parent in ours."""
    ids, parent = [], 0
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith(b"PPid:"):
                    parent = int(line.split()[1])
                elif line.startswith(b"NSpid:"):
                    ids = [int(word) for word in line.split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    return (ids, parent) if ids else None
