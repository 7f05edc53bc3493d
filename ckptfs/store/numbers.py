"""Numbers that are never used twice: of inodes, of contents, of epochs and of slots in the heap.

Knows which come next, and when there are none left. Where they are kept is the store's business.
"""

from __future__ import annotations

import errno

from ckptfs.model import INO_MAX, ContentId, Epoch, Ino
from ckptfs.store.format import EPOCH_MAX


class Numbers:
    """The ones that come next."""

    def __init__(self) -> None:
        self.ino = 1
        self.content = 1
        self.epoch = 1
        self.slot = 0

    def following(self) -> tuple[Ino, ContentId, Epoch]:
        """The inode, the content and the epoch that come next."""
        return Ino(self.ino), ContentId(self.content), Epoch(self.epoch)

    def skip(self, ino: int, content: int) -> None:
        """Give out no number up to these."""
        self.ino = max(self.ino, ino + 1)
        self.content = max(self.content, content + 1)

    def new_ino(self) -> Ino:
        ino = self.ino
        if ino > INO_MAX:
            raise OSError(errno.ENOSPC, "the store has no inode numbers left")
        self.ino = ino + 1
        return Ino(ino)

    def new_content(self) -> ContentId:
        content = self.content
        self.content = content + 1
        return ContentId(content)

    def new_epoch(self) -> Epoch:
        self.require_epoch()
        epoch = self.epoch
        self.epoch = epoch + 1
        return Epoch(epoch)

    def require_epoch(self) -> None:
        """Refuse what could not go on in another epoch."""
        if self.epoch > EPOCH_MAX:
            raise OSError(errno.ENOSPC, "the store has no epoch numbers left")
