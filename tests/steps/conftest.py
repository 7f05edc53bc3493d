"""Fixtures of the matrix of steps: mounted workspaces, through either way of serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.steps.cases import SERVERS, CaseDirectory, mounted
from tests.support.mounting import HAVE_FUSE, PLAIN, Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "a plain directory has no history" if PLAIN else "" if HAVE_FUSE else "no /dev/fuse"
    for item in items:
        if reason and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


#: So many cases share a workspace, one after the other: each makes its own content, after the end
#: of the one before it.
_CASES_EACH = 25


class Served:
    """A workspace for the next case, served one way or the other; now and then a new one."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server = ""
        self._made: Workspace | None = None
        self._cases = 0

    def __call__(self, server: str) -> Workspace:
        if self._made is None or self._server != server or self._cases >= _CASES_EACH:
            self.close()
            self._server = server
            self._made = self._stack.enter_context(mounted(server))
            self._cases = 0
        self._cases += 1
        return self._made

    def close(self) -> None:
        self._made = None
        self._stack.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    opened = Served()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def place(served: Served) -> CaseDirectory:
    """A directory of the test's own."""
    return CaseDirectory(served("compiled"))


@pytest.fixture
def alone() -> Iterator[CaseDirectory]:
    """A directory in a workspace of which nobody has taken anything yet."""
    with mounted("compiled") as made:
        yield CaseDirectory(made)


@pytest.fixture(params=SERVERS)
def either(request: pytest.FixtureRequest) -> Iterator[CaseDirectory]:
    """A directory of the test's own, through each way of serving requests."""
    with mounted(request.param) as made:
        yield CaseDirectory(made)
