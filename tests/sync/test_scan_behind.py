"""A scan that goes on while the workspace is read: what was compared is what is below."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.sync.test_machine import Sync, common, modes, names, picks

#: Edits of the lower directory, each with where it comes.
_edits = st.one_of(
    st.tuples(st.just("make_file"), picks, names, st.booleans()),
    st.tuples(st.just("edit"), picks, st.booleans()),
    st.tuples(st.just("make_directory"), picks, names),
    st.tuples(st.just("make_link"), picks, names),
    st.tuples(st.just("hard_link"), picks, picks, names),
    st.tuples(st.just("rename"), picks, picks, names),
    st.tuples(st.just("remove"), picks),
    st.tuples(st.just("chmod"), picks, modes),
    st.tuples(st.just("touch"), picks, st.integers(1, 10**18)),
)


def _edit(machine: Sync, edits: list[tuple[object, ...]]) -> None:
    for name, *values in edits:
        method: Callable[..., None] = getattr(machine, str(name))
        method("lower", *values)


@settings(max_examples=150, **common)
@given(
    files=st.lists(st.tuples(picks, names, st.booleans()), min_size=6, max_size=16),
    before=st.lists(_edits, max_size=4),
    after=st.lists(_edits, min_size=1, max_size=6),
    order=st.lists(picks, max_size=6),
    end=st.sampled_from(["scan", "scan", "umount", "kill"]),
)
def test_in_whatever_order_directories_are_compared_what_is_shown_is_what_is_below(
    files: list[tuple[int, str, bool]],
    before: list[tuple[object, ...]],
    after: list[tuple[object, ...]],
    order: list[int],
    end: str,
) -> None:
    machine = Sync()
    try:
        machine.start(files)
        _edit(machine, before)
        machine.scan()
        machine.write_back()
        _edit(machine, after)
        machine.scan_behind(order, end)
        machine.write_back()
    finally:
        machine.teardown()
