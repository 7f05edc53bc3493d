"""Mount options as mount(8) and fstab(5) write them: what they mean here, and which are refused.

A mount has `nosuid` and `nodev` unless `suid` and `dev` are asked for: a store from elsewhere must
not bring programs and devices to life that give their users rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ckptfs.errors import UsageError

#: Each of these says whether a flag is given to the kernel; of two that differ the later one holds.
_FLAGS = {
    "ro": ("ro", True),
    "rw": ("ro", False),
    "suid": ("suid", True),
    "nosuid": ("suid", False),
    "dev": ("dev", True),
    "nodev": ("dev", False),
    "noexec": ("noexec", True),
    "exec": ("noexec", False),
    # mount(8) takes suid and dev for what is so anyway, and does not hand them to its helper.
    "allow_suid": ("suid", True),
    "allow_dev": ("dev", True),
}
#: fstab(5): these let ordinary users mount, and imply the rest.
_FOR_USERS = {"user", "users", "owner", "group"}
_IMPLIED = ("noexec", "nosuid", "nodev")
#: What is so anyway, or is for mount(8) and the system's start and not for a file system.
_WITHOUT_EFFECT = {
    *("defaults", "async", "default_permissions", "noatime", "nodiratime", "relatime"),
    *("auto", "noauto", "nofail", "_netdev", "nouser", "noowner", "nogroup"),
}
_PREFIXES = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")
_ALLOW_OTHER = "allow_other"


class MountFlags(NamedTuple):
    """``kernel`` is what differs from the default there: of ro, suid, dev and noexec."""

    kernel: frozenset[str] = frozenset()
    allow_other: bool = False

    @property
    def read_only(self) -> bool:
        return "ro" in self.kernel


def split(lists: Iterable[str]) -> list[str]:
    """The single options of one or more lists with commas."""
    return [word for text in lists for word in text.split(",") if word]


def parse(words: Iterable[str]) -> MountFlags:
    """The options together. Raises `UsageError` that names one which is not known."""
    chosen = dict.fromkeys(("ro", "suid", "dev", "noexec"), False)
    allow_other = False
    for word in words:
        if not is_known(word):
            raise _unknown(word)
        for each in _IMPLIED if word in _FOR_USERS else (word,):
            if each in _FLAGS:
                flag, wanted = _FLAGS[each]
                chosen[flag] = wanted
        allow_other |= word == _ALLOW_OTHER
    return MountFlags(frozenset(flag for flag, wanted in chosen.items() if wanted), allow_other)


def flags_after(present: Iterable[str], words: Iterable[str]) -> list[str]:
    """The flags of a mount that has these ``present`` after a list of options was applied, each of
    them said: remount takes what is left out for its default."""
    held = {"ro": "ro" in (now := set(present)), "noexec": "noexec" in now}
    held |= {"suid": "nosuid" not in now, "dev": "nodev" not in now}
    held |= dict(_FLAGS[word] for word in words if word in _FLAGS)
    said = [word for word, meaning in _FLAGS.items() if meaning in held.items()]
    return [word for word in said if not word.startswith("allow_")] + ["noatime"]


def is_known(word: str) -> bool:
    known = word in _FLAGS or word in _FOR_USERS or word in _WITHOUT_EFFECT
    return known or word == _ALLOW_OTHER or word.startswith(_PREFIXES)


def _unknown(word: str) -> UsageError:
    hint = "docs/CLI.md lists the options there are."
    if word in ("atime", "strictatime", "diratime", "lazytime"):
        hint = "Reading a file changes nothing in a workspace, also not its access time."
    elif word == "remount":
        hint = "`mount -o remount,ro DIR` and `remount,rw` do that (docs/CLI.md)."
    return UsageError(
        f"Cannot mount with the option {word!r}: it is not known. Nothing was changed.", hint=hint
    )
