"""The history of a workspace: checkpoints, their tags and documents, and going back to one."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.errors.base import AnyPath, show
from ckptfs.errors.workspace import WorkspaceError


class CheckpointUnknown(WorkspaceError):
    kind = "checkpoint-unknown"
    exit_code = 42

    def __init__(
        self, name: str | int, near: Sequence[str] = (), reason: str | None = None
    ) -> None:
        """``near`` are references that may have been meant; ``reason`` is what is wrong where it
        is not plain absence, as a sentence without its end."""
        known = "`ckptfs list` shows the checkpoints there are."
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        super().__init__(
            f"{reason or f'There is no checkpoint {name}'}. Nothing was changed.",
            hint=meant + known,
        )
        self.near = tuple(near)


class CheckpointPinned(WorkspaceError):
    kind = "checkpoint-pinned"
    exit_code = 70

    def __init__(self, checkpoint: int | str) -> None:
        super().__init__(
            f"Cannot delete checkpoint {checkpoint}: it is pinned. Nothing was changed.",
            hint=f"Unpin it first: ckptfs unpin {checkpoint}",
        )


class NothingToUndo(WorkspaceError):
    kind = "nothing-to-undo"
    exit_code = 44

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"Cannot {verb}: there is no restore to {verb}. Nothing was changed.",
            hint="`ckptfs list` shows the checkpoints that you can restore.",
        )


class PathUnknown(WorkspaceError):
    kind = "path-unknown"
    exit_code = 45

    def __init__(
        self, path: AnyPath, reason: str, verb: str = "restore", *, hint: str | None = None
    ) -> None:
        super().__init__(
            f"Cannot {verb} {show(path)}: {reason}. Nothing was changed.",
            hint=hint or "`ls .checkpoints/ID` in the workspace shows what a checkpoint holds.",
        )


class TreeMoved(WorkspaceError):
    """What a dry run said no longer holds."""

    kind = "tree-moved"
    exit_code = 46

    def __init__(self) -> None:
        super().__init__(
            "Cannot restore: the workspace changed since the dry run, or the token is of none. "
            "Nothing was changed.",
            hint="Run it with --dry-run again and look at what it would do now.",
        )


class NotConfirmed(WorkspaceError):
    kind = "not-confirmed"
    exit_code = 47

    def __init__(
        self,
        reason: str,
        deed: str = "restored",
        *,
        option: str = "--force",
        dry_run: bool = True,
    ) -> None:
        """``dry_run`` says whether the verb has that option."""
        look = "; --dry-run says what it would do" if dry_run else ""
        super().__init__(
            f"Not {deed}: {reason}. Nothing was changed.",
            hint=f"{option} goes ahead without asking{look}.",
        )


class TagInvalid(WorkspaceError):
    kind = "tag-invalid"
    exit_code = 48

    def __init__(self, tag: str, reason: str) -> None:
        super().__init__(
            f"Cannot use {tag!r} as a tag: {reason}. Nothing was changed.",
            hint="A tag is a short text on one line.",
        )


class TagTaken(WorkspaceError):
    kind = "tag-taken"
    exit_code = 49

    def __init__(self, tag: str, holder: int | str) -> None:
        super().__init__(
            f"Cannot use {tag!r} as a tag: checkpoint {holder} has it, or one that would look the "
            "same as a file name. Nothing was changed.",
            hint=f"`ckptfs tag ID {tag!r} --move` gives it to checkpoint ID. To give it to "
            "a new one, save that without a tag first.",
        )


class StateInvalid(WorkspaceError):
    """A document that cannot be kept with a checkpoint, or is not there."""

    kind = "state-invalid"
    exit_code = 72

    hint = "A document is bytes, or anything that JSON can say, under a name of its own."

    def __init__(self, name: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot use the state document {name!r}: {reason}. Nothing was changed.", hint=hint
        )


class StateNotWritten(WorkspaceError):
    """A restore is done, but a document of its checkpoint did not get where it was wanted."""

    kind = "state-not-written"
    exit_code = 73

    def __init__(self, path: AnyPath, reason: str, *, restored: bool = True) -> None:
        done = "The restore is done, but no" if restored else "The files stay as they are, and no"
        super().__init__(
            f"{done} state was written to {show(path)}: {reason}.",
            hint="`ckptfs restore ID --state-only --state-out FILE` tries again.",
        )
