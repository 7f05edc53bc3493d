"""How much of the packs is in use: a block that goes leaves its pack until the last one does."""

from __future__ import annotations

from collections import Counter


class PackUsage:
    """How much of the packs is in use."""

    def __init__(self) -> None:
        #: By the key of a pack, the bytes of its blocks.
        self.used: Counter[bytes] = Counter()
        #: By the key of a frame, how many bytes it has and how many it takes.
        self.packs: dict[bytes, tuple[int, int]] = {}

    def filled(self, length: int, share: int = 1) -> set[bytes]:
        """Packs of which at least so many bytes, and half, are in use; without the emptiest of
        them until no more than a ``share``-th of what the others take is wasted."""
        found = [p for p, n in self.used.items() if n >= length and n * 2 >= self._length(p)]
        found.sort(key=lambda pack: self.used[pack] / self._length(pack))
        wasted = sum(map(self._wasted, found))
        stored = sum(self._stored(pack) for pack in found)
        for number, pack in enumerate(found):
            if wasted * share <= stored:
                return set(found[number:])
            wasted -= self._wasted(pack)
            stored -= self._stored(pack)
        return set()

    def _length(self, pack: bytes) -> int:
        return max(self.packs.get(pack, (0, 0))[0], 1)

    def _stored(self, pack: bytes) -> int:
        return self.packs.get(pack, (0, 0))[1]

    def _wasted(self, pack: bytes) -> int:
        return (
            self._stored(pack) * max(0, self._length(pack) - self.used[pack]) // self._length(pack)
        )

    @property
    def stored_bytes(self) -> int:
        return sum(map(self._stored, self.used))

    @property
    def wasted_bytes(self) -> int:
        """What packs take for blocks that are gone."""
        return sum(map(self._wasted, self.used))
