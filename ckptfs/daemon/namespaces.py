"""Other mount namespaces that have a copy of a mount: containers, sandboxes, `unshare -m`.

A process that starts with a mount namespace of its own gets a copy of every mount. An unmount here
leaves such a copy alone, unless the two propagate, and as long as there is one the kernel keeps the
file system, and its daemon, at work. Read from /proc as far as the kernel lets us: what belongs to
other users, or is held by a descriptor alone, is invisible.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckptfs.daemon.holders import command_of, namespace_of, processes
from ckptfs.daemon.mounts import Mount, all_mounts, mount_at, parse_mountinfo

#: The kinds of propagation that bring an unmount along.
_RECEIVING = ("shared", "master", "propagate_from")


class Copies:
    """The copies of one mount of this process's namespace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        mount = mount_at(path)
        self.device = "" if mount is None else mount.device
        self._groups = _groups_around(mount)

    @property
    def device_number(self) -> int:
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor)) if minor else 0

    def is_mounted(self) -> bool:
        """Whether the mount still covers its directory."""
        mount = mount_at(self._path)
        return mount is not None and mount.device == self.device

    def elsewhere(self) -> list[Path]:
        """Where else the file system is mounted in this namespace."""
        found = [mount.path for mount in all_mounts() if mount.device == self.device]
        return [path for path in found if path != self._path]

    def holders(self) -> list[str]:
        """The processes, as "name (PID)", in namespaces whose copy would outlive an unmount."""
        own = namespace_of("self")
        survives = {own: False, "": False}
        found = []
        for pid in processes():
            namespace = namespace_of(pid)
            if namespace not in survives:
                survives[namespace] = self._survives(_table_of(pid))
            if survives[namespace]:
                found.append(f"{command_of(pid)} ({pid})")
        return found

    def _survives(self, table: list[Mount]) -> bool:
        by_number = {mount.number: mount for mount in table}
        copies = [mount for mount in table if mount.device == self.device]
        return any(not self._follows(by_number.get(copy.parent)) for copy in copies)

    def _follows(self, around: Mount | None) -> bool:
        """Whether an unmount here reaches what stands on a mount there."""
        return around is not None and any(
            kind in _RECEIVING and group in self._groups
            for kind, _, group in (word.partition(":") for word in around.propagation)
        )


def _groups_around(mount: Mount | None) -> set[str]:
    """The peer groups to which the mount around this one tells what happens on it."""
    around = next((other for other in all_mounts() if mount and other.number == mount.parent), None)
    words = [] if around is None else [word.partition(":") for word in around.propagation]
    return {group for kind, _, group in words if kind == "shared"}


def _table_of(pid: int) -> list[Mount]:
    try:
        return parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_bytes())
    except OSError:
        return []
