"""Excluded files after a restore, and when the patterns change.

A restore leaves excluded files as they are. The new head may lack the directory that one is in, or
have something else under its name or its inode number. This module repairs that, so that nothing
excluded is lost and the invariants of `ckptfs.fs.exclusion` hold again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ckptfs.fs import Filesystem, clones, inodes, renames
from ckptfs.fs.exclusion import excluded_entries, home_of, is_own
from ckptfs.history.diff.changed import Changed, entry_in, inode_in
from ckptfs.history.paths import directories_above, is_within, path_of
from ckptfs.model import NAME_MAX, ROOT_INO, Ino, Inode, Place
from ckptfs.store import View
from ckptfs.store.format import dirent_entity, link_place, pack_u64

#: Added to the name of a directory of excluded files where a restore has a file of its name.
_SUFFIX = b".excluded"


def keep_excluded(fs: Filesystem, old: View, differing: Changed) -> None:
    """Keep excluded files in the new head where they were in the old one. ``differing`` is what the
    kernel will be notified of; it is corrected."""
    excluded = fs.head.excluded
    if excluded is not None:
        _Rehoming(fs, old, excluded, differing).run()


class _Rehoming:
    def __init__(self, fs: Filesystem, old: View, excluded: View, differing: Changed) -> None:
        self._fs = fs
        self._old = old
        self._excluded = excluded
        self._head = fs.head.bare
        self._differing = differing
        #: Directories of the new head that took over the excluded files of one of the old head.
        self._origins: dict[Ino, Ino] = {}
        #: Names that lead to new numbers.
        self._renumbered: set[Place] = set()

    def run(self) -> None:
        exclusion = self._fs.exclusion
        exclusion.forget_paths()
        self._renumber()
        for directory in list(exclusion.borders):
            if any(excluded_entries(self._fs, self._excluded, directory)):
                exclusion.clear_times(directory)
            else:
                exclusion.drop(directory)
        # A hidden entry may have been a home itself, and a new home may contain hidden entries.
        while self._erase_hidden() or self._rehome_all():
            pass
        self._forget_unseen()
        sift(self._fs, self._differing)

    def _erase_hidden(self) -> bool:
        """Remove entries of the new head that excluded entries hide; True if there were any."""
        fs = self._fs
        places = [
            (directory, name)
            for directory in fs.exclusion.borders
            for name, _ in excluded_entries(fs, self._excluded, directory)
        ]
        erased = [place for place in places if _erase_tree(fs, self._head, place)]
        return bool(erased)

    def _renumber(self) -> None:
        """Renumber inodes of the new head that were excluded since the checkpoint."""
        fs = self._fs
        mine = {ino for ino in self._differing.inodes if is_own(fs, self._excluded, ino)}
        self._differing.inodes.difference_update(mine)
        for ino in mine:
            inode = inode_in(fs.store, self._head, ino)
            if inode is None:
                continue
            if inode.is_dir:
                names = clones.renumber_directory(fs, self._head, ino)
            else:
                names = fs.renumber(self._head, ino)
            self._renumbered.update(names)
        self._differing.entries.update(self._renumbered)

    def _forget_unseen(self) -> None:
        """Drop the notifications of directories that were renumbered and then erased."""
        store = self._fs.store
        for place in self._renumbered:
            views = (self._old, self._head)
            if all(inode_in(store, view, place[0]) is None for view in views):
                self._differing.entries.discard(place)

    # -- directories with excluded entries ---------------------------------------------------------

    def _rehome_all(self) -> bool:
        """Make every border a directory of the new head; True if one was none."""
        moved = [border for border in list(self._fs.exclusion.borders) if self._rehome(border)]
        return bool(moved)

    def _rehome(self, directory: Ino) -> bool:
        there = inode_in(self._fs.store, self._head, directory)
        if there is not None and there.nlink:
            return False
        home = self._home(self._origins.get(directory, directory))
        if home == directory:
            return True
        self._origins[home] = self._origins.get(directory, directory)
        fs, border = self._fs, self._fs.exclusion.drop(directory)
        fs.exclusion.touch(home, 0, subdirs=border.subdirs)
        for name, ino in excluded_entries(fs, self._excluded, directory):
            free = self._free_name(home, name)
            fs.store.dirents.drop(self._excluded, dirent_entity(directory, name))
            fs.store.dirents.put(self._excluded, dirent_entity(home, free), pack_u64(ino))
            clones.moved_along(fs, self._excluded, ino, (directory, name), (home, free))
            self._differing.entries.update(((directory, name), (home, free)))
        return True

    def _home(self, directory: Ino) -> Ino:
        """The directory of the new head for one of the old: the same inode, else the one of the
        same name in its parent, made again if there is none."""
        # Up to one that exists, then down again: trees are deeper than the stack.
        chain: list[Inode] = []
        while (there := inode_in(self._fs.store, self._head, directory)) is None or not there.nlink:
            was = inode_in(self._fs.store, self._old, directory)
            if was is None:
                raise LookupError(f"epoch {self._old.epoch} has no directory {directory}")
            chain.append(was)
            directory = was.parent
        for was in reversed(chain):
            directory = self._in_place(was, directory)
        return directory

    def _in_place(self, was: Inode, above: Ino) -> Ino:
        found = entry_in(self._fs.store, self._head, dirent_entity(above, was.name))
        if found is not None:
            inode = inode_in(self._fs.store, self._head, found)
            if inode is not None and inode.is_dir:
                return found
        return self._make_again(was, above)

    def _make_again(self, was: Inode, above: Ino) -> Ino:
        fs, head = self._fs, self._head
        name = was.name
        if entry_in(fs.store, head, dirent_entity(above, name)) is not None:
            name = self._free_name(above, name + _SUFFIX)
        name = self._free_name(above, name)
        fs.store.dirents.put(head, dirent_entity(above, name), pack_u64(was.ino))
        inodes.save(fs, head, was._replace(parent=above, name=name, nlink=2))
        clones.copy_xattrs(fs, self._old, was.ino, head, was.ino)
        head.inodes += 1
        directory = inodes.load(fs, head, above)
        inodes.save(fs, head, directory._replace(nlink=directory.nlink + 1))
        self._differing.entries.add((above, name))
        self._differing.inodes.update((above, was.ino))
        return was.ino

    def _free_name(self, directory: Ino, name: bytes) -> bytes:
        """The name, or one like it that no excluded entry has."""
        candidate, number = name[:NAME_MAX], 1
        while self._is_taken(directory, candidate, name):
            number += 1
            ending = b"-%d" % number
            candidate = name[: NAME_MAX - len(ending)] + ending
        return candidate

    def _is_taken(self, directory: Ino, candidate: bytes, name: bytes) -> bool:
        entity = dirent_entity(directory, candidate)
        if self._fs.store.dirents.get(self._excluded, entity) is not None:
            return True
        made_up = candidate != name or name.endswith(_SUFFIX)
        return made_up and entry_in(self._fs.store, self._head, entity) is not None


def _erase_tree(fs: Filesystem, view: View, place: Place) -> bool:
    """Remove an entry with all below it from a head that no program has seen; True if it
    existed."""
    if entry_in(fs.store, view, dirent_entity(*place)) is None:
        return False
    # A directory comes before what is in it, and goes after it.
    places = [place]
    for directory, name in places:
        ino = entry_in(fs.store, view, dirent_entity(directory, name))
        if ino is not None and inodes.load(fs, view, ino).is_dir:
            places.extend((ino, child) for child, _ in fs.entries(view, ino))
    for found in reversed(places):
        _erase_entry(fs, view, found)
    return True


def _erase_entry(fs: Filesystem, view: View, place: Place) -> None:
    """Remove a file, or a directory that is empty by now."""
    store = fs.store
    ino = entry_in(store, view, dirent_entity(*place))
    if ino is None:
        return
    inode = inodes.load(fs, view, ino)
    store.dirents.drop(view, dirent_entity(*place))
    directory = inodes.load(fs, view, place[0])
    inodes.save(fs, view, directory._replace(nlink=directory.nlink - int(inode.is_dir)))
    if inode.is_dir or inode.nlink == 1:
        fs.erase(view, inode)
        return
    places = [link_place(entity) for entity, _ in store.links.walk(view, pack_u64(ino))]
    clones.lose_name(fs, view, inode, place, places)


# -- patterns --------------------------------------------------------------------------------------


def sift(fs: Filesystem, changed: Changed) -> None:
    """Exclude entries that came under names that the patterns match."""
    view = fs.head
    if view.excluded is None or not fs.exclusion.patterns:
        return
    for directory, name in sorted(changed.entries):
        ino = entry_in(fs.store, view, dirent_entity(directory, name))
        parent = inode_in(fs.store, view, directory)
        if ino is None or parent is None or not parent.nlink:
            continue
        inode = inodes.load(fs, view.bare, ino)
        if fs.exclusion.matches(fs, view, directory, name, is_dir=inode.is_dir):
            _cross(fs, (directory, name), view.bare, view.excluded, changed)


def apply(fs: Filesystem, patterns: Sequence[str]) -> Changed:
    """Let other patterns hold, for what is there too: what they match leaves history with its next
    checkpoint, what they no longer match is in it from then on. The caller commits and tells the
    kernel."""
    changed = Changed(set(), set())
    if tuple(patterns) == fs.exclusion.patterns:
        return changed
    fs.flush()
    excluded = fs.store.open_excluded(fs.line)
    fs.exclusion.set_patterns(patterns)
    view = fs.head
    for directory in list(fs.exclusion.borders):
        for name, ino in list(excluded_entries(fs, excluded, directory)):
            is_dir = inodes.load(fs, excluded, ino).is_dir
            if not fs.exclusion.matches(fs, view, directory, name, is_dir=is_dir):
                _cross(fs, (directory, name), excluded, view.bare, changed)
    pending = [ROOT_INO]
    while pending:
        directory = pending.pop()
        for name, inode in list(fs.entries(view.bare, directory)):
            if fs.exclusion.matches(fs, view, directory, name, is_dir=inode.is_dir):
                _cross(fs, (directory, name), view.bare, excluded, changed)
            elif inode.is_dir:
                pending.append(inode.ino)
    return changed


def _cross(fs: Filesystem, place: Place, home: View, goal: View, changed: Changed) -> None:
    """Move an entry between history and the excluded epoch. A file with names on both sides becomes
    two."""
    ino = entry_in(fs.store, home, dirent_entity(*place))
    if ino is None:
        return
    top = inodes.load(fs, home, ino)._replace(parent=place[0], name=place[1])
    tree = renames.tree_of(fs, home, ino)
    for number, names in list(renames.torn(fs, home, top, tree)):
        clones.part(fs, home, number, names)
        changed.entries.update(names)
        changed.inodes.add(number)
    ino = entry_in(fs.store, home, dirent_entity(*place))
    if ino is not None:
        top = inodes.load(fs, home, ino)
        renames.cross(fs, fs.head, top, home, goal, renames.tree_of(fs, home, ino))
        changed.inodes.add(place[0])  # its times


# -- what a restore would leave alone --------------------------------------------------------------


def hidden_by_excluded(fs: Filesystem) -> Callable[[bytes], bool]:
    """A function that says whether a path, or a directory above it, is excluded."""
    tops = set(_tops(fs))
    return lambda path: bool(tops) and is_within(path, tops)


def needed_by_excluded(fs: Filesystem) -> set[bytes]:
    """The directories that excluded files are in."""
    needed: set[bytes] = set()
    for path in _tops(fs):
        needed.update(directories_above(path))
    return needed


def _tops(fs: Filesystem) -> list[bytes]:
    """The paths of excluded entries, without what is below them."""
    excluded = fs.head.excluded
    if excluded is None:
        return []
    return [
        path_of(fs.store, fs.head, (directory, name))
        for directory in fs.exclusion.borders
        for name, _ in excluded_entries(fs, excluded, directory)
    ]


def seen_under(fs: Filesystem, places: Iterable[Place]) -> dict[Place, bytes | None]:
    """What the head has under some names, excluded entries included; empty if nothing is
    excluded."""
    if fs.head.excluded is None:
        return {}
    dirents = fs.store.dirents
    return {place: dirents.get(fs.head, dirent_entity(*place)) for place in places}


def is_excluded(fs: Filesystem, path: bytes) -> bool:
    """Whether what is at a path is excluded from history."""
    inode: Inode | None = fs.getattr(fs.head, ROOT_INO)
    for name in path.split(b"/"):
        if inode is None or not inode.is_dir or len(name) > NAME_MAX:
            return False
        inode = fs.seek(fs.head, inode.ino, name)
    return inode is not None and home_of(fs, fs.head, inode.ino) is fs.head.excluded is not None


def would_be_excluded(fs: Filesystem, path: bytes, *, is_dir: bool) -> bool:
    """Whether a new file at a path would be excluded from history."""
    while path:
        if fs.exclusion.matches_path(path, is_dir=is_dir):
            return True
        path, is_dir = path.rpartition(b"/")[0], True
    return False
