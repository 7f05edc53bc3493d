"""Settings that hold for every test. Fixtures live beside the tests that need them."""

from __future__ import annotations

import os

import pytest

# Tests start the CLI a thousand times; without bytecode it would be compiled as often.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def ordinary_umask() -> object:
    """Modes in the tests are written for umask 022, whatever the shell that started them has."""
    before = os.umask(0o022)
    yield
    os.umask(before)
