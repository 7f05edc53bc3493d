"""The store itself: its bytes, its health, copies of it, and what is removed from it for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import interrupts
from ckptfs.errors import (
    CompactFailed,
    Interrupted,
    PurgeUnfinished,
    SettingInvalid,
    StoreBusy,
    StoreFull,
)
from ckptfs.history import compression, damage, packing, removal, settings, upkeep
from ckptfs.history import purge as purging
from ckptfs.history.account import Space, measure
from ckptfs.history.checkpoints import uncounted
from ckptfs.history.damage import Affected
from ckptfs.history.diff.changed import Changed
from ckptfs.history.purge import OnFiles, Purged
from ckptfs.history.purge_plan import Doomed, finding, meant
from ckptfs.history.retention import RetentionPolicy
from ckptfs.interrupts import Steps
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject, OnProgress, paths_known
from ckptfs.store import Problem, compaction
from ckptfs.store import check as problems_of
from ckptfs.store import repair as repairs
from ckptfs.store.blocks import LOST
from ckptfs.store.check import OnProgress as OnChecked

if TYPE_CHECKING:
    from ckptfs.fs import Filesystem
    from ckptfs.service.service import Call, Service


#: How long one step of packing may take, and how often to look whether something is computed.
_STEP_S = 0.005
_LOOK_S = 0.002
#: Of so many records that packing goes through one is told to the client.
_TELL = 32
_SMALLER = "What is smaller by now stays so; no file was changed."


class Backup(NamedTuple):
    """Where a copy of the store is, and how large."""

    dest: str
    bytes: int


def space(service: Service) -> Space:
    """Where the bytes of the store's files are. Reads the whole block map."""
    with interrupts.unstoppable():
        service.fs.commit()
    return measure(service.fs, _expiring(service))


def _expiring(service: Service) -> RetentionPolicy | None:
    """The rules by which checkpoints expire by themselves, if they do."""
    try:
        chosen = service.settings()
    except SettingInvalid:
        return None
    return chosen.retention if chosen.value("retention.automatic") else None


def compact(service: Service) -> tuple[int, int]:
    """Compress what is not yet, and give free room back to the disk; the size of the store's
    files before and after."""
    return interrupts.finish(compacting(service))


def compacting(service: Service, on_progress: OnProgress | None = None) -> Steps[tuple[int, int]]:
    """The same in steps. It may be left at each of them."""
    store = service.fs.store
    before = store.size_bytes()
    if not (yield from removal.freeing(service.fs)):
        raise Interrupted
    if service.compresses():
        yield from _packing(service.fs, on_progress)
    service.fs.commit()
    if not store.is_fresh:
        yield from compaction.steps(store, on_progress=_watching(on_progress, "copying"))
    yield from store.reclaim()
    yield from removal.giving_back(service.fs)
    if purging.owed(store) == []:
        purging.settle(store)
        service.fs.commit()
    return before, store.size_bytes()


def _packing(fs: Filesystem, on_progress: OnProgress | None) -> Steps[None]:
    """Compress and pack all of history; what takes long is computed in a thread."""

    def watch(what: str, done: int, total: int) -> None:
        if on_progress is not None and not done % _TELL:
            on_progress({"phase": what, "files": done, "total_files": total})

    with ThreadPoolExecutor(1) as pool:
        for work in (
            compression.compression_steps(fs, watch=watch),
            compression.repacking_steps(fs, everything=True, watch=watch),
            packing.packing_steps(fs),
        ):
            worker, done = upkeep.Worker(fs, work), False
            while not done:
                with uncounted(fs):
                    done = worker.step(_STEP_S)
                yield
                if worker.job is not None:
                    result = pool.submit(worker.job)
                    while not result.done():
                        yield _LOOK_S
                    worker.resume(result.result())


def _watching(on_progress: OnProgress | None, phase: str) -> Callable[[int, int], None]:
    def watch(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress({"phase": phase, "files": done, "total_files": total})

    return watch


def compresses(service: Service) -> bool:
    """Whether blocks of sealed epochs are to be compressed."""
    return bool(service.settings().value("store.compress"))


def upkeep_cpu(service: Service) -> int:
    """How much of a processor the upkeep of history may take, in per cent."""
    return int(service.settings().value("upkeep.cpu"))


def may_compress(service: Service) -> bool:
    """The same for one who does something else and has no use for a complaint."""
    try:
        return service.compresses()
    except SettingInvalid:
        return False


def plan_purge(service: Service, patterns: Sequence[bytes]) -> Doomed:
    """What `purge` would take away."""
    return interrupts.finish(_planning_purge(service, patterns))


def _planning_purge(service: Service, patterns: Sequence[bytes]) -> Steps[Doomed]:
    paths = yield from _to_purge(service, patterns)
    return (yield from finding(service.fs, paths))


def purge(service: Service, patterns: Sequence[bytes]) -> Purged:
    """Remove files from the workspace and every checkpoint, and their bytes from the store."""
    return interrupts.finish(_purging(service, patterns))


def _purging(
    service: Service, patterns: Sequence[bytes], on_files: OnFiles = lambda done, total: None
) -> Steps[Purged]:
    paths = yield from _to_purge(service, patterns)
    noted = purging.owed(service.fs.store) or []
    return (yield from _purging_paths(service, [*noted, *paths], on_files))


def owes_purge(service: Service) -> bool:
    """Whether the end of a process cut a purge short."""
    return purging.owed(service.fs.store) is not None


def finishing_purge(service: Service) -> Steps[None]:
    """Go on with a purge that was cut short."""
    yield
    yield from _purging_paths(service, purging.owed(service.fs.store) or [])


def _purging_paths(
    service: Service, paths: Sequence[bytes], on_files: OnFiles = lambda done, total: None
) -> Steps[Purged]:
    store = service.fs.store

    def announce(changed: Changed) -> None:
        service.unannounced.changed.append(changed)
        service.unannounced.purged.append(changed)

    purged = yield from purging.purging(service.fs, paths, announce, on_files)
    if purging.owed(store) is not None:
        try:
            yield from interrupts.unstopped(compacting(service))
        except (CompactFailed, StoreBusy, StoreFull) as error:
            raise PurgeUnfinished(store.path, error.reason) from error
    return purged


def _to_purge(service: Service, patterns: Sequence[bytes]) -> Steps[list[bytes]]:
    yield
    reason = "neither the workspace nor any checkpoint has it"
    with paths_known("purge", reason, named=b", ".join(patterns)):
        return (yield from meant(service.fs, patterns))


def check(
    service: Service, *, deep: bool = True, progress: OnChecked | None = None
) -> list[Problem]:
    """Everything that is wrong with the store; empty when nothing is. Only ``deep`` reads the
    bytes of all blocks."""
    with interrupts.unstoppable():
        service.fs.commit()
    faults = [Problem("pages", fault) for fault in service.fs.store.page_faults()]
    # LMDB might not survive the look at damaged pages.
    return faults or problems_of(service.fs.store, deep=deep, progress=progress)


def affected(service: Service, problems: Sequence[Problem] = ()) -> list[Affected]:
    """The files that damaged blocks belong to; without problems, those that a repair could not
    save all of."""
    keys = {bytes.fromhex(item.block) for item in problems if item.block}
    return damage.affected(service.fs, keys if problems else {LOST})


def damage_of(store: Path) -> JsonObject | None:
    """The answer of `check` for a store with damaged pages; None if they are whole. The store must
    be closed: its file is read page by page, before LMDB is let near it."""
    found = repairs.faults(store)
    return broken("pages", *found) if found else None


def broken(invariant: str, *messages: str) -> JsonObject:
    """The answer of `check` for a store that cannot be opened."""
    problems = [{"invariant": invariant, "message": message} for message in messages]
    return {"problems": problems, "affected": [], "lost": []}


def repair(store: Path) -> JsonObject:
    """Save what is whole in a closed store into a new one, in its place."""
    done = repairs.repair(store)
    return {"kept_as": str(done.kept_as), "unreadable": done.unreadable}


def backup(service: Service, dest: Path) -> Backup:
    """Copy the store, as it was last committed, into another that is a store of its own."""
    with interrupts.stoppable_between("No backup was made."):
        service.fs.store.backup(dest, also=[settings.FILE])
    return Backup(str(dest), sum(file.stat().st_blocks for file in dest.iterdir()) * 512)


# -- verbs -----------------------------------------------------------------------------------------


def do_space(call: Call) -> JsonObject:
    found = call.service.space()
    return {**found._asdict(), "parts": [part._asdict() for part in found.parts]}


def do_compact(call: Call) -> Steps[JsonObject]:
    try:
        before, after = yield from compacting(call.service, call.on_progress)
    except Interrupted:
        raise Interrupted(_SMALLER) from None
    return {"before_bytes": before, "after_bytes": after}


def do_purge(call: Call, paths: list[bytes], dry_run: bool) -> Steps[JsonObject]:
    if dry_run:
        doomed = yield from _planning_purge(call.service, paths)
        left = yield from purging.copies(call.service.fs, doomed)
        elsewhere = wire.names(left[: wire.NAMED_MAX])
        return {**wire.doomed(doomed), "dry_run": True, "elsewhere": elsewhere}
    on_progress = call.on_progress

    def watch(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress({"phase": "purge", "files": done, "total_files": total})

    purged = yield from _purging(call.service, paths, watch)
    elsewhere = wire.names(purged.elsewhere[: wire.NAMED_MAX])
    return {**wire.doomed(purged.doomed), "dry_run": False, "elsewhere": elsewhere}


def do_check(call: Call, deep: bool) -> JsonObject:
    service, on_progress = call.service, call.on_progress

    def watch(what: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress({"phase": f"check {what}", "files": done, "total_files": total})

    problems = service.check(deep=deep, progress=watch if on_progress else None)
    affected = [wire.affected(item) for item in service.affected(problems)]
    return {
        "problems": [
            {"invariant": item.invariant, "message": item.message, "block": item.block}
            for item in problems
        ],
        "affected": affected if problems else [],
        "lost": [] if problems else affected,
    }


def do_backup(call: Call, dest: str) -> JsonObject:
    return call.service.backup(Path(dest))._asdict()
