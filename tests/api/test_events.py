"""What handlers and watchers hear, and when they stop."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointEvent, CheckpointService
from ckptfs.errors import CheckpointUnknown, NotMounted, UsageError
from tests.support.mounting import ckptfs, succeed


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
