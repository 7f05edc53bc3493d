"""Saying which errno a system call must fail with."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fails(*numbers: int) -> Iterator[None]:
    """The body must raise an OSError with one of these errno values."""
    wanted = "/".join(errno.errorcode[number] for number in numbers)
    try:
        yield
    except OSError as error:
        got = errno.errorcode.get(error.errno or 0, str(error.errno))
        assert error.errno in numbers, f"failed with {got}, must fail with {wanted}"
    else:
        raise AssertionError(f"succeeded, must fail with {wanted}")
