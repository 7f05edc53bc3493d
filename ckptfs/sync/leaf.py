"""One entry of the lower directory that is not a directory: what it is, read as far as needed.

Everything is lazy, since most questions are answered by the attributes alone. Writes nothing.
"""

from __future__ import annotations

import os
import stat
import time

from ckptfs.model import BLOCK_SIZE
from ckptfs.sync import content, lower


class Leaf:
    """Use as a context manager: what was opened is closed at the end."""

    __slots__ = (
        "_data",
        "_digest",
        "_fd",
        "_xattrs",
        "dir_fd",
        "name",
        "read_ns",
        "seen",
        "target",
    )

    def __init__(self, dir_fd: int, name: bytes, seen: os.stat_result | None = None) -> None:
        """Without ``seen`` it must be a regular file, and is opened to see it."""
        self.dir_fd = dir_fd
        self.name = name
        self.target = b""
        self._fd = -1
        self._digest = b""
        #: The content of a small file, once it was read.
        self._data: bytes | None = None
        self._xattrs: dict[bytes, bytes] | None = None
        #: When the entry was looked at: its content is at least as new.
        self.read_ns = time.time_ns()
        if seen is None:
            self._fd, self.seen = lower.open_file(dir_fd, name)
        else:
            self.seen = seen
            if stat.S_ISREG(seen.st_mode):
                self._fd, self.seen = lower.open_file(dir_fd, name)
            elif stat.S_ISLNK(seen.st_mode):
                self.target = lower.target_of(dir_fd, name)

    def __enter__(self) -> Leaf:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.seen.st_mode)

    @property
    def is_small(self) -> bool:
        """A regular file that fits one block and has no holes to keep."""
        seen = self.seen
        return (
            stat.S_ISREG(seen.st_mode)
            and seen.st_size <= BLOCK_SIZE
            and not content.is_sparse(seen)
        )

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def identity(self) -> tuple[int, int]:
        """The same for all hard links of one file."""
        return self.seen.st_dev, self.seen.st_ino

    def read_small(self) -> bytes:
        """The whole of a file that fits one block; the digest is then that of what was read."""
        self._digest = b""
        self._data = content.read_exactly(self._fd, 0, self.seen.st_size)
        return self._data

    def closed_since(self) -> os.stat_result | None:
        """The attributes now, if owner or mode changed since the file was opened: what was read
        may have been written behind a chmod, for fewer eyes than the mode that we saw."""
        now = lower.look_into(self._fd)
        then = self.seen
        if (now.st_mode, now.st_uid, now.st_gid) == (then.st_mode, then.st_uid, then.st_gid):
            return None
        return now

    @property
    def digest(self) -> bytes:
        if not self._digest:
            if self._data is not None:
                self._digest = content.digest_of_one(self._data)
            elif self.is_file:
                self._digest = content.digest_below(self._fd, self.seen)
            else:
                self._digest = special_digest(self.seen.st_mode, self.seen.st_rdev, self.target)
        return self._digest

    def found(self, digest: bytes) -> None:
        """Take a digest that reading the content for another purpose gave."""
        self._digest = digest

    @property
    def xattrs(self) -> dict[bytes, bytes]:
        if self._xattrs is None:
            self._xattrs = lower.user_xattrs(self._fd) if self.is_file else {}
        return self._xattrs

    @property
    def xattrs_digest(self) -> bytes:
        return content.digest_of_xattrs(self.xattrs)


def special_digest(mode: int, rdev: int, target: bytes) -> bytes:
    """What stands for the content of something that is no regular file."""
    if stat.S_ISLNK(mode):
        return content.digest_of_one(b"link:" + target)
    return content.digest_of_one(b"node:%d:%d" % (stat.S_IFMT(mode), rdev))
