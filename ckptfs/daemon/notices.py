"""Warnings that come true again and again, and stand in the log once in a while."""

from __future__ import annotations

import logging
from time import monotonic

#: How long a warning is not repeated.
_INTERVAL_S = 600.0


class Notices:
    """Logs a warning under a name, unless one of that name was logged a short while ago."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}

    def warn(self, name: str, message: str, *values: object) -> None:
        now = monotonic()
        if now - self._last.get(name, -_INTERVAL_S) >= _INTERVAL_S:
            self._last[name] = now
            self._log.warning(message, *values)

    def forget(self, name: str) -> None:
        """It is over: should it come again, that is news."""
        self._last.pop(name, None)
