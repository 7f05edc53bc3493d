"""Whose a store is: what other users made is not opened, run or written through."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ckptfs import config, errors
from ckptfs.api import workspace as api
from ckptfs.fs import Filesystem
from ckptfs.history import settings
from ckptfs.store import Store, check
from tests.direct import get, put
from tests.support.mounting import HAVE_FUSE, ckptfs, scratch, succeed
from tests.support.peer import NOBODY, STRANGER, peer

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")
UNTRUSTED = errors.StoreUntrusted.exit_code


@pytest.fixture
def base() -> Iterator[Path]:
    with scratch() as made:
        yield made


def _made(path: Path) -> Path:
    fs = Filesystem(Store.create(path))
    put(fs, b"file", b"content")
    fs.commit()
    fs.store.close()
    return path


def _give(path: Path, owner: int) -> None:
    for name in (*path.iterdir(), path):
        os.chown(name, owner, owner, follow_symlinks=False)


def _seen(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """What is in a directory: modes, times of change and bytes."""
    found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(path)}
    found["."] = path.stat()
    return {
        name: (
            now.st_mode,
            now.st_ctime_ns,
            (path / name).read_bytes() if stat.S_ISREG(now.st_mode) else b"",
        )
        for name, now in found.items()
    }


# -- the lock --------------------------------------------------------------------------------------


def _link(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim)


def _pipe(lock: Path, victim: Path) -> None:
    os.mkfifo(lock)


def _second_name(lock: Path, victim: Path) -> None:
    lock.hardlink_to(victim)


def _nothing_there(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim.with_name("absent"))


@pytest.mark.parametrize("plant", [_link, _pipe, _second_name, _nothing_there])
def test_a_planted_lock_is_refused_and_nothing_is_written(
    base: Path, plant: Callable[[Path, Path], None]
) -> None:
    store, victim = _made(base / "store"), base / "victim"
    victim.write_text("precious")
    (store / "lock").unlink()
    plant(store / "lock", victim)
    before = _seen(store)
    done = ckptfs("check", "--store", store, timeout=20)
    assert done.returncode == UNTRUSTED, done.stderr
    assert "lock" in done.stderr and "Nothing was changed" in done.stderr
    assert victim.read_text() == "precious"
    assert not (base / "absent").exists()
    assert _seen(store) == before


def test_a_directory_that_is_no_store_keeps_its_lock_file(base: Path) -> None:
    """A pid in it would be a change, also where the lock file is an innocent one."""
    other = base / "other"
    other.mkdir(mode=0o700)
    (other / "data.mdb").write_bytes(b"not LMDB" * 1000)
    (other / "lock").write_text("a lock of some other program")
    (other / "lock").chmod(0o600)
    before = _seen(other)
    for words in (["check"], ["check", "--repair"], ["export", base / "dest"]):
        done = ckptfs(*words, "--store", other)
        assert done.returncode != 0 and "Nothing was changed" in done.stderr
        assert _seen(other) == before, words


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb", "journal", "heap", "ckptfs.log"])
def test_no_file_of_a_store_is_opened_through_a_link(base: Path, name: str) -> None:
    store, victim = _made(base / "store"), base / "victim"
    victim.write_bytes((store / name).read_bytes() if (store / name).exists() else b"precious")
    content = victim.read_bytes()
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(victim)
    with pytest.raises(errors.StoreUntrusted, match="symbolic link"):
        Store.open(store)
    assert victim.read_bytes() == content


# -- the directory ---------------------------------------------------------------------------------


def test_no_store_is_made_through_a_link(base: Path) -> None:
    """A link where the new store's directory was about to be made: its target keeps its mode."""
    (base / "target").mkdir(mode=0o755)
    (base / "store").symlink_to("target")
    with pytest.raises(errors.StoreUntrusted):
        Store.create(base / "store")
    assert stat.S_IMODE((base / "target").stat().st_mode) == 0o755
    assert os.listdir(base / "target") == []


def test_a_store_that_was_moved_and_linked_is_opened_by_its_own_name(base: Path) -> None:
    Store.create(base / "elsewhere").close()
    (base / "store").symlink_to("elsewhere")
    with pytest.raises(errors.StoreUntrusted) as refused:
        Store.open(base / "store")
    assert f"--store {base / 'elsewhere'}" in str(refused.value.hint)
    Store.open(base / "elsewhere").close()


def test_an_open_store_stays_the_one_that_was_checked(base: Path) -> None:
    """Whoever may write to the directory above puts another one in its place: nothing is written
    there, nor to what its links lead to."""
    fs = Filesystem(Store.open(_made(base / "store")))
    victim = base / "victim"
    victim.write_text("precious")
    (base / "store").rename(base / "moved")
    (base / "store").mkdir(mode=0o700)
    for name in ("journal", "heap", "data.mdb", "data.mdb.compact", "lock", "lock.mdb"):
        (base / "store" / name).symlink_to(victim)
    before = _seen(base / "store")
    with suppress(errors.StoreError):  # it may also see that it was moved, and take no more
        put(fs, b"more", os.urandom(300_000))
        fs.sync()
        put(fs, b"again", b"x")
        fs.sync()
        fs.commit()
        fs.store.compact()
    with suppress(errors.StoreError):
        fs.store.close()
    assert _seen(base / "store") == before
    assert victim.read_text() == "precious"
    fs = Filesystem(Store.open(base / "moved"))
    assert get(fs, b"file") == b"content"
    assert check(fs.store) == []
    fs.store.close()


@AS_ROOT
@pytest.mark.parametrize(
    "words",
    [
        ["check", "--store", "STORE"],
        ["check", "--repair", "--store", "STORE"],
        ["export", "DEST", "--store", "STORE"],
        ["backup", "DEST", "--store", "STORE"],
        ["forget", "--force", "--store", "STORE"],
        ["mount", "WORK", "--store", "STORE"],
    ],
    ids=" ".join,
)
def test_root_does_not_use_the_store_of_another_user(base: Path, words: list[str]) -> None:
    store = _made(base / "store")
    (base / "work").mkdir()
    _give(store, NOBODY)
    before = _seen(store)
    places = {"STORE": store, "DEST": base / "dest", "WORK": base / "work"}
    done = ckptfs(*(places.get(word, word) for word in words), env=_env(base))
    assert done.returncode == UNTRUSTED, done.stdout + done.stderr
    assert "it belongs to nobody" in done.stderr and "--trust-owner" in done.stderr
    assert _seen(store) == before
    assert not (base / "dest").exists()


@AS_ROOT
def test_the_owner_may_be_trusted_by_name_number_or_environment(base: Path) -> None:
    store = _made(base / "store")
    _give(store, NOBODY)
    for words in (["--trust-owner", "nobody"], ["--trust-owner", str(NOBODY)]):
        succeed(ckptfs("check", "--store", store, *words))
        succeed(ckptfs(*words, "check", "--store", store))
    succeed(ckptfs("check", "--store", store, env={"CKPTFS_TRUST_OWNER": f"0,{NOBODY}"}))
    other = ckptfs("check", "--store", store, "--trust-owner", str(STRANGER))
    assert other.returncode == UNTRUSTED
    unknown = ckptfs("check", "--store", store, "--trust-owner", "no such user")
    assert unknown.returncode == errors.UsageError.exit_code


@AS_ROOT
def test_a_trusted_owner_still_cannot_point_elsewhere(base: Path) -> None:
    """A second name of one of root's files, in a directory that is not root's."""
    store, victim = _made(base / "store"), base / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    _give(store, NOBODY)
    (store / "journal").hardlink_to(victim)
    done = ckptfs("check", "--store", store, "--trust-owner", "nobody")
    assert done.returncode == UNTRUSTED and "another name" in done.stderr
    assert victim.read_text() == "precious"


@AS_ROOT
def test_an_ordinary_user_is_told_whose_the_store_is(base: Path) -> None:
    store = _made(base / "store")
    with peer(NOBODY) as nobody:
        assert nobody(_refusal, store).startswith("store-unreadable")
        store.chmod(0o755)
        assert nobody(_refusal, store) == "store-untrusted: it belongs to root"


def _refusal(path: Path) -> str:
    try:
        Store.open(path).close()
    except errors.StoreError as error:
        return f"{error.kind}: {str(error).partition(': ')[2].partition('.')[0]}"
    return "opened"


@AS_ROOT
@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
def test_a_planted_note_of_a_daemon_holds_no_command_up(base: Path) -> None:
    """daemon.json is read before the store is opened; here it is a pipe that nobody writes to."""
    store = _made(base / "store")
    os.mkfifo(store / "daemon.json")
    _give(store, NOBODY)
    done = ckptfs("check", "--store", store, timeout=20)
    assert done.returncode == UNTRUSTED


# -- commands --------------------------------------------------------------------------------------


def _env(base: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(base / "data"), "XDG_CONFIG_HOME": str(base / "config")}


class Plain:
    """A workspace that is a plain directory, with a checkpoint to go back to."""

    def __init__(self, base: Path) -> None:
        self.base, self.path, self.store = base, base / "work", base / "store"
        self.ran = base / "ran"
        self.path.mkdir()
        (self.path / "file").write_text("1")
        succeed(self.cli("mount", self.path, "--store", self.store, "--auto", "off"))
        succeed(self.cli("save", "--tag", "first", "-w", self.path))
        succeed(self.cli("umount", self.path))

    def cli(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return ckptfs(*words, env=_env(self.base))

    def order(self, file: Path) -> Path:
        """Write a file of settings that wants a command to be run."""
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f'[hooks]\non_restore = "touch {self.ran}"\n')
        file.chmod(0o600)
        return file

    def restore(self, *words: str) -> bool:
        """Restore something; whether the command was run."""
        self.ran.unlink(missing_ok=True)
        with open(self.path / "file", "a") as file:
            file.write("more")
        succeed(self.cli("restore", "first", "--force", "-w", self.path, *words))
        assert (self.path / "file").read_text() == "1"
        return self.ran.exists()


@pytest.fixture
def plain(base: Path) -> Plain:
    if not HAVE_FUSE:
        pytest.skip("no /dev/fuse")
    return Plain(base)


@AS_ROOT
def test_no_command_of_another_users_store_is_run(plain: Plain) -> None:
    plain.order(plain.store / settings.FILE)
    assert plain.restore()
    _give(plain.store, NOBODY)
    assert not plain.restore("--trust-owner", "nobody")
    # Root's own change of another setting makes the file root's, and the command not trustworthy.
    words = ["-w", plain.path, "--trust-owner", "nobody"]
    succeed(plain.cli("config", "store.compress", "off", *words))
    assert (plain.store / settings.FILE).stat().st_uid == 0
    assert not plain.restore("--trust-owner", "nobody")
    said = succeed(plain.cli("config", "hooks.on_restore", *words)).stderr
    assert "not run" in said and "belongs to nobody" in said
    plain.order(plain.base / "config" / "ckptfs" / settings.FILE)
    (plain.store / settings.FILE).unlink()
    assert plain.restore("--trust-owner", "nobody"), "the caller's own file still counts"


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_no_command_is_run_of_a_file_that_others_can_write(plain: Plain, mode: int) -> None:
    file = plain.order(plain.base / "config" / "ckptfs" / settings.FILE)
    assert plain.restore()
    file.chmod(mode)
    assert not plain.restore()
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert not plain.restore()


@AS_ROOT
def test_no_command_is_run_of_a_file_that_is_exchanged_for_one_of_roots(base: Path) -> None:
    """Root with the HOME of another user, who has root look at the owner of another directory than
    that whose file is read."""
    (base / "roots").mkdir()
    (base / "roots" / "config.toml").touch(0o600)
    (base / "theirs").mkdir()
    os.chown(base / "theirs", NOBODY, NOBODY)
    file = base / "theirs" / "ckptfs" / "config.toml"
    with peer(NOBODY) as nobody, pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(base / "theirs"))
        nobody(_plant_command, str(base / "theirs"), str(base / "roots"))
        nobody.begin(_exchange_for_a_while, str(base / "theirs"))
        for _ in range(500):
            assert not api.command_of(base / "no store").words
            with suppress(errors.SettingInvalid):  # caught in the middle of it
                assert not settings.load([file]).texts["hooks.on_restore"]
        nobody.finish(30)


def _plant_command(where: str, roots: str) -> None:
    Path(where, "ckptfs").mkdir()
    Path(where, "ckptfs/config.toml").write_text('[hooks]\non_restore = "evil"\n')
    Path(where, "link").symlink_to(roots)


def _exchange_for_a_while(where: str) -> None:
    libc, end = ctypes.CDLL(None), time.monotonic() + 1.5
    at_fdcwd, exchange = -100, 2
    while time.monotonic() < end:
        names = (f"{where}/ckptfs".encode(), f"{where}/link".encode())
        libc.renameat2(at_fdcwd, names[0], at_fdcwd, names[1], exchange)


def test_settings_in_a_pipe_hold_no_command_up(base: Path) -> None:
    os.mkfifo(base / "config.toml")
    assert settings.load([base / "config.toml"]).texts["hooks.on_restore"] == ""


# -- a data directory of another user, as sudo with its HOME has it --------------------------------


class Planted:
    """A data directory of another user, that user's empty workspace, and a store of root's."""

    def __init__(self, base: Path) -> None:
        self.home, self.path = base / "home", base / "home" / "work"
        self.path.mkdir(parents=True)
        self.env = {"XDG_DATA_HOME": str(self.home), "XDG_CONFIG_HOME": str(base / "config")}
        self.secret = _made(base / "secret")
        self.data = self.home / "ckptfs"
        (self.data / "workspaces").mkdir(parents=True)
        _give(self.home, NOBODY)
        _give(self.data, NOBODY)

    def cli(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return ckptfs(*words, env=self.env)

    def entry(self) -> None:
        config.register(config.Workspace(self.path, self.secret), self.env)
        _give(self.data / "workspaces", NOBODY)

    def link(self) -> None:
        link = config.default_store(self.path, self.env)
        link.symlink_to(self.secret)
        os.chown(link, NOBODY, NOBODY, follow_symlinks=False)


@AS_ROOT
def test_an_entry_of_another_users_registry_leads_root_nowhere(base: Path) -> None:
    planted = Planted(base)
    planted.entry()
    before = _seen(planted.secret)
    for words in (["list"], ["undo"], ["export", base / "out"]):
        done = planted.cli(*words, "-w", planted.path)
        assert done.returncode == errors.WorkspaceUnknown.exit_code, done.stdout
    assert _seen(planted.secret) == before
    assert os.listdir(planted.path) == []
    # Who trusts that user goes by its registry.
    succeed(planted.cli("list", "-w", planted.path, "--trust-owner", "nobody"))


@AS_ROOT
@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
@pytest.mark.parametrize("kind", ["entry", "link"])
def test_a_mount_does_not_use_what_another_user_planted(base: Path, kind: str) -> None:
    planted = Planted(base)
    getattr(planted, kind)()
    before = _seen(planted.secret)
    done = planted.cli("mount", planted.path)
    assert os.listdir(planted.path) == []
    if done.returncode == 0:  # with a store of its own
        succeed(planted.cli("umount", planted.path))
    assert _seen(planted.secret) == before
    assert os.listdir(planted.path) == []


@AS_ROOT
def test_the_note_of_a_hook_is_not_left_through_a_link(base: Path) -> None:
    planted = Planted(base)
    (planted.data / "hooks").mkdir()
    (planted.data / "hooks" / "claude").symlink_to(base / "made")
    command = [sys.executable, "-m", "ckptfs", "hook", "--agent", "claude"]
    asked = b'{"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": "/"}'
    env = {**os.environ, **planted.env}
    subprocess.run(command, input=asked, env=env, check=True, capture_output=True)
    assert not (base / "made").exists()
    (base / "made").touch()
    os.utime(base / "made", (1, 1))
    subprocess.run(command, input=asked, env=env, check=True, capture_output=True)
    assert (base / "made").stat().st_mtime == 1
