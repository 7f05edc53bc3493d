"""What is made of the room that moments took, and of a machine without a compiler."""

from pathlib import Path
from typing import cast

import pytest

from bench import room
from bench.contestants import CkptfsMount
from bench.figures import Site
from bench.kit import Kit
from bench.outcome import Comparison, Figure
from bench.report import figure_verdict
from bench.scale import QUICK


def _figures(*store_mb: int) -> dict[str, Figure]:
    kept = [room.Kept(20 * n, 20, mb * 1_000_000) for n, mb in enumerate(store_mb, 1)]
    found = room.kept_found(kept, 20)
    return {each.name: each for each in found if isinstance(each, Figure)}


def test_a_store_that_levels_off_is_within_the_mark() -> None:
    assert figure_verdict(_figures(18, 20, 21)["moments-growth"]) == "OK"


def test_a_store_that_keeps_growing_is_above_it() -> None:
    assert figure_verdict(_figures(10, 20, 30)["moments-growth"]) == "above"


def test_the_store_is_shown_after_each_third() -> None:
    kept = [room.Kept(5, 4, 1_000_000), room.Kept(10, 5, 2_000_000), room.Kept(15, 5, 2_000_000)]
    (shown,) = [each for each in room.kept_found(kept, 5) if isinstance(each, Comparison)]
    assert shown.columns == {"5 rounds": [1.0], "10 rounds": [2.0], "15 rounds": [2.0]}
    assert shown.note == "moments: 4, 5, 5"


def test_without_a_compiler_the_figure_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    kit = Kit(tmp_path, False, lambda _message: None)
    nobody = cast(CkptfsMount, None)
    site = Site(nobody, tmp_path, QUICK, kit)
    assert room.moments_growth(site) == []
    assert site.skipped == {"moments-growth": "not installed, and nothing is to be installed"}
