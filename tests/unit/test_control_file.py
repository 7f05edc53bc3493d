"""Finding a workspace in the table of mounts."""

from __future__ import annotations

from ckptfs.control_file import parse

TABLE = b"""\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:40 / /home/joe/a\\040b\\012c rw - fuse.ckptfs /home/joe/st\\134ore rw,user_id=1000
41 22 0:41 /part /ws rw,noatime shared:1 - fuse.ckptfs ckptfs rw,user_id=0,group_id=0
42 22 0:42 / /covered rw - fuse.ckptfs /store rw,user_id=0
43 42 0:43 / /covered rw - tmpfs none rw
44 22 0:44 / /other rw - fuse.sshfs host: rw,user_id=0
a line without sense
"""


def test_workspaces_are_found_with_their_stores_and_owners() -> None:
    found = parse(TABLE)
    assert set(found) == {"/home/joe/a b\nc", "/ws"}
    whole, part = found["/home/joe/a b\nc"], found["/ws"]
    assert whole.is_whole and whole.owner == 1000 and whole.store == "/home/joe/st\\ore"
    assert whole.is_of("/home/joe/st\\ore") and not whole.is_of("/elsewhere")
    assert not part.is_whole and part.owner == 0


def test_a_store_whose_path_is_not_told_leads_nowhere() -> None:
    """A relative path would lead into whatever directory one is in."""
    part = parse(TABLE)["/ws"]
    assert part.store == "/dev/null/store" and part.is_of("/any")
