"""What the kernel is told to allow on a mount, and what `-o` takes."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import errors
from ckptfs.daemon import mounts, preflight
from tests.support.errnos import fails
from tests.support.mounting import Workspace, scratch, succeed, workspace
from tests.support.peer import NOBODY, peer

pytestmark = pytest.mark.needs_mount


@contextmanager
def mounted(*options: str) -> Iterator[Workspace]:
    """A workspace with a file in it, whose first mount is one with these options."""
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        (made.path / "file").write_text("1")
        made.mount(*options)
        try:
            yield made
        finally:
            made.finish()


def _options(path: Path) -> frozenset[str]:
    mount = mounts.mount_at(path)
    assert mount is not None
    return mount.options


def test_set_user_files_and_devices_are_dead_unless_asked_for(own_mount: Workspace) -> None:
    """Root's as everyone's: a store from elsewhere may hold both."""
    assert {"rw", "nosuid", "nodev"} <= _options(own_mount.path)
    assert "noexec" not in _options(own_mount.path)


@pytest.mark.needs_root
def test_a_set_user_file_gives_no_rights_and_a_device_does_not_open() -> None:
    for options, alive in (((), False), (("-o", "suid,dev"), True)):
        with workspace("--allow-other", "--no-write-back", *options) as made:
            program, device = made.path / "id", made.path / "zero"
            program.write_bytes(Path("/usr/bin/id").read_bytes())
            program.chmod(0o4755)
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 5))
            with peer(NOBODY) as nobody:
                assert nobody(_effective_uid, str(program)) == (0 if alive else NOBODY)
                if alive:
                    assert nobody(_first_byte, device) == b"\0"
                else:
                    with fails(errno.EACCES):
                        nobody(_first_byte, device)


def _effective_uid(program: str) -> int:
    return int(subprocess.run([program, "-u"], check=True, capture_output=True).stdout)


def _first_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


def test_nothing_changes_in_a_read_only_mount() -> None:
    with mounted("-o", "ro") as made:
        assert "ro" in _options(made.path)
        history = made.path / ".checkpoints"
        for change in (
            lambda: (made.path / "file").write_text("2"),
            lambda: (made.path / "new").mkdir(),
            lambda: (history / "tag").mkdir(),
            lambda: (history / ".mark").write_text("x"),
            lambda: (history / "0").rmdir(),
        ):
            with fails(errno.EROFS):
                change()
        for words in (["restore", "0"], ["rewind"], ["purge", made.path / "file"]):
            _refused(made, *words)
        # What changes no file still works: looking, and keeping what is there.
        succeed(made.cli("restore", "0", "--dry-run", "-w", made.path))
        succeed(made.cli("save", "--tag", "kept", "-w", made.path))
        assert "kept" in succeed(made.cli("list", "-w", made.path)).stdout


def _refused(made: Workspace, verb: str, *words: str | Path) -> None:
    done = made.cli(verb, *words, "--force", "-w", made.path)
    assert done.returncode == errors.WorkspaceReadOnly.exit_code, done.stderr
    assert f"Cannot {verb}" in done.stderr and "remount,rw" in done.stderr


@pytest.mark.needs_root
def test_the_kernels_remount_is_heard_of_and_what_it_lets_in_goes_back() -> None:
    with mounted("-o", "ro,noexec") as made:
        assert {"ro", "noexec", "nosuid", "nodev"} <= _options(made.path)
        _remount("rw,noexec", made.path)
        program = made.path / "program"
        program.write_bytes(Path("/bin/true").read_bytes())
        program.chmod(0o755)
        with pytest.raises(PermissionError):
            subprocess.run([program], check=True)
        _remount("ro", made.path)
        assert made.status()["read_only"]
        _refused(made, "restore", "0")
        _remount("rw", made.path)
        succeed(made.cli("restore", "0", "--force", "-w", made.path))
        (made.path / "file").write_text("2")
        made.umount()
        assert (made.path / "file").read_text() == "2"
        assert not program.exists()


def _remount(options: str, path: Path) -> None:
    subprocess.run(["mount", "-i", "-o", f"remount,{options}", path], check=True)


@pytest.mark.needs_root
def test_a_directory_on_a_read_only_disk_is_mounted_read_only() -> None:
    """Nothing is written back to it, and that is no failure."""
    with scratch() as base:
        (base / "disk" / "work").mkdir(parents=True)
        (base / "disk" / "work" / "file").write_text("1")
        (base / "ro").mkdir()
        subprocess.run(["mount", "--bind", base / "disk", base / "ro"], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", base / "ro"], check=True)
        made = Workspace(base)
        made.path = base / "ro" / "work"
        refused = made.try_to_mount()
        assert refused.returncode == errors.NoPermission.exit_code and "-o ro" in refused.stderr
        for _ in range(2):
            made.mount("-o", "ro")
            assert (made.path / "file").read_text() == "1"
            made.umount()


def test_an_unknown_option_is_refused_and_nothing_is_made() -> None:
    with scratch() as base:
        made = Workspace(base)
        done = made.try_to_mount("-o", "rw,nonsense")
        assert done.returncode == errors.UsageError.exit_code
        assert "'nonsense'" in done.stderr and "Nothing was changed" in done.stderr
        assert not made.store.exists()


@pytest.mark.needs_root
def test_only_root_may_ask_for_set_user_files_and_devices() -> None:
    assert _refusal_of("suid", "dev") == ""
    with peer(NOBODY) as nobody:
        assert "only root may mount with dev and suid" in nobody(_refusal_of, "suid", "dev", "ro")


def _refusal_of(*flags: str) -> str:
    try:
        preflight.check_flags(Path("/work"), frozenset(flags))
    except errors.NoPermission as error:
        return str(error)
    return ""
