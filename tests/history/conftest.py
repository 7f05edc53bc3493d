"""What tests of the history share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.store import check
from tests.history.edits import Edits
from tests.history.leftovers import leftovers


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    """A store in which, in the end, everything is in order and nothing is left over."""
    made = Edits(tmp_path / "store")
    yield made
    made.fs.commit()
    assert check(made.store) == []
    assert leftovers(made.store) == []
    made.store.close()
