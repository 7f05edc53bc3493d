"""Going down a tree without recursion: a directory is listed, then each of those that wait in it,
then it is finished. What a directory is, and what is done with it, is the caller's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Waits(Protocol):
    """A directory under way; ``waiting`` are the arguments to enter those in it that are left."""

    waiting: list[Any]


F = TypeVar("F", bound=Waits)


def traverse(
    root: F,
    *,
    look: Callable[[F], None],
    enter: Callable[..., F | None],
    finish: Callable[[F], None],
    leave: Callable[[], None],
) -> None:
    """``enter`` may decline a directory with None; ``leave`` goes up from one that is finished."""
    look(root)
    frames = [root]
    while frames:
        frame = frames[-1]
        if frame.waiting:
            inner = enter(frame, *frame.waiting.pop())
            if inner is not None:
                frames.append(inner)
                look(inner)
        else:
            finish(frame)
            frames.pop()
            if frames:
                leave()
