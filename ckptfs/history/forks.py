"""Forks: second lines of work in one store, each with a head of its own.

A fork is made in constant time, whatever the tree's size: a new head below the checkpoint where it
parts from its line. From then on `Filesystem(store, line=fork.number)` is its file system, and what
takes a file system works in it. Where a fork is mounted is not known here.
"""

from __future__ import annotations

import difflib
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckptfs.errors import ForkInvalid, ForkTaken, ForkUnknown, UsageError
from ckptfs.fs import Filesystem, filesystems
from ckptfs.fs.exclusion import PATTERNS, spec_of
from ckptfs.history.checkpoints import (
    FORK,
    Cause,
    Checkpoint,
    checkpoints,
    newest_state,
    of_epoch,
    seal,
    view_or_empty,
)
from ckptfs.history.diff.compare import Counts, count_changes
from ckptfs.history.diff.tree import Change, unordered_changes
from ckptfs.history.references import is_reserved, resolve_checkpoint, safe_tag
from ckptfs.history.state import FACT as DOCUMENTS
from ckptfs.model import NAME_MAX, NO_CONTENT, ROOT_INO, ContentId, Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.blocks import LOST
from ckptfs.store.forks import Fork
from ckptfs.store.format import (
    NO_EPOCH,
    block_entity,
    block_number,
    line_key,
    line_key_of,
    pack_inode,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["Fork", "create", "delete", "find", "forks", "rename", "require_name"]

#: The line that the workspace shows; no fork has this name.
MAIN = "main"
#: How the names of trees begin that live as long as a command; users cannot give such names.
SCRATCH = "scratch-"
#: Facts of the store, by epoch: the patterns that the line was made without, as JSON.
_LEFT_OUT = b"without:"
#: How many names an error proposes.
_NEAR_MAX = 3
#: Categories of characters that control a terminal or break a line instead of being shown.
_ACTING = frozenset({"Cc", "Cs", "Zl", "Zp"})


def forks(store: Store) -> list[Fork]:
    """In the order in which they were made."""
    return list(store.forks)


def find(store: Store, name: str) -> Fork:
    """The fork of that name. Raises ForkUnknown."""
    names = {fork.name: fork for fork in store.forks}
    found = names.get(name)
    if found is None:
        raise ForkUnknown(name, difflib.get_close_matches(name, names, n=_NEAR_MAX))
    return found


def create(
    fs: Filesystem,
    name: str,
    start: str = "",
    *,
    at: str = "",
    without: Sequence[str] = (),
    cause: Cause | None = None,
) -> Fork:
    """Let a new line begin where this one stands, or at the checkpoint that ``start`` names. What
    matches a pattern of ``without`` is not in it. The caller commits."""
    store = fs.store
    require_name(store, name)
    spec = _spec(without)
    base = resolve_checkpoint(fs, start, fs.clock()) if start else _saved(fs, name, cause)
    fork = store.add_fork(name, base.epoch, fs.clock(), at=at, without=tuple(without))
    facts = store.metadata.of_line(fork.number)
    for key, value in [*fs.facts.walk(DOCUMENTS), *fs.facts.walk(PATTERNS)]:
        facts.put(key, value)
    if fs.head.excluded is not None:
        excluded = store.open_excluded(fork.number)
        if not start:  # no checkpoint has what is excluded
            _copy_excluded(fs, fs.head.excluded, excluded, fork.number)
    if spec is not None:
        _remove_matches(Filesystem(store, fs.clock, line=fork.number), spec)
        _note_left_out(store, fork.head, without)
    return fork


def _saved(fs: Filesystem, name: str, cause: Cause | None) -> Checkpoint:
    """The checkpoint of the line as it is: the last one, if nothing changed since."""
    fs.flush()
    store = fs.store
    last = newest_state(fs)
    is_last = last is not None and last.epoch == store.epochs[fs.head.epoch].parent
    if last is not None and is_last and not last.is_moment and not _has_changes(fs):
        return last
    return seal(fs, FORK, f"fork {name}", fs.clock(), cause=cause)


def _has_changes(fs: Filesystem) -> bool:
    return any(True for _ in fs.store.changes.walk(fs.head.epoch))


def rename(store: Store, old: str, new: str) -> Fork:
    """Give a fork another name. The caller commits."""
    fork = find(store, old)
    if new == old:
        return fork
    require_name(store, new)
    renamed = fork._replace(name=new)
    store.forks.put(renamed)
    return renamed


def move(store: Store, name: str, at: str) -> Fork:
    """Note where a fork is mounted from now on; empty for the usual place. The caller commits."""
    moved = find(store, name)._replace(at=at)
    store.forks.put(moved)
    return moved


def delete(fs: Filesystem, name: str, cause: Cause | None = None) -> Checkpoint:
    """End a fork. Returns the checkpoint of its last state, which stays for a day. Nothing may be
    mounted on it any more, and ``fs`` must be another line's. The caller commits."""
    store = fs.store
    fork = find(store, name)
    if fs.line == fork.number:
        raise ForkInvalid(name, "it is the line that the request came from")
    own = filesystem_of(fs, fork.number)
    deleted = f"fork {name} as it was when it was deleted"
    message = "what a command left in a fork" if is_scratch(name) else deleted
    last = seal(own, FORK, message, fs.clock(), cause=cause)
    for key, _ in list(store.orphans.walk()):
        if line_key_of(key)[1] == fork.number:
            store.orphans.delete(key)
    _drop_excluded(store, fork.number)
    # The head that the seal opened is empty; `removal` takes it away.
    store.seal_epoch(own.head, {})
    own.close()
    store.end_fork(fork.number)
    return last


def last_states(store: Store) -> list[Checkpoint]:
    """What forks were that have ended, as far as it is kept; the last that ended first."""
    newest: dict[int, Checkpoint] = {}
    for item in checkpoints(store):
        if item.kind == FORK and item.fork and item.fork not in store.forks:
            newest[item.fork] = item
    return sorted(newest.values(), key=lambda item: item.id, reverse=True)


def filesystem_of(fs: Filesystem, line: int) -> Filesystem:
    """That of another line: the one that is open, or a new one."""
    opened = (each for each in filesystems(fs.store) if each.line == line)
    return next(opened, None) or Filesystem(fs.store, fs.clock, line=line)


def base_of(store: Store, fork: Fork) -> Checkpoint | None:
    """The checkpoint where a fork parted from its line, if it is still one."""
    return of_epoch(store, fork.base) if fork.base != NO_EPOCH else None


def is_scratch(name: str) -> bool:
    return name.startswith(SCRATCH)


def changes_since_base(fs: Filesystem, fork: Fork) -> Counts:
    """How much a fork differs from where it parted."""
    fs.flush()
    base, head = view_or_empty(fs, fork.base), fs.view_of(fork.head)
    spec = left_out(fs.store, fork.head)
    changes = unordered_changes(fs, base, head)
    return count_changes(change for change in changes if not is_left_out(spec, change))


# -- what is kept out of history -------------------------------------------------------------------


def _copy_excluded(fs: Filesystem, source: View, copy: View, line: int) -> None:
    """Give a new fork what its line keeps out of history: records of its own, the same blocks."""
    fs.flush()
    store = fs.store
    for entity, record in list(store.inodes.walk(source, b"")):
        inode = unpack_inode(Ino(unpack_u64(entity)), record)
        if not inode.nlink and not inode.name:
            continue  # open without a name, which no program in the fork has
        store.charge(len(record))
        if inode.content != NO_CONTENT:
            content = _copy_content(store, source, copy, inode)
            inode = inode._replace(content=content, content_epoch=copy.epoch)
        store.inodes.put(copy, entity, pack_inode(inode))
        copy.inodes += 1
    for table in (store.dirents, store.links, store.xattrs):
        for entity, record in list(table.walk(source, b"")):
            table.put(copy, entity, record)
    for key, value in list(store.borders.walk()):
        directory, of = line_key_of(key)
        if of == fs.line:
            store.borders.put(line_key(directory, line), value)


def _copy_content(store: Store, source: View, copy: View, inode: Inode) -> ContentId:
    """A content of its own for the copy of a file: one line may truncate it at once."""
    content = store.new_content()
    for entity, record in list(store.blockmap.walk(source, pack_u64(inode.content))):
        key = unpack_mapping(record).key
        if key and key != LOST:
            store.blocks.share(key)
        store.blockmap.put_unlisted(copy, block_entity(content, block_number(entity)), record)
    return content


def _drop_excluded(store: Store, line: int) -> None:
    """Free what a fork keeps out of history."""
    view = store.excluded_views.get(line)
    if view is None:
        return
    store.pending.flush()
    for ino, record in list(store.inodes.walk(view, b"")):
        content = unpack_inode(Ino(unpack_u64(ino)), record).content
        for entity, block in list(store.blockmap.walk(view, pack_u64(content))):
            store.blockmap.forget(view, entity)
            key = unpack_mapping(block).key
            if key and key != LOST:
                store.blocks.release(key)
    for table in (store.dirents, store.links, store.xattrs, store.inodes):
        for entity in list(store.changes.walk(view.epoch, table.kind)):
            table.forget(view, entity)
    for key, _ in list(store.borders.walk()):
        if line_key_of(key)[1] == line:
            store.borders.delete(key)
    store.close_excluded(line)


# -- names -----------------------------------------------------------------------------------------


def require_name(store: Store, name: str) -> None:
    """Refuse what is no name for a fork, or is taken. It is a component of a path, and stands where
    a checkpoint may be named."""
    reason = _refusal(name)
    if reason:
        raise ForkInvalid(name, reason)
    if any(fork.name == name for fork in store.forks):
        raise ForkTaken(name, "a fork has that name")
    for item in checkpoints(store):
        if item.tag and name in (item.tag, safe_tag(item.tag)):
            raise ForkTaken(name, f"checkpoint {item.id} has it as a tag")


#: What no name may have, and why not, in the order in which it is looked for.
_RULES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda name: not name.strip(), "it is empty"),
    (lambda name: "/" in name, "it has a slash"),
    (
        lambda name: any(unicodedata.category(char) in _ACTING for char in name),
        "it has control characters or bytes that are not text",
    ),
    (lambda name: len(os.fsencode(name)) > NAME_MAX, f"it is longer than {NAME_MAX} bytes"),
    (lambda name: name != name.strip(), "it has blanks around it"),
    (lambda name: name.startswith((".", "-")), "it begins with a dot or a dash"),
    (lambda name: name.casefold() == MAIN, "the line that the workspace shows has it"),
    (is_reserved, "it reads like a number, a time or another reference"),
)


def _refusal(name: str) -> str:
    return next((reason for applies, reason in _RULES if applies(name)), "")


# -- without what matches --------------------------------------------------------------------------
#
# What a fork was made without was not deleted there: what matches is merged in neither direction.
# The patterns are a fact of the first epoch of the fork, and hold for what descends from it.


def left_out(store: Store, *epochs: Epoch) -> GitIgnoreSpec | None:
    """What matches the patterns that one of these lineages was made without; None for nothing."""
    noted = {
        Epoch(int(key.removeprefix(_LEFT_OUT))): json.loads(value)
        for key, value in store.metadata.walk(_LEFT_OUT)
    }
    if not noted:
        return None
    found: list[str] = []
    for epoch in epochs:
        while epoch in store.epochs:
            found += noted.get(epoch, ())
            epoch = store.epochs[epoch].parent
    return spec_of(found)


def is_left_out(spec: GitIgnoreSpec | None, change: Change) -> bool:
    """Whether what changed is of what a line was made without."""
    if spec is None:
        return False
    ends = ((change.source, change.old), (change.path, change.new))
    return any(
        spec.match_file(os.fsdecode(path) + "/" * inode.is_dir)
        for path, inode in ends
        if path is not None and inode is not None
    )


def _note_left_out(store: Store, epoch: Epoch, patterns: Sequence[str]) -> None:
    value = json.dumps(list(patterns), separators=(",", ":")).encode()
    store.metadata.put(_LEFT_OUT + b"%010d" % epoch, value)


def hand_over(store: Store, epoch: Epoch, children: Iterable[Epoch]) -> None:
    """Have the children of an epoch that goes know what it was made without."""
    value = store.metadata.get(_LEFT_OUT + b"%010d" % epoch)
    if value is None:
        return
    for child in children:
        further = store.metadata.get(_LEFT_OUT + b"%010d" % child)
        more = [] if further is None else json.loads(further)
        _note_left_out(store, child, [*json.loads(value), *more])
    store.metadata.delete(_LEFT_OUT + b"%010d" % epoch)


def _spec(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    try:
        return spec_of(patterns)
    except ValueError as error:
        raise UsageError(
            f"Cannot leave out of a fork what matches: {error}. Nothing was changed.",
            hint="Such as: ckptfs fork NAME --without node_modules/",
        ) from error


def _remove_matches(fs: Filesystem, spec: GitIgnoreSpec) -> None:
    """Take out of the head of a fork what matches, with all below it."""
    for parent, name, inode in list(_matches(fs, spec)):
        if inode.is_dir:
            _empty(fs, inode.ino)
            fs.rmdir(fs.head, parent, name)
        else:
            fs.unlink(fs.head, parent, name)
    fs.close()


def _matches(fs: Filesystem, spec: GitIgnoreSpec) -> Iterator[tuple[Ino, bytes, Inode]]:
    pending = [(ROOT_INO, "")]
    while pending:
        directory, above = pending.pop()
        for name, inode in fs.entries(fs.head, directory):
            path = above + os.fsdecode(name)
            if spec.match_file(path + "/" if inode.is_dir else path):
                yield directory, name, inode
            elif inode.is_dir:
                pending.append((inode.ino, path + "/"))


def _empty(fs: Filesystem, directory: Ino) -> None:
    """Remove all that is below a directory, without recursion: a tree may be very deep."""
    order: list[tuple[Ino, bytes, bool]] = []
    pending: Iterable[Ino] = [directory]
    while pending:
        found: list[Ino] = []
        for above in pending:
            for name, inode in fs.entries(fs.head, above):
                order.append((above, name, inode.is_dir))
                if inode.is_dir:
                    found.append(inode.ino)
        pending = found
    for parent, name, is_dir in reversed(order):
        (fs.rmdir if is_dir else fs.unlink)(fs.head, parent, name)
