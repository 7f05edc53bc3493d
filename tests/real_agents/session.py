"""A session of an agent: the steps, the workspace it does them in, and the history they leave."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real_agents.agents import Agent, Surroundings
from tests.real_agents.running import Program, started
from tests.real_agents.script import FAREWELL, Edit, Run, Step, Write
from tests.real_agents.stand_in import StandIn, stand_in
from tests.support.mounting import Workspace, ckptfs, succeed, workspace

#: An agent needs 1 to 10 seconds; starting is the most of it.
PATIENCE = 120.0

APP, B = "src/app.py", "src/b.py"
V1, V2, V3 = "version = 1\n", "version = 2\n", "version = 3\n"
B_TEXT = "b = 1"

SED = f"sed -i 's/version = 2/version = 3/' {APP}"
PYTHON = f"python3 -c \"open('{B}', 'w').write('{B_TEXT}')\""


def steps_of(agent: Agent) -> list[Step]:
    """What an agent does in a day: it writes, edits, runs commands, and wrecks everything."""
    return [
        Write(APP, V1),
        Edit(APP, "version = 1", "version = 2"),
        Run(SED),
        Run(PYTHON),
        Run(agent.removal),
    ]


class Session:
    """An agent that has done the steps, and the history of its workspace as it was then."""

    def __init__(self, agent: Agent, work: Workspace) -> None:
        self.agent = agent
        self.work = work
        self.listed = self._listed("list", "--all")
        helped = self.ok("list", "--help")
        self.moments = self._listed("list", "--moments", "--all") if "--moments" in helped else []
        self.logged = {path: self._log(path) for path in (APP, B)}

    def ok(self, *words: str) -> str:
        return succeed(ckptfs(*words, env=self.work.env, cwd=self.work.path)).stdout

    def content(self, checkpoint: int, path: str) -> str | None:
        """A file as it was; None if there was none."""
        file = self.work.path / ".checkpoints" / str(checkpoint) / path
        return file.read_text() if file.exists() else None

    def told(self) -> str:
        """The history, for the message of a failure."""
        known = {found["id"]: found for found in self.moments + self.listed}
        return "\n".join(
            f"{number}: {found['kind']} {found['message'][:100]!r} "
            f"{self.content(number, APP)!r} {self.content(number, B)!r}"
            for number, found in sorted(known.items())
        )

    def _listed(self, *words: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.ok(*words, "--json"))["checkpoints"]
        return listed

    def _log(self, path: str) -> list[int]:
        versions = json.loads(self.ok("log", path, "--json"))["versions"]
        return [found["saved"]["id"] for found in versions if found["saved"]]


@contextmanager
def running(
    agent: Agent, work: Workspace, steps: Sequence[Step], hooked: bool
) -> Iterator[tuple[Program, StandIn]]:
    """An agent in the workspace that does the steps, and the stand-in that tells it to."""
    base = work.path.parent
    home = base / "home"
    (home / "tmp").mkdir(parents=True)
    calls = [agent.translate(step, work.path) for step in steps]
    with stand_in(agent.wire, calls) as model:
        place = Surroundings(work.path, model.url)
        for name, text in agent.settings(place).items():
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_text(text)
        env = {**_environment(home), **work.env, **agent.environment(place)}
        with started(agent.command(hooked), work.path, home, env) as program:
            try:
                yield program, model
            except AssertionError as error:
                error.add_note(model.account())
                raise


def _environment(home: Path) -> dict[str, str]:
    """Little of ours: an agent must not find the settings or keys of whoever runs the tests."""
    return {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": str(home / "tmp"),
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


@contextmanager
def done(agent: Agent, hooked: bool) -> Iterator[Session]:
    """After an agent has done every step, with `ckptfs hook install` before or without."""
    with workspace() as work:
        if hooked:
            install = ("hook", "install", agent.hook, "--yes", "--project")
            succeed(ckptfs(*install, env=work.env, cwd=work.path))
        steps = steps_of(agent)
        with running(agent, work, steps, hooked) as (program, model):
            output = program.finish(PATIENCE)
        account = f"{output}\n{model.account()}"
        assert len(model.results) == len(steps) and FAREWELL in output, account
        assert not (work.path / "src").exists(), account
        yield Session(agent, work)
