"""Expiry: the plan of `retention` for a store's checkpoints, and carrying it out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem, filesystems
from ckptfs.history import merge, removal
from ckptfs.history.checkpoints import (
    FORK,
    LOST,
    Checkpoint,
    as_moment,
    checkpoints,
    describe,
    expirable,
    find,
    of_epoch,
    revision,
    without_moments,
)
from ckptfs.history.hook_checkpoints import MARK
from ckptfs.history.restore import redoable, undoable
from ckptfs.history.retention import (
    LIGHT_BYTES,
    Decision,
    Figures,
    Insight,
    RetentionPolicy,
    Shortage,
    Verdicts,
    candidates,
    credible,
    excess_bytes,
    has_credible_times,
    is_short,
    judge,
    judging,
)
from ckptfs.history.space import Freed, holds_more, weigher
from ckptfs.interrupts import Ended, Steps
from ckptfs.model import MAIN_LINE, Epoch
from ckptfs.store import Store
from ckptfs.store.metadata import NEXT_FORK

#: How many changed names to look at in the epoch after a checkpoint.
_LOOKED_AT = 32
#: So often it is judged in steps what expires, if checkpoints come or go meanwhile.
_ROUNDS_MAX = 3


class Outcome(NamedTuple):
    """What expired, and what the disk lacked, if it did."""

    gone: list[Decision]
    shortage: Shortage | None


def decide(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """What happens to each checkpoint now, newest first."""
    return _judge(fs, policy).all()


def shortage(fs: Filesystem, policy: RetentionPolicy, given_bytes: int = 0) -> Shortage | None:
    """How much space the disk lacks, if any, and how many checkpoints expire for that."""
    store = fs.store
    if store.spare_bytes() >= policy.min_free.of(store.disk_bytes()):
        return None
    return _judge(fs, policy, given_bytes=given_bytes).shortage


def _judge(fs: Filesystem, policy: RetentionPolicy, given_bytes: int = 0) -> Verdicts:
    return interrupts.at_once(_judging(fs, policy, None, given_bytes))


def _judging(
    fs: Filesystem, policy: RetentionPolicy, now_ns: int | None, given_bytes: int
) -> Steps[Verdicts]:
    fs.flush()
    now_ns = fs.clock() if now_ns is None else now_ns
    held = yield from _holding(fs, now_ns)
    steps = judging(
        checkpoints(fs.store),
        policy,
        now_ns,
        _figures(fs.store, given_bytes),
        undo=_steps_back(fs),
        held=held,
        lines=fs.store.heads.keys(),
        insight=insight(fs),
    )
    return (yield from steps)


def _figures(store: Store, given_bytes: int) -> Figures:
    used = store.size_bytes() - store.reusable_bytes()
    return Figures(used, store.spare_bytes(), store.disk_bytes(), given_bytes)


def _judging_quickly(
    fs: Filesystem, policy: RetentionPolicy, now_ns: int | None, given_bytes: int
) -> Steps[Verdicts]:
    """The same for what expires, in steps: without a look at each that was saved by hand, unless
    space is short. The daemon asks after every burst of changes."""
    fs.flush()
    now_ns = fs.clock() if now_ns is None else now_ns
    figures = _figures(fs.store, given_bytes)
    if is_short(figures, policy) or not has_credible_times(checkpoints(fs.store), now_ns):
        return (yield from _judging(fs, policy, now_ns, given_bytes))
    held = yield from _holding(fs, now_ns)
    shown, lines = without_moments(fs.store), fs.store.heads.keys()
    steps = judging(
        candidates(expirable(fs.store), shown, lines),
        policy,
        now_ns,
        figures,
        undo=_steps_back(fs),
        held=held,
        lines=lines,
        insight=insight(fs),
        among=shown,
    )
    return (yield from steps)


def _flushed(fs: Filesystem, steps: Steps[Verdicts]) -> Steps[Verdicts]:
    """Steps that read, with what programs change in between put into the transaction."""
    with closing(steps):
        while not isinstance(ended := interrupts.resume(steps), Ended):
            yield ended
            fs.flush()
    verdicts: Verdicts = ended.result
    return verdicts


def insight(fs: Filesystem) -> Insight:
    """What a plan may ask about the checkpoints of a store."""
    store = fs.store
    return Insight(
        partial(_is_precious, store),
        partial(_precedes_a_loss, store),
        weigher(store),
        partial(holds_more, store),
        Freed(store).steps,
    )


def _steps_back(fs: Filesystem) -> list[int]:
    """The checkpoints that `undo` and `redo` go to, in any line."""
    each = [fs, *(other for other in filesystems(fs.store) if other is not fs)]
    entries = [find(line) for line in each for find in (undoable, redoable)]
    return [entry.before for entry in entries if entry is not None and entry.before is not None]


#: How long the last state of a deleted fork stays.
_DELETED_FORK_NS = 86_400_000_000_000


def _holding(fs: Filesystem, now_ns: int) -> Steps[dict[int, str]]:
    """What stays because of forks, and why. A clock that jumped counts as it does in a plan."""
    store = fs.store
    found: dict[int, str] = {}
    if not store.metadata.number(NEXT_FORK, 0):
        return found
    others = set[Epoch]()
    for epoch in store.forks.bases:
        if (base := of_epoch(store, epoch)) is not None:
            found[base.id] = "a fork stands on it"
    last_states = {item.id for item in expirable(store) if _is_last_state(store, item)}
    if last_states:
        for item in credible(checkpoints(store), now_ns):
            if item.id in last_states and item.time_ns >= now_ns - _DELETED_FORK_NS:
                found[item.id] = "the last state of a deleted fork"
                others.add(item.epoch)
    for epoch in (yield from merge.finding_bases(store, others)):
        if (base := of_epoch(store, epoch)) is not None:
            found[base.id] = "a later merge counts from it"
    return found


def _is_last_state(store: Store, item: Checkpoint) -> bool:
    return item.kind == FORK and item.fork != MAIN_LINE and item.fork not in store.forks


def _is_precious(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether a program asked for this checkpoint, or something was deleted after it."""
    return checkpoint.kind == MARK or _precedes_a_loss(store, checkpoint)


def _precedes_a_loss(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether something was deleted after a checkpoint, which may be nowhere else: judged by the
    first changes after it, or by what a moment was taken for."""
    if checkpoint.metadata.get(LOST):
        return True
    for epoch in store.epoch_tree.children(checkpoint.epoch):
        names = store.changes.walk(epoch, store.dirents.kind)
        if any(store.dirents.drops(epoch, name) for name in islice(names, _LOOKED_AT)):
            return True
    return False


def expire(
    fs: Filesystem, policy: RetentionPolicy, now_ns: int | None = None, given_bytes: int = 0
) -> Outcome:
    """Hide what expires and say what that is. A `Reaper` frees what it holds; the caller commits.
    ``given_bytes`` of history went for room in the last hour.

    One round: over a limit of bytes the next one, after what was hidden is freed, may hide more.
    """
    return interrupts.at_once(expiring(fs, policy, now_ns, given_bytes))


def expiring(
    fs: Filesystem,
    policy: RetentionPolicy,
    now_ns: int | None = None,
    given_bytes: int = 0,
    *,
    holds: Callable[[], bool] = lambda: True,
) -> Steps[Outcome]:
    """The same in steps. The last of them hides, if the policy ``holds`` then."""
    judge = partial(_judging_quickly, fs, policy, now_ns, given_bytes)
    verdicts = yield from _judging_what_is(fs, policy, judge)
    return _hide(fs, policy, verdicts) if holds() else Outcome([], None)


def _judging_what_is(
    fs: Filesystem, policy: RetentionPolicy, judge: Callable[[], Steps[Verdicts]]
) -> Steps[Verdicts]:
    """Verdicts by what is known at the end of their steps. If that is something else than at their
    beginning, all is judged anew, and at once if that happens again and again; what was weighed is
    known by then."""
    for _ in range(_ROUNDS_MAX):
        known = _known(fs, policy)
        try:
            verdicts = yield from _flushed(fs, judge())
        except LookupError:
            if _known(fs, policy) == known:
                raise
        else:
            if _known(fs, policy) == known:
                return verdicts
    return interrupts.at_once(judge())


def _known(fs: Filesystem, policy: RetentionPolicy) -> tuple[object, ...]:
    """What changes with every checkpoint and fork that comes, goes or is described anew, and with
    the order of magnitude of what the disk lacks."""
    store = fs.store
    excess = excess_bytes(_figures(store, 0), policy)
    size = (excess >> 20).bit_length() if excess else -1
    return revision(store), frozenset(store.heads), size


def _hide(fs: Filesystem, policy: RetentionPolicy, verdicts: Verdicts) -> Outcome:
    gone = _carry_out(fs, verdicts)
    if verdicts.shortage is not None or policy.max_bytes:
        # An epoch that is kept would make others go in its place.
        removal.spare_none(fs)
    return Outcome(gone, verdicts.shortage)


def room_makers(
    fs: Filesystem,
    policy: RetentionPolicy,
    wanted: int,
    spares: Callable[[Checkpoint], bool],
    *,
    keep_young: bool = False,
) -> list[Checkpoint]:
    """What to delete on a full disk, where a write would fail otherwise, until about ``wanted``
    bytes are free: large moments, then large checkpoints that may expire, then other moments, each
    the oldest first. The newest checkpoint before a deletion stays, and with ``keep_young`` also
    those younger than ``keep_all``."""
    fs.flush()
    every, now_ns = checkpoints(fs.store), fs.clock()
    stay = interrupts.at_once(_holding(fs, now_ns))
    moments = [
        item for item in every if item.is_moment and item.id not in stay and not spares(item)
    ]
    verdicts = judge(
        every,
        policy,
        now_ns,
        undo=_steps_back(fs),
        held=stay,
        lines=fs.store.heads.keys(),
    )
    held = next((item.id for item in reversed(every) if _keeps_a_loss(fs.store, item)), None)
    shown = [
        item
        for item in reversed(verdicts.open)
        if item.id != held and not (keep_young and verdicts.is_young(item))
    ]
    found = _taken(fs.store, (*moments, *shown), wanted, LIGHT_BYTES)
    return found or _taken(fs.store, moments, wanted, 0)


def _keeps_a_loss(store: Store, checkpoint: Checkpoint) -> bool:
    return not checkpoint.is_moment and _precedes_a_loss(store, checkpoint)


def heaviest(fs: Filesystem, count: int) -> list[tuple[int, int]]:
    """The checkpoints whose deletion would free most: (number, bytes)."""
    fs.flush()
    freed = Freed(fs.store)
    found = [(freed(item), item.id) for item in interrupts.checked(checkpoints(fs.store))]
    found.sort(reverse=True)
    return [(number, size) for size, number in found[:count] if size > LIGHT_BYTES]


def _taken(
    store: Store, order: Collection[Checkpoint], wanted: int, least: int
) -> list[Checkpoint]:
    """The first of these that free more than ``least`` each, until they free ``wanted``."""
    taken: dict[int, Checkpoint] = {}
    freed = Freed(store)
    for item in order:
        if wanted <= 0:
            break
        size = freed(item, taken)
        if size > least:
            taken[item.id] = item
            wanted -= size
    return list(taken.values())


def _carry_out(fs: Filesystem, verdicts: Verdicts) -> list[Decision]:
    for number in verdicts.demoted:
        describe(fs.store, as_moment(find(fs.store, number)))
    gone = verdicts.expired()
    removal.hide(fs, [find(fs.store, decision.id) for decision in gone])
    return gone


def prune(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """Expire and free until the limits are kept or nothing more may go. Returns the decision on
    each checkpoint: those that went, and those that stay."""
    return interrupts.finish(pruning(fs, policy))


def pruning(fs: Filesystem, policy: RetentionPolicy) -> Steps[list[Decision]]:
    """`prune` in steps."""
    gone: list[Decision] = []
    judge = partial(_judging, fs, policy, None, 0)
    while True:
        verdicts = yield from _judging_what_is(fs, policy, judge)
        expired = _carry_out(fs, verdicts)
        if not expired and not verdicts.demoted:
            break
        gone += expired
        fs.commit()
        if not (yield from removal.freeing(fs)):
            break
    return sorted([*gone, *verdicts.all()], reverse=True)
