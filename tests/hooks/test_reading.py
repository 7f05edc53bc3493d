"""Skimming JSON: the same answer as parsing it, whatever the pieces it comes in."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.agents.hook_input import WHOLE_MAX, read_object
from ckptfs.agents.large_input import KEPT, skim

TEXTS = st.text(max_size=30)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


def pieces(data: bytes, size: int) -> Any:
    stream = io.BytesIO(data)
    return lambda wanted: stream.read(min(wanted, size))


def kept(value: Any, depth: int = 3) -> Any:
    """What is left of a value when it is skimmed."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and depth:
        return {key: kept(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list) and depth:
        return value[:1] if value and isinstance(value[0], str) else []
    return None


@given(st.dictionaries(TEXTS, VALUES, max_size=6), st.integers(1, 50), st.booleans())
def test_skimming_is_parsing_without_the_depths(
    record: dict[str, Any], size: int, ascii_only: bool
) -> None:
    data = json.dumps(record, ensure_ascii=ascii_only, indent=size % 3 or None)
    raw = data.encode("utf-8", "replace") if not ascii_only else data.encode()
    assert skim(pieces(raw, size)) == kept(json.loads(raw.decode()))


@given(st.binary(max_size=60), st.integers(1, 9))
def test_anything_else_is_a_plain_error(data: bytes, size: int) -> None:
    for text in (data, b"{" + data, b'{"a":' + data):
        with suppress(ValueError):  # it may overlook what it passes over
            skim(pieces(text, size))


@given(TEXTS, st.integers(0, 12))
def test_a_long_string_is_cut_anywhere(text: str, shift: int) -> None:
    long = "x" * (KEPT - shift) + text * 3 + "\u1234\U0001f600" * 5
    found = skim(pieces(json.dumps({"a": long, "b": "end"}).encode(), 1000))
    assert found["b"] == "end"
    cut = str(found["a"])
    assert long.startswith(cut[:-2]) and len(cut) > KEPT - shift - 12


@pytest.mark.parametrize("filler", ["x", "\n", '"', "\\", "é", "\U0001f600"])
def test_large_and_small_are_read_alike(filler: str) -> None:
    record = {"cwd": "/w", "tool_input": {"content": filler * WHOLE_MAX, "path": "p"}, "id": "i"}
    found = read_object(io.BytesIO(json.dumps(record).encode()).read)
    assert found["cwd"] == "/w" and found["id"] == "i"
    given = found["tool_input"]
    assert isinstance(given, dict) and given["path"] == "p"
    assert set(given["content"]) <= set(filler) and given["content"]


@pytest.mark.parametrize("end", [b"", b'"', b'"}', b"]}}", b'"}} x'])
def test_a_large_input_that_is_cut_off_is_refused(end: bytes) -> None:
    data = b'{"a": {"b": "' + b"x" * (WHOLE_MAX + 10) + end
    with pytest.raises(ValueError, match=r"end|missing"):
        read_object(io.BytesIO(data).read)


def test_a_large_input_is_read_to_its_end_also_if_it_is_bad() -> None:
    stream = io.BytesIO(b"[" * (3 * WHOLE_MAX))
    with pytest.raises(ValueError, match="missing"):
        read_object(stream.read)
    assert stream.read() == b""
