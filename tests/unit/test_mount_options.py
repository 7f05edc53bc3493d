"""Mount options as mount(8) and fstab(5) write them."""

from __future__ import annotations

import pytest

from ckptfs.daemon import preflight
from ckptfs.errors import UsageError


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", set()),
        ("defaults", set()),
        ("rw,nosuid,nodev,exec", set()),
        ("ro", {"ro"}),
        ("ro,rw", set()),
        ("rw,ro", {"ro"}),
        ("suid,dev", {"suid", "dev"}),
        ("suid,dev,nosuid", {"dev"}),
        ("nosuid,nodev,allow_suid,allow_dev", {"suid", "dev"}),
        ("noexec,exec,noexec", {"noexec"}),
        ("suid,dev,user", {"noexec"}),
        ("user,exec", set()),
        ("users,suid", {"noexec", "suid"}),
        ("defaults,noatime,nofail,_netdev,noauto,x-systemd.automount,comment=mine,async", set()),
    ],
)
def test_the_later_of_two_options_holds(text: str, flags: set[str]) -> None:
    assert preflight.parse_options(preflight.split_options([text])) == preflight.MountFlags(
        frozenset(flags)
    )


def test_lists_may_be_given_more_than_once() -> None:
    found = preflight.parse_options(preflight.split_options(["ro,noexec", "", "exec,,allow_other"]))
    assert found == preflight.MountFlags(frozenset({"ro"}), allow_other=True)
    assert found.read_only


@pytest.mark.parametrize("word", ["nonsense", "strictatime", "remount", "uid=0", "RO", "store=/x"])
def test_what_is_not_known_is_refused_by_name(word: str) -> None:
    with pytest.raises(UsageError, match=f"'{word}'"):
        preflight.parse_options(["rw", word, "noatime"])


def test_a_remount_keeps_what_it_does_not_name() -> None:
    now = {"ro", "nosuid", "nodev", "noexec", "noatime", "user_id=0"}
    assert set(preflight.flags_after(now, ["remount", "rw"])) == {
        *("rw", "nosuid", "nodev", "noexec", "noatime")
    }
    assert set(preflight.flags_after({"rw"}, ["remount", "ro", "nosuid"])) == {
        *("ro", "nosuid", "dev", "exec", "noatime")
    }
