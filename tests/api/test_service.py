"""The API's own promises: its life, its events, its configuration, many callers, no noise."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointEvent, CheckpointService
from ckptfs.errors import (
    CheckpointUnknown,
    CkptfsError,
    DaemonGone,
    DangerousRoot,
    MountpointMissing,
    NotConfirmed,
    NotMounted,
    OverlappingTrees,
    PathUnknown,
    SettingInvalid,
    SourceMissing,
    StateInvalid,
    StoreInMountpoint,
    StoreInUse,
    TagInvalid,
    TreeMoved,
    UsageError,
    WorkspaceUnknown,
    WriteBackIncomplete,
)
from tests.support.mounting import ckptfs, is_mounted, scratch, succeed
from tests.support.waiting import wait_until

PLAIN = CheckpointConfig(mount=False)


# -- its life --------------------------------------------------------------------------------------


def test_a_directory_is_unknown_before_the_first_initialize(work: Path) -> None:
    with pytest.raises(WorkspaceUnknown, match="not a ckptfs workspace"):
        CheckpointService(work).list()


def test_a_known_workspace_needs_no_initialize(plain: CheckpointService, work: Path) -> None:
    assert CheckpointService(work).list() == plain.list()


def test_initialize_mounts_where_it_can(mounted: CheckpointService, work: Path) -> None:
    assert is_mounted(work) and mounted.status().daemon["pid"] > 0
    assert CheckpointService(work).initialize().mounted
    mounted.close()
    assert not is_mounted(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take /dev/fuse away")
def test_without_fuse_the_directory_stays_plain(base: Path, work: Path) -> None:
    code = (
        f"from ckptfs import CheckpointService; s = CheckpointService({str(work)!r})\n"
        "print(s.initialize().mounted, s.save('one', allow_empty=True).id)"
    )
    script = f'mount --bind /dev/null /dev/fuse && exec "{sys.executable}" -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", code], capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["False", "1"], "")


def test_a_storage_directory(base: Path, work: Path) -> None:
    with CheckpointService(work, base / "elsewhere", PLAIN) as service:
        assert service.status().store == str(base / "elsewhere")
    assert (base / "elsewhere/data.mdb").exists()
    assert CheckpointService(work).status().store == str(base / "elsewhere")


@pytest.mark.parametrize("mount", [True, False])
def test_what_cannot_be_a_workspace(base: Path, work: Path, mount: bool) -> None:
    config = CheckpointConfig(mount=mount)
    for path, storage, wrong in (
        (base / "absent", None, MountpointMissing),
        (Path("/etc"), None, DangerousRoot),
        (work, work / "store", StoreInMountpoint),
    ):
        with pytest.raises(wrong):
            CheckpointService(path, storage, config).initialize()
    assert os.listdir(work) == []


def test_the_same_store_with_and_without_a_mount(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("plain\n")
    one = plain.save("plain", state={"turn": 1})
    with CheckpointService(work, config=CheckpointConfig(unmount_on_close=True)) as mounted:
        assert mounted.mounted and plain.mounted
        assert mounted.get(one.id) == one == plain.get(one.id)
        (work / "a").write_text("mounted\n")
        two = mounted.save("mounted")
    assert not plain.mounted
    plain.restore(one.id)
    assert (work / "a").read_text() == "plain\n"
    assert plain.restore(two.id).modified_files == ["a"]
    assert (work / "a").read_text() == "mounted\n"
    listed = json.loads(succeed(ckptfs("list", "-w", work, "--no-mount", "--json")).stdout)
    assert [str(item["id"]) for item in listed["checkpoints"]] == [x.id for x in plain.list()]


def test_the_command_line_on_a_plain_directory(base: Path, work: Path) -> None:
    def run(*words: str | Path) -> dict[str, object]:
        done = succeed(ckptfs(*words, "-w", work, "--no-mount", "--json"))
        found: dict[str, object] = json.loads(done.stdout)
        return found

    (work / "a").write_text("one\n")
    assert ckptfs("save", "-w", work).returncode == WorkspaceUnknown.exit_code
    assert ckptfs("list", "-w", work, "--no-mount").returncode == WorkspaceUnknown.exit_code
    assert run("save", "first")["id"] == 0
    (work / "a").write_text("two\n")
    assert run("restore", "0", "--force")["modified"] == ["a"]
    assert (work / "a").read_text() == "one\n"
    run("undo")
    assert (work / "a").read_text() == "two\n"
    assert not is_mounted(work)


def test_the_library_says_nothing(base: Path, work: Path) -> None:
    code = f"""
import logging
from ckptfs import CheckpointService, CheckpointConfig, CkptfsError
service = CheckpointService({str(work)!r}, config=CheckpointConfig(mount=False))
def broken(event): raise ValueError("a handler's own fault")
service.on("checkpoint_created", broken)
service.on("error", broken)
service.initialize()
service.save("one", allow_empty=True)
try:
    service.restore("99")
except CkptfsError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


# -- events ----------------------------------------------------------------------------------------


def test_handlers_hear_what_their_service_does(work: Path) -> None:
    heard: list[CheckpointEvent] = []
    config = CheckpointConfig(mount=False, max_checkpoints=2)
    service = CheckpointService(work, config=config)
    for kind in (
        CheckpointEvent.INITIALIZED,
        CheckpointEvent.CHECKPOINT_CREATED,
        CheckpointEvent.CHECKPOINT_RESTORED,
        CheckpointEvent.CHECKPOINTS_PRUNED,
        CheckpointEvent.ERROR,
    ):
        service.on(kind, heard.append)
    service.initialize()
    one = service.save("one", tag="kept", state={"turn": 1}, allow_empty=True)
    service.save("nothing new")
    two = service.save("two", allow_empty=True)
    service.restore(one.id)
    with pytest.raises(CheckpointUnknown):
        service.get("99")
    assert [(event.kind, event.checkpoint_id) for event in heard] == [
        ("initialized", None),
        ("checkpoint_created", one.id),
        ("checkpoint_created", two.id),
        ("checkpoints_pruned", None),
        ("checkpoint_restored", one.id),
        ("error", None),
    ]
    assert heard[3].data == {"ids": ["0"]}
    assert heard[4].data["state"] == {"turn": 1}
    assert heard[5].data["kind"] == "checkpoint-unknown"
    assert all(event.workspace == str(work) for event in heard)


def test_a_handler_can_be_taken_away_and_may_fail(plain: CheckpointService) -> None:
    heard: list[CheckpointEvent] = []

    def fails(event: CheckpointEvent) -> None:
        raise ValueError("a handler's own fault")

    plain.on("checkpoint_created", fails)
    remove = plain.on("checkpoint_created", heard.append)
    plain.save("one", allow_empty=True)
    remove()
    remove()
    plain.save("two", allow_empty=True)
    assert len(heard) == 1
    with pytest.raises(UsageError, match="no event"):
        plain.on("checkpoint_dreamt_of", heard.append)


def test_a_handler_may_use_the_service(plain: CheckpointService) -> None:
    seen: list[str] = []
    plain.on("checkpoint_created", lambda event: seen.append(plain.list()[0].id))
    saved = plain.save("one", allow_empty=True)
    assert seen == [saved.id]


def test_another_process_is_watched(mounted: CheckpointService, work: Path) -> None:
    with mounted.watch() as events:
        succeed(ckptfs("save", "from elsewhere", "--allow-empty", "-w", work))
        event = next(events)
        assert (event.kind, event.data["message"]) == ("checkpoint_created", "from elsewhere")
        (work / ".checkpoints/by hand").mkdir()
        assert next(events).data["tag"] == "by hand"


def test_the_command_line_watches(mounted: CheckpointService, work: Path) -> None:
    command = [sys.executable, "-m", "ckptfs", "watch", "-w", str(work)]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.append(watching.stdout.readline()))
        reader.start()
        while reader.is_alive():
            mounted.save("seen", allow_empty=True)
            reader.join(0.1)
        assert json.loads(told[0])["data"]["message"] == "seen"
        mounted.close()
        assert watching.wait(60) == 0
    assert subprocess.run(command, check=False).returncode == NotMounted.exit_code


def test_closing_a_stream_wakes_who_waits(mounted: CheckpointService) -> None:
    events = mounted.watch()
    waiting = threading.Thread(target=lambda: list(events))
    waiting.start()
    events.close()
    waiting.join(20)
    assert not waiting.is_alive()


def test_unmounting_ends_a_stream(mounted: CheckpointService) -> None:
    events = mounted.watch()
    mounted.close()
    assert list(events) == []
    with pytest.raises(NotMounted):
        mounted.watch()


def test_a_plain_directory_cannot_be_watched(plain: CheckpointService) -> None:
    with pytest.raises(NotMounted):
        plain.watch()


# -- configuration ---------------------------------------------------------------------------------


def test_at_most_so_many_checkpoints_stay(work: Path) -> None:
    config = CheckpointConfig(mount=False, max_checkpoints=4)
    with CheckpointService(work, config=config) as service:
        tagged = service.save("tagged", tag="t", allow_empty=True)
        pinned = service.save("pinned", pin=True, allow_empty=True)
        for number in range(6):
            (work / "a").write_text(str(number))
            newest = service.save(str(number))
        kept = [item.id for item in service.list()]
        assert len(kept) == 4
        assert {tagged.id, pinned.id, newest.id} < set(kept)
        assert service.check() == []


@pytest.mark.parametrize("config", [None, PLAIN, CheckpointConfig(max_checkpoints=None)])
def test_without_a_limit_of_its_own_a_program_deletes_nothing(
    plain: CheckpointService, work: Path, config: CheckpointConfig | None
) -> None:
    service = CheckpointService(work, config=config)
    for number in range(105):
        service.save(str(number), allow_empty=True)
    assert len(plain.list()) == 106


def test_a_limit_that_was_given_is_one_whatever_its_number() -> None:
    assert CheckpointConfig().limit is None
    assert replace(CheckpointConfig(), mount=False).limit is None
    assert CheckpointConfig(max_checkpoints=100).limit == 100


@pytest.mark.parametrize("number", [0, -1])
def test_less_than_one_checkpoint_cannot_be_kept(number: int) -> None:
    with pytest.raises(UsageError, match="counts from 1"):
        CheckpointConfig(max_checkpoints=number)


@pytest.mark.parametrize("mount", [True, False])
def test_what_is_excluded_is_in_no_checkpoint(work: Path, mount: bool) -> None:
    config = CheckpointConfig(
        mount=mount, unmount_on_close=True, exclude_patterns=["*.log", "out/"]
    )
    (work / "a.log").write_text("before")
    with CheckpointService(work, config=config) as service:
        one = service.save("one", state={"turn": 1}, allow_empty=True)
        (work / "out").mkdir()
        (work / "out/x").write_text("x")
        (work / "kept").write_text("k")
        two = service.save("two", state={"turn": 2})
        assert two.files_changed == ["kept"]
        service.restore(one.id)
        assert sorted(os.listdir(work)) == ["a.log", "out"]
        assert (service.state(one.id), service.state(two.id)) == ({"turn": 1}, {"turn": 2})
        assert service.check() == []
    more = CheckpointConfig(mount=False, exclude_patterns=["*.tmp"])
    with CheckpointService(work, config=more) as service:
        (work / "b.tmp").write_text("b")
        assert not service.diff()


def test_checkpoints_by_themselves_can_be_turned_off(mounted: CheckpointService) -> None:
    assert mounted.status().daemon["options"]["auto"] == "off"


# -- going back ------------------------------------------------------------------------------------


def test_a_command_after_a_restore(base: Path, work: Path) -> None:
    out = base / "told.json"
    command = ["sh", "-c", f"cat > {out}"]
    config = CheckpointConfig(mount=False, on_restore=command)
    with CheckpointService(work, config=config) as service:
        (work / "a").write_text("one\n")
        one = service.save("one", state={"turn": 1, "image": b"\0"})
        (work / "a").write_text("two\n")
        assert service.restore(one.id).hook == "done"
    told = json.loads(out.read_bytes())
    assert (told["checkpoint"], told["modified"]) == (int(one.id), ["a"])
    assert told["state"] == {"turn": 1, "image": {"base64": "AA=="}}
    assert told["workspace"] == str(work)


def test_no_command_after_a_restore_of_nothing(base: Path, work: Path) -> None:
    config = CheckpointConfig(mount=False, on_restore=["touch", str(base / "ran")])
    with CheckpointService(work, config=config) as service:
        one = service.save("one", allow_empty=True)
        assert service.restore(one.id).hook == "" and not (base / "ran").exists()
        two = service.save("two", state={"turn": 2})
        assert service.restore(two.id).hook == "done" and (base / "ran").exists()


@pytest.mark.parametrize(
    "command, reason",
    [
        (["false"], "false ended with 1"),
        (["sh", "-c", "echo no such turn >&2; exit 3"], "ended with 3: no such turn"),
        (["/no/such/program"], "could not be run"),
        (["sh", "-c", "kill $$"], "ended with -15"),
    ],
)
def test_a_command_that_fails_undoes_nothing(work: Path, command: list[str], reason: str) -> None:
    config = CheckpointConfig(mount=False, on_restore=command)
    with CheckpointService(work, config=config) as service:
        one = service.list()[0]
        (work / "a").write_text("two\n")
        assert reason in service.restore(one.id).hook
        assert os.listdir(work) == []


def test_paths_are_of_the_workspace(plain: CheckpointService, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub/a").write_text("one\n")
    one = plain.save("one")
    for path in (work / "sub/a", "sub/a", "sub/../sub/a"):
        (work / "sub/a").write_text("two\n")
        assert plain.restore(one.id, [path]).modified_files == ["sub/a"]
        (work / "sub/a").write_text("two\n")
        assert plain.restore(one.id, path).modified_files == ["sub/a"]  # alone, too
    (work / "sub/a").write_text("two\n")
    assert plain.diff(one.id, paths="sub").modified_files == ["sub/a"]
    for path in ("../outside", "/etc/passwd"):
        with pytest.raises(PathUnknown, match="not inside"):
            plain.restore(one.id, [path])


def test_what_is_no_path(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    for wrong in (5, [5], [None], {"a": 1}.values()):
        with pytest.raises(UsageError, match="as a path"):
            plain.restore(one.id, wrong)  # type: ignore[arg-type]
    assert (work / "a").read_text() == "two\n"
    assert plain.restore(one.id, b"a").modified_files == ["a"]  # type: ignore[arg-type]


def test_undo_can_be_tried_and_can_mind_later_work(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    plain.restore(one.id)
    tried = plain.undo(dry_run=True)
    assert (tried.modified_files, tried.dry_run) == (["a"], True)
    (work / "a").write_text("later\n")
    with pytest.raises(NotConfirmed):
        plain.undo(if_unchanged=True)
    with pytest.raises(TreeMoved):
        plain.undo(token=tried.token)
    assert (work / "a").read_text() == "later\n"
    plain.undo(token=plain.undo(dry_run=True).token)
    assert (work / "a").read_text() == "two\n"
    plain.redo(if_unchanged=True)
    assert (work / "a").read_text() == "later\n"


def test_a_list_without_paths_is_not_everything(plain: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    one = plain.save("one")
    (work / "a").write_text("two\n")
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.restore(one.id, [])
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.restore(one.id, [], dry_run=True)
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.diff(paths=[])
    with pytest.raises(UsageError, match="list of paths is empty"):
        plain.purge()
    assert (work / "a").read_text() == "two\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount over a directory")
def test_a_file_that_cannot_be_written_is_told(plain: CheckpointService, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub/a").write_text("one\n")
    one = plain.save("one")
    (work / "sub/a").write_text("two\n")
    plain.save("two")
    # What is mounted there is another file system, which is none of the workspace's.
    with covered(work / "sub"):
        with pytest.raises(WriteBackIncomplete, match="sub"):
            plain.restore(one.id)
        assert plain.list()[0].kind == "restore"
    assert (work / "sub/a").read_text() == "two\n"
    plain.list()
    assert (work / "sub/a").read_text() == "one\n"


@contextmanager
def covered(path: Path) -> Iterator[None]:
    """Something else is mounted on a directory for a while."""
    with scratch() as elsewhere:
        inner = elsewhere / "inner"
        inner.mkdir()
        with CheckpointService(inner, config=CheckpointConfig(unmount_on_close=True)):
            subprocess.run(["mount", "--bind", inner, path], check=True)
            try:
                yield
            finally:
                subprocess.run(["umount", path], check=True)


def test_restore_of_the_state_or_of_the_files(plain: CheckpointService, work: Path) -> None:
    one = plain.save("one", state={"turn": 1})
    (work / "a").write_text("a")
    assert plain.restore(one.id, files=False).state == {"turn": 1}
    assert (work / "a").exists()
    assert plain.restore(one.id, state=False).state == {}
    assert not (work / "a").exists()


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state, words",
    [
        ({"": 1}, "empty"),
        ({"a/b": 1}, "characters"),
        ({"..": 1}, "characters"),
        ({"n" * 300: 1}, "longer"),
        ({"x": {1, 2}}, "neither bytes nor JSON"),
        ({"x": float("nan")}, "neither bytes nor JSON"),
        ({"ok": 1, "x": object()}, "neither bytes nor JSON"),
    ],
)
def test_what_cannot_be_state(
    plain: CheckpointService, state: dict[str, object], words: str
) -> None:
    before = plain.list()
    with pytest.raises(StateInvalid, match=words):
        plain.save("one", state=state)
    assert plain.list() == before
    assert not list(plain.workspace.store.glob("state-*"))


def test_state_of_many_kinds_and_sizes(mounted: CheckpointService) -> None:
    state = {
        "empty": b"",
        "null": None,
        "block": os.urandom(65536),
        "more": os.urandom(65537),
        "large": os.urandom(3 << 20),
        "text": "\ud800 lone",
        "ünï": [1.5, True, {"a": []}],
    }
    saved = mounted.save("all", state=state)
    assert mounted.state(saved.id) == state
    assert not list(mounted.workspace.store.glob("state-*"))


def test_a_conversation_costs_its_growth(plain: CheckpointService) -> None:
    words = random.Random(1)
    conversation = [_turn(words) for _ in range(1000)]
    plain.save("long", state={"conversation": conversation})
    size = len(json.dumps(conversation))
    before = plain.status().store_bytes
    for _ in range(30):
        conversation.append(_turn(words))
        plain.save("turn", state={"conversation": conversation})
    grown = plain.status().store_bytes - before
    assert size > 500_000 and grown < 30 * 20_000, f"30 turns took {grown:,} bytes"
    assert plain.state("10") == {"conversation": conversation[:1009]}


def _turn(words: random.Random) -> dict[str, str]:
    return {"role": "user", "content": words.randbytes(300).hex()}


def test_state_lives_and_dies_with_its_checkpoints(plain: CheckpointService) -> None:
    data = [os.urandom(1 << 20) for _ in range(4)]
    saved = [plain.save(str(n), state={"doc": piece}) for n, piece in enumerate(data)]
    plain.delete(saved[1].id, saved[3].id)
    assert plain.state(saved[0].id) == {"doc": data[0]}
    assert plain.state(saved[2].id) == {"doc": data[2]}
    plain.delete(saved[0].id, saved[2].id)
    plain.save("without", allow_empty=True)
    plain.compact()
    assert plain.status().store_bytes < 1 << 20


def test_restores_keep_state_apart(plain: CheckpointService, work: Path) -> None:
    one = plain.save("one", state={"doc": "one"})
    two = plain.save("two", state={"doc": "two", "other": 2})
    plain.restore(one.id)
    three = plain.save("three", state={"doc": "three"})
    for saved, state in ((one, "one"), (two, "two"), (three, "three")):
        assert plain.state(saved.id)["doc"] == state
    plain.delete(two.id)
    assert plain.state(three.id) == {"doc": "three"}


# -- many callers ----------------------------------------------------------------------------------


def test_threads_of_one_process(plain: CheckpointService) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(
            threads.map(lambda n: plain.save(str(n), allow_empty=True).id, range(16), timeout=60)
        )
    assert len(set(made)) == 16


def test_processes_take_turns(plain: CheckpointService, work: Path) -> None:
    code = (
        "import sys; from ckptfs import CheckpointService\n"
        f"s = CheckpointService({str(work)!r})\n"
        "for n in range(5): s.save('x', allow_empty=True)"
    )
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert len(plain.list()) == 21


def test_callers_outlast_mounts_and_unmounts(plain: CheckpointService, work: Path) -> None:
    """While a workspace is mounted and unmounted, whoever asks waits and asks who is there then.
    Only a request that is under way when the daemon ends is lost, and that is told."""
    done = threading.Event()
    saved: list[str] = []

    def save_on() -> None:
        while not done.wait(0.2):  # or nobody would find a moment to mount
            with suppress(DaemonGone):
                saved.append(plain.save(f"{len(saved)}", allow_empty=True).id)

    with ThreadPoolExecutor(2) as threads:
        callers = [threads.submit(save_on) for _ in range(2)]
        for _ in range(2):
            succeed(mount_again(work))
            succeed(ckptfs("umount", work))
        done.set()
        for caller in callers:
            caller.result(60)
    assert len(set(saved)) == len(saved) > 5


def mount_again(work: Path) -> subprocess.CompletedProcess[str]:
    """Mount, though others have the store now and then."""
    for _ in range(200):
        tried = ckptfs("mount", work)
        if tried.returncode != StoreInUse.exit_code:
            break
    return tried


def test_a_hundred_callers_of_a_daemon(mounted: CheckpointService) -> None:
    with ThreadPoolExecutor(100) as threads:
        made = list(threads.map(lambda n: mounted.save(str(n), allow_empty=True).id, range(100)))
    assert len(set(made)) == 100


def test_errors_are_ours_and_told_once(plain: CheckpointService, base: Path) -> None:
    heard: list[CheckpointEvent] = []
    plain.on("error", heard.append)
    (base / "file").write_text("in the way")
    with pytest.raises(CkptfsError):
        plain.export(base / "file/below")
    with pytest.raises(TagInvalid):
        plain.save("x", tag="two\nlines")
    with pytest.raises(StateInvalid):
        plain.save("x", state={"": 1})
    kinds = [event.data["kind"] for event in heard]
    assert kinds[1:] == ["tag-invalid", "state-invalid"] and len(kinds) == 3


def test_trees_that_overlap_are_refused(mounted: CheckpointService, work: Path, base: Path) -> None:
    for overlapping in (work / "inside", base, mounted.workspace.store / "inside"):
        with pytest.raises(OverlappingTrees):
            mounted.export(overlapping)
        with pytest.raises((OverlappingTrees, SourceMissing)):
            mounted.import_from(overlapping)


def test_trees_in_and_out(plain: CheckpointService, work: Path, base: Path) -> None:
    (base / "source").mkdir()
    (base / "source/a").write_text("a")
    plain.import_from(base / "source")
    plain.export(base / "copy")
    plain.backup(base / "backup")
    assert (base / "copy/a").read_text() == "a"
    (base / "other").mkdir()
    with CheckpointService(base / "other", base / "backup", PLAIN) as other:
        assert [item.id for item in other.list()][-2:] == [x.id for x in plain.list()][-2:]


def test_settings(plain: CheckpointService, work: Path) -> None:
    assert plain.settings()["retention.keep_all"] == "1h"
    plain.configure("retention.keep_all", "2h")
    assert plain.settings()["retention.keep_all"] == "2h"
    plain.configure("retention.keep_all", None)
    assert plain.settings()["retention.keep_all"] == "1h"
    with pytest.raises(SettingInvalid):
        plain.configure("retention.keep_all", "for ever")


def test_tasks(plain: CheckpointService, work: Path) -> None:
    plain.start_task("one")
    (work / "a").write_text("a")
    plain.finish_task("did it")
    (work / "b").write_text("b")
    assert [item["name"] for item in plain.tasks()] == ["one"]
    plain.revert_task("one")
    assert os.listdir(work) == ["b"]


def test_some_checkpoints(plain: CheckpointService, work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text(name)
        plain.save(name)
    assert [item.message for item in plain.list(2)] == ["b", "a"]
    assert [item.message for item in plain.list(path="a")] == ["a"]
    assert plain.list(since="1 minute ago") == plain.list()


def test_a_daemon_that_died_is_no_end(mounted: CheckpointService, work: Path) -> None:
    (work / "a").write_text("one\n")
    saved = mounted.save("one")
    pid = mounted.status().daemon["pid"]
    os.kill(pid, 9)
    wait_until(lambda: not mounted.mounted, "the daemon is gone")
    assert mounted.list()[0] == saved
    assert mounted.initialize().mounted
    assert (work / "a").read_text() == "one\n"
