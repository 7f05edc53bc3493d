"""The decision table: what to do with one name, given what each side did since they last agreed.

Pure: it sees no file, no store and no ledger, only the two answers. docs/design/in-place.md has
the table with its reasons.
"""

from __future__ import annotations

from enum import Enum, auto


class Side(Enum):
    """What became of a name on one side since the last agreement."""

    #: As it was, which includes that it was not there.
    SAME = auto()
    #: Other content, other attributes, another file, or new.
    CHANGED = auto()
    #: It was there and is not any more.
    GONE = auto()


class Action(Enum):
    #: Nothing to bring in. What the store changed waits for the write-back.
    LEAVE = auto()
    #: Take over what is below.
    BRING_IN = auto()
    #: Both changed: compare, and keep both where they differ.
    COMPARE = auto()
    #: The store deleted what was edited below: take it in again.
    BRING_BACK = auto()
    #: Deleted below, untouched in the store: delete it there.
    DELETE = auto()
    #: Deleted below, but the store has something newer or nothing: only forget the agreement.
    FORGET = auto()


_TABLE = {
    (Side.SAME, Side.SAME): Action.LEAVE,
    (Side.SAME, Side.CHANGED): Action.LEAVE,
    (Side.SAME, Side.GONE): Action.LEAVE,
    (Side.CHANGED, Side.SAME): Action.BRING_IN,
    (Side.CHANGED, Side.CHANGED): Action.COMPARE,
    (Side.CHANGED, Side.GONE): Action.BRING_BACK,
    (Side.GONE, Side.SAME): Action.DELETE,
    (Side.GONE, Side.CHANGED): Action.FORGET,
    (Side.GONE, Side.GONE): Action.FORGET,
}


def decide(lower: Side, store: Side) -> Action:
    return _TABLE[lower, store]
