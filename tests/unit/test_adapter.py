"""What pyfuse3's log has to say, and what not."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from ckptfs.fuse.adapter import is_awaited


@pytest.mark.parametrize(("number", "kept"), [(errno.ENOENT, False), (errno.EINVAL, True)])
def test_only_answers_without_a_waiter_are_left_out(number: int, kept: bool) -> None:
    text = "fuse_release(): fuse_reply_* failed with %s"
    record = logging.LogRecord("pyfuse3", logging.ERROR, "", 0, text, (os.strerror(number),), None)
    assert is_awaited(record) is kept
