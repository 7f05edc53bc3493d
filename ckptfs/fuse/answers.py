"""Answers: what a handler returns or raises, as pyfuse3 wants it.

One of the edges that catch everything: whatever goes wrong in a request is an errno for its caller,
and a traceback in the log if nobody expected it.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from pyfuse3 import FUSEError

from ckptfs.errors import CkptfsError
from ckptfs.fuse.failures import errno_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def is_awaited(record: logging.LogRecord) -> bool:
    """A filter for pyfuse3's log. An answer that the kernel no longer waits for (its caller was
    interrupted, or the mount is ending) comes back with ENOENT, and that is no trouble."""
    return os.strerror(errno.ENOENT) not in record.getMessage()


def handler(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A pyfuse3 handler from a plain function; the edge where errors become answers."""

    @functools.wraps(function)
    async def handle(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge
            raise FUSEError(errno_of(error, function.__name__)) from None

    return handle


@contextmanager
def refusals(number: int) -> Iterator[None]:
    """Turn what the history refuses into an answer, and why into the log."""
    try:
        yield
    except FUSEError:
        raise
    except CkptfsError as error:
        log.info("refused: %s", error)
        raise FUSEError(number) from None
    except Exception as error:  # noqa: BLE001 - the edge
        raise FUSEError(errno_of(error, "history")) from None
