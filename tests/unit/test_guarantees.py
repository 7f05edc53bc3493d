"""docs/GUARANTEES.md: every promise and every limit names tests, and these exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GUARANTEES = (TESTS.parent / "docs/GUARANTEES.md").read_text()
_REFERENCE = re.compile(r"^(?P<file>[a-z_]+/test_[a-z_]+)(::(?P<test>test_[a-z0-9_]+))?$")


def _rows() -> list[list[str]]:
    """The cells of every row of every table, without heads and rules."""
    lines = [line for line in GUARANTEES.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[-1] != "tests" and set(row[0]) != {"-"}]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0][:50])
def test_a_promise_names_its_tests(row: list[str]) -> None:
    assert len(row) == 3
    for reference in row[2].split(", "):
        found = _REFERENCE.match(reference)
        assert found, f"{reference!r} is not DIRECTORY/test_FILE or DIRECTORY/test_FILE::test_NAME"
        file = TESTS / f"{found['file']}.py"
        assert file.exists(), f"there is no {file}"
        if found["test"]:
            assert found["test"] in _functions(file), f"{file} has no {found['test']}"


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_there_are_promises() -> None:
    assert len(_rows()) > 35
