"""The exception tree: codes that stay apart, and errors that survive a socket."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from ckptfs import errors
from ckptfs.errors import CkptfsError, every_error, from_record

#: Bases that are caught but never raised; they have no code of their own.
GROUPS = {
    errors.StoreError,
    errors.MountpointError,
    errors.MountError,
    errors.WorkspaceError,
    errors.SyncError,
    errors.TeamError,
}
RAISED = [cls for cls in every_error() if cls not in GROUPS]


def examples() -> list[CkptfsError]:
    """One error of each class, its arguments made up by their number."""
    made = []
    for cls in RAISED:
        wanted = [
            parameter
            for parameter in inspect.signature(cls).parameters.values()
            if parameter.default is parameter.empty
        ]
        values = {"found": 9, "supported": 1, "count": 2, "error": OSError(5, "Bad", "/p")}
        made.append(cls(*[values.get(parameter.name, "/some/path") for parameter in wanted]))
    return made


def test_exit_codes_are_distinct() -> None:
    codes = [cls.exit_code for cls in RAISED]
    assert len(set(codes)) == len(codes)


def test_exit_codes_leave_the_shells_own_alone() -> None:
    assert all(0 < cls.exit_code < 126 for cls in RAISED)


def test_kinds_are_distinct_and_in_one_form() -> None:
    kinds = [cls.kind for cls in every_error()]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)


def test_every_class_that_is_raised_has_its_own_code() -> None:
    assert [cls.__name__ for cls in RAISED if "exit_code" not in vars(cls)] == []


def test_the_docstring_draws_the_tree_with_the_codes() -> None:
    assert errors.__doc__ is not None
    drawn = dict(re.findall(r"(\w+) +(\d+)$", errors.__doc__, re.MULTILINE))
    assert drawn == {cls.__name__: str(cls.exit_code) for cls in RAISED}


def test_the_package_has_every_class_whatever_module_it_stands_in() -> None:
    assert [cls.__name__ for cls in every_error() if cls.__name__ not in errors.__all__] == []
    assert all(getattr(errors, cls.__name__) is cls for cls in every_error())


@pytest.mark.parametrize("error", examples(), ids=lambda error: error.kind)
def test_messages_are_sentences(error: CkptfsError) -> None:
    if type(error) in (CkptfsError, errors.UsageError, errors.Conflict, errors.ControlError):
        return  # the caller words these
    assert error.message[0].isupper() or error.message[0] == "/"
    assert error.message.endswith(".")
    assert "\n" not in error.message
    assert error.hint


@pytest.mark.parametrize("error", examples(), ids=lambda error: error.kind)
def test_an_error_survives_the_wire(error: CkptfsError) -> None:
    back = from_record(error.record())
    assert type(back) is type(error)
    assert (back.message, back.hint, str(back)) == (error.message, error.hint, str(error))


def test_an_unknown_kind_keeps_its_words() -> None:
    back = from_record({"kind": "from-the-future", "message": "M.", "hint": "H.", "exit_code": 99})
    assert type(back) is CkptfsError
    assert (back.message, back.hint) == ("M.", "H.")


def test_hints_quote_paths_for_the_shell() -> None:
    assert errors.MountpointMissing("/plain/path").hint.endswith("mkdir -p /plain/path")
    assert errors.MountpointMissing("/it's here").hint.endswith("""mkdir -p '/it'"'"'s here'""")


def test_store_in_use_names_the_process() -> None:
    assert "process 12" in errors.StoreInUse("/s", 12).message
    assert "another process" in errors.StoreInUse("/s").message


def test_the_manual_lists_every_code() -> None:
    manual = (Path(errors.__file__).parents[2] / "docs" / "CLI.md").read_text()
    listed = dict(re.findall(r"^\| (\d+) \| `([a-z-]+)` \|", manual, re.MULTILINE))
    assert listed == {str(cls.exit_code): cls.kind for cls in RAISED}


@pytest.mark.parametrize("verb", ["scratch", "scratch_end", "fork_delete", "fork_rename"])
def test_errors_say_no_verb_that_is_of_the_protocol_only(verb: str) -> None:
    for error in (errors.RefusedInSandbox(verb), errors.SystemRefused(verb, OSError(2, "gone"))):
        assert "fork" in str(error) and not re.search("scratch|_", str(error))
