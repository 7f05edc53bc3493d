"""The store itself: its bytes, its health, copies of it, and what is removed from it for good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import interrupts
from ckptfs.errors import SettingInvalid
from ckptfs.history import compression, damage, removal, settings
from ckptfs.history import purge as purging
from ckptfs.history.checkpoints import uncounted
from ckptfs.history.damage import Affected
from ckptfs.history.diff import compare
from ckptfs.history.purge import Doomed, Purged
from ckptfs.history.space import Space, measure
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject, paths_known
from ckptfs.store import Problem
from ckptfs.store import check as problems_of
from ckptfs.store import repair as repairs
from ckptfs.store.blocks import LOST
from ckptfs.store.check import OnProgress

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service


class Backup(NamedTuple):
    """Where a copy of the store is, and how large."""

    dest: str
    bytes: int


def space(service: Service) -> Space:
    """Whose bytes the store has. Reads the whole block map."""
    return measure(service.fs)


def compact(service: Service) -> tuple[int, int]:
    """Compress what is not yet, and give free room back to the disk; the size of the store's
    file before and after."""
    before = service.fs.store.size_bytes()
    with uncounted(service.fs):
        removal.reap(service.fs)
        if service.compresses():
            compression.unpack_records(service.fs)
            compression.compress(service.fs)
            compression.compress_inline(service.fs)
            compression.repack(service.fs)
            compression.pack_records(service.fs)
        service.fs.commit()
        service.fs.store.compact()
    return before, service.fs.store.size_bytes()


def compresses(service: Service) -> bool:
    """Whether blocks of sealed epochs are to be compressed."""
    return bool(service.settings().value("store.compress"))


def may_compress(service: Service) -> bool:
    """The same for one who does something else and has no use for a complaint."""
    try:
        return service.compresses()
    except SettingInvalid:
        return False


def plan_purge(service: Service, patterns: Sequence[bytes]) -> Doomed:
    """What `purge` would take away."""
    return purging.find(service.fs, _to_purge(service, patterns))


def purge(service: Service, patterns: Sequence[bytes]) -> Purged:
    """Remove files from the workspace and every checkpoint, and their bytes from the store."""
    purged = purging.purge(service.fs, _to_purge(service, patterns))
    if purged.doomed.inodes:
        compare.forget_counts(service.fs.store)
        service.compact()
        service.unannounced.purged.append(purged.changed)
    return purged


def _to_purge(service: Service, patterns: Sequence[bytes]) -> list[bytes]:
    reason = "neither the workspace nor any checkpoint has it"
    service.fs.flush()
    with interrupts.stoppable(), paths_known("purge", reason, named=b", ".join(patterns)):
        return purging.meant(service.fs, patterns)


def check(
    service: Service, *, deep: bool = True, progress: OnProgress | None = None
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
    return call.service.space()._asdict()


def do_compact(call: Call) -> JsonObject:
    with interrupts.stoppable_between("What is smaller by now stays so; no file was changed."):
        before, after = call.service.compact()
    return {"before_bytes": before, "after_bytes": after}


def do_purge(call: Call, paths: list[bytes], dry_run: bool) -> JsonObject:
    if dry_run:
        with interrupts.stoppable():
            doomed = call.service.plan_purge(paths)
        return {**wire.doomed(doomed), "dry_run": True, "elsewhere": []}
    purged = call.service.purge(paths)
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
