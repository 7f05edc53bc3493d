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

    def is_due(self, name: str) -> bool:
        return monotonic() - self._last.get(name, -_INTERVAL_S) >= _INTERVAL_S

    def warn(self, name: str, message: str, *values: object) -> None:
        if self.is_due(name):
            self._last[name] = monotonic()
            self._log.warning(message, *values)
