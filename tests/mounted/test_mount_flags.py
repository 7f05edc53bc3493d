"""What the kernel is told to allow on a mount."""

from __future__ import annotations

import os

import pytest

from tests.support.mounting import Workspace

pytestmark = pytest.mark.needs_mount


def test_set_user_files_and_devices_are_roots_business(own_mount: Workspace) -> None:
    """fusermount3 gives an ordinary user's mount nosuid and nodev; root's may have both."""
    with open("/proc/self/mountinfo") as table:
        (found,) = [line.split()[5] for line in table if line.split()[4] == str(own_mount.path)]
    options = set(found.split(","))
    assert {"nosuid", "nodev"} & options == (set() if os.geteuid() == 0 else {"nosuid", "nodev"})
