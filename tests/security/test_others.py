"""What other users can see and do: nothing without --allow-other, else what the modes say."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import errors
from ckptfs.store import Store
from tests.support.errnos import fails
from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed, workspace
from tests.support.peer import NOBODY, peer
from tests.support.trees import File, plant

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Workspace]:
    with workspace("--allow-other", "--no-write-back") as made:
        plant(made.path, {"open": File("o", 0o644), "secret": File("s", 0o600), "dir": {"f": "x"}})
        succeed(made.cli("save", "x", "-w", made.path))
        yield made


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _latest(made: Workspace) -> Path:
    number = succeed(made.cli("list", "-n", "1", "-w", made.path)).stdout.split()[0]
    return made.path / ".checkpoints" / number


def test_without_allow_other_no_other_user_sees_anything() -> None:
    with workspace("--no-write-back") as made, peer(NOBODY) as nobody:
        (made.path / "file").write_text("x")
        for what in (os.listdir, os.stat):
            with fails(errno.EACCES):
                nobody(what, str(made.path / ".checkpoints"))
        with fails(errno.EACCES):
            nobody(_read, made.path / "file")


def test_a_checkpoint_shows_a_file_to_those_who_may_read_it(shared: Workspace) -> None:
    then = _latest(shared)
    with peer(NOBODY) as nobody:
        assert nobody(_read, then / "open") == b"o"
        with fails(errno.EACCES):
            nobody(_read, then / "secret")


def test_history_keeps_the_modes_of_then(shared: Workspace) -> None:
    """Closing a file today closes it from today on; docs/SECURITY.md says what else there is."""
    then = _latest(shared)
    (shared.path / "open").chmod(0)
    try:
        with peer(NOBODY) as nobody:
            with fails(errno.EACCES):
                nobody(_read, shared.path / "open")
            assert nobody(_read, then / "open") == b"o"
            # Closing the workspace closes its history.
            shared.path.chmod(0o700)
            with fails(errno.EACCES):
                nobody(_read, then / "open")
    finally:
        shared.path.chmod(0o755)
        (shared.path / "open").chmod(0o644)


def test_only_the_owner_changes_history(shared: Workspace) -> None:
    then = _latest(shared)
    shared.path.chmod(0o777)
    try:
        with peer(NOBODY) as nobody:
            with fails(errno.EACCES):
                nobody(os.rmdir, str(then))
            with fails(errno.EACCES):
                nobody(os.mkdir, str(then.parent / "mine"))
            for change in ("open", "dir/f"):
                with fails(errno.EROFS, errno.EACCES):
                    nobody(os.unlink, str(then / change))
    finally:
        shared.path.chmod(0o755)
    assert then.exists()


def test_not_even_the_owner_of_the_directory_deletes_a_checkpoint(shared: Workspace) -> None:
    """The workspace's root may belong to another user than the one who mounted it."""
    then = _latest(shared)
    os.chown(shared.path, NOBODY, NOBODY)
    try:
        with peer(NOBODY) as nobody, fails(errno.EPERM):
            nobody(os.rmdir, str(then))
    finally:
        os.chown(shared.path, 0, 0)
    assert then.exists()


@pytest.mark.parametrize("server", ["on", "off"])
def test_control_files_are_for_users_who_may_save_in_the_same_directory(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFS_SERVER", server)
    with workspace("--allow-other", "--no-write-back") as made, peer(NOBODY) as nobody:
        history = made.path / ".checkpoints"
        made.path.chmod(0o777)
        for name in (".mark", ".step"):
            with fails(errno.EACCES):
                nobody(_write, history / name)
        with fails(errno.EACCES):
            nobody(os.mkdir, str(history / "mine"))
        assert nobody(_read, history / ".mark") == b"0\n"
        with fails(errno.EACCES):
            nobody(_read, history / ".step")
        os.chown(made.path, NOBODY, NOBODY)
        nobody(os.mkdir, str(history / "mine"))
        nobody(_write, history / ".mark")
        nobody(_write, history / ".step")
        assert nobody(_read, history / ".mark") == b"2\n"


def _write(path: Path) -> None:
    path.write_text("x")


def _say(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(path)
        client.sendall(b'{"v":1,"op":"status","args":{}}\n')
        return client.recv(100)


def test_the_socket_hears_its_owner_alone(shared: Workspace) -> None:
    """Also when its modes are opened: the kernel says who is at the other end."""
    address = shared.store / "control.sock"
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    with peer(NOBODY) as nobody:
        with fails(errno.EACCES):
            nobody(_say, str(address))
        shared.store.chmod(0o755)
        address.chmod(0o777)
        try:
            heard = _reply_or_nothing(nobody, str(address))
        finally:
            address.chmod(0o600)
            shared.store.chmod(0o700)
    assert heard == b""
    assert b"result" in _say(str(address))


def _reply_or_nothing(nobody: object, address: str) -> bytes:
    try:
        return nobody(_say, address)  # type: ignore[operator, no-any-return]
    except (ConnectionError, BrokenPipeError):
        return b""


def test_everything_in_a_store_is_the_owners_alone(shared: Workspace) -> None:
    assert stat.S_IMODE(shared.store.stat().st_mode) == 0o700
    for entry in os.scandir(shared.store):
        assert not entry.stat().st_mode & 0o077, entry.name


@pytest.mark.parametrize(("name", "mode"), [("", 0o722), ("", 0o720), ("data.mdb", 0o622)])
def test_a_store_that_others_can_write_to_is_refused(name: str, mode: int) -> None:
    with scratch() as base:
        path = base / "store"
        Store.create(path).close()
        (path / name).chmod(mode)
        with pytest.raises(errors.StoreExposed):
            Store.open(path)
        (path / name).chmod(0o700)
        Store.open(path).close()


def test_no_shell_sees_a_name(shared: Workspace) -> None:
    """Names that a shell would take for commands are names, wherever they turn up."""
    name = "$(touch pwned) `touch pwned`; touch pwned #"
    (shared.path / name).write_text("x")
    for words in (["save", name], ["log", name], ["restore", "latest", name, "--force"]):
        shared.cli(*words, "-w", shared.path)
    subprocess.run(["true"], check=True)
    assert "pwned" not in os.listdir(shared.path)
    assert "pwned" not in os.listdir(shared.store)
