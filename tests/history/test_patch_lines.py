"""Lines in common, and hunks made of them: checked by doing what the hunks say."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from ckptfs.textdiff import PatchFile, common_blocks, render, split_lines, stat_of

TEXTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n", b"x\ry\n", b"end"])).map(
    b"".join
)


def side(data: bytes) -> PatchFile:
    return PatchFile(b"f", 0o100644, len(data), data)


def applied(data: bytes, patch: list[bytes]) -> bytes:
    """What becomes of the text when the hunks are applied to it, each where it says."""
    lines, result, at = split_lines(data), [], 0
    text = b"".join(patch).replace(b"\n\\ No newline at end of file\n", b"")
    body = split_lines(text)
    for line in body[4:]:
        if line.startswith(b"@@"):
            start, _, length = line.split()[1][1:].partition(b",")
            begin = int(start) - (1 if length != b"0" else 0)
            result += lines[at:begin]
            at = begin
        elif line.startswith(b"+"):
            result.append(line[1:])
        else:
            assert lines[at] == line[1:]
            at += 1
            if line.startswith(b" "):
                result.append(line[1:])
    return b"".join(result + lines[at:])


@given(TEXTS, TEXTS)
def test_hunks_say_how_to_get_there(a: bytes, b: bytes) -> None:
    patch = list(render(side(a), side(b)))
    assert bool(patch) == (a != b)
    # A last line without a newline that is followed by added ones cannot be told from the marker
    # once that is cut out, so only the rest is applied here; git and patch apply them all.
    if a.endswith(b"\n") and b.endswith(b"\n"):
        assert applied(a, patch) == b


@given(TEXTS, TEXTS)
def test_blocks_are_equal_and_in_order(a: bytes, b: bytes) -> None:
    old, new = split_lines(a), split_lines(b)
    assert b"".join(old) == a
    i = j = 0
    for block in common_blocks(old, new):
        assert block.old >= i and block.new >= j and block.length
        i, j = block.old + block.length, block.new + block.length
        assert old[block.old : i] == new[block.new : j]
    stat = stat_of(side(a), side(b))
    assert len(old) - stat.removed + stat.added == len(new)


def test_a_moved_function_keeps_its_lines_together() -> None:
    body = [b"def f():\n", b"    return 1\n", b"\n", b"def g():\n", b"    return 2\n", b"\n"]
    new = [*body[:3], b"def h():\n", b"    return 3\n", b"\n", *body[3:]]
    assert stat_of(side(b"".join(body)), side(b"".join(new)))[:2] == (3, 0)


def test_every_other_line_changed_is_no_trouble() -> None:
    a = b"".join(b"line %d\n" % number for number in range(20_000))
    b = b"".join(
        b"line %d\n" % number if number % 2 else b"new %d\n" % number for number in range(20_000)
    )
    started = time.process_time()
    assert stat_of(side(a), side(b))[:2] == (10_000, 10_000)
    assert time.process_time() - started < 2


def test_few_lines_over_and_over_are_no_trouble() -> None:
    chance = random.Random(1)
    a = b"".join(b"%d\n" % chance.randrange(150) for _ in range(100_000))
    b = b"".join(b"%d\n" % chance.randrange(150) for _ in range(100_000))
    started = time.process_time()
    list(render(side(a), side(b)))
    assert time.process_time() - started < 3


def test_repeated_lines_are_still_found() -> None:
    """No line of a large text is unique, and few of them changed."""
    lines = [b"%d\n" % (number * 7919 % 2500) for number in range(5000)]
    changed = [b"changed\n" if number % 100 == 7 else line for number, line in enumerate(lines)]
    stat = stat_of(side(b"".join(lines)), side(b"".join(changed)))
    assert stat[:2] == (50, 50)
