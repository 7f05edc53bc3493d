"""`ckptfs mcp`, asked by the SDK's own client over stdio, about a mounted workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from ckptfs.agents.mcp_server import Tools, tail
from ckptfs.service.verbs import VERBS
from tests.agents.conftest import Desk
from tests.support.mounting import workspace
from tests.support.sandbox import BARE, BARE_PATH, bwrap

READING = {
    "checkpoint_list",
    "checkpoint_show",
    "checkpoint_diff",
    "checkpoint_compare",
    "fork_list",
    "file_history",
    "workspace_status",
}
WRITING = {
    "checkpoint_create",
    "checkpoint_restore",
    "checkpoint_merge",
    "fork_create",
    "fork_delete",
}
RUNNING = {"command_try"}


class Asked:
    """A client, and the answers it gets."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._call(tool, arguments)
        assert not answer.is_error, answer.content
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        answer = await self._call(tool, arguments)
        assert answer.is_error
        return "".join(getattr(part, "text", "") for part in answer.content)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        return await self.client.call_tool(tool, arguments)


def served(desk: Desk, talk: Callable[[Asked], Awaitable[None]], *options: str) -> None:
    """Start the server as an agent does, and talk to it."""

    async def main() -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "ckptfs", "mcp", "-w", str(desk.path), *options],
            env={**os.environ, **desk.work.env},
        )
        with anyio.fail_after(120):
            async with Client(server) as client:
                await talk(Asked(client))

    anyio.run(main)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
def test_a_session_works_in_a_sandbox(desk: Desk) -> None:
    """With nothing but the workspace."""

    async def main() -> None:
        command, *words = bwrap(BARE, desk.path)
        words += [sys.executable, "-m", "ckptfs", "mcp", "-w", str(BARE_PATH)]
        server = StdioServerParameters(command=command, args=words)
        with anyio.fail_after(120):
            async with Client(server) as client:
                ask = Asked(client)
                (desk.path / "a").write_text("one\n")
                assert (await ask("checkpoint_create", message="first"))["created"]
                assert (await ask("workspace_status"))["workspace"] == str(BARE_PATH)

    anyio.run(main)


def test_every_tool_is_declared_by_one_verb() -> None:
    declared = [verb.tool for verb in VERBS.values() if verb.tool]
    written = [name for name in vars(Tools) if not name.startswith("_")]
    assert sorted(declared) == sorted(written) and len(set(declared)) == len(declared)


def test_a_model_saves_compares_and_restores_in_one_session(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        (desk.path / "a").write_text("one\n")
        first = await ask("checkpoint_create", message="first", tag="start")
        assert first["created"] and first["kind"] == "manual"
        (desk.path / "a").write_text("two\n")
        (desk.path / "b").write_text("new\n")

        status = await ask("workspace_status")
        assert status["mounted"] and status["unsaved"] == 2
        assert status["workspace"] == str(desk.path)

        found = await ask("checkpoint_diff")
        assert (found["from_id"], found["to_id"]) == (first["id"], None)
        assert "-one\n+two\n" in found["diff"] and not found["truncated"]
        assert found["changes"] == [
            {"path": "a", "old_path": None, "how": ["modified"]},
            {"path": "b", "old_path": None, "how": ["added"]},
        ]
        only = await ask("checkpoint_diff", paths=["b"], max_chars=0)
        assert [item["path"] for item in only["changes"]] == ["b"] and only["diff"] == ""
        cut = await ask("checkpoint_diff", max_chars=20)
        assert len(cut["diff"]) == 20 and cut["truncated"]

        second = await ask("checkpoint_create", message="second")
        again = await ask("checkpoint_create", message="third")
        assert again["id"] == second["id"] and not again["created"]
        listed = await ask("checkpoint_list", limit=1)
        assert [item["id"] for item in listed["checkpoints"]] == [second["id"]] and listed["more"]
        shown = await ask("checkpoint_show", checkpoint_id="latest", max_chars=1000)
        assert shown["checkpoint"]["message"] == "second" and "+two" in shown["difference"]["diff"]
        history = await ask("file_history", path="a")
        assert history["versions"][0]["checkpoint"]["id"] == second["id"]
        assert history["versions"][0]["size"] == 4

        plan = await ask("checkpoint_restore", checkpoint_id="start")
        assert not plan["done"] and plan["modified"] == ["a"] and plan["deleted"] == ["b"]
        assert (desk.path / "a").read_text() == "two\n"
        (desk.path / "c").write_text("later")
        moved = await ask.refused(
            "checkpoint_restore", checkpoint_id="start", confirm=True, token=plan["token"]
        )
        assert "changed since the dry run" in moved and desk.files()["a"] == "two\n"
        done = await ask("checkpoint_restore", checkpoint_id="start", paths=["a"], confirm=True)
        assert done["done"] and desk.files() == {"a": "one\n", "b": "new\n", "c": "later"}
        await ask("checkpoint_restore", checkpoint_id=done["undo_id"], confirm=True)
        assert desk.files() == {"a": "two\n", "b": "new\n", "c": "later"}

    served(desk, talk)


def test_what_the_tools_say_of_themselves(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        assert set(tools) == READING | WRITING
        for name, tool in tools.items():
            assert tool.description and tool.output_schema and tool.annotations
            assert tool.annotations.read_only_hint is (name in READING)
            assert tool.input_schema["additionalProperties"] is False
        assert tools["checkpoint_restore"].annotations.destructive_hint is True
        assert tools["checkpoint_create"].annotations.destructive_hint is False

    served(desk, talk)


def test_a_command_is_tried_in_a_fork_compared_and_merged(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        script = "echo said; echo 1 >a; echo new >fresh; pwd; exit 3"
        tried = await ask("command_try", command=["sh", "-c", script])
        assert (tried["exit_code"], tried["output"]) == (3, f"said\n{desk.path}\n")
        assert {each["path"] for each in tried["changes"]} == {"a", "fresh"}
        assert "fresh" not in desk.files()
        number = tried["checkpoint_id"]
        (desk.path / "a").write_text("2\n")
        found = await ask("checkpoint_compare", states=[number, "now"])
        assert found["paths"][0] == {"path": "a", "changed_by": [number, "now"], "alike": False}
        assert "exit 3" in found["states"][0]["runs"][0]
        planned = await ask("checkpoint_merge", source=number)
        assert [each["path"] for each in planned["conflicts"]] == ["a"]
        assert "both sides changed a" in await ask.refused(
            "checkpoint_merge", source=number, confirm=True, token=planned["token"]
        )
        assert "fresh" not in desk.files()
        done = await ask(
            "checkpoint_merge",
            source=number,
            resolutions={"a": "theirs"},
            confirm=True,
            token=planned["token"],
        )
        assert (done["done"], desk.files()["a"], desk.files()["fresh"]) == (True, "1\n", "new\n")
        again = await ask("checkpoint_merge", source=number, confirm=True)
        assert (again["done"], again["next"]) == (False, "There is nothing to merge.")
        assert "did not end within 1 seconds" in await ask.refused(
            "command_try", command=["sleep", "60"], seconds=1
        )
        absent = await ask("command_try", command=["not there"])
        assert (absent["exit_code"], "it was not found" in absent["output"]) == (127, True)

    (desk.path / "a").write_text("base\n")
    served(desk, talk, "--allow-commands")


@pytest.mark.deep
def test_a_command_that_does_not_end_when_it_is_asked_to_is_killed(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        script = f"trap '' TERM; while touch {desk.path}/on && [ ! -e {beside} ]; do sleep 1; done"
        said = await ask.refused("command_try", command=["sh", "-c", script], seconds=1)
        assert "did not end within 1 seconds" in said
        assert "on" not in desk.files()

    beside = desk.path.parent / "end"
    try:
        served(desk, talk, "--allow-commands")
    finally:
        beside.touch()


def test_of_a_long_output_only_the_end_is_read() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 42)
        file.seek(0, os.SEEK_END)
        file.write(b"the end")
        assert tail(file, 7) == "the end"
        assert tail(file, 8) == "\0the end"


def test_a_fork_is_made_merged_and_deleted(desk: Desk) -> None:
    def write(fork: str, text: str) -> None:
        Path(fork, "a").write_text(text)

    def read(fork: str) -> str:
        return Path(fork, "a").read_text()

    async def talk(ask: Asked) -> None:
        made = await ask("fork_create", name="idea")
        write(made["path"], "theirs\n")
        (listed,) = (await ask("fork_list"))["forks"]
        assert (listed["name"], listed["changed"]) == ("idea", 1)
        planned = await ask("checkpoint_merge", source="idea")
        assert (planned["modified"], desk.files()["a"]) == (["a"], "base\n")
        await ask("checkpoint_merge", source="idea", confirm=True, token=planned["token"])
        assert desk.files()["a"] == "theirs\n"
        assert (await ask("fork_delete", name="idea"))["done"] is False
        gone = await ask("fork_delete", name="idea", confirm=True)
        assert gone["done"] is True
        assert (await ask("fork_list"))["forks"] == []
        assert "There is no fork idea" in await ask.refused("fork_delete", name="idea")
        back = await ask("fork_create", name="idea", start=gone["checkpoint_id"])
        assert read(back["path"]) == "theirs\n"
        await ask("fork_delete", name="idea", confirm=True)

    (desk.path / "a").write_text("base\n")
    served(desk, talk)


def test_without_a_word_no_command_is_run(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        await ask.refused("command_try", command=["touch", str(desk.path / "ran")])
        assert "ran" not in desk.files()

    served(desk, talk)


def test_read_only_has_no_tool_that_changes_anything(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        assert {tool.name for tool in (await ask.client.list_tools()).tools} == READING
        await ask.refused("checkpoint_restore", checkpoint_id="0", confirm=True)

    served(desk, talk, "--read-only")


def test_errors_are_told_and_the_server_goes_on(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        assert "no checkpoint 9999" in await ask.refused("checkpoint_show", checkpoint_id="9999")
        assert "never" in await ask.refused("file_history", path="never")
        assert "inside" in await ask.refused("file_history", path="../../etc/passwd")
        await ask.refused("checkpoint_list", limit=0)
        await ask.refused("checkpoint_list", limit="many")
        await ask.refused("checkpoint_create")
        await ask.refused("checkpoint_create", message="x" * 5000)
        await ask.refused("no_such_tool")
        (desk.path / os.fsdecode(b"\xff")).write_text("x")
        found = await ask("checkpoint_diff")
        assert found["changes"][-1]["path"] == "\ufffd"
        (desk.path / os.fsdecode(b"\xff")).unlink()

    served(desk, talk)


def test_an_unknown_argument_is_refused_before_anything_is_done(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        (desk.path / "f").write_text("one")
        (desk.path / "g").write_text("one")
        base = await ask("checkpoint_create", message="base")
        (desk.path / "f").write_text("two")
        (desk.path / "g").write_text("two")
        before = desk.files()
        said = await ask.refused(
            "checkpoint_restore", checkpoint_id=base["id"], path=["f"], confirm=True
        )
        assert "there is no argument 'path'" in said and "paths" in said
        said = await ask.refused(
            "checkpoint_restore", checkpoint_id=base["id"], paths=[], confirm=True
        )
        assert "paths is []" in said and "Nothing was changed" in said
        await ask.refused("checkpoint_diff", from_checkpoint=base["id"])
        assert desk.files() == before
        found = await ask("checkpoint_diff", from_id=base["id"])
        assert found["from_id"] == base["id"] and found["total"] == 2

    served(desk, talk)


def test_errors_are_for_a_model_to_read(desk: Desk) -> None:
    async def talk(ask: Asked) -> None:
        (desk.path / "f").write_text("one")
        base = await ask("checkpoint_create", message="base")
        shown = await ask("checkpoint_show", checkpoint_id=int(base["id"]))
        assert shown["checkpoint"]["id"] == base["id"]
        said = [
            await ask.refused("checkpoint_create"),
            await ask.refused("checkpoint_list", limit=0),
            await ask.refused("checkpoint_show", checkpoint_id=True),
            await ask.refused("checkpoint_show", checkpoint_id="9999"),
            await ask.refused("checkpoint_restore", checkpoint_id=base["id"], paths=["never"]),
            await ask.refused(
                "checkpoint_restore", checkpoint_id=base["id"], token="stale", confirm=True
            ),
        ]
        for text in said:
            assert "pydantic" not in text and "http" not in text, text
            assert "`" not in text and "--" not in text, text
        assert "'message' is missing" in said[0] and "limit is 0" in said[1]
        assert "checkpoint_list" in said[3] and "dry run" in said[5]

    served(desk, talk)


def test_it_survives_an_unmount() -> None:
    with workspace() as made:
        desk = Desk(made)

        async def talk(ask: Asked) -> None:
            assert (await ask("workspace_status"))["mounted"]
            await anyio.to_thread.run_sync(made.umount)
            assert not (await ask("workspace_status"))["mounted"]
            (desk.path / "x").write_text("1")
            assert (await ask("checkpoint_create", message="not mounted"))["created"]

        served(desk, talk)


def test_it_ends_with_its_input(desk: Desk) -> None:
    done = desk.run("mcp")  # its standard input is empty
    assert (done.returncode, done.stdout) == (0, "")


def test_the_server_does_not_start_outside_of_a_workspace(desk: Desk) -> None:
    done = desk.run("mcp", "-w", "/tmp")
    assert done.returncode == 40 and done.stdout == ""


def test_without_the_package_it_says_how_to_get_it(desk: Desk) -> None:
    hidden = "import sys; sys.modules['mcp'] = None; from ckptfs.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "mcp"],
        env={**os.environ, **desk.work.env},
        cwd=desk.path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 78 and f"{sys.executable} -m pip install 'mcp<3,>=2'" in done.stderr


def test_lines_that_make_no_sense_do_not_end_it(desk: Desk) -> None:
    lines = b"\n".join([b"", b"{", b"[]", b'{"jsonrpc": "1.0"}', b"\xff\xfe", b"0" * 100_000, b""])
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", "mcp"],
        input=lines,
        env={**os.environ, **desk.work.env},
        cwd=desk.path,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
