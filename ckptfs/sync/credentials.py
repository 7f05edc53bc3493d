"""Acting with the rights of the user who owns a directory.

Root writes into directories that others own. What it does there by name it does with the owner's
file-system uid, so that a name which the owner exchanges meanwhile leads to nothing that the owner
could not change alone. The kernel keeps these ids per thread, and takes the capabilities that
override permissions away with them (credentials(7)); nothing else in the process changes.
"""

from __future__ import annotations

import ctypes
import os

_setfsuid = ctypes.CDLL(None).setfsuid
_setfsuid.argtypes, _setfsuid.restype = (ctypes.c_uint,), ctypes.c_uint
#: No user: the kernel refuses it, and answers with the id that stands.
_NONE = 0xFFFFFFFF


def is_other(directory: os.stat_result) -> bool:
    """Whether a directory, given by what fstat says of it, is another user's for whom we can act:
    only root can."""
    return directory.st_uid != 0 and os.geteuid() == 0


def needs_mode(directory: os.stat_result) -> bool:
    """Whether we need the owner's write permission in a directory to change entries there."""
    return directory.st_uid != 0 or os.geteuid() != 0


class acting_for:
    """With the rights of whoever owns a directory (`is_other`), or else with our own.

    They stay our own where the kernel refuses: in a user namespace that does not map the owner, or
    without CAP_SETUID. Then what is checked by descriptor is all that protects.
    """

    __slots__ = ("_owner",)

    def __init__(self, directory: os.stat_result) -> None:
        self._owner = directory.st_uid if is_other(directory) else None

    def __enter__(self) -> None:
        if self._owner is not None:
            _setfsuid(self._owner)

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            _setfsuid(0)


def current_uid() -> int:
    """Whose what we make now will be."""
    uid: int = _setfsuid(_NONE)
    return uid
