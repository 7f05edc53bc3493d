"""Which paths are meant when several are named."""

from __future__ import annotations

from pathlib import Path

from ckptfs.history import select
from ckptfs.service import Service
from tests.direct import get
from tests.history.edits import edits


def test_what_lies_below_a_named_path_goes_along_with_it(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/f", b"1")
        work.put("d-f", b"1")
        view = work.save()
        found = select(work.fs, (view,), [b"d", b"d/f", b"d/*", b"d-f"])
        assert found == [b"d", b"d-f"]


def test_a_directory_and_a_file_in_it_are_restored_together(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/f", b"1")
        work.put("d/g", b"1")
        work.save()
        work.put("d/f", b"2")
        work.remove("d/g")
        Service(work.fs).restore("0", [b"d", b"d/f", b"d/g"])
        assert get(work.fs, b"d/f") == get(work.fs, b"d/g") == b"1"
