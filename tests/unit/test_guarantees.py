"""docs/CASES.md and PROOFS.md: every promise and every limit has tests, and these exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
_REFERENCE = re.compile(r"^(?P<file>[a-z_]+/test_[a-z_]+)(::(?P<test>test_[a-z0-9_]+))?$")


def _rows(page: str) -> Iterator[tuple[str, str, str]]:
    """Of every row of every table its section and its two cells, without heads and rules."""
    section, head = "", True
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("## "):
            section, head = line[3:], True
        elif line.startswith("| ") and not set(line) <= set("| -"):
            first, second = (cell.strip() for cell in line.strip("|").split(" | "))
            if not head:
                yield section, first, second
            head = False


PROOFS = list(_rows("PROOFS.md"))


@pytest.mark.parametrize("row", PROOFS, ids=lambda row: row[1][:50])
def test_a_promise_names_its_tests(row: tuple[str, str, str]) -> None:
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


def test_promises_and_proofs_are_the_same_in_the_same_order() -> None:
    promised = [row[:2] for row in _rows("CASES.md")]
    assert promised == [row[:2] for row in PROOFS]


def test_there_are_promises() -> None:
    assert len(PROOFS) > 35
