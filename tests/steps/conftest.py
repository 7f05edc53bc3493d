"""Fixtures of the matrix of steps: mounted workspaces, one for each harness and way of serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.steps.cases import mounted
from tests.support.mounting import HAVE_FUSE, PLAIN, Workspace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "a plain directory has no history" if PLAIN else "" if HAVE_FUSE else "no /dev/fuse"
    for item in items:
        if reason and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


class Served:
    """The workspace for the cases of one harness; another harness's takes its place."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key: tuple[str, str] | None = None
        self._made: Workspace | None = None

    def __call__(self, front: str, harness: str) -> Workspace:
        if self._made is None or self._key != (front, harness):
            self.close()
            self._key = (front, harness)
            self._made = self._stack.enter_context(mounted(front))
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


@pytest.fixture(params=["compiled", "pyfuse3"])
def either(request: pytest.FixtureRequest) -> Iterator[Workspace]:
    """A workspace for this test alone, through each way of serving requests."""
    with mounted(request.param) as made:
        yield made


@pytest.fixture
def alone() -> Iterator[Workspace]:
    """A workspace for this test alone."""
    with mounted("compiled") as made:
        yield made
