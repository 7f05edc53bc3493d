"""Acting with the rights of the user who owns a directory.

Root writes into directories that others own. What it does there by name it does with the owner's
file-system uid, so that a name which the owner exchanges meanwhile leads to nothing that the owner
could not change alone. The kernel keeps these ids per thread, and takes the capabilities that
override permissions away with them (credentials(7)); nothing else in the process changes.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None)
_setfsuid, _setfsgid = _libc.setfsuid, _libc.setfsgid
for _call in (_setfsuid, _setfsgid):
    _call.argtypes, _call.restype = (ctypes.c_uint,), ctypes.c_uint
#: No user: the kernel refuses it and answers with the id that stands.
_NOBODY = 0xFFFFFFFF


class acting_for:
    """With the rights of whoever owns a directory, given by what fstat says of it.

    Only root can act for another; everyone else, and root in a directory of its own, stays what it
    is. So does root where the kernel refuses (a user namespace that does not map the owner, or no
    CAP_SETUID): then what is checked by descriptor is all that protects.
    """

    __slots__ = ("_gid", "_owner")

    def __init__(self, directory: os.stat_result) -> None:
        euid = os.geteuid()
        self._owner = directory if euid == 0 and directory.st_uid != euid else None
        self._gid = 0

    def __enter__(self) -> int:
        """The uid that new things will have."""
        if self._owner is None:
            return os.geteuid()
        self._gid = _setfsgid(self._owner.st_gid)
        _setfsuid(self._owner.st_uid)
        uid: int = _setfsuid(_NOBODY)
        return uid

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            _setfsuid(os.geteuid())
            _setfsgid(self._gid)


def needs_mode(directory: os.stat_result) -> bool:
    """Whether we need the owner's write permission in a directory to change entries there."""
    return os.geteuid() != 0 or directory.st_uid != 0


def is_other(directory: os.stat_result) -> bool:
    """Whether `acting_for` acts for another user."""
    return os.geteuid() == 0 and directory.st_uid != 0
