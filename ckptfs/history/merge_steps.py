"""The steps of a merge, and carrying them out on the head.

What is to be done is decided before (`ckptfs.history.merge_plan`). Everything that gets another
name is first moved out of the way, so that no order of the others has to be found: two names may
have been exchanged.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.fs.inodes import without_set_id
from ckptfs.fs.ranges import Spot
from ckptfs.history.diff.changed import MODE, MODIFIED, OWNER, XATTR, Changed, differences
from ckptfs.history.diff.tree import TreeReader
from ckptfs.history.path_restore import set_xattrs, xattrs_of
from ckptfs.model import ROOT_INO, Attributes, Epoch, Ino, Inode, Place
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH

#: Resolutions. MARKERS keeps both sides: text with markers in it, of anything else ours with theirs
#: beside it.
OURS = "ours"
THEIRS = "theirs"
MARKERS = "markers"
#: The client merged it with a program of its own.
DRIVER = "driver"
UNRESOLVED = ""


class TextPaths(NamedTuple):
    """Where the texts of a conflict are, on each side; ``base`` is empty if there is none."""

    base: bytes
    ours: bytes
    theirs: bytes


class Conflict(NamedTuple):
    """What both sides changed, each in its way. ``path`` is where it is here, or would be;
    ``texts`` says where both are texts."""

    path: bytes
    kind: str
    ours: Inode | None
    theirs: Inode | None
    base: Inode | None
    texts: TextPaths | None = None


# -- steps -----------------------------------------------------------------------------------------


class Directory(NamedTuple):
    """A directory of the result: one of ours, or one of theirs that is made first."""

    ino: Ino
    is_new: bool = False


class Remove(NamedTuple):
    """Take away a name; of a directory only if nothing is left in it."""

    place: Place
    inode: Inode
    path: bytes


class Move(NamedTuple):
    """Give something of ours another place."""

    source: Place
    inode: Inode
    to: Directory
    name: bytes
    path: bytes


class Make(NamedTuple):
    """Put something of theirs, alone, under a free name; or one more name there of the file of ours
    that has its number."""

    inode: Inode
    to: Directory
    name: bytes
    path: bytes
    is_further: bool = False


class Rewrite(NamedTuple):
    """Give a file of ours other bytes: theirs, or those of ``text``. With ``names`` only these, of
    the several that it has, become those of a file of their own, which is like theirs."""

    ours: Inode
    theirs: Inode
    text: bytes | None
    path: bytes
    names: Sequence[Place] = ()


class Describe(NamedTuple):
    """Give something of ours some attributes of theirs."""

    ours: Inode
    theirs: Inode
    aspects: frozenset[str]
    path: bytes


@dataclass
class MergePlan:
    """What a merge does, in the order of its steps, and what it could not decide."""

    removes: list[Remove] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    makes: list[Make] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)
    describes: list[Describe] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    #: How each of them was resolved.
    resolutions: list[str] = field(default_factory=list)
    #: The epochs of the base, of ours and of theirs.
    epochs: tuple[Epoch, Epoch, Epoch] = (NO_EPOCH, NO_EPOCH, NO_EPOCH)
    #: What was at the names that moves leave, as it is called here.
    left: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.removes, self.moves, self.makes, self.rewrites, self.describes))

    @property
    def unresolved(self) -> list[Conflict]:
        pairs = zip(self.conflicts, self.resolutions, strict=True)
        return [conflict for conflict, resolution in pairs if resolution == UNRESOLVED]

    def paths(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """The paths that come, change and go."""
        added = {step.path for step in self.makes} | {step.path for step in self.moves}
        gone = {step.path for step in self.removes} | set(self.left)
        modified = {step.path for step in self.rewrites} | {step.path for step in self.describes}
        modified -= added
        modified |= added & gone
        return sorted(added - gone), sorted(modified), sorted(gone - added)

    def name_results(self, ours: TreeReader) -> None:
        """Once all steps are known, give each the path that its result has, and the conflicts their
        order."""
        names = _ResultNames(self, ours)
        self.left = [ours.path(move.source) for move in self.moves]
        pairs = zip(self.conflicts, self.resolutions, strict=True)
        decided = sorted(pairs, key=lambda pair: pair[0].path)
        self.conflicts = [conflict for conflict, _ in decided]
        self.resolutions = [resolution for _, resolution in decided]
        self.moves = [step._replace(path=names.at(step.to, step.name)) for step in self.moves]
        self.makes = [step._replace(path=names.at(step.to, step.name)) for step in self.makes]
        self.rewrites = [step._replace(path=names.of(step.path)) for step in self.rewrites]
        self.describes = [step._replace(path=names.of(step.path)) for step in self.describes]


class _ResultNames:
    """The paths that a plan results in."""

    def __init__(self, plan: MergePlan, ours: TreeReader) -> None:
        self._ours = ours
        self._moved = {ours.path(move.source): (move.to, move.name) for move in plan.moves}
        self._made = {make.inode.ino: make for make in plan.makes if make.inode.is_dir}
        self._known: dict[bytes, bytes] = {b"": b""}

    def at(self, to: Directory, name: bytes) -> bytes:
        names = [name]
        return _joined(self.of(self._up(to, names)), names)

    def of(self, path: bytes) -> bytes:
        """What becomes of a path of ours."""
        asked, names = path, list[bytes]()
        while path not in self._known:
            if path in self._moved:
                to, name = self._moved[path]
                names.append(name)
                path = self._up(to, names)
            else:
                path, _, name = path.rpartition(b"/")
                names.append(name)
        self._known[asked] = _joined(self._known[path], names)
        return self._known[asked]

    def _up(self, to: Directory, names: list[bytes]) -> bytes:
        """The path of the directory of ours that ``to`` is or is made in; in between are the names
        that are added, the lowest first."""
        while to.is_new:
            names.append(self._made[to.ino].name)
            to = self._made[to.ino].to
        return self._ours.directory_path(to.ino)


def _joined(above: bytes, names: list[bytes]) -> bytes:
    """A path and names below it, the lowest first."""
    return b"/".join([above, *reversed(names)] if above else reversed(names))


# -- carrying them out -----------------------------------------------------------------------------


@contextmanager
def _named(path: bytes) -> Iterator[None]:
    """Have an error say which path it is about."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


@contextmanager
def _named_below(directory: bytes) -> Iterator[None]:
    """The same where an error has the name in a directory, or is about the directory itself."""
    try:
        yield
    except OSError as error:
        name = error.filename
        error.filename = os.path.join(directory, name) if name else directory or None
        raise


#: A directory in the root for what is on its way to another name; gone at the end.
_ASIDE = b".ckptfs-merge"


#: What makes more of a program than its owner's rights to it.
_SET_ID = stat.S_ISUID | stat.S_ISGID
_CAPABILITY = b"security.capability"


class _Rights(NamedTuple):
    uid: int
    gid: int
    set_id: int
    capability: bytes


class Carrier:
    """Carries a plan out. ``changed`` collects what the kernel has to be notified of."""

    def __init__(self, fs: Filesystem, theirs: View, changed: Changed) -> None:
        self._fs = fs
        self._theirs = theirs.bare
        self._changed = changed
        #: Directories that were made, and files that were copied, by their numbers there.
        self._made: dict[Ino, Ino] = {}
        self._copied: dict[Ino, Ino] = {}

    def carry_out(self, plan: MergePlan) -> None:
        fs = self._fs
        fs.resized -= {ino for ino in fs.resized if not fs.is_used(ino)}
        touched = self._touched(plan)
        for rewrite in interrupts.checked(plan.rewrites):
            self._rewrite(rewrite)
        fs.flush_copies()
        for describe in interrupts.checked(plan.describes):
            self._describe(describe)
        for ino, allowed in touched.items():
            if self._rights(self._fs.head, ino) not in allowed:
                self._drop_rights(ino)
        aside = self._move_aside(plan.moves)
        self._remove_all(plan.removes)
        directories = [make for make in plan.makes if make.inode.is_dir]
        for make in directories:
            with _named(make.path):
                self._make_directory(make)
        for number, move in enumerate(plan.moves):
            with _named(move.path):
                self._place(move, (aside, b"%d" % number))
        if plan.moves:
            self._fs.rmdir(self._fs.head, ROOT_INO, self._aside_name)
        self._make_files(plan.makes)
        for make in directories:
            self._set_attributes(self._made[make.inode.ino], make.inode)

    # -- names ------------------------------------------------------------------------------------

    def _move_aside(self, moves: list[Move]) -> Ino:
        if not moves:
            return Ino(0)
        fs, self._aside_name = self._fs, _ASIDE
        while fs.seek(fs.head, ROOT_INO, self._aside_name) is not None:
            self._aside_name += b"-"
        aside = fs.mkdir(fs.head, ROOT_INO, self._aside_name, 0o700, 0, 0).ino
        for number, move in enumerate(moves):
            fs.rename(fs.head, *move.source, aside, b"%d" % number, 0)
            self._note(move.source, move.inode.ino)
        return aside

    def _place(self, move: Move, source: Place) -> None:
        to = self._number_of(move.to)
        self._fs.rename(self._fs.head, *source, to, move.name, 0)
        self._note((to, move.name), move.inode.ino)

    def _remove_all(self, removes: list[Remove]) -> None:
        """Files first, then the directories that are empty by then, the deepest first."""
        fs = self._fs
        for step in interrupts.checked(removes):
            if not step.inode.is_dir:
                fs.unlink(fs.head, *step.place)
                self._note(step.place, step.inode.ino)
        directories = [step for step in removes if step.inode.is_dir]
        for step in sorted(directories, key=lambda step: -step.path.count(b"/")):
            try:
                fs.rmdir(fs.head, *step.place)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                self._note(step.place, step.inode.ino)

    def _make_directory(self, make: Make) -> None:
        fs, like = self._fs, make.inode
        to = self._number_of(make.to)
        made = fs.mkdir(fs.head, to, make.name, like.mode, like.uid, like.gid)
        self._made[like.ino] = made.ino
        self._note((to, make.name))

    def _make_files(self, makes: list[Make]) -> None:
        """Most of them many at once, the others one by one: a further name may be one of those."""
        rest, simple = [], dict[Directory, list[Make]]()
        for make in makes:
            if self._is_simple(make.inode) and make.inode.nlink == 1:
                simple.setdefault(make.to, []).append(make)
            elif not make.inode.is_dir:
                rest.append(make)
        for to, made in interrupts.checked(simple.items()):
            self._make_simple(to, made)
        self._fs.flush_copies()
        for make in interrupts.checked(rest):
            with _named(make.path):
                self._make_file(make)

    def _is_simple(self, inode: Inode) -> bool:
        """Whether it can be copied without a look at what else is there."""
        fs = self._fs
        return fs.head.excluded is None and fs.is_simple(self._theirs, inode)

    def _make_simple(self, to: Directory, makes: list[Make]) -> None:
        number = self._number_of(to)
        files = [(make.inode, make.name) for make in makes]
        with _named_below(os.path.dirname(makes[0].path)):
            self._fs.insert_copies(self._theirs, self._fs.head, number, files)
        self._changed.inodes.add(number)
        self._changed.entries.update((number, make.name) for make in makes)

    def _make_file(self, make: Make) -> None:
        """A copy that shares their blocks; a further name of what is here already is a link."""
        like = make.inode
        known = self._copied.get(like.ino)
        if known is None and make.is_further and self._is_here(like.ino):
            known = like.ino
        self._put(like, (self._number_of(make.to), make.name), known)

    def _put(self, like: Inode, place: Place, known: Ino | None) -> Ino:
        """Put a copy of a file of theirs under a free name, or a name of the one that is known."""
        fs = self._fs
        self._note(place)
        if known is not None:
            fs.link(fs.head, known, *place)
            return known
        made = fs.clone(self._theirs, like.ino, fs.head, *place).ino
        self._copied.setdefault(like.ino, made)
        self._stamp(made)
        return made

    def _is_here(self, ino: Ino) -> bool:
        """Whether a file of ours still has a name."""
        try:
            return self._fs.getattr(self._fs.head, ino).nlink > 0
        except OSError:
            return False

    def _number_of(self, directory: Directory) -> Ino:
        return self._made[directory.ino] if directory.is_new else directory.ino

    # -- bytes and attributes ---------------------------------------------------------------------

    def _rewrite(self, step: Rewrite) -> None:
        """In place, so that it stays the same file, whatever names it has. Writing gives it the
        time of the merge."""
        fs, ino = self._fs, step.ours.ino
        if step.names:
            self._part(step)
            return
        if fs.is_used(ino):
            fs.resized.add(ino)
        if step.text is not None:
            self._overwrite(ino, step.text)
        elif self._is_simple(step.theirs):
            fs.overwrite_with(self._theirs, step.theirs, fs.head, ino)
        else:
            fs.setattr(fs.head, ino, Attributes(size=0))
            done = 0
            while done < step.theirs.size:
                source = Spot(self._theirs, step.theirs.ino, done)
                done += fs.copy_range(source, Spot(fs.head, ino, done), step.theirs.size - done)
        self._changed.inodes.add(ino)

    def _part(self, step: Rewrite) -> None:
        """Give some names of a file one of their own."""
        fs, made = self._fs, None
        for place in step.names:
            fs.unlink(fs.head, *place)
            made = self._put(step.theirs, place, made)
        self._changed.inodes.add(step.ours.ino)
        if made is not None and step.text is not None:
            self._overwrite(made, step.text)
            self._drop_rights(made)

    def _overwrite(self, ino: Ino, text: bytes) -> None:
        fs = self._fs
        fs.setattr(fs.head, ino, Attributes(size=0))
        fs.write(fs.head, ino, 0, text)

    def _stamp(self, ino: Ino) -> None:
        """A file that the merge brought is new to programs that go by times, as make does."""
        self._fs.setattr(self._fs.head, ino, Attributes(mtime_ns=self._fs.clock()))

    def _describe(self, step: Describe) -> None:
        fs, theirs = self._fs, step.theirs
        wanted = Attributes(
            mode=theirs.mode if MODE in step.aspects else None,
            uid=theirs.uid if OWNER in step.aspects else None,
            gid=theirs.gid if OWNER in step.aspects else None,
        )
        if {MODE, OWNER} & step.aspects:
            fs.setattr(fs.head, step.ours.ino, wanted, keep_set_id=True)
        if XATTR in step.aspects:
            self._set_xattrs(step.ours.ino, theirs.ino)
        self._changed.inodes.add(step.ours.ino)

    # -- rights -----------------------------------------------------------------------------------
    #
    # Owner, set-id bits, capabilities and bytes belong together: set-id bits that a user gave his
    # own program must not come to stand on a file that is root's by now, nor root's on his bytes.

    def _touched(self, plan: MergePlan) -> dict[Ino, list[_Rights]]:
        """The files that change, each with the rights that its bytes will have on one side."""
        bare = self._fs.head.bare
        found: dict[Ino, list[_Rights]] = {}
        for describe in plan.describes:
            ours, theirs = describe.ours, describe.theirs
            if ours.is_file:
                found[ours.ino] = [self._rights(bare, ours.ino)]
                if MODIFIED not in differences(self._fs, bare, ours, self._theirs, theirs):
                    found[ours.ino].append(self._rights(self._theirs, theirs.ino))
        for rewrite in plan.rewrites:
            if rewrite.names or not self._may_have_rights(rewrite):
                continue
            whose = [self._rights(self._theirs, rewrite.theirs.ino)] if rewrite.text is None else []
            found[rewrite.ours.ino] = whose
        return found

    def _may_have_rights(self, step: Rewrite) -> bool:
        """Whether a file may have more than its owner's rights when it is rewritten."""
        modes = step.ours.mode | step.theirs.mode
        return bool(modes & _SET_ID) or self._fs.store.xattrs_used

    def _rights(self, view: View, ino: Ino) -> _Rights:
        fs = self._fs
        inode = fs.getattr(view, ino)
        has_capability = fs.store.xattrs_used and _CAPABILITY in fs.listxattr(view, ino)
        capability = fs.getxattr(view, ino, _CAPABILITY) if has_capability else b""
        return _Rights(inode.uid, inode.gid, inode.mode & _SET_ID, capability)

    def _drop_rights(self, ino: Ino) -> None:
        """What a write does to them."""
        fs = self._fs
        rights = self._rights(fs.head, ino)
        if rights.set_id:
            mode = without_set_id(fs.getattr(fs.head, ino).mode)
            fs.setattr(fs.head, ino, Attributes(mode=mode))
        if rights.capability:
            fs.removexattr(fs.head, ino, _CAPABILITY)

    def _set_attributes(self, ino: Ino, like: Inode) -> None:
        fs = self._fs
        wanted = Attributes(mode=like.mode, uid=like.uid, gid=like.gid)
        fs.setattr(fs.head, ino, wanted, keep_set_id=True)
        self._set_xattrs(ino, like.ino)

    def _set_xattrs(self, ino: Ino, like: Ino) -> None:
        set_xattrs(self._fs, ino, xattrs_of(self._fs, self._theirs, like))

    def _note(self, place: Place, *inodes: Ino) -> None:
        self._changed.entries.add(place)
        self._changed.inodes.update((place[0], *inodes))
