"""Deciding a merge: what another line changed since a base, against what this one did.

Three views: the *base*, where the lines parted; *ours*, the head that is merged into; *theirs*.
Both sides are compared with the base by the `changes` index, so the cost is what was written since.
What only they changed is taken; what both changed alike is done; the rest are conflicts, which are
data: each has a path and a kind, and a *resolution* says what becomes of it. Nothing is written
here: the result is a list of steps, which `ckptfs.history.merge` carries out.

A directory is the same wherever a side moved it, a file is what has its name or its inode
(`ckptfs.history.diff.tree`): so what they put into a directory goes where ours has moved that to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ckptfs import interrupts, textmerge
from ckptfs.fs import Filesystem
from ckptfs.history.diff.changed import MODIFIED, TARGET, TIMES, TYPE
from ckptfs.history.diff.changed import differences as differences_of
from ckptfs.history.diff.tree import RENAMED, Change
from ckptfs.history.forks import is_left_out, left_out
from ckptfs.history.merge_sides import UNTOUCHED, Ours, Sides
from ckptfs.history.merge_steps import (
    DRIVER,
    MARKERS,
    OURS,
    THEIRS,
    Conflict,
    Describe,
    Directory,
    Make,
    MergePlan,
    Move,
    Remove,
    Rewrite,
    TextPaths,
)
from ckptfs.history.paths import is_within
from ckptfs.model import NAME_MAX, ROOT_INO, Ino, Inode, Place
from ckptfs.store import View

#: Kinds of conflicts; those of attributes are called as in `diff.changed`.
CONTENT = "content"
BINARY = "binary"
ADDED = "added"
DELETED_HERE = "deleted here"
DELETED_THERE = "deleted there"
RENAMED_BOTH = "renamed"
#: Something that is kept out of history is in the way; it always stays.
EXCLUDED = "excluded"

#: Says what becomes of a conflict; UNRESOLVED leaves what is here as it is.
Decide = Callable[[Conflict], str]


class Planner:
    """Goes through what they changed. ``beside`` is what MARKERS puts behind the name of what is
    theirs where both stay; ``contents`` are texts that the client merged, by path, for DRIVER and
    for MARKERS."""

    def __init__(
        self,
        fs: Filesystem,
        base: View,
        theirs: View,
        decide: Decide,
        labels: textmerge.Labels,
        beside: bytes,
        paths: Iterable[bytes] = (),
        contents: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._fs = fs
        self._decide = decide
        self._labels = labels
        self._beside = beside
        self._paths = set(paths)
        self._left_out = left_out(fs.store, fs.head.epoch, theirs.epoch)
        self._contents = contents or {}
        self.plan = MergePlan(epochs=(base.epoch, fs.head.epoch, theirs.epoch))
        self._sides = Sides(fs, base.bare, fs.head.bare, theirs.bare)
        #: By its path there, where in the base it was what they moved.
        self._arrivals: dict[bytes, bytes] = {}
        #: Directories of theirs and what they are in the result; None is nothing.
        self._directories: dict[Ino, Directory | None] = {ROOT_INO: Directory(ROOT_INO)}
        #: What those that are made are called.
        self._new_paths: dict[Ino, bytes] = {}
        #: Names of ours that the plan frees, and those that it takes.
        self._freed: set[Place] = set()
        self._taken: set[tuple[Directory, bytes]] = set()
        #: Directories of ours that go, and names of theirs that came.
        self._removed: set[Ino] = set()
        self._came: set[Place] = set()
        #: Directories of the base that we moved, and that stay though they removed them.
        self._kept: set[bytes] = set()
        #: Pairs of files that were decided, for those with several names.
        self._compared: set[tuple[Ino, Ino]] = set()
        #: Names of ours, of files with several, that get a file of their own.
        self._split: set[Place] = set()
        #: What they put where something was that both moved to one place.
        self._replacing: list[tuple[bytes, Inode]] = []
        #: Directories that became something else, to be decided when it is known what goes.
        self._of_another_type: list[tuple[Change, Ours, Inode]] = []

    def make(self) -> MergePlan:
        wanted = [change for change in self._sides.changes if self._wants(change)]
        self._arrivals = {
            change.path: change.source
            for change in wanted
            if change.source is not None and RENAMED in change.kinds
        }
        # What became a directory comes before what they moved into it.
        for change in interrupts.checked(sorted(wanted, key=lambda each: TYPE not in each.kinds)):
            if change.source is not None and change.new is not None:
                self._altered(change, change.source, change.new)
        for change in interrupts.checked(wanted):
            if change.source is not None and change.new is None:
                self._deleted(change, change.source)
        for change, was, theirs in self._of_another_type:
            self._retyped(change, was, theirs)
        self._keep_directories()
        self._settle_moves()
        for change in interrupts.checked(wanted):
            if change.source is None and change.new is not None:
                self._added(change.path, change.new)
        for path, theirs in self._replacing:
            self._added(path, theirs)
        self.plan.name_results(self._sides.our_tree)
        return self.plan

    def _wants(self, change: Change) -> bool:
        if is_left_out(self._left_out, change):
            return False
        if not self._paths:
            return True
        own = (change.path, change.source, self._sides.path_here(change))
        return any(path is not None and is_within(path, self._paths) for path in own)

    def _resolve(self, conflict: Conflict) -> str:
        resolution = self._decide(conflict)
        self.plan.conflicts.append(conflict)
        self.plan.resolutions.append(resolution)
        return resolution

    # -- changed by them --------------------------------------------------------------------------

    def _altered(self, change: Change, source: bytes, theirs: Inode) -> None:
        ours = self._sides.ours_of(source)
        if ours.inode is None:
            if theirs.is_dir and RENAMED not in change.kinds:
                return  # its attributes alone
            conflict = Conflict(change.path, DELETED_HERE, None, theirs, change.old)
            if self._resolve(conflict) in (THEIRS, MARKERS):
                self._bring_back(change.path, theirs)
            return
        if theirs.ino != ours.inode.ino and self._sides.both_moved(ours):
            self._replacing.append((change.path, theirs))
            return
        if TYPE in change.kinds or TYPE in ours.kinds:
            if ours.inode.is_dir:
                self._of_another_type.append((change, ours, theirs))
            else:
                self._retyped(change, ours, theirs)
            return
        if RENAMED in change.kinds:
            self._renamed(change, ours, theirs)
        self._compare(change, ours, ours.inode, theirs)

    def _bring_back(self, path: bytes, theirs: Inode) -> None:
        """Put back what is gone here, a directory with all that they have in it and that is not to
        be moved there."""
        pending = [(path, theirs)]
        while pending:
            at, inode = pending.pop()
            self._added(at, inode)
            if inode.is_dir:
                for name, child in self._fs.entries(self._sides.theirs, inode.ino):
                    below = at + b"/" + name
                    source = self._arrivals.get(below)
                    if source is None or self._sides.ours_of(source).inode is None:
                        pending.append((below, child))

    def _retyped(self, change: Change, ours: Ours, theirs: Inode) -> None:
        """A file became a link, or the like."""
        if ours.inode is None or not self._sides.differ(ours.inode, theirs):
            return
        if ours.kinds or self._has_more(ours.inode):
            conflict = Conflict(ours.path, TYPE, ours.inode, theirs, change.old)
            resolution = self._resolve(conflict)
            if resolution == MARKERS:
                self._put_beside(ours.place[0], ours.place[1], theirs)
            if resolution != THEIRS:
                return
        self._remove_tree(ours.place, ours.inode)
        self._added(change.path, theirs)

    def _has_more(self, inode: Inode) -> bool:
        """Whether a directory of ours holds something that they did not remove."""
        found = [inode]
        for directory in found:
            for name, child in (
                self._fs.entries(self._sides.head, directory.ino) if directory.is_dir else ()
            ):
                if child.is_dir:
                    found.append(child)
                elif (directory.ino, name) not in self._freed:
                    return True
        return False

    def _keep_directories(self) -> None:
        """Directories that they removed stay for what else is in them here."""
        removed = [step for step in self.plan.removes if step.inode.is_dir]
        kept = set()
        for step in sorted(removed, key=lambda step: step.path.count(b"/"), reverse=True):
            if not self._is_emptied(step.inode.ino):
                kept.add(step.place)
                self._freed.discard(step.place)
                self._removed.discard(step.inode.ino)
        if kept:
            self.plan.removes = [step for step in self.plan.removes if step.place not in kept]

    def _is_emptied(self, directory: Ino) -> bool:
        """Whether nothing stays in a directory of ours, nor something that is kept out of
        history."""
        children = self._fs.entries(self._fs.head, directory)
        return all((directory, name) in self._freed for name, _ in children)

    def _renamed(self, change: Change, ours: Ours, theirs: Inode) -> None:
        place = self._sides.place(self._sides.theirs, change.path)
        to, name = self._directory(place[0]), place[1]
        if to is None or ours.inode is None:
            return
        if ours.place in self._freed:
            return  # it went back there, out of the way of that directory
        if (to, name) == (Directory(ours.place[0]), ours.place[1]):
            return
        if RENAMED in ours.kinds:
            conflict = Conflict(ours.path, RENAMED_BOTH, ours.inode, theirs, change.old)
            if self._resolve(conflict) != THEIRS:
                return
        self._freed.add(ours.place)
        self.plan.moves.append(Move(ours.place, ours.inode, to, name, self._path_at(to, name)))

    # -- moves ------------------------------------------------------------------------------------

    def _settle_moves(self) -> None:
        """Decide the moves whose place is taken, or inside of what is moved; one that is not made
        keeps its old place, which another may have counted on."""
        settled = False
        while not settled:
            settled = True
            for move in list(self.plan.moves):
                if self._leads_into_itself(move):
                    conflict = Conflict(self._path_of(move), RENAMED_BOTH, move.inode, None, None)
                    self._unmove(move, conflict)
                    settled = False
                    continue
                if self._is_barred(move.to, move.name, move.inode):
                    self._keep_place(move)
                    settled = False
                    continue
                occupant = self._occupant(move.to, move.name)
                if occupant is None:
                    continue
                if occupant.ino == move.inode.ino:
                    self._drop_name(move)
                elif self._make_way(move, occupant):
                    settled = False
        self._taken.update((move.to, move.name) for move in self.plan.moves)

    def _make_way(self, move: Move, occupant: Inode) -> bool:
        """Decide about what is where something is to be moved; whether that changed the moves."""
        conflict = Conflict(move.path, ADDED, occupant, move.inode, None)
        resolution = self._resolve(conflict)
        if resolution == THEIRS:
            return self._clear((move.to.ino, move.name), occupant)
        if resolution == MARKERS:
            self.plan.moves.remove(move)
            beside = self._free_name(move.to, move.name)
            path = self._path_at(move.to, beside)
            self.plan.moves.append(move._replace(name=beside, path=path))
            self._taken.add((move.to, beside))
            return True
        self._keep_place(move)
        return True

    def _drop_name(self, move: Move) -> None:
        """The file has the other name already."""
        self.plan.moves.remove(move)
        self.plan.removes.append(Remove(move.source, move.inode, self._path_of(move)))

    def _unmove(self, move: Move, conflict: Conflict) -> None:
        resolution = self._decide(conflict) and OURS
        self.plan.conflicts.append(conflict)
        self.plan.resolutions.append(resolution)
        self._keep_place(move)

    def _keep_place(self, move: Move) -> None:
        self.plan.moves.remove(move)
        self._freed.discard(move.source)

    def _path_of(self, move: Move) -> bytes:
        return self._sides.our_tree.path(move.source)

    def _leads_into_itself(self, move: Move) -> bool:
        """Whether a directory would be in itself, since we moved the one that they move it to."""
        if not move.inode.is_dir:
            return False
        moved = {each.inode.ino: each.to for each in self.plan.moves}
        made = {each.inode.ino: each.to for each in self.plan.makes}
        at, seen = move.to, set[Directory]()
        while at.ino not in (ROOT_INO, Ino(0)) and at not in seen:
            if at == Directory(move.inode.ino):
                return True
            seen.add(at)
            further = (made if at.is_new else moved).get(at.ino)
            if further is None:
                inode = self._sides.our_tree.inode(at.ino)
                further = Directory(Ino(0) if inode is None else inode.parent)
            at = further
        return False

    # -- bytes and attributes ---------------------------------------------------------------------

    def _compare(self, change: Change, ours: Ours, mine: Inode, theirs: Inode) -> None:
        """Bytes and attributes, each by itself."""
        if (mine.ino, theirs.ino) in self._compared:
            return
        self._compared.add((mine.ino, theirs.ino))
        base = change.old
        wanted = change.kinds - {RENAMED, TIMES}
        if MODIFIED in wanted:
            self._merge_bytes(change, ours, mine, theirs)
        if ours.place in self._split:
            return
        rest = wanted - {MODIFIED}
        taken = {each for each in rest if self._takes(each, ours, mine, theirs, base)}
        if TARGET in taken:
            self._remove(ours)
            self._make(theirs, Directory(ours.place[0]), ours.place[1])
        elif taken:
            self.plan.describes.append(Describe(mine, theirs, frozenset(taken), ours.path))

    def _takes(
        self, aspect: str, ours: Ours, mine: Inode, theirs: Inode, base: Inode | None
    ) -> bool:
        """Whether an attribute becomes theirs."""
        if aspect not in ours.kinds:
            return True
        if aspect not in self._sides.differ(mine, theirs):
            return False
        resolution = self._resolve(Conflict(ours.path, aspect, mine, theirs, base))
        return resolution == THEIRS

    def _merge_bytes(self, change: Change, ours: Ours, mine: Inode, theirs: Inode) -> None:
        if MODIFIED not in ours.kinds:
            self._rewrite(change.old, mine, theirs, ours.place, ours.path)
            return
        if MODIFIED not in self._sides.differ(mine, theirs):
            return
        at = TextPaths(change.source or b"", ours.path, change.path)
        self._merge_texts(change.old, mine, theirs, ours.place, ours.path, at)

    def _rewrite(
        self,
        base: Inode | None,
        mine: Inode,
        theirs: Inode,
        place: Place,
        path: bytes,
        text: bytes | None = None,
    ) -> None:
        """Give a file of ours other bytes. Where they have other files under some of its several
        names, only the names of theirs get them, as those of a file of its own."""
        names: list[Place] = []
        if mine.nlink > 1 and not self._sides.is_one(mine, theirs, is_new=base is None):
            places = self._sides.our_tree.places(mine)
            names = [at for at in places if at == place or self._sides.there(at) == theirs.ino]
            self._split.update(names)
        self.plan.rewrites.append(Rewrite(mine, theirs, text, path, names))

    def _merge_texts(
        self,
        base: Inode | None,
        mine: Inode,
        theirs: Inode,
        place: Place,
        path: bytes,
        at: TextPaths,
    ) -> None:
        """Merge two files by lines; without a base everything that differs is a conflict."""
        texts = self._sides.texts(base, mine, theirs)
        kind = ADDED if base is None else BINARY if texts is None else CONTENT
        if texts is not None:
            chunks = textmerge.merge(*texts)
            if base is not None and not textmerge.has_conflicts(chunks):
                merged = textmerge.text_of(chunks, self._labels)
                self._rewrite(base, mine, theirs, place, path, merged)
                return
        known = None if texts is None else at
        resolution = self._resolve(Conflict(path, kind, mine, theirs, base, known))
        if resolution == THEIRS:
            self._rewrite(base, mine, theirs, place, path)
        elif resolution in (DRIVER, MARKERS) and path in self._contents:
            self._rewrite(base, mine, theirs, place, path, self._contents[path])
        elif resolution == MARKERS and texts is not None:
            merged = textmerge.text_of(textmerge.merge(*texts), self._labels)
            self._rewrite(base, mine, theirs, place, path, merged)
        elif resolution == MARKERS:
            self._put_beside(place[0], place[1], theirs)

    # -- deleted by them --------------------------------------------------------------------------

    def _deleted(self, change: Change, source: bytes) -> None:
        ours = self._sides.ours_of(source)
        if ours.inode is None or change.old is None or is_within(source, self._kept):
            return
        if change.old.is_dir != ours.inode.is_dir:
            return  # we have put something else there
        if RENAMED in ours.kinds if ours.inode.is_dir else ours.kinds:
            conflict = Conflict(ours.path, DELETED_THERE, ours.inode, None, change.old)
            if self._resolve(conflict) != THEIRS:
                if ours.inode.is_dir:
                    self._kept.add(source)
                return
        self._remove(ours)

    def _remove(self, ours: Ours) -> None:
        if ours.inode is not None and ours.place not in self._freed:
            self._freed.add(ours.place)
            if ours.inode.is_dir:
                self._removed.add(ours.inode.ino)
            self.plan.removes.append(Remove(ours.place, ours.inode, ours.path))

    # -- added by them ----------------------------------------------------------------------------

    def _added(self, path: bytes, theirs: Inode) -> None:
        place = self._sides.place(self._sides.theirs, path)
        if place in self._came:
            return
        self._came.add(place)
        if theirs.is_dir:
            self._directory(theirs.ino)
            return
        to, name = self._directory(place[0]), place[1]
        if to is None:
            return
        occupant = self._occupant(to, name)
        if occupant is None:
            if not self._is_barred(to, name, theirs):
                self._make(theirs, to, name)
        elif (
            occupant.ino == theirs.ino
            and (was := self._sides.base_tree.inode(theirs.ino)) is not None
        ):
            self._link_both(was, occupant, theirs, (to.ino, name), path)
        elif self._sides.differ(occupant, theirs):
            self._add_both(occupant, theirs, to, name, path)

    def _link_both(
        self, was: Inode, occupant: Inode, theirs: Inode, place: Place, path: bytes
    ) -> None:
        """Both made a further name of one file, which had another in the base."""
        source = self._sides.base_tree.path((was.parent, was.name))
        done = differences_of(self._fs, self._sides.base, was, self._sides.head, occupant)
        ours = Ours(occupant, place, self._sides.our_tree.path(place), done)
        changed = differences_of(self._fs, self._sides.base, was, self._sides.theirs, theirs)
        self._compare(Change(path, source, changed, was, theirs), ours, occupant, theirs)

    def _add_both(
        self, occupant: Inode, theirs: Inode, to: Directory, name: bytes, path: bytes
    ) -> None:
        """Both made something of one name."""
        place = (to.ino, name)
        if occupant.is_file and theirs.is_file and self._sides.elsewhere(place, occupant) is None:
            self._add_files(occupant, theirs, place, path)
            return
        resolution = self._resolve(
            Conflict(self._sides.our_tree.path(place), ADDED, occupant, theirs, None)
        )
        if resolution == THEIRS:
            self._clear(place, occupant)
            self._make(theirs, to, name)
        elif resolution == MARKERS:
            self._put_beside(to.ino, name, theirs)

    def _add_files(self, occupant: Inode, theirs: Inode, place: Place, path: bytes) -> None:
        """Both made a file of one name."""
        if (occupant.ino, theirs.ino) in self._compared:
            return
        self._compared.add((occupant.ino, theirs.ino))
        here = self._sides.our_tree.path(place)
        aspects = self._sides.differ(occupant, theirs)
        if MODIFIED in aspects:
            at = TextPaths(b"", here, path)
            self._merge_texts(None, occupant, theirs, place, here, at)
        if place in self._split:
            return
        ours = Ours(occupant, place, here, aspects)
        rest = aspects - {MODIFIED}
        taken = {aspect for aspect in rest if self._takes(aspect, ours, occupant, theirs, None)}
        if taken:
            self.plan.describes.append(Describe(occupant, theirs, frozenset(taken), here))

    def _occupant(self, to: Directory, name: bytes) -> Inode | None:
        """What of ours stays under a name."""
        if to.is_new or (to.ino, name) in self._freed:
            return None
        return self._sides.our_tree.inode(self._sides.our_tree.entry((to.ino, name)))

    def _is_barred(self, to: Directory, name: bytes, theirs: Inode) -> bool:
        """Whether something that is kept out of history has the name."""
        found = self._excluded(to, name)
        if found is None:
            return False
        self.plan.conflicts.append(Conflict(self._path_at(to, name), EXCLUDED, found, theirs, None))
        self.plan.resolutions.append(OURS)
        return True

    def _excluded(self, to: Directory, name: bytes) -> Inode | None:
        if to.is_new or self._fs.head.excluded is None:
            return None
        found = self._fs.seek(self._fs.head, to.ino, name)
        return found if found is not None and self._fs.is_excluded(found.ino) else None

    def _make(self, theirs: Inode, to: Directory, name: bytes) -> None:
        if (to, name) in self._taken:
            name = self._free_name(to, name)
        self._taken.add((to, name))
        path = self._path_at(to, name)
        if theirs.is_dir:
            self._new_paths[theirs.ino] = path
        self.plan.makes.append(Make(theirs, to, name, path, self._is_further(theirs)))

    def _is_further(self, theirs: Inode) -> bool:
        """Whether a name that they added is one more of a file of ours that has what they did to
        it."""
        if not self._sides.is_further(theirs):
            return False
        was = self._sides.base_tree.inode(theirs.ino)
        if (theirs.ino, theirs.ino) in self._compared or was is None:
            return True
        base, there = self._sides.base, self._sides.theirs
        return MODIFIED not in differences_of(self._fs, base, was, there, theirs)

    def _path_at(self, to: Directory, name: bytes) -> bytes:
        """Where a name in a directory of the result is here, or would be."""
        if not to.is_new:
            return self._sides.our_tree.path((to.ino, name))
        return self._new_paths[to.ino] + b"/" + name

    def _put_beside(self, directory: Ino, name: bytes, theirs: Inode) -> None:
        """Keep what is theirs under another name."""
        to = Directory(directory)
        self._make(theirs, to, self._free_name(to, name))
        if theirs.is_dir:
            self._directories[theirs.ino] = Directory(theirs.ino, is_new=True)

    def _free_name(self, to: Directory, name: bytes) -> bytes:
        number = 0
        while True:
            mark = b"~" + self._beside + (b"~%d" % number if number else b"")
            found = name[: NAME_MAX - len(mark)] + mark
            if not self._is_taken(to, found) and self._excluded(to, found) is None:
                return found
            number += 1

    def _clear(self, place: Place, occupant: Inode) -> bool:
        """Take what is ours out of the way of what is theirs: what they have, too, and only we gave
        this name, goes back to theirs; anything else goes. Whether it was moved."""
        if self._go_back(place, occupant):
            return True
        self._remove_tree(place, occupant)
        return False

    def _go_back(self, place: Place, inode: Inode) -> bool:
        """Move something of ours, which only we gave its name, to where they have it."""
        there = self._sides.elsewhere(place, inode)
        to = None if there is None else self._directory(there[0])
        if there is None or to is None:
            return False
        name = there[1]
        if self._is_taken(to, name) or self._excluded(to, name) is not None:
            name = self._free_name(to, name)
        move = Move(place, inode, to, name, self._path_at(to, name))
        if self._leads_into_itself(move):
            return False
        self._freed.add(place)
        self._taken.add((to, name))
        self.plan.moves.append(move)
        return True

    def _is_taken(self, to: Directory, name: bytes) -> bool:
        return (to, name) in self._taken or self._occupant(to, name) is not None

    def _remove_tree(self, place: Place, inode: Inode) -> None:
        """Take away what is ours with all that is in it; what they have elsewhere, and only we put
        there, goes back to them."""
        found = []
        pending = [(place, inode)]
        while pending:
            at, each = pending.pop()
            if at in self._freed and each.ino not in self._removed:
                continue  # it is moved away, with what is in it
            if at != place and self._go_back(at, each):
                continue
            found.append((at, each))
            if each.is_dir:
                children = self._fs.entries(self._sides.head, each.ino)
                pending += [((each.ino, name), child) for name, child in children]
        for at, each in reversed(found):
            self._remove(Ours(each, at, self._sides.our_tree.path(at), UNTOUCHED))

    # -- directories ------------------------------------------------------------------------------

    def _directory(self, ino: Ino) -> Directory | None:
        """What a directory of theirs is in the result; one that ours lacks is made. None if
        something of ours is in its place and stays."""
        chain: list[Inode] = []
        while ino not in self._directories:
            base = self._sides.to_base.of(ino)
            here = None if base is None else self._sides.to_ours.of(base)
            if here is not None and here not in self._removed:
                self._directories[ino] = Directory(here)
                break
            inode = self._sides.their_tree.inode(ino)
            if inode is None:
                raise LookupError(f"epoch {self._sides.theirs.epoch} has no directory {ino}")
            chain.append(inode)
            ino = inode.parent
        found = self._directories[ino]
        for inode in reversed(chain):
            found = None if found is None else self._make_directory(inode, found)
            self._directories[inode.ino] = found
        return found

    def _make_directory(self, inode: Inode, to: Directory) -> Directory | None:
        if self._is_barred(to, inode.name, inode):
            return None
        occupant = self._occupant(to, inode.name)
        if occupant is not None and occupant.is_dir:
            return Directory(occupant.ino)
        if occupant is not None:
            conflict = Conflict(self._path_at(to, inode.name), ADDED, occupant, inode, None)
            resolution = self._resolve(conflict)
            if resolution == THEIRS:
                self._make(inode, to, inode.name)
                # First: what goes out of its way may go into it.
                self._directories[inode.ino] = Directory(inode.ino, is_new=True)
                self._clear((to.ino, inode.name), occupant)
                return Directory(inode.ino, is_new=True)
            if resolution == MARKERS:
                self._put_beside(to.ino, inode.name, inode)
                return Directory(inode.ino, is_new=True)
            return None
        self._make(inode, to, inode.name)
        return Directory(inode.ino, is_new=True)
