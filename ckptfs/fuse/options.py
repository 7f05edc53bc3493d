"""How a workspace is mounted, and what serves it then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class MountOptions:
    """``xattrs`` is off by default: while getxattr is answered at all, the kernel asks for
    security.capability before every write(2) (docs/design/fuse.md has the figures)."""

    xattrs: bool = False
    allow_other: bool = False
    #: Of ro, suid, dev and noexec; without the first three the mount has rw, nosuid and nodev.
    flags: frozenset[str] = frozenset()
    #: The source in the table of mounts, with a backslash and three digits for what means something
    #: in an option.
    fsname: str = "ckptfs"
    #: Whether `.checkpoints` stands in the listing of the workspace's root.
    show_checkpoints: bool = False
    #: Whether the CPUs may be kept awake while requests come in a row.
    keep_cpus_awake: bool = True


class ServedBy(NamedTuple):
    """Which path replies to requests, and whether CPUs are kept awake for them. The reasons are
    empty for the compiled path, and for CPUs that are kept awake."""

    #: "compiled" or "portable".
    server: str
    server_reason: str
    cpus_awake: bool
    cpus_awake_reason: str
