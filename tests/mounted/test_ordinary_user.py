"""The basic suites once more, as a user without any rights, who mounts through fusermount3.

They run in a mount namespace of their own, in which that user can reach the interpreter, the
packages and this checkout wherever they lie (below /root, say), and in which /dev/fuse is open to
everybody, as udev makes it on an ordinary machine. The machine itself is not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.mounting import scratch
from tests.support.peer import NOBODY

ROOT = Path(__file__).parents[2]

#: What may differ for a user who mounts through fusermount3 and may not do everything below.
CHOSEN = """
    test_directories.py test_links.py test_special_files.py test_unlink_open.py test_append.py
    test_locks.py test_modes.py test_readdir.py test_mount_flags.py
    test_content.py::test_random_writes_survive_a_remount
    test_remount.py::test_everything_stat_says_is_the_same_after_a_remount
    test_remount.py::test_a_whole_synced_tree_survives_a_kill
    test_remount.py::test_umount_of_a_dead_mountpoint
    test_in_place.py::test_every_change_comes_back
    test_in_place.py::test_directories_without_write_permission
    test_in_place.py::test_a_file_that_may_not_be_read_is_not_lost
    test_in_place.py::test_changes_made_below_are_seen_at_the_next_mount
    test_in_place.py::test_umount_of_a_busy_workspace_refuses_and_leaves_it_usable
    test_ends.py::test_a_failed_commit_shows_nobody_an_old_tree[5-on]
    test_ends.py::test_a_signal_uncovers_a_current_directory[15-off]
    test_ends.py::test_umount_uncovers_a_current_directory[umount-on]
    test_ends.py::test_umount_of_a_dead_mountpoint_uncovers_a_current_directory
    test_ends.py::test_whoever_stands_in_the_directory_below_is_not_in_the_way
    test_ends.py::test_the_next_mount_covers_the_directory_while_it_is_scanned
    test_namespaces.py::test_umount_ends_it_for_everybody_and_says_for_whom
    test_namespaces.py::test_a_sandbox_that_ends_by_itself_is_waited_for
""".split()

STAGE = """
set -e
stage=$1 python=$2 packages=$3 project=$4
mount -t tmpfs -o mode=0755 none $stage
mkdir $stage/python $stage/packages $stage/project $stage/tmp
chmod 1777 $stage/tmp
mount --bind $python $stage/python
mount --bind $packages $stage/packages
mount --bind $project $stage/project
mknod -m 666 $stage/fuse c 10 229
mount --bind $stage/fuse /dev/fuse
shift 4
cd $stage/project
# Not exec: the shell stays as the first process of its namespace and reaps daemons that end.
setpriv --reuid {user} --regid {user} --clear-groups "$@" || exit $?
"""


@pytest.mark.needs_root
@pytest.mark.needs_mount
@pytest.mark.timeout(280)
def test_the_basic_suites_pass_for_an_ordinary_user() -> None:
    with scratch() as stage:
        done = subprocess.run(_command(stage), capture_output=True, text=True, env=_env(stage))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


def _command(stage: Path) -> list[str]:
    bubble = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc".split()
    places = [stage, sys.base_prefix, sysconfig.get_path("purelib"), ROOT]
    python = f"{stage}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    chosen = [f"tests/mounted/{name}" for name in CHOSEN]
    pytest_call = [python, "-m", "pytest", "-q", "--maxfail=5", "-p", "no:cacheprovider", *chosen]
    script = STAGE.format(user=NOBODY)
    return [*bubble, "sh", "-c", script, "sh", *map(str, places), *pytest_call]


def _env(stage: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": f"{stage}/tmp",
        "TMPDIR": f"{stage}/tmp",
        "PYTHONPATH": f"{stage}/project:{stage}/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": f"{stage}/python/lib",
    }
