"""Where the suites run once more: an environment is a way to start pytest.

To add one, add an `Environment` to `ENVIRONMENTS`: how to wrap the command, and what variables it
needs. What a variable changes is said where it is read (`tests.support.mounting`):

CKPTFS_TEST_FORK    every workspace is a fork of one
CKPTFS_TEST_HOLD    every workspace that is mounted is held by another mount namespace, too
CKPTFS_TEST_VERBS   words to put before every verb that an agent in a sandbox would call
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.peer import NOBODY

ROOT = Path(__file__).parents[2]
Command = list[str]

_STAGE = f"""
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
setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "$@" || exit $?
"""


def _plain(stage: Path, words: Command) -> Command:
    return [sys.executable, *words]


def _as_ordinary_user(stage: Path, words: Command) -> Command:
    """A user without any rights, who mounts through fusermount3. In a mount namespace in which that
    user can reach the interpreter, the packages and this checkout wherever they lie (below /root,
    say), and in which /dev/fuse is open to everybody, as udev makes it. The machine itself is not
    touched."""
    bubble = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc".split()
    places = [stage, sys.base_prefix, sysconfig.get_path("purelib"), ROOT]
    python = f"{stage}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return [*bubble, "sh", "-c", _STAGE, "sh", *map(str, places), python, *words]


def _of_ordinary_user(stage: Path) -> dict[str, str]:
    return {
        "HOME": f"{stage}/tmp",
        "TMPDIR": f"{stage}/tmp",
        "PYTHONPATH": f"{stage}/project:{stage}/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": f"{stage}/python/lib",
    }


@dataclass(frozen=True)
class Environment:
    """``wrap`` makes a command of the words that follow `python`, given a scratch directory;
    ``variables`` says what is set for it. ``chosen`` are the tests of the default suite, ``wide``
    what the deep suite adds."""

    name: str
    wrap: Callable[[Path, Command], Command] = _plain
    variables: Callable[[Path], Mapping[str, str]] = lambda stage: {}
    chosen: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    #: Variables of ours that it keeps.
    kept: tuple[str, ...] = ("PATH", "LANG", "HOME")
    #: What has to be installed for it.
    program: str = "unshare"

    def env(self, stage: Path) -> dict[str, str]:
        found = {name: os.environ[name] for name in self.kept if name in os.environ}
        return {**found, **self.variables(stage)}


def _tests(text: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}" for name in text.split())


def _without(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"--deselect={name}" for name in names)


#: Basics, history, restores, unmounts and remounts, kills, and what others may do.
_EVERYWHERE = _tests("""
    mounted/test_history.py::test_a_whole_restore_is_undone
    mounted/test_history.py::test_a_restore_survives_a_kill
    mounted/test_history.py::test_what_a_command_destroyed_comes_back
    mounted/test_remount.py::test_a_whole_synced_tree_survives_a_kill
    mounted/test_remount.py::test_umount_clears_a_dead_mountpoint
    mounted/test_in_place.py::test_every_change_comes_back
    crash/test_after_death.py::test_the_next_mount_clears_it_away
    crash/test_kill.py::test_a_large_file_that_was_saved_is_whole
""")

#: What may differ for a user who mounts through fusermount3 and may not do everything below, and
#: whose sandboxes have a user namespace of their own.
_OF_ORDINARY_USERS = _tests("""
    mounted/test_links.py mounted/test_special_files.py mounted/test_modes.py
    mounted/test_mount_flags.py
    mounted/test_history.py::test_a_restore_of_an_unmounted_workspace_stands_in_the_directory
    mounted/test_remount.py::test_everything_stat_says_is_the_same_after_a_remount
    mounted/test_remount.py::test_the_attributes_of_the_root_are_kept
    mounted/test_in_place.py::test_directories_without_write_permission_are_written_back
    mounted/test_in_place.py::test_a_file_that_may_not_be_read_is_not_lost
    mounted/test_in_place.py::test_changes_of_the_lower_directory_are_seen_at_the_next_mount
    mounted/test_in_place.py::test_umount_of_a_busy_workspace_refuses_and_leaves_it_usable
    mounted/test_ends.py::test_a_failed_commit_shows_no_program_an_old_tree[5-on]
    mounted/test_ends.py::test_a_signal_uncovers_a_current_directory[15-off]
    mounted/test_ends.py::test_umount_uncovers_a_current_directory[umount-on]
    mounted/test_ends.py::test_umount_of_a_dead_mountpoint_uncovers_a_current_directory
    mounted/test_ends.py::test_a_process_in_the_lower_directory_is_not_in_the_way
    mounted/test_ends.py::test_the_next_mount_covers_the_directory_while_it_is_scanned
    mounted/test_namespaces.py::test_umount_ends_it_in_every_namespace_and_names_the_processes
    mounted/test_namespaces.py::test_a_sandbox_that_ends_by_itself_is_waited_for
    mounted/test_sandbox.py::test_every_verb_works
    mounted/test_sandbox.py::test_a_hook_takes_its_checkpoint
    mounted/test_sandbox.py::test_the_api_works_with_documents_and_events
    mounted/test_sandbox.py::test_the_caller_is_known_by_its_number_outside
    mounted/test_sandbox.py::test_verbs_that_reach_outside_are_refused
    mounted/test_sandbox.py::test_a_dead_daemon_is_never_taken_for_a_living_one
""")

#: Each unmount takes the seconds that the other namespace is waited for.
_OF_HELD_MOUNTS = _tests("""
    mounted/test_in_place.py::test_umount_of_a_busy_workspace_refuses_and_leaves_it_usable
    security/test_others.py::test_without_allow_other_no_other_user_sees_anything
""")

#: Verbs about a mounted workspace: a sandbox whose root is read-only has no other store to open.
_OF_SANDBOXES = _tests("""
    mounted/test_history.py::test_latest_and_tags_are_links
    mounted/test_history.py::test_a_whole_restore_is_undone
    mounted/test_history.py::test_a_restore_survives_a_kill
    mounted/test_history.py::test_one_path_goes_back_and_the_rest_stays
    mounted/test_history.py::test_a_writer_that_has_the_file_open_does_no_harm
    mounted/test_history.py::test_a_dry_run_names_files_and_a_stale_token_is_refused
    mounted/test_history.py::test_what_a_command_destroyed_comes_back
    crash/test_kill.py::test_a_large_file_that_was_saved_is_whole
""")
_SANDBOX = "bwrap --ro-bind / / --dev /dev --proc /proc --unshare-pid"

_WIDE = _tests("""
    mounted/test_directories.py mounted/test_unlink_open.py mounted/test_append.py
    mounted/test_locks.py mounted/test_readdir.py
    mounted/test_history.py mounted/test_history_delete.py mounted/test_remount.py
    mounted/test_in_place.py mounted/test_content.py mounted/test_rename.py
    mounted/test_pending_creates.py
    mounted/test_control_files.py mounted/test_steps.py mounted/test_streams.py
    mounted/test_times.py mounted/test_xattrs.py
    crash/test_after_death.py crash/test_end.py crash/test_kill.py
    security/test_others.py security/test_screen.py
    cli/test_restore.py cli/test_undo.py cli/test_list.py
""")
#: Settings are files in the store, which a sandbox with a read-only root does not change.
_NOT_IN_SANDBOXES = _tests("""
    mounted/test_steps.py::test_a_limit_on_moments_holds_while_work_goes_on
    mounted/test_steps.py::test_settings_hold_for_the_next_command
""")
#: By design a lazy unmount lasts as long as somebody has the mount.
_NOT_WHERE_HELD = _tests("crash/test_end.py::test_a_lazy_unmount_lets_everyone_finish")

#: Forks take the compiled server; elsewhere the portable one is left to what the deep suite adds.
_COMPILED = ("-knot portable",)

ORDINARY_USER = Environment(
    "ordinary user",
    _as_ordinary_user,
    _of_ordinary_user,
    (*_EVERYWHERE, *_OF_ORDINARY_USERS, *_COMPILED),
    _WIDE,
    kept=("PATH", "LANG"),
)
HELD_ELSEWHERE = Environment(
    "another mount namespace holds the mount",
    variables=lambda stage: {"CKPTFS_TEST_HOLD": "1"},
    chosen=(*_EVERYWHERE, *_OF_HELD_MOUNTS, *_COMPILED),
    wide=(*_WIDE, *_without(_NOT_WHERE_HELD)),
)
SANDBOX = Environment(
    "verbs in a sandbox",
    variables=lambda stage: {"CKPTFS_TEST_VERBS": _SANDBOX},
    chosen=(*_OF_SANDBOXES, *_COMPILED),
    wide=(
        *_tests("mounted/test_history_delete.py mounted/test_steps.py crash/test_kill.py"),
        *_without(_NOT_IN_SANDBOXES),
    ),
    program="bwrap",
)
IN_A_FORK = Environment(
    "in a fork",
    variables=lambda stage: {"CKPTFS_TEST_FORK": "1"},
    chosen=(*_tests("mounted/test_links.py mounted/test_modes.py"), *_COMPILED),
    wide=(
        *_tests("""
            mounted/test_append.py mounted/test_content.py mounted/test_directories.py
            mounted/test_locks.py mounted/test_mapping_and_copying.py mounted/test_names.py
            mounted/test_pending_creates.py mounted/test_readdir.py mounted/test_rename.py
            mounted/test_special_files.py mounted/test_times.py mounted/test_unlink_open.py
        """),
        *_COMPILED,
    ),
)
ENVIRONMENTS = (ORDINARY_USER, SANDBOX, HELD_ELSEWHERE, IN_A_FORK)
