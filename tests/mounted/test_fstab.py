"""`mount -t fuse.ckptfs` and lines of an fstab, with the mount(8), umount(8) and findmnt(8) of this
machine, in a mount namespace of its own whose /usr/sbin has our helper."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import staging
from tests.support.peer import NOBODY
from tests.support.staging import ROOT

pytestmark = [pytest.mark.needs_mount, pytest.mark.needs_root]


def test_an_fstab_line_mounts_remounts_and_unmounts() -> None:
    said = staging.said(r"""
        echo 1 >$W/file
        line="fuse.ckptfs noexec,nofail,x-mine,allow_other,auto=off,no_write_back 0 0"
        echo "$S $W $line" >fstab
        mount -T fstab $W
        echo "source $(findmnt -n -o SOURCE,FSTYPE $W)"
        echo "options $(flags)"
        echo 2 >$W/file
        mount -T fstab -o remount,ro $W
        echo "remounted $(flags)"
        if echo 3 >$W/file; then exit 1; fi
        mount -o remount,rw $W
        echo "again $(flags)"
        echo 4 >$W/file
        ckptfs umount $W >/dev/null
        echo "below $(cat $W/file)"
        mount -T fstab -a
        echo "mounted $(cat $W/file)"
        umount $W
    """)
    found = {line.partition(" ")[0]: line.partition(" ")[2] for line in said}
    assert set(found) == {"source", "options", "remounted", "again", "below", "mounted"}, said
    source, fstype = found["source"].split()
    assert source.endswith("/store") and fstype == "fuse.ckptfs"
    options = {name: set(found[name].split(",")) for name in ("options", "remounted", "again")}
    assert {"rw", "noexec", "nosuid", "nodev", "allow_other"} <= options["options"]
    assert {"ro", "noexec", "nosuid", "nodev"} <= options["remounted"]
    assert options["again"] == options["options"]
    assert (found["below"], found["mounted"]) == ("1", "4"), "no_write_back was said"


def test_a_store_or_none_may_be_the_source() -> None:
    said = staging.said(r"""
        echo 1 >$W/file
        mount -t fuse.ckptfs none $W -o ro,allow_suid
        flags
        umount $W
        # The daemon that writes back is waited for.
        mount -t fuse.ckptfs $W $W
        flags
        echo 2 >$W/file
        ckptfs umount $W >/dev/null
        cat $W/file
    """)
    first, second = (set(line.split(",")) for line in said[:2])
    assert {"ro", "nodev"} <= first and "nosuid" not in first
    assert {"rw", "nodev", "nosuid"} <= second
    assert said[2:] == ["2"]


def test_what_mount_cannot_have_is_said_in_words_and_by_its_codes() -> None:
    done = staging.run(r"""
        code() { "$@" >out 2>&1 && echo 0 || echo $?; }
        echo "usage $(code mount -t fuse.ckptfs $S $W -o nonsense) $(head -1 out)"
        echo "sloppy $(code mount -s -t fuse.ckptfs $S $W -o nonsense)"
        echo "twice $(code mount -t fuse.ckptfs $S $W) $(head -1 out)"
        umount $W
        echo "remount $(code mount -t fuse.ckptfs -o remount,ro $S $W) $(head -1 out)"
    """)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["usage"].startswith("1 ") and "'nonsense'" in said["usage"], done.stderr
    assert said["sloppy"] == "0"
    assert said["twice"].startswith("32 ") and "already" in said["twice"]
    assert said["remount"].startswith("1 ")


def test_a_user_mounts_and_unmounts_what_fstab_says_users_may() -> None:
    said = staging.said(
        staging.USER
        + r"""
        echo "$S $W fuse.ckptfs user,noauto 0 0" >fstab
        mount --bind fstab /etc/fstab
        chown {user} $S $W
        $as_user mount $W
        flags
        $as_user umount $W
        flags || echo unmounted
    """.replace("{user}", str(NOBODY))
    )
    assert {"rw", "nosuid", "nodev", "noexec", f"user_id={NOBODY}"} <= set(said[0].split(","))
    assert said[1:] == ["unmounted"]


def test_without_the_helper_the_way_through_mount_fuse3_is_refused() -> None:
    """It adds suid and dev of its own accord."""
    said = staging.said(r"""
        rm /usr/sbin/mount.fuse.ckptfs
        printf '#!/bin/sh\nexec %s -m ckptfs "$@"\n' $stage/python >/usr/sbin/ckptfs
        chmod 755 /usr/sbin/ckptfs
        if mount -t fuse.ckptfs $S $W 2>&1; then exit 1; fi
    """)
    assert "make install" in "\n".join(said)


def test_install_links_the_programs_and_touches_nothing_else(tmp_path: Path) -> None:
    """`make install` and `make uninstall`, on a checkout and into a directory of our own."""
    checkout, dest = tmp_path / "check out", tmp_path / "de st"
    (checkout / "vagrant").mkdir(parents=True)
    script = checkout / "vagrant" / "install.sh"
    script.write_bytes((ROOT / "vagrant" / "install.sh").read_bytes())

    def run(what: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "DESTDIR": str(dest), "PREFIX": "/opt/x", "SBINDIR": "/sbin"}
        return subprocess.run(["sh", script, what], env=env, capture_output=True, text=True)

    early = run("install")
    assert early.returncode == 1 and "make setup" in early.stderr and not dest.exists()
    programs = ["opt/x/bin/ckptfs", "sbin/mount.fuse.ckptfs"]
    (checkout / ".venv" / "bin").mkdir(parents=True)
    for name in programs:
        (checkout / ".venv" / "bin" / Path(name).name).touch(mode=0o755)
    (checkout / ".venv" / "bin" / "ckptfs").write_text("#!/bin/sh\necho about $*\n")
    for _ in range(2):
        assert run("install").returncode == 0
    assert (dest / "opt/x/share/man/man1/ckptfs.1").read_text() == "about manual\n"
    completion = dest / "opt/x/share/bash-completion/completions/ckptfs"
    assert completion.read_text() == "about completion bash\n"
    for name in programs:
        assert (dest / name).resolve() == checkout / ".venv" / "bin" / Path(name).name
    daemon = checkout / ".venv" / "bin" / "ckptfs"
    daemon.write_text("read line")
    with subprocess.Popen(["sh", daemon], stdin=subprocess.PIPE):
        held = run("uninstall")
    assert held.returncode == 1 and "Nothing was removed" in held.stderr
    assert all(os.path.lexists(dest / name) for name in programs)
    gone = run("uninstall")
    assert gone.returncode == 0 and "Histories stay in ~/.local/share/ckptfs" in gone.stdout
    assert not [path for path in dest.rglob("*") if not path.is_dir()]
    (dest / programs[1]).write_text("of another package")
    other = run("install")
    assert other.returncode == 1 and "mount.fuse.ckptfs" in other.stderr
    assert run("uninstall").returncode == 0
    assert (dest / programs[1]).read_text() == "of another package"
    assert not os.path.lexists(dest / programs[0])
