"""The two trees of a comparison, and which directory of one is which of the other.

A comparison looks things up in both views again and again; a `Side` remembers what it saw. Nothing
here decides what is reported: `ckptfs.history.diff` does.
"""

from __future__ import annotations

from ckptfs.history.touched import entry_in, inode_in
from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.format import dirent_entity, link_place, pack_u64

#: A directory and a name in it.
Place = tuple[Ino, bytes]

#: What the parent of the root is called in its inode.
_NOWHERE = Ino(0)


class Side:
    """One view, as far as it was looked at. An inode without a name counts as absent."""

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self.view = view.bare
        self._inodes: dict[Ino, Inode | None] = {}
        self._paths: dict[Ino, bytes] = {ROOT_INO: b""}

    def inode(self, ino: Ino | None) -> Inode | None:
        if ino is None:
            return None
        if ino not in self._inodes:
            found = inode_in(self._store, self.view, ino)
            self._inodes[ino] = found if found is not None and found.nlink else None
        return self._inodes[ino]

    def entry(self, place: Place) -> Ino | None:
        return entry_in(self._store, self.view, dirent_entity(*place))

    def places(self, inode: Inode) -> list[Place]:
        """Every name of an inode."""
        places = [(inode.parent, inode.name)]
        if not inode.is_dir and inode.nlink > 1:
            further = self._store.links.walk(self.view, pack_u64(inode.ino))
            places += [link_place(entity) for entity, _ in further]
        return places

    def path(self, place: Place) -> bytes:
        """The path of a place, relative to the root."""
        directory, name = place
        above = self._directory_path(directory)
        return above + b"/" + name if above else name

    def _directory_path(self, ino: Ino) -> bytes:
        below = []
        while ino not in self._paths:
            inode = self._inodes.get(ino) or inode_in(self._store, self.view, ino)
            if inode is None:
                raise LookupError(f"epoch {self.view.epoch} has no directory {ino}")
            below.append((ino, inode.name))
            ino = inode.parent
        path = self._paths[ino]
        for directory, name in reversed(below):
            path = path + b"/" + name if path else name
            self._paths[directory] = path
        return path


class Partners:
    """Which directory over there is a directory of here.

    The same inode, if it is there too: then it was moved at most. Else what stands in the same
    place, if that in turn is not here: a directory that was removed and made again is still the
    same to whoever looks at paths.
    """

    def __init__(self, here: Side, there: Side) -> None:
        self._here = here
        self._there = there
        self._known: dict[Ino, Ino | None] = {_NOWHERE: None}

    def of(self, ino: Ino) -> Ino | None:
        """The partner of a directory that is here, or None."""
        # Up to one that is known, then down again: trees are deeper than the stack.
        chain: list[Inode] = []
        while ino not in self._known:
            if self._there.inode(ino) is not None:
                self._known[ino] = ino
                break
            inode = self._here.inode(ino)
            if inode is None:
                raise LookupError(f"epoch {self._here.view.epoch} has no directory {ino}")
            chain.append(inode)
            ino = inode.parent
        partner = self._known[ino]
        for inode in reversed(chain):
            partner = None if partner is None else self._in_place((partner, inode.name))
            self._known[inode.ino] = partner
        return partner

    def _in_place(self, place: Place) -> Ino | None:
        found = self._there.inode(self._there.entry(place))
        if found is None or not found.is_dir or self._here.inode(found.ino) is not None:
            return None
        return found.ino
