"""Where things live: the data directory, a workspace's store, its socket, its log, the registry.

With `locating` the only module that reads the user's environment. It computes paths and keeps the
registry (which store belongs to which workspace); it never opens a store, and looks at mounts only
for a path of which the registry knows nothing, as in a sandbox.
Every client command imports it, so it stays with a few cheap modules of the standard library.

Layout below the data directory, ``$XDG_DATA_HOME/ckptfs`` or ``~/.local/share/ckptfs``:

    workspaces/<name>.json      {"v": 1, "workspace": PATH, "store": PATH}, one per workspace, with
                                "directory", what the file system calls it, to know it again
    <slug>-<hash>/              the store of a workspace that was mounted without --store
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ckptfs import locating
from ckptfs.errors import StoreMissing, WorkspaceUnknown

#: A log file is rotated at this size, and this many old ones are kept.
LOG_BYTES = 1_000_000
LOG_KEEP = 3

_SLUG_MAX = 40


class Workspace(NamedTuple):
    """A workspace and the store that holds it. Both paths are absolute and free of symlinks."""

    path: Path
    store: Path
    #: 0 for the workspace itself, else the number of the fork that ``path`` is.
    line: int = 0

    @property
    def log(self) -> Path:
        return self.store / "ckptfs.log"

    @property
    def daemon(self) -> Path:
        """What the running daemon says about itself; see `ckptfs.control.runtime`."""
        return self.store / "daemon.json"

    @property
    def forks(self) -> Path:
        """Where forks are mounted that have no place of their own."""
        return self.store / "forks"

    @property
    def socket(self) -> Path:
        """The control socket; `ckptfs.unixsocket` connects to it however long its path is."""
        return Path(locating.socket_of(str(self.store)))


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of everything that ckptfs keeps for this user.

    A relative ``XDG_DATA_HOME`` is ignored, as the XDG specification asks.
    """
    return Path(locating.data_dir(environ))


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where what is under way is noted for this user alone, such as a team's restore."""
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home(environ), ".local", "state")
    return Path(base) / "ckptfs"


def settings_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's settings for all workspaces; a store's own file overrides them."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home(environ), ".config")
    return Path(base) / "ckptfs" / "config.toml"


def open_settings(file: Path) -> tuple[BinaryIO, str]:
    """A file of settings, and why a command that it wants is not run; empty if only the caller or
    root can have written it. Raises OSError.

    The directory counts as well: its owner can put any file there, one of the caller's, too. Both
    are looked at by descriptor: who may rename above could show others than those that are read.
    """
    above = os.open(file.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # It may be anything, even a pipe without a writer.
        fd = os.open(file.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        reason = _distrust(file, fd) or _distrust(file.parent, above)
    finally:
        os.close(above)
    return open(fd, "rb"), reason


def _distrust(path: Path, fd: int) -> str:
    found = os.fstat(fd)
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {locating.user_name(found.st_uid)}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {path}"
    return ""


def team_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The default place of the state of teams of agents: as ClawTeam has it."""
    return Path(environ.get("CLAWTEAM_DATA_DIR") or os.path.join(home(environ), ".clawteam"))


def home(environ: Mapping[str, str] = os.environ) -> str:
    """The user's home directory, from HOME or else from the system's list of users."""
    return locating.home(environ)


def default_store(workspace: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The store of ``workspace`` when none is named: readable, and unique by the whole path."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in workspace.name)
    slug = kept.strip("-")[:_SLUG_MAX] or "workspace"
    return data_dir(environ) / f"{slug}-{locating.digest(os.fsencode(workspace))}"


def free_store(workspace: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The same for a workspace that begins: another place if a workspace that was moved away from
    this path still has its store there."""
    default = default_store(workspace, environ)
    taken = {other.store for other in known(environ) if other.path != workspace}
    count = 1
    place = default
    while place in taken:
        count += 1
        place = default.with_name(f"{default.name}-{count}")
    return place


def resolve(path: str | os.PathLike[str]) -> Path:
    """Absolute and without symlinks; the path need not exist, and a dead mount may be in it.

    Where nothing on the way is a link, no file system is asked for attributes: that of a mountpoint
    whose daemon is busy would answer late.
    """
    whole = os.path.join(os.getcwd(), path)
    if ".." not in whole.split("/"):
        plain = Path("/" + whole.lstrip("/"))
        if not any(_is_link(part) for part in (plain, *plain.parents)):
            return plain
    return Path(os.path.realpath(path))


def _is_link(path: Path) -> bool:
    try:
        os.readlink(path)
    except OSError:
        return False
    return True


def register(
    workspace: Workspace, environ: Mapping[str, str] = os.environ, *, directory: str | None = None
) -> None:
    """Remember which store belongs to the workspace. Replaces an older answer in one step.

    ``directory`` is `locating.directory_id` of it; the entry that it had before it was moved goes.
    """
    entry = _registry_entry(workspace.path, environ)
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"v": 1, "workspace": str(workspace.path), "store": str(workspace.store)}
    known_as = {} if directory is None else {"directory": directory}
    write_atomically(entry, json.dumps({**record, **known_as}).encode() + b"\n")
    if directory is not None:
        _forget_former(workspace, directory, environ)


def _forget_former(workspace: Workspace, directory: str, environ: Mapping[str, str]) -> None:
    for other, noted in list(_entries(environ)):
        same = other.store == workspace.store and other.path != workspace.path
        if same and (noted == directory or is_gone(other.path)):
            forget(other.path, environ)


def forget(path: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Take a workspace out of the registry; its store stays."""
    _registry_entry(path, environ).unlink(missing_ok=True)


def registered(path: Path, environ: Mapping[str, str] = os.environ) -> Workspace | None:
    """What the registry says about exactly this resolved path; the store may be gone by now."""
    store = locating.store_of(str(path), environ)
    return None if store is None else Workspace(path, Path(store))


def lookup(path: Path, environ: Mapping[str, str] = os.environ) -> Workspace | None:
    """The workspace at exactly this resolved path, if it is known."""
    workspace = registered(path, environ)
    if workspace is not None and os.path.isdir(workspace.store):
        return _covering(workspace) or workspace
    by_default = _in_default_place(path, environ)
    if by_default is not None:
        return _covering(by_default) or by_default
    return mounted(path) or workspace


def mounted(path: Path, *, above: bool = False) -> Workspace | None:
    """The workspace of this user that is mounted at this resolved path, or ``above`` it, whatever
    the registry knows: a sandbox may have nothing but the mount."""
    from ckptfs import control_file  # late: the registry mostly knows

    find_mount = control_file.mount_around if above else control_file.mount_at
    mount = find_mount(str(path))
    if mount is None or not mount.is_whole:
        return None
    return Workspace(Path(mount.path), Path(mount.store), mount.line)


def _covering(workspace: Workspace) -> Workspace | None:
    """Another workspace, or a fork, that is mounted at the same path here, as a sandbox may have
    it."""
    seen = mounted(workspace.path)
    if seen is None or seen == workspace or not os.path.isdir(seen.store):
        return None
    return seen


def known(environ: Mapping[str, str] = os.environ) -> Iterator[Workspace]:
    """Every registered workspace, in no order that means anything."""
    return (workspace for workspace, _ in _entries(environ))


def moved(path: Path, environ: Mapping[str, str] = os.environ) -> Workspace | None:
    """The workspace that this directory was before it was moved here, if it was one."""
    directory = locating.directory_id(str(path))
    if directory is None:
        return None
    for other, noted in _entries(environ):
        if noted == directory and other.path != path and os.path.exists(other.store / "data.mdb"):
            return other
    return None


def _entries(environ: Mapping[str, str]) -> Iterator[tuple[Workspace, str | None]]:
    """Every registered workspace, and what the file system called its directory."""
    try:
        entries = sorted((data_dir(environ) / "workspaces").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            record = locating.read_entry(str(entry), environ)
            found = Workspace(Path(record["workspace"]), Path(record["store"]))
            yield found, record.get("directory")
        except (OSError, ValueError, KeyError, TypeError):
            continue


def find(here: Path, environ: Mapping[str, str] = os.environ) -> Workspace:
    """The workspace that the resolved path ``here`` lies in: the nearest known one, going up.

    An entry whose store is gone does not hide a workspace further up, but is named if it is all
    there is. The default places are tried last: they cost a digest for every level.
    """
    upward = (here, *here.parents)
    entries = [entry for path in upward if (entry := registered(path, environ)) is not None]
    seen = mounted(here, above=True)
    if seen is not None and seen.line:
        # A fork is in no registry, and may be mounted anywhere, in another workspace, too.
        entries = [entry for entry in entries if seen.path in entry.path.parents]
        if not entries:
            return seen
    for entry in entries:
        if os.path.isdir(entry.store):
            return _covering(entry) or entry
    for path in upward:
        workspace = _in_default_place(path, environ)
        if workspace is not None:
            return _covering(workspace) or workspace
    if seen is not None:
        return seen
    if entries:
        raise StoreMissing(entries[0].store)
    raise WorkspaceUnknown(here, above=True)


def open_directory(path: Path) -> int:
    """An O_PATH descriptor of a directory by a resolved path. No component may be a link: a user
    who may rename there could have put one since, to lead root elsewhere."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return open_each(os.open("/", flags), path.parts[1:], flags)


def open_each(fd: int, names: Iterable[str | bytes], flags: int) -> int:
    """Open names one by one, each in the directory before; ``fd`` and those between are closed."""
    for name in names:
        try:
            inner = os.open(name, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a small file so that a reader sees the old or the new content, never a part."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    # A file or link that another process put there in advance is not written to.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        os.write(descriptor, content)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def is_gone(path: Path) -> bool:
    """Whether nothing stands at a path; what cannot be looked at is there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # a dead mount, or not ours to see
    return False


def _in_default_place(path: Path, environ: Mapping[str, str]) -> Workspace | None:
    """A workspace whose registry entry was lost, found by the store that its path leads to."""
    store = default_store(path, environ)
    if not os.path.exists(store / "data.mdb"):
        return None
    if any(other.store == store and other.path != path for other in known(environ)):
        return None  # that workspace was moved away from here
    return Workspace(path, store)


def _registry_entry(path: Path, environ: Mapping[str, str]) -> Path:
    return Path(locating.registry_entry(str(path), environ))
