"""Import and export: a whole tree into the head, or out of a view, with no memory of it afterwards.

Neither keeps a ledger. Import only reads its source; export only writes below a destination that
was empty.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from ckptfs import config, errors
from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.store import View
from ckptfs.sync import lay, lower
from ckptfs.sync.descent import Descent, count_entries, descend, directory_at
from ckptfs.sync.frames import TEMP_PREFIX
from ckptfs.sync.intake import Intake, agrees
from ckptfs.sync.leaf import Leaf
from ckptfs.sync.lower import tame
from ckptfs.sync.results import ExportResult, ImportResult, Tally, Watcher, is_fatal, reason_of
from ckptfs.sync.scan import RESERVED

# -- import ----------------------------------------------------------------------------------------


def import_tree(
    fs: Filesystem, source: Path, *, into: Ino = ROOT_INO, progress: Watcher | None = None
) -> ImportResult:
    """Fill a directory of the head from another directory, as ``cp -a`` would, and commit.

    What both have is overwritten, but a file never replaces a directory nor the reverse: the one
    from the source then comes in beside it.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.SourceMissing(source, reason_of(error).lower()) from error
    try:
        tally = Tally(progress, count_entries(fd) if progress is not None else None)
        with descend(fd) as down:
            _Import(Intake(fs, tally), down, tally).run(into)
    finally:
        os.close(fd)
        fs.new_entries.flush()  # also if it failed: others will look for what came in
    fs.commit()
    return tally.result()


class _Filled:
    """A directory of the store that is being filled from one below."""

    __slots__ = ("fresh", "place", "seen", "top", "waiting")

    def __init__(self, place: Ino, seen: os.stat_result, *, fresh: bool, top: bool) -> None:
        self.place = place
        self.seen = seen
        #: Empty when the import came to it, so nothing in it can be in the way.
        self.fresh = fresh
        self.top = top
        self.waiting: list[tuple[bytes, os.stat_result]] = []


class _Import:
    def __init__(self, intake: Intake, down: Descent, tally: Tally) -> None:
        self.intake = intake
        self.down = down
        self.tally = tally

    def run(self, into: Ino) -> None:
        fs, view = self.intake.fs, self.intake.view
        empty = next(iter(fs.entries(view, into)), None) is None
        top = _Filled(into, lower.look_into(self.down.fd), fresh=empty, top=into == ROOT_INO)
        frames = [top]
        self._list(top)
        while frames:
            frame = frames[-1]
            if frame.waiting:
                inner = self._enter(frame, *frame.waiting.pop())
                if inner is not None:
                    frames.append(inner)
                    self._list(inner)
            else:
                self._finish(frame)
                frames.pop()
                if frames:
                    self.down.leave()

    def _list(self, frame: _Filled) -> None:
        try:
            for name, entry in lower.entries_in(self.down.fd):
                self._look(frame, name, entry)
        except OSError as error:
            if is_fatal(error):
                raise
            self.tally.skip(self.down.path(), error)

    def _look(self, frame: _Filled, name: bytes, entry: os.DirEntry[str]) -> None:
        self.tally.step()
        if self._pass_over(frame, name):
            return
        try:
            if entry.is_file(follow_symlinks=False):
                leaf = Leaf(self.down.fd, name)
            else:
                seen = tame(entry.stat(follow_symlinks=False))
                if stat.S_ISDIR(seen.st_mode):
                    frame.waiting.append((name, seen))
                    return
                leaf = Leaf(self.down.fd, name, seen)
            with leaf:
                self._take(frame, leaf)
        except OSError as error:
            if is_fatal(error):
                raise
            self.tally.skip(self.down.path(name), error)
        self.intake.commit_if_large()

    def _pass_over(self, frame: _Filled, name: bytes) -> bool:
        if frame.top and name == RESERVED:
            reason = "the name belongs to the workspace's own directory of checkpoints"
        elif name.startswith(TEMP_PREFIX):
            reason = "unfinished file of a ckptfs store"
        else:
            return False
        self.tally.skip(self.down.path(name), reason)
        return True

    def _take(self, frame: _Filled, leaf: Leaf) -> None:
        intake, name = self.intake, leaf.name
        present = None if frame.fresh else intake.find(frame.place, name)
        if present is None:
            intake.add(leaf, frame.place, name, fresh=frame.fresh)
            self.tally.added += 1
        elif present.is_dir:
            kept = intake.free_name(frame.place, name, self.down.fd)
            intake.add(leaf, frame.place, kept)
            self.tally.added += 1
            self.tally.conflict(self.down.path(name), intake.path(frame.place, kept))
        elif self._is_there(leaf, present):
            self.tally.unchanged += 1
        else:
            intake.replace(leaf, frame.place, name, present)
            self.tally.modified += 1

    def _is_there(self, leaf: Leaf, present: Inode) -> bool:
        """Whether the store has the very same already, so that nothing needs writing."""
        intake = self.intake
        same = (
            agrees(leaf.seen, present)
            and intake.digest(present) == leaf.digest
            and intake.xattrs(present) == leaf.xattrs
        )
        if not same or leaf.seen.st_nlink == 1:
            return same and present.nlink == 1
        group = intake.groups.get(leaf.identity)
        if group is None:
            intake.join_group(leaf.seen, present)
        return group is None or group.ino == present.ino

    def _enter(self, frame: _Filled, name: bytes, seen: os.stat_result) -> _Filled | None:
        present = None if frame.fresh else self.intake.find(frame.place, name)
        if seen.st_dev != self.down.device:
            self.tally.skip(self.down.path(name), "another file system is mounted here")
            if present is None:
                self._make(frame, name, seen)
            return None
        try:
            seen = self.down.enter(name)
        except OSError as error:
            if is_fatal(error):
                raise
            self.tally.skip(self.down.path(name), error)
            return None
        if present is not None and present.is_dir:
            return _Filled(present.ino, seen, fresh=False, top=False)
        kept = name
        if present is not None:
            kept = self.intake.free_name(frame.place, name)
            self.tally.conflict(self.down.path(), self.intake.path(frame.place, kept))
        return _Filled(self._make(frame, kept, seen).ino, seen, fresh=True, top=False)

    def _make(self, frame: _Filled, name: bytes, seen: os.stat_result) -> Inode:
        self.tally.added += 1
        return self.intake.make_directory(frame.place, name, seen, fresh=frame.fresh)

    def _finish(self, frame: _Filled) -> None:
        """A directory that the import filled takes the attributes too; one that had content of its
        own keeps what it has."""
        if frame.fresh:
            inode = self.intake.fs.getattr(self.intake.view, frame.place)
            xattrs = lower.user_xattrs(self.down.fd)
            self.intake.dress_filled(inode, frame.seen, xattrs)


# -- export ----------------------------------------------------------------------------------------


def export_tree(
    fs: Filesystem, view: View, dest: Path, *, progress: Watcher | None = None
) -> ExportResult:
    """Write a whole view into a directory that is absent or empty."""
    fs.flush()
    fd = _open_destination(dest, fs.getattr(view, ROOT_INO).uid)
    try:
        tally = Tally(progress, view.inodes)
        with descend(fd) as down:
            _Export(fs, view, down, tally).run()
    finally:
        os.close(fd)
    return tally.result()


def _open_destination(dest: Path, uid: int) -> int:
    """The directory to write to, which is empty: that one, whatever its name becomes. ``uid`` is
    who will own it if it has to be made."""
    path = Path(os.path.realpath(dest.parent)) / dest.name
    try:
        above = config.open_directory(path.parent)
        try:
            return _open_empty(above, os.fsencode(path.name), uid)
        finally:
            os.close(above)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise errors.DestinationInvalid(dest) from None
        raise errors.DestinationInvalid(dest, reason_of(error).lower()) from error


def _open_empty(above: int, name: bytes, uid: int) -> int:
    with suppress(FileExistsError):
        lower.make_directory(above, name, uid)
    fd = lower.open_directory(above, name)
    if lower.names_in(fd):
        os.close(fd)
        raise OSError(errno.ENOTEMPTY, "it is not empty")
    return fd


#: Why a hard link may be impossible where a copy is not; ESTALE: it is no longer there.
_NO_LINK = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOENT, errno.ESTALE)


class _Export:
    def __init__(self, fs: Filesystem, view: View, down: Descent, tally: Tally) -> None:
        self.fs = fs
        self.view = view
        self.down = down
        self.tally = tally
        #: The first path of each inode with several names, and what was written there.
        self._first: dict[Ino, tuple[tuple[bytes, ...], tuple[int, int]]] = {}

    def run(self) -> None:
        root = self.fs.getattr(self.view, ROOT_INO)
        frames = [(root, self._list(root))]
        while frames:
            inode, waiting = frames[-1]
            if waiting:
                name, inner = waiting.pop()
                if self._enter(name, inner):
                    frames.append((inner, self._list(inner)))
            else:
                self._dress(inode)
                frames.pop()
                if frames:
                    self.down.leave()

    def _list(self, directory: Inode) -> list[tuple[bytes, Inode]]:
        """Write the files of a directory; return the directories in it."""
        waiting = []
        for name, inode in self.fs.entries(self.view, directory.ino):
            if inode.is_dir:
                waiting.append((name, inode))
                continue
            try:
                self._put(name, inode)
                self.tally.added += 1
            except OSError as error:
                self._skip(error, name)
            self.tally.step()
        return waiting

    def _skip(self, error: OSError, *name: bytes) -> None:
        if is_fatal(error):
            raise error
        self.tally.skip(self.down.path(*name), error)

    def _put(self, name: bytes, inode: Inode) -> None:
        if inode.nlink > 1 and self._link(name, inode):
            return
        try:
            laid = lay.lay(self.fs, self.view, inode, self.down.fd, name)
        except FileExistsError:
            raise  # it is not ours
        except BaseException:
            lower.discard(self.down.fd, name)
            raise
        if not laid.whole:
            self.tally.skip(self.down.path(name), lay.NO_SET_ID)
        if inode.is_file:
            self.tally.bytes += inode.size
        if inode.nlink > 1:
            path = (*self.down.names, name)
            self._first.setdefault(inode.ino, (path, laid.identity))

    def _link(self, name: bytes, inode: Inode) -> bool:
        first = self._first.get(inode.ino)
        if first is None:
            return False
        path, made = first
        try:
            with directory_at(self.down.root_fd, path[:-1]) as source:
                lower.link(source, path[-1], made, self.down.fd, name)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def _enter(self, name: bytes, inode: Inode) -> bool:
        self.tally.step()
        try:
            lower.make_directory(self.down.fd, name, inode.uid)
            self.down.enter_new(name)
        except OSError as error:
            self._skip(error, name)
            return False
        self.tally.added += 1
        return True

    def _dress(self, inode: Inode) -> None:
        try:
            lay.dress(self.fs, self.view, inode, self.down.fd)
        except OSError as error:
            self._skip(error)
