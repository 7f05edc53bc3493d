"""PraisonAI's checkpoint service on ours. What its package 1.7.17 does was recorded; the deep tests
install that package and compare again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.compat import praisonai
from tests.seeds.praisonai_names import names_of
from tests.seeds.praisonai_session import session
from tests.support.mounting import HAVE_FUSE, Workspace, scratch

HERE = Path(__file__).parent
PACKAGE = "praisonaiagents==1.7.17"
SEEN = json.loads((HERE / "praisonai_session.json").read_text())
NAMES = json.loads((HERE / "praisonai_names.json").read_text())


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        try:
            yield made
        finally:
            made.finish()


def test_the_names_and_parameters_are_those_of_the_package() -> None:
    assert names_of(praisonai) == NAMES


def test_a_session_on_a_plain_directory_sees_what_it_sees_on_the_package(work: Workspace) -> None:
    service = praisonai.CheckpointService(str(work.path), str(work.path.parent / "stores"))
    assert asyncio.run(session(service, work.path)) == SEEN


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
def test_a_session_on_a_mounted_workspace_sees_the_same(work: Workspace) -> None:
    work.mount()
    service = praisonai.CheckpointService(str(work.path))
    assert asyncio.run(session(service, work.path)) == SEEN


def test_what_cannot_be_is_a_result_and_no_exception(work: Workspace) -> None:
    service = praisonai.CheckpointService(str(work.path / "none"))
    assert asyncio.run(service.initialize()) is False
    result = asyncio.run(service.save("too early"))
    assert (result.success, result.error) == (False, "Service not initialized")
    assert (
        asyncio.run(praisonai.CheckpointService(str(work.path), enabled=False).initialize())
        is False
    )


def test_a_form_feed_ends_no_line_of_a_diff(work: Workspace) -> None:
    """As in sources of GNU; and a carriage return within a line ends none either."""
    (work.path / "a").write_text("one\n")
    service = praisonai.CheckpointService(str(work.path))

    async def counted() -> list[tuple[str, int, int]]:
        await service.initialize()
        (work.path / "a").write_bytes(b"one\n\f-two\f-three\n\fdiff --git \r+x\nfour\n")
        found = await service.diff((await service.list_checkpoints())[0].id)
        return [(item.path, item.additions, item.deletions) for item in found.files]

    assert asyncio.run(counted()) == [("a", 3, 0)]


def test_what_praisonai_keeps_in_a_workspace_goes_back_with_no_restore(work: Workspace) -> None:
    (work.path / ".praisonai").mkdir()
    (work.path / ".praisonai/session").write_text("then")
    (work.path / "file").write_text("then")

    async def run() -> praisonai.CheckpointResult:
        service = praisonai.CheckpointService(str(work.path), str(work.path.parent / "stores"))
        assert await service.initialize()
        saved = await service.save("then", allow_empty=True)
        assert saved.checkpoint is not None
        (work.path / ".praisonai/session").write_text("now")
        (work.path / "file").write_text("now")
        return await service.restore(saved.checkpoint.id)

    assert asyncio.run(run()).success
    assert (work.path / "file").read_text() == "then"
    assert (work.path / ".praisonai/session").read_text() == "now"


# -- with the package itself -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def their_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with PraisonAI's package from the package index, and with ours behind it."""
    place = tmp_path_factory.mktemp("praisonai")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    ours = [str(HERE.parents[1]), sysconfig.get_path("purelib")]
    (site / "ours.pth").write_text("\n".join(ours) + "\n")
    return python


def _run(python: Path, *words: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [python, *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deep
def test_the_package_still_has_what_was_recorded(their_python: Path, tmp_path: Path) -> None:
    modules = ("praisonaiagents.checkpoints.service", "praisonaiagents.checkpoints.types")
    assert json.loads(_run(their_python, HERE / "praisonai_names.py", *modules)) == NAMES
    (tmp_path / "w").mkdir()
    words = ("theirs", tmp_path / "w", tmp_path / "s")
    assert json.loads(_run(their_python, HERE / "praisonai_session.py", *words)) == SEEN


#: Its pipeline for autonomous work takes a checkpoint first; so does whatever imports the service.
_PIPELINE = """
import asyncio, sys
from ckptfs.compat import praisonai
praisonai.install()
from praisonaiagents.checkpoints import CheckpointService
from praisonaiagents.escalation import EscalationPipeline
from praisonaiagents.escalation.types import EscalationStage

workspace, storage = sys.argv[1:]

class Agent:
    def chat(self, prompt):
        open(workspace + "/file", "w").write("by the agent")
        return "done"

async def main():
    service = CheckpointService(workspace_dir=workspace, storage_dir=storage)
    assert isinstance(service, praisonai.CheckpointService)
    assert await service.initialize()
    open(workspace + "/file", "w").write("by hand")
    pipeline = EscalationPipeline(agent=Agent(), checkpoint_service=service)
    await pipeline.execute_at_stage("write it", EscalationStage.AUTONOMOUS)
    (taken,) = pipeline.get_context().checkpoint_ids
    assert open(workspace + "/file").read() == "by the agent"
    result = await service.restore(taken)
    print(result.success, result.checkpoint.message, open(workspace + "/file").read())

asyncio.run(main())
"""


@pytest.mark.deep
def test_its_autonomous_pipeline_takes_a_checkpoint_of_ours(
    their_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "w").mkdir()
    place = {"XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path)}
    said = _run(their_python, "-c", _PIPELINE, tmp_path / "w", tmp_path / "s", env=place)
    assert said == "True Before autonomous execution by hand\n"
