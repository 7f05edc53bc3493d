"""`ckptfs check` as a user meets it: damage is told by file and checkpoint, and can be repaired."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfs.errors import ProblemsFound
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, scratch, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")

SECRET = b"the bytes that a bad disk changes " * 2_000
SMALL = b"a small file, kept in the block map"


def damage(store: Path, found: bytes) -> None:
    """Flip a bit in the middle of these bytes wherever they stand in the store's file."""
    data = bytearray((store / "data.mdb").read_bytes())
    at = data.find(found)
    assert at > 0
    while at > 0:
        data[at + len(found) // 2] ^= 1
        at = data.find(found, at + 1)
    (store / "data.mdb").write_bytes(data)


def test_a_flipped_bit_on_the_disk_is_named_on_the_screen() -> None:
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        workspace.mount()
        try:
            (workspace.path / "src").mkdir()
            (workspace.path / "src/large").write_bytes(SECRET)
            (workspace.path / "src/small").write_bytes(SMALL)
            (workspace.path / "whole").write_bytes(b"whole" * 10_000)
            saved = json.loads(
                succeed(workspace.cli("save", "x", "--json", "-w", workspace.path)).stdout
            )
            workspace.umount()
            damage(workspace.store, SECRET[:2_000])
            damage(workspace.store, SMALL)
            _ask_check(workspace, saved["id"])
            _ask_mount(workspace, saved["id"])
            _ask_repair(workspace)
        finally:
            if is_mounted(workspace.path):
                workspace.cli("umount", workspace.path)


def _ask_check(workspace: Workspace, number: int) -> None:
    assert succeed(workspace.cli("check", "--store", workspace.store)).stdout == "clean\n"
    done = workspace.cli("check", "--deep", "--store", workspace.store)
    assert done.returncode == ProblemsFound.exit_code
    assert f"src/large: bytes 0 to 65,536 are lost in checkpoint {number} and now" in done.stdout
    assert f"src/small: bytes 0 to {len(SMALL)} are lost" in done.stdout
    assert "whole" not in done.stdout


def _ask_mount(workspace: Workspace, number: int) -> None:
    """Wrong bytes for nobody; the rest works, and the log says what is damaged."""
    workspace.mount()
    top = workspace.path
    for path in (top / "src/large", top / "src/small", top / f".checkpoints/{number}/src/large"):
        with pytest.raises(OSError, match="Input/output") as caught:
            path.read_bytes()
        assert caught.value.errno == errno.EIO
    assert (top / "whole").read_bytes() == b"whole" * 10_000
    assert "src/large' in the workspace" in workspace.trouble()
    (top / "src/small").write_bytes(b"written anew")
    done = workspace.cli("check", "--repair", "-w", top)
    assert done.returncode == 13 and "is using it" in done.stderr
    pid, workspace.pid = workspace.pid, None
    succeed(workspace.cli("umount", top))
    assert pid is not None


def _ask_repair(workspace: Workspace) -> None:
    done = succeed(workspace.cli("check", "--repair", "--json", "--store", workspace.store))
    told = json.loads(done.stdout)
    assert told["clean"] and os.path.exists(told["kept_as"])
    assert {item["path"] for item in told["lost"]} == {"src/large", "src/small"}
    workspace.mount()
    assert (workspace.path / "src/small").read_bytes() == b"written anew"
    with pytest.raises(OSError, match="Input/output"):
        (workspace.path / "src/large").read_bytes()
    (workspace.path / "src/large").write_bytes(SECRET)
    assert (workspace.path / "src/large").read_bytes() == SECRET
    workspace.trouble()
    workspace.umount()


def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    """Also for stores that are looked at without a daemon. How long it may take before there is
    one is set to nothing: this check does not take long."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(600):
        (source / str(number)).write_bytes(os.urandom(3_000))
    store = tmp_path / "store"
    command = [sys.executable, "-m", "ckptfs"]
    subprocess.run([*command, "import", source, "--store", store], check=True, capture_output=True)
    at_once = "from ckptfs.cli import main, progress; progress._PATIENCE_S = 0; main()"
    words = shlex.join([sys.executable, "-c", at_once, "check", "--deep", "--store", str(store)])
    done = subprocess.run(
        ["script", "-qec", words, "/dev/null"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Checking" in done.stdout and "clean" in done.stdout
