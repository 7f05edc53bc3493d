"""FIFOs, sockets and device nodes: they stand in the workspace and the kernel serves them."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.peer import peer
from tests.support.trees import stat_of


def _open_and_write(path: Path, data: bytes) -> int:
    with open(path, "wb") as pipe:
        return pipe.write(data)


def test_a_fifo_passes_data_between_processes(mount: Path) -> None:
    os.mkfifo(mount / "pipe", 0o640)
    data = bytes(range(256)) * 1000
    with peer() as writer:
        writer.begin(_open_and_write, mount / "pipe", data)
        with open(mount / "pipe", "rb") as pipe:
            assert pipe.read() == data
        assert writer.finish(20) == len(data)
    info = os.stat(mount / "pipe")
    assert stat.S_ISFIFO(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o640
    assert info.st_size == 0


def test_a_fifo_without_a_reader_is_not_opened_for_writing(mount: Path) -> None:
    os.mkfifo(mount / "pipe")
    with fails(errno.ENXIO):
        os.open(mount / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    with fails(errno.EEXIST):
        os.mkfifo(mount / "pipe")


def test_a_fifo_outlives_its_name_while_open(mount: Path) -> None:
    os.mkfifo(mount / "pipe")
    reader = os.open(mount / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(mount / "pipe", os.O_WRONLY)
    os.unlink(mount / "pipe")
    os.write(writer, b"still here")
    assert os.read(reader, 99) == b"still here"
    os.close(writer)
    os.close(reader)


def test_a_unix_socket_takes_connections(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mount)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("sock")
        assert stat.S_ISSOCK(os.stat(mount / "sock").st_mode)
        server.listen()
        client.connect("sock")
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(9) == b"hello"


def test_a_socket_left_behind_refuses(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mount)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
    with socket.socket(socket.AF_UNIX) as client, fails(errno.ECONNREFUSED):
        client.connect("sock")
    with socket.socket(socket.AF_UNIX) as again, fails(errno.EADDRINUSE):
        again.bind("sock")
    with fails(errno.ENXIO):
        os.open(mount / "sock", os.O_RDONLY)
    os.unlink("sock")
    assert os.listdir(mount) == []


@pytest.mark.needs_root
def test_device_nodes_keep_their_numbers(mount: Path) -> None:
    os.mknod(mount / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(mount / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 70000))
    null, disk = stat_of(mount / "null"), stat_of(mount / "disk")
    assert stat.S_ISCHR(null.mode) and null.rdev == os.makedev(1, 3)
    assert stat.S_ISBLK(disk.mode) and disk.rdev == os.makedev(259, 70000)
    assert stat.S_IMODE(null.mode) == 0o644 and stat.S_IMODE(disk.mode) == 0o600


def test_mknod_makes_a_regular_file(mount: Path) -> None:
    os.mknod(mount / "file", stat.S_IFREG | 0o604)
    info = os.stat(mount / "file")
    assert stat.S_ISREG(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o604
    (mount / "file").write_text("usable")
    assert (mount / "file").read_text() == "usable"
    with fails(errno.EEXIST):
        os.mknod(mount / "file", stat.S_IFREG | 0o600)
