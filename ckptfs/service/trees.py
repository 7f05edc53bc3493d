"""Plain directories: import and export, and the directory of the workspace itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs import interrupts, sync
from ckptfs.errors import WorkspaceNotEmpty
from ckptfs.model import ROOT_INO
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject
from ckptfs.sync import ScanBehind, SyncResult, scan_behind
from ckptfs.sync.ledger import ROOT_PLACE, Ledger
from ckptfs.sync.results import Watcher
from ckptfs.sync.scan import count_stored

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

#: The directory that the ledger is about: its inode number and path.
_LOWER = b"below"
#: Whether the lower directory was up to date when the workspace was last closed.
_LOWER_CURRENT = b"current_below"
#: Set while a workspace that is not mounted has changed and its directory has not yet: the next
#: process that opens the store has to write back.
_OWED_WRITE_BACK = b"owed_below"
#: Set while what changed in the lower directory is being brought in: the head may have half of it,
#: and nothing else that is in no checkpoint. And whether that was so when it began.
_BRINGING_IN = b"scan_below"
_ANEW, _AGAIN = b"1", b"2"


def is_empty(service: Service) -> bool:
    """Whether the workspace has no files at all."""
    return not any(True for _ in service.fs.entries(service.fs.head, ROOT_INO))


def import_tree(
    service: Service, source: Path, progress: Watcher | None = None, *, merge: bool = False
) -> SyncResult:
    """Fill the workspace from another directory, which is only read.

    With ``merge`` it may have content already, and is saved before anything is overwritten.
    """
    if not service.is_empty():
        if not merge:
            raise WorkspaceNotEmpty(service.fs.store.path)
        if service.has_unsaved():
            service.save(f"before import from {source}")
    service.exclude()
    result = sync.import_tree(service.fs, source, progress=progress)
    service.save(f"import from {source}")
    return result


def export(
    service: Service, dest: Path, checkpoint: str | None = None, progress: Watcher | None = None
) -> SyncResult:
    """Write a checkpoint, or the tree of now, into an absent or empty directory."""
    view = service.view(checkpoint)
    service.fs.flush()
    return sync.export_tree(service.fs, view, dest, progress=progress)


def scan(service: Service, dir_fd: int, progress: Watcher | None = None) -> SyncResult:
    """Bring in what changed in the lower directory, without a checkpoint of its own."""
    service.exclude()
    result = sync.scan(service.fs, dir_fd, progress=progress)
    service.fs.store.metadata.delete(_BRINGING_IN)
    service.fs.commit()
    return result


def catch_up(service: Service, dir_fd: int) -> list[SyncResult]:
    """Bring in what changed in a directory that is not mounted, and do a write-back that a killed
    process left undone. Returns the result of each pass."""
    passes = [service.scan(dir_fd)]
    if service.owes_write_back():
        passes.append(service.write_back(dir_fd))
    return passes


def owes_write_back(service: Service) -> bool:
    """Whether a process was killed between changing the workspace and its directory."""
    return service.fs.store.metadata.get(_OWED_WRITE_BACK) is not None


def owe_write_back(service: Service, owed: bool = True) -> None:
    """Note that the directory is about to fall behind the workspace, durable with the next
    commit."""
    if owed:
        service.fs.store.metadata.put(_OWED_WRITE_BACK, b"1")
    else:
        service.fs.store.metadata.delete(_OWED_WRITE_BACK)


def adopt_directory(
    service: Service, dir_fd: int, path: Path, *, keep_first: bool = True
) -> list[SyncResult]:
    """Bring a directory that stays unmounted into the workspace. Its first state becomes a
    checkpoint, unless the caller is about to take one. Returns the result of each pass."""
    if keep_first and not service.checkpoints():
        return [service.bring_in(dir_fd, path)]
    _forget_other_directory(service, dir_fd, path)
    return service.catch_up(dir_fd)


def bring_in(
    service: Service, dir_fd: int, path: Path, progress: Watcher | None = None
) -> SyncResult:
    """Bring in what changed in the lower directory, as a checkpoint.

    The state that the store had before is saved first, so that a change from outside never shares
    a checkpoint with one from inside. What a scan that did not end brought in is not such a state:
    it may have half of a file.
    """
    _forget_other_directory(service, dir_fd, path)
    first = not service.checkpoints()
    again = False
    if not first:
        _save_left(service)
        again = _note_bringing_in(service)
    agreed = service.fs.store.metadata.agreed()
    result = service.scan(dir_fd, progress)
    if first:
        service.save("first mount", "mount")
    else:
        _save_brought_in(service, result, again=again)
    sync.settle(service.fs, agreed)
    return result


def _note_bringing_in(service: Service) -> bool:
    """Note that a scan begins; whether the last one did not end."""
    again = service.fs.store.metadata.get(_BRINGING_IN) is not None
    service.fs.store.metadata.put(_BRINGING_IN, _AGAIN if again else _ANEW)
    return again


def _save_left(service: Service) -> None:
    if service.fs.store.metadata.get(_BRINGING_IN) is None and service.has_unsaved():
        left = "unmounted" if service.lower_is_current() else "left"
        service.save(f"as it was {left}", "mount")


def _save_brought_in(service: Service, result: SyncResult, *, again: bool) -> None:
    if (result.changed or again) and service.has_unsaved():
        service.save("changed while unmounted", "offline")


def begin_scan(service: Service, dir_fd: int, path: Path) -> ScanBehind | None:
    """`bring_in` a directory at a time, until `end_scan`. Nothing else may change the workspace
    meanwhile. None, and nothing is done, where it is not known that both sides agreed when the
    workspace was last closed: after a kill, say."""
    _forget_other_directory(service, dir_fd, path)
    if (
        not service.checkpoints()
        or not service.lower_is_current()
        or service.owes_write_back()
        or not scan_behind.is_safe(service.fs)
    ):
        return None
    _save_left(service)
    service.exclude()
    # To exclude may have changed what the ledger is about.
    if not scan_behind.is_safe(service.fs):
        return None
    _note_bringing_in(service)
    return ScanBehind(service.fs, dir_fd)


def end_scan(service: Service, scan: ScanBehind) -> SyncResult:
    """Everything is compared: the end of `bring_in`."""
    result = scan.end()
    metadata = service.fs.store.metadata
    again = metadata.get(_BRINGING_IN) == _AGAIN
    metadata.delete(_BRINGING_IN)
    _save_brought_in(service, result, again=again)
    sync.settle(service.fs, scan.agreed)
    return result


def count_entries(service: Service) -> int:
    """How many entries a scan would compare, as far as the store knows."""
    return count_stored(service.fs)


def write_back(service: Service, dir_fd: int, progress: Watcher | None = None) -> SyncResult:
    """Bring the lower directory up to date with the workspace."""
    service.fs.commit()
    result = sync.write_back(service.fs, dir_fd, progress=progress)
    if not result.skipped:
        service.owe_write_back(False)
    service.mark_lower(current=True)
    return result


def write_back_mounted(
    service: Service, dir_fd: int, progress: Watcher | None = None
) -> tuple[SyncResult, bool]:
    """Bring the lower directory up to date while the mount covers it. The second value says whether
    the lower directory changed meanwhile, which a `write_back` has to decide on.

    It does not count as current yet: the workspace may still change."""
    service.fs.commit()
    return sync.push(service.fs, dir_fd, progress=progress)


def mark_lower(service: Service, *, current: bool) -> None:
    """Note durably whether the lower directory is as current as the store."""
    service.fs.store.metadata.put(_LOWER_CURRENT, b"1" if current else b"0")
    service.fs.commit()


def lower_is_current(service: Service) -> bool:
    return service.fs.store.metadata.get(_LOWER_CURRENT) != b"0"


def _forget_other_directory(service: Service, dir_fd: int, path: Path) -> None:
    """Forget the ledger if both the path and the inode number of the directory are new.

    Compared with the ledger of another directory, everything would look deleted. With none nothing
    does: what both have is compared, and what only one has is kept.
    """
    store = service.fs.store
    inode, name = b"%d" % os.fstat(dir_fd).st_ino, os.fsencode(path)
    known = (store.metadata.get(_LOWER) or b"").split(b" ", 1)
    if len(known) == 2 and known[0] != inode and known[1] != name:
        Ledger(store).forget_tree(*ROOT_PLACE)
    if known != [inode, name]:
        store.metadata.put(_LOWER, inode + b" " + name)


# -- verbs -----------------------------------------------------------------------------------------


def do_import(call: Call, source: str, merge: bool) -> JsonObject:
    progress = wire.progress_of(call.on_progress, "import")
    with interrupts.stoppable_between("What came in so far stays in the workspace."):
        call.service.unannounced.new_names = True
        result = call.service.import_tree(Path(source), progress, merge=merge)
    return wire.sync_result(result)


def do_export(call: Call, dest: str, checkpoint: str | None) -> JsonObject:
    progress = wire.progress_of(call.on_progress, "export")
    left = f"What was written to {dest} so far stays there; the workspace was not changed."
    with interrupts.stoppable_between(left):
        return wire.sync_result(call.service.export(Path(dest), checkpoint, progress))
