"""Recursion without the interpreter's stack, for trees that are deeper than that.

A recursive function becomes a generator that yields its calls: ``gone = yield remove(child)``
instead of ``gone = remove(child)``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")

#: A call that has begun; it yields the calls it makes and is sent their results.
Call = Generator["Call[Any]", Any, Result]


def run(call: Call[Result]) -> Result:
    """Carry out a call and all the calls that it makes; return what it returns.

    An exception ends all of them; no outer call can catch it.
    """
    calls: list[Call[Any]] = [call]
    result: Any = None
    while calls:
        try:
            made = calls[-1].send(result)
        except StopIteration as ended:
            calls.pop()
            result = ended.value
        else:
            calls.append(made)
            result = None
    return result  # type: ignore[no-any-return]
