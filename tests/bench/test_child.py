import os
import signal

import pytest

from bench.child import ChildFailed, ChildTimedOut, in_child


def test_the_result_comes_back_from_another_process() -> None:
    assert in_child(os.getpid, 10) != os.getpid()


def test_an_error_comes_back_as_its_text() -> None:
    with pytest.raises(ChildFailed, match="FileNotFoundError"):
        in_child(lambda: os.stat("/no such file"), 10)


def test_a_child_that_dies_is_told_apart() -> None:
    with pytest.raises(ChildFailed, match="died"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 10)


def test_a_child_that_hangs_is_killed() -> None:
    reader, writer = os.pipe()
    with pytest.raises(ChildTimedOut):
        in_child(signal.pause, 0.05)
    os.close(writer)
    assert os.read(reader, 1) == b"", "the child no longer has the other end"
    os.close(reader)
