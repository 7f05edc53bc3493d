"""Fixtures of the tests with real agents: one run of the steps for all the tests of an agent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from ckptfs.agents.table import AGENTS as HOOKS
from tests.real_agents.agents import AGENTS, Agent
from tests.real_agents.session import Session, done
from tests.support.mounting import HAVE_FUSE, PLAIN


def _require(agent: Agent) -> None:
    """Skip where an agent cannot be had; fail where it can and is not there."""
    if PLAIN or not HAVE_FUSE:
        pytest.skip("no /dev/fuse" if not PLAIN else "on a plain directory")
    if not agent.is_installed():
        reason = f"{agent.package} is not installed; `make test-deep` installs it"
        (pytest.fail if shutil.which("npm") else pytest.skip)(reason)


def _name(agent: Agent) -> str:
    return agent.name


@pytest.fixture(params=AGENTS, ids=_name)
def agent(request: pytest.FixtureRequest) -> Agent:
    _require(request.param)
    found: Agent = request.param
    return found


@pytest.fixture(scope="module", params=AGENTS, ids=_name)
def unhooked(request: pytest.FixtureRequest) -> Iterator[Session]:
    """After a run with nothing installed: what is there took itself."""
    _require(request.param)
    with done(request.param, hooked=False) as session:
        yield session


@pytest.fixture(scope="module", params=[a for a in AGENTS if a.hook in HOOKS], ids=_name)
def hooked(request: pytest.FixtureRequest) -> Iterator[Session]:
    """After a run with `ckptfs hook install`."""
    _require(request.param)
    with done(request.param, hooked=True) as session:
        yield session
