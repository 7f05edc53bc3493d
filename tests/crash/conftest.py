"""A mounted workspace that a test may leave in any state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mounting import Workspace, scratch


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    with scratch() as base:
        made = Workspace(base)
        made.mount()
        try:
            yield made
        finally:
            made.finish()
