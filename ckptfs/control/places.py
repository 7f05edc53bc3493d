"""The daemon's connections: how many there may be, whose, and who makes room for whom.

Nobody can keep others from being heard by connecting and saying nothing: some places are beyond the
reach of each user, and when a user has taken all it may, the connection of that user that has been
silent for longest is closed for the new one. One in the middle of a request, whose request is yet
to be read, or that watches, is not silent; so there may be only so many that watch. Knows no
sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ckptfs.errors import ControlError

#: Connections at once, of all users together.
CONNECTIONS_MAX = 128
#: So many of them are out of each user's reach, for another: a daemon hears its owner and root.
KEPT = 16
#: Connections of one user that may watch, and so stay for as long as they like.
WATCHERS_MAX = 64


@dataclass(eq=False)
class Slot:
    """One connection. ``idle_since`` is None while it is served or watches."""

    uid: int
    #: Hangs up, unless there is a request to be read; whether it did.
    dismiss: Callable[[], bool]
    idle_since: float | None
    watches: bool = field(default=False)


class Slots:
    """The connections of one server."""

    def __init__(self, users: int) -> None:
        """``users`` is how many may connect at all."""
        self._most = CONNECTIONS_MAX - (KEPT if users > 1 else 0)
        self._taken: set[Slot] = set()

    def take(self, place: Slot) -> None:
        """Give a place, if need be that of a silent connection. Raises ControlError if all are
        busy."""
        own = [other for other in self._taken if other.uid == place.uid]
        if len(own) >= self._most or len(self._taken) >= CONNECTIONS_MAX:
            self._make_room(own)
        self._taken.add(place)

    def _make_room(self, own: list[Slot]) -> None:
        idle = {other: other.idle_since for other in own if other.idle_since is not None}
        for longest in sorted(idle, key=idle.__getitem__):
            if longest.dismiss():
                self._taken.discard(longest)
                return
        raise ControlError(
            f"The daemon serves {len(own)} connections already. Nothing was changed.",
            hint="Try again in a moment.",
        )

    def leave(self, place: Slot) -> None:
        self._taken.discard(place)

    def watch(self, place: Slot) -> None:
        """Note that a connection stays to watch. Raises ControlError if too many do."""
        own = sum(other.watches for other in self._taken if other.uid == place.uid)
        if own >= WATCHERS_MAX:
            raise ControlError(
                f"Cannot watch: {own} connections of this user watch already.",
                hint="End some of them, or have one tell the others.",
            )
        place.watches = True
