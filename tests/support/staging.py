"""A mount namespace of a test's own, in which every user reaches the interpreter and this checkout.

Its /usr/sbin has our helper of mount(8): where that looks for helpers is compiled into it, so the
directory is replaced, by links to what it has and our helper.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.mounting import scratch
from tests.support.peer import NOBODY

ROOT = Path(__file__).parents[2]

STAGE = r"""
set -eu
stage=$1 base=$2 version=$3 packages=$4 project=$5
mkdir $stage/sbin $stage/base $stage/packages $stage/project $stage/store $stage/work
mount --bind /usr/sbin $stage/sbin
mount --bind $base $stage/base
mount --bind $packages $stage/packages
mount --bind $project $stage/project
mount -t tmpfs -o mode=755 none /usr/sbin
ln -s $stage/sbin/* /usr/sbin/
helper=/usr/sbin/mount.fuse.ckptfs
cat >$stage/python <<END
#!/bin/sh
export PYTHONPATH=$stage/project:$stage/packages LD_LIBRARY_PATH=$stage/base/lib
exec $stage/base/bin/python$version "\$@"
END
cat >$helper <<END
#!/bin/sh
exec $stage/python -c 'from ckptfs.cli.mount import helper; raise SystemExit(helper())' "\$@"
END
chmod 755 $helper $stage/python
cd $stage
W=$stage/work S=$stage/store
ckptfs() { $stage/python -m ckptfs "$@"; }
flags() { findmnt -n -o OPTIONS $W; }
"""
#: After this, nobody can mount, with `$as_user` before a command and in a home of its own.
USER = r"""
mknod -m 666 fuse c 10 229
mount --bind fuse /dev/fuse
mkdir home
chown {user} home
as_user="env HOME=$stage/home XDG_DATA_HOME=$stage/home XDG_CONFIG_HOME=$stage/home
    setpriv --reuid {user} --regid {user} --clear-groups"
""".replace("{user}", str(NOBODY))


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the namespace; what it leaves running there ends with it."""
    private = "unshare --mount --propagation private --pid --fork --kill-child --mount-proc".split()
    with scratch() as stage:
        homes = {name: f"{stage}/{name}" for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        places = [stage, sys.base_prefix, version, sysconfig.get_path("purelib"), ROOT]
        return subprocess.run(
            [*private, "sh", "-c", STAGE + script, "sh", *map(str, places)],
            env={**os.environ, **homes, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )


def said(script: str) -> list[str]:
    done = run(script)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
