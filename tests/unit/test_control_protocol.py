"""The wire: what is sent comes back, and what is not ours is refused in words."""

from __future__ import annotations

import os

import pytest

from ckptfs.control import protocol
from ckptfs.control.protocol import Answer, Request
from ckptfs.errors import ControlError, ProtocolMismatch, StoreInUse


def test_a_request_comes_back() -> None:
    args = {"message": "grüße\n\x1b[31m", "path": os.fsdecode(b"\xff\n")}
    line = protocol.encode_request("save", args)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert protocol.decode_request(line) == Request("save", args)


def test_answers_come_back() -> None:
    assert protocol.decode_answer(protocol.encode_progress({"files": 3})) == Answer({"files": 3})
    assert protocol.decode_answer(protocol.encode_result({"id": 3})) == Answer(result={"id": 3})
    assert protocol.decode_answer(protocol.encode_result({})) == Answer(result={})


def test_an_error_comes_back_as_itself() -> None:
    answer = protocol.decode_answer(protocol.encode_error(StoreInUse("/s", 7)))
    assert isinstance(answer.error, StoreInUse)
    assert "process 7" in answer.error.message


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"[]", b"null", b"1", b"\xff\xfe", b'{"v":1', b"[" * 100_000]
)
def test_garbage_is_refused(line: bytes) -> None:
    with pytest.raises(ControlError):
        protocol.decode_request(line)
    with pytest.raises(ControlError):
        protocol.decode_answer(line)


@pytest.mark.parametrize("line", [b'{"v":2,"op":"status"}', b'{"op":"status"}', b'{"v":"1"}'])
def test_another_version_is_refused_by_name(line: bytes) -> None:
    with pytest.raises(ProtocolMismatch):
        protocol.decode_request(line)


@pytest.mark.parametrize("line", [b'{"v":1}', b'{"v":1,"op":3}', b'{"v":1,"op":"save","args":[]}'])
def test_a_request_needs_an_operation(line: bytes) -> None:
    with pytest.raises(ControlError):
        protocol.decode_request(line)


def test_arguments_may_be_left_out() -> None:
    assert protocol.decode_request(b'{"v":1,"op":"status"}') == Request("status", {})


@pytest.mark.parametrize("line", [b'{"v":1}', b'{"v":1,"result":3}', b'{"v":1,"error":"x"}'])
def test_an_answer_needs_content(line: bytes) -> None:
    with pytest.raises(ControlError):
        protocol.decode_answer(line)


def test_an_error_with_missing_fields_still_speaks() -> None:
    answer = protocol.decode_answer(b'{"v":1,"error":{}}')
    assert answer.error is not None
    assert answer.error.message
