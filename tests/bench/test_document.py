"""The page and its plots, from an outcome made by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import document
from bench.outcome import DAY_GROUP, Comparison, Figure, Outcome, Sample
from bench.plots import Bar, ratio_bars, value_bars, value_lines
from bench.registry import MICRO, REAL, WorkDirectory, Workload
from bench.report import as_json
from bench.scale import QUICK

SVG = "{http://www.w3.org/2000/svg}"


def _steps(_place: WorkDirectory) -> Iterator[None]:
    yield


UNTAR = Workload("untar", "untar | <files>", "tree", _steps, 2.5, False, (), REAL)
STAT = Workload("stat", "stat", "micro", _steps, None, False, (), MICRO)


def _outcome() -> Outcome:
    outcome = Outcome(("ext4", "ckptfs", "bindfs"), (UNTAR, STAT))
    for row in (UNTAR, STAT):
        for name, seconds in (("ext4", 1.0), ("ckptfs", 3.0), ("bindfs", 6.0)):
            outcome.add(row.name, name, Sample(0, seconds, 0.2, 50_000_000))
    outcome.aside = Outcome(("ext4", "juicefs"), (UNTAR, STAT))
    outcome.aside.add("untar", "ext4", Sample(0, 0.1, 0.0))
    outcome.aside.add("untar", "juicefs", Sample(0, 4.0, 0.0))
    columns = {"ckptfs": [0.002, 0.004], "git": [0.3]}
    outcome.comparisons = [Comparison("save", "History: ours", "save", "s", columns)]
    outcome.figures = [Figure("idle", "idle CPU", 0.01, "%", 0.05)]
    outcome.skipped = {"borg": "it is not here"}
    return outcome


def _data() -> document.Json:
    data: document.Json = json.loads(json.dumps(as_json(_outcome(), QUICK, {"kernel": "Linux 9"})))
    return data


def test_the_page_has_every_table(tmp_path: Path) -> None:
    document.write(_data(), tmp_path / "BENCHMARKS.md")
    page = (tmp_path / "BENCHMARKS.md").read_text()
    assert "| kernel | Linux 9 |" in page
    assert (
        "| untar \\| <files> | 1.00 s | 3.00 s | 200 ms | 50 MB | **3.00** | 3.00 to 3.00 "
        "| 2.5 | above | 6.00 | 40.00 |" in page
    )
    assert "| save | 3 ms | 300 ms |" in page
    assert "| idle CPU | 0.01 % | at most 0.05 | OK |  |" in page
    assert "- borg: it is not here" in page
    assert "juicefs would take too long" in page


def test_the_floor_is_explained_where_it_took_part(tmp_path: Path) -> None:
    page = tmp_path / "BENCHMARKS.md"
    document.write(_data(), page)
    assert "what FUSE itself costs" not in page.read_text()
    outcome = _outcome()
    outcome.contestants = ("ext4", "ckptfs", "floor")
    outcome.add("untar", "floor", Sample(0, 2.0, 0.0))
    document.write(json.loads(json.dumps(as_json(outcome, QUICK, {}))), page)
    assert "what FUSE itself costs" in page.read_text()
    assert "| 2.5 | above | 2.00 | 40.00 |" in page.read_text()


def test_every_picture_of_the_page_is_a_drawing(tmp_path: Path) -> None:
    old = tmp_path / "benchmarks" / "of-another-run.svg"
    old.parent.mkdir()
    old.write_text("<svg/>")
    written = document.write(_data(), tmp_path / "BENCHMARKS.md")
    pictures = [path for path in written if path.suffix == ".svg"]
    page = (tmp_path / "BENCHMARKS.md").read_text()
    assert len(pictures) == 3
    for path in pictures:
        assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
        assert f"(benchmarks/{path.name})" in page
    assert not old.exists()


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"version": 1}')
    with pytest.raises(document.NotAResult, match=r"old\.json"):
        document.load(path)
    path.write_text("nonsense")
    with pytest.raises(document.NotAResult, match="Cannot read"):
        document.load(path)


def _bars(svg: str) -> list[tuple[float, float]]:
    """Left end and width of each bar, without background and legend."""
    rects = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [
        (float(each.attrib["x"]), float(each.attrib["width"]))
        for each in rects
        if each.attrib.get("height") == "17"
    ]


def test_half_and_double_are_as_long_on_either_side_of_one() -> None:
    bars = [Bar("slow", {"ours": 2.0}), Bar("fast", {"ours": 0.5})]
    (slow_left, slow_width), (fast_left, fast_width) = _bars(ratio_bars("t", bars, ["ours"], []))
    assert slow_width == pytest.approx(fast_width, abs=0.2)
    assert fast_left + fast_width == pytest.approx(slow_left, abs=0.2)


def test_a_series_may_be_missing_at_a_bar() -> None:
    bars = [Bar("both", {"a": 1.0, "b": 10.0}), Bar("one", {"b": 5.0}), Bar("none", {})]
    assert len(_bars(value_bars("t", bars, ["a", "b"], "ms"))) == 3


def test_a_line_goes_through_the_points_that_its_series_has() -> None:
    points = [
        Bar("8:00", {"a": 0.0, "b": 40.0}),
        Bar("noon", {"a": 20.0}),
        Bar("6 pm", {"a": 40.0}),
    ]
    drawn = ElementTree.fromstring(value_lines("t", points, ["a", "b"], "MB"))
    lines = [each.attrib["points"].split() for each in drawn.iter(f"{SVG}polyline")]
    ours, others = ([tuple(map(float, at.split(","))) for at in line] for line in lines)
    assert len(ours) == 3 and others == [(ours[0][0], ours[2][1])]
    assert ours[1][1] == pytest.approx((ours[0][1] + ours[2][1]) / 2)


def test_a_day_is_drawn_as_lines() -> None:
    rows = [
        {"group": DAY_GROUP, "title": f"{n}", "unit": "MB", "columns": {"ckptfs": [n]}}
        for n in (1.0, 2.0)
    ]
    ((name, svg),) = document._plots({"rows": [], "comparisons": rows})
    assert name == "the-room-of-a-day-s-work" and "<polyline" in svg


def test_words_are_escaped() -> None:
    svg = ratio_bars("a < b & c", [Bar("x > y", {"s": 1.5})], ["s"], [2.0])
    assert "a < b & c" in {each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}
