"""`merge`: bringing what another state changed into the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfs import history, interrupts
from ckptfs.errors import TreeMoved, UsageError
from ckptfs.history import Cause, Changed, merge, merge_ahead, merge_steps, references
from ckptfs.history.merge import Theirs
from ckptfs.history.merge_ahead import Ahead
from ckptfs.history.merge_plan import EXCLUDED
from ckptfs.history.merge_steps import Conflict, MergePlan
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject, given, nothing_in_the_way, paths_known
from ckptfs.service.checkpoints import open_staged
from ckptfs.textmerge import Labels

if TYPE_CHECKING:
    from ckptfs.history.merge import Merged
    from ckptfs.service.service import Call, Service

RESOLUTIONS = (merge_steps.OURS, merge_steps.THEIRS, merge_steps.MARKERS)
#: A text that a client merged may be so long.
_CONTENT_MAX = 16 << 20


class Contents(NamedTuple):
    """Texts that a client merged, by path, and those of them that have no conflict in them."""

    texts: dict[bytes, bytes]
    clean: set[bytes]


class Merging:
    """A merge of one state into the workspace, planned and carried out with the same choices:
    ``resolution`` for all conflicts, ``by_path`` for some of them, ``contents`` for texts that the
    client merged itself."""

    def __init__(
        self,
        service: Service,
        source: str,
        patterns: Sequence[bytes] | None,
        resolution: str,
        by_path: Mapping[str, str],
        contents: Contents,
    ) -> None:
        self._service = service
        self.fs = service.fs
        self.theirs = _theirs(service, source)
        self._resolution = _known(resolution)
        self._by_path = {os.fsencode(path): _known(each) for path, each in by_path.items()}
        self._contents = contents
        service.fs.flush()
        self._paths = self._select(given(patterns, "merge"))

    def _select(self, patterns: Sequence[bytes]) -> list[bytes]:
        fs = self._service.fs
        views = (fs.head, fs.view_of(self.theirs.epoch))
        reason = f"neither {self.theirs.title} nor the workspace has it"
        with paths_known("merge", reason, named=b", ".join(patterns)):
            return history.select(fs, views, patterns)

    @property
    def token(self) -> str:
        return merge.token_for(self._service.fs, self.theirs, self._paths)

    def require(self, token: str) -> None:
        """Refuse a token that is of another state; there may be none."""
        if token and token != self.token:
            raise TreeMoved("merge")

    def plan(self) -> MergePlan:
        labels = Labels(b"ours", b"base", os.fsencode(self.theirs.title))
        fs = self._service.fs
        texts = self._contents.texts
        return merge.plan_merge(fs, self.theirs, self._resolve, labels, self._paths, texts)

    def _resolve(self, conflict: Conflict) -> str:
        if conflict.path in self._by_path:
            return self._by_path[conflict.path]
        if conflict.texts is not None and conflict.path in self._contents.clean:
            return merge_steps.DRIVER
        return self._resolution

    def settles(self, plan: MergePlan) -> bool:
        """Whether a plan that changes nothing says all the same what is not to be asked again:
        that in every conflict ours stays."""
        return not self._paths and any(each.kind != EXCLUDED for each in plan.conflicts)

    def carry_out(self, plan: MergePlan, cause: Cause | None) -> Merged:
        service, changed = self._service, Changed(set(), set())
        # First: also if it fails, the kernel has to hear of it.
        service.unannounced.changed.append(changed)
        done = merge.merge(
            service.fs,
            self.theirs,
            plan,
            whole=not self._paths,
            changed=changed,
            cause=cause,
        )
        service.fs.sync()
        return done


def _theirs(service: Service, source: str) -> Theirs:
    """What a reference names: another line as it is, or a checkpoint."""
    fs = service.fs
    found = references.resolve(fs, source, fs.clock())
    if found.checkpoint is not None:
        is_number = source == str(found.checkpoint.id)
        return merge.of_checkpoint(found.checkpoint, "" if is_number else source)
    if found.line is None or found.line == fs.line:
        raise UsageError(
            f"Cannot merge {source} into itself. Nothing was changed.",
            hint="Name another fork, `main`, or a checkpoint.",
        )
    return merge.of_line(fs.store, found.line, source)


def _known(resolution: str) -> str:
    if resolution and resolution not in RESOLUTIONS:
        raise UsageError(
            f"Cannot merge: {resolution!r} is no resolution of conflicts. Nothing was changed.",
            hint=f"It is one of: {', '.join(RESOLUTIONS)}.",
        )
    return resolution


def _merged_by_client(service: Service, staged: Sequence[JsonObject], token: str) -> Contents:
    """The texts that a client merged; a token says of which state."""
    if staged and not token:
        raise UsageError(
            "Cannot merge: contents need the token of the dry run that they belong to. "
            "Nothing was changed."
        )
    texts = {}
    for item in staged:
        with open_staged(service, item["file"]) as file:
            text = file.read(_CONTENT_MAX + 1)
        if len(text) > _CONTENT_MAX:
            name = os.fsdecode(item["path"])
            raise UsageError(
                f"Cannot merge {name}: what it was merged to is larger than "
                f"{_CONTENT_MAX >> 20} MiB. Nothing was changed."
            )
        texts[item["path"]] = text
    return Contents(texts, {item["path"] for item in staged if item["clean"]})


def do_merge(
    call: Call,
    source: str,
    paths: list[bytes] | None,
    resolution: str,
    resolutions: dict[str, str],
    contents: list[JsonObject],
    token: str,
    dry_run: bool,
) -> JsonObject:
    merged = _merged_by_client(call.service, contents, token)
    merging = Merging(call.service, source, paths, resolution, resolutions, merged)
    with interrupts.stoppable():
        # One that waits is another client's, who does not only ask.
        ahead = None if dry_run else _taken(merging, token)
        plan = _plan(merging, token) if ahead is None else ahead.plan
        found = _planned(merging, plan)
    # The token is made outside of that part: the plan is taken, and would have to be made again if
    # the verb gave way now.
    if dry_run or plan.unresolved or not (plan or merging.settles(plan)):
        return found | {"token": merging.token if ahead is None else ahead.token}
    with nothing_in_the_way("merge"):
        done = merging.carry_out(plan, call.cause)
    return found | {
        "checkpoint": done.theirs.id,
        "changed": True,
        "before": done.before.id,
        "after": done.after.id,
        "token": merging.token,
    }


def plan_merge(
    call: Call,
    source: str,
    paths: list[bytes] | None,
    resolution: str,
    resolutions: dict[str, str],
    contents: list[JsonObject],
    token: str,
    **_: object,
) -> Iterator[bytes]:
    """The plan of the merge that is asked for, in parts."""
    merged = _merged_by_client(call.service, contents, token)
    merging = Merging(call.service, source, paths, resolution, resolutions, merged)
    return merge_ahead.parts_of(_plan(merging, token), token or merging.token)


def _taken(merging: Merging, token: str) -> Ahead | None:
    """What was decided beforehand, if that holds."""
    ahead = merge_ahead.take(merging.fs, merging.theirs.epoch)
    if ahead is not None and ahead.is_outdated:
        merging.require(token)
    return ahead


def _plan(merging: Merging, token: str) -> MergePlan:
    """What the merge is to do."""
    merging.require(token)
    return merging.plan()


def _planned(merging: Merging, plan: MergePlan) -> JsonObject:
    """``views`` are those of the base, of ours and of theirs for `contents`, and ``text_paths`` of
    a conflict where its texts are in them."""
    added, modified, deleted = plan.paths()
    return {
        "checkpoint": theirs.id if (theirs := merging.theirs.checkpoint) else None,
        "changed": False,
        "before": None,
        "after": None,
        "added_paths": wire.names(added),
        "modified_paths": wire.names(modified),
        "deleted_paths": wire.names(deleted),
        "views": list(plan.epochs),
        "conflicts": [
            _conflict(conflict, resolution)
            for conflict, resolution in zip(plan.conflicts, plan.resolutions, strict=True)
        ],
    }


def _conflict(conflict: Conflict, resolution: str) -> dict[str, Any]:
    return {
        "path": wire.names([conflict.path])[0],
        "kind": conflict.kind,
        "resolution": resolution or None,
        "text_paths": None if conflict.texts is None else wire.names(conflict.texts),
    }
