"""Too many moments: which of them go first. Knows no limits and no store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from ckptfs.history.checkpoints import LOST, Checkpoint

#: How much further from others a moment counts as standing that is needed more than they.
_NEEDED = 1e4


class Crowd:
    """Moments, newest first, that can go one by one: those first that stand closest together for
    their age, so that they stand ever further apart the older they are.

    One of whose path there is a newer moment goes long before others, so that a program which
    rewrites its own file all day pushes nothing else out; one that holds more than the path it was
    taken for goes last."""

    def __init__(
        self,
        moments: Sequence[Checkpoint],
        now_ns: int,
        holds_more: Callable[[Checkpoint], bool] = lambda moment: False,
    ) -> None:
        self._times = [item.time_ns for item in moments]
        self._now_ns = now_ns
        self._gone: set[int] = set()
        count = len(moments)
        self._newer, self._older = list(range(-1, count - 1)), [*range(1, count), -1]
        self._paths = [item.metadata.get(LOST, "") for item in moments]
        self._newest: dict[str, int] = {}
        for index in reversed(range(count)):
            self._newest[self._paths[index]] = index
        self._more = [holds_more(item) for item in moments]
        self._heap = [(self.worth(index), -index) for index in range(count)]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._times) - len(self._gone)

    def worth(self, index: int) -> float:
        """How far its neighbours are from each other, for its age, and how much it is needed."""
        newer, older = self._newer[index], self._older[index]
        if newer < 0:
            return inf
        since_ns = self._times[older] if older >= 0 else self._times[index]
        apart = (self._times[newer] - since_ns) / max(self._now_ns - self._times[index], 1)
        is_last = self._newest[self._paths[index]] == index
        return (
            max(apart, 1e-9) * (_NEEDED if is_last else 1) * (_NEEDED if self._more[index] else 1)
        )

    def thin(self) -> int:
        """Take away the one that is missed least; return its place in the sequence."""
        while True:
            worth, place = heappop(self._heap)
            index = -place
            if index not in self._gone and worth == self.worth(index):
                break
        self._gone.add(index)
        newer, older = self._newer[index], self._older[index]
        if newer >= 0:
            self._older[newer] = older
        if older >= 0:
            self._newer[older] = newer
        for neighbour in (newer, older):
            if neighbour >= 0:
                heappush(self._heap, (self.worth(neighbour), -neighbour))
        return index
