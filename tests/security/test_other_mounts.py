"""A directory of which the caller has a history, and that another user, or the caller with another
store, has mounted: nothing old is shown as current, and nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from ckptfs import config, errors
from ckptfs.connect import open_workspace
from tests.cli.conftest import ScratchHome
from tests.cli.conftest import place as place
from tests.support import staging
from tests.support.mounting import HAVE_FUSE, succeed
from tests.support.peer import NOBODY

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user"),
]

COVERED = errors.MountedByOther.exit_code

#: What is about the files as they are now.
ABOUT_NOW = {
    "diff": "diff -w $W",
    "save": "save x -w $W",
    "save_empty": "save y --allow-empty -w $W",
    "restore": "restore 0 --force -w $W",
    "undo": "undo -w $W",
    "export": "export out -w $W",
    "log": "log $W/f -w $W",
    "umount": "umount $W",
    "watch": "watch -w $W",
    "run": "run -w $W -- true",
    "harness": "run --harness -w $W -- true",
}
#: What needs only the store.
ABOUT_HISTORY = {
    "list": "list -w $W",
    "show": "show 1 -w $W",
    "diff_saved": "diff 0 1 -w $W",
    "export_saved": "export then --checkpoint 1 -w $W",
    "backup": "backup copy --store $S",
    "workspaces": "workspaces",
    "status": "status -w $W",
}

ASKED = "\n".join(
    f'echo "{name} $({{who}} {words} >said.{name} 2>&1 && echo 0 || echo $?)"'
    for name, words in {**ABOUT_NOW, **ABOUT_HISTORY, "mount": "mount $W"}.items()
)

#: Both have a history of the directory; the first one's is not the one that is mounted.
HISTORIES = r"""
cd $stage
chmod 777 $stage
chown {user} $W
user() { $as_user $stage/python -m ckptfs "$@"; }
root() { $stage/python -m ckptfs "$@"; }
echo one >$W/f
chmod 666 $W/f
chown {user} $W/f
S=$stage/own
{who} mount $W --store $S >/dev/null
{who} save saved --allow-empty -w $W >/dev/null
{who} umount $W >/dev/null
{other} mount $W >/dev/null
""".replace("{user}", str(NOBODY))

END = r"""
echo
tail -n +1 said.*
"""


def _asked(who: str, other: str, change: str) -> tuple[dict[str, int], str]:
    """The exit codes of all verbs, and what was said."""
    script = staging.USER + HISTORIES + change + ASKED + END
    said = staging.said(script.replace("{who}", who).replace("{other}", other))
    end = said.index("")
    codes = {name: int(code) for name, code in (line.split() for line in said[:end])}
    return codes, "\n".join(said[end:])


@pytest.mark.parametrize(("who", "other"), [("root", "user"), ("user", "root")])
def test_what_is_about_now_is_refused_where_another_user_has_mounted(who: str, other: str) -> None:
    change = '$as_user sh -c "echo two >$W/f"\n' if other == "user" else "echo two >$W/f\n"
    codes, said = _asked(who, other, change)
    wanted = dict.fromkeys(ABOUT_NOW, COVERED) | dict.fromkeys(ABOUT_HISTORY, 0)
    assert codes == {**wanted, "mount": errors.AlreadyMounted.exit_code}, said
    name = "user nobody" if other == "user" else "user root"
    assert f"mounted by {name} with the store" in said, "status says who"
    assert f"{name} mounted it with the store" in said
    assert "ready to use" not in said, "mount says whose it is"
    assert "(gone)" not in said


@pytest.fixture
def twice(place: ScratchHome) -> Iterator[ScratchHome]:
    """A directory with a history in its default store, mounted with another store since."""
    work = place / "work"
    work.mkdir()
    (work / "f").write_text("one")
    succeed(place.run("mount", work))
    succeed(place.run("umount", work))
    other = {"XDG_DATA_HOME": str(place / "other")}
    succeed(place.run("mount", work, "--store", place / "mounted", **other))
    (work / "f").write_text("two")
    yield place
    succeed(place.run("umount", work, **other))
    assert (work / "f").read_text() == "two"


def test_a_history_is_not_that_of_what_the_same_user_mounted_with_another_store(
    twice: ScratchHome,
) -> None:
    store = config.default_store(twice / "work", twice.env)
    with open_workspace(config.Workspace(twice / "work", store)) as session:
        assert [found["id"] for found in session.call("list")["checkpoints"]] == [0]
        for op, args in {
            "diff": {},
            "save": {"message": "one"},
            "plan": {"checkpoint": "0"},
            "log": {"path": "a"},
            "backup": {"dest": str(twice / "copy")},
        }.items():
            with pytest.raises(errors.MountedByOther, match="you mounted it with the store"):
                session.call(op, args)


def test_the_mounted_store_is_found_before_one_in_the_default_place(twice: ScratchHome) -> None:
    for entry in (twice / "data/ckptfs/workspaces").iterdir():
        entry.unlink()
    told = json.loads(succeed(twice.run("status", "--json", "-w", twice / "work")).stdout)
    assert (told["store"], told["mounted"]) == (str(twice / "mounted"), True)
    assert "f" in succeed(twice.run("diff", "--name-status", "-w", twice / "work")).stdout


def test_who_trusts_the_user_lists_and_unmounts() -> None:
    said = staging.said(
        staging.USER
        + r"""
        chown {user} $W
        $as_user $stage/python -m ckptfs mount $W >/dev/null
        $as_user sh -c "echo two >$W/f"
        ckptfs list -w $W >out 2>&1 || echo "untrusted $?"
        grep -o "mounted by user nobody" out
        ckptfs --trust-owner nobody -w $W list >/dev/null
        ckptfs --trust-owner nobody umount $W >/dev/null
        cat $W/f
    """.replace("{user}", str(NOBODY))
    )
    assert said == [
        f"untrusted {errors.WorkspaceUnknown.exit_code}",
        "mounted by user nobody",
        "two",
    ]


def test_a_directory_that_may_no_longer_be_read_is_not_taken_for_a_missing_one() -> None:
    said = staging.said(
        staging.USER
        + r"""
        chown {user} $W
        user() { $as_user $stage/python -m ckptfs "$@"; }
        user mount $W >/dev/null
        user umount $W >/dev/null
        chown root $W
        chmod 700 $W
        user save x -w $W 2>out || echo "save $?"
        user diff -w $W 2>out || echo "diff $?"
        user list -w $W >/dev/null
    """.replace("{user}", str(NOBODY))
    )
    code = errors.SystemRefused.exit_code
    assert said == [f"save {code}", f"diff {code}"]
