#!/bin/sh
# Builds a Debian package for this machine's distribution, architecture and Python: `make deb`.
#
#     vagrant/packaging/deb.sh [DIRECTORY]        where it goes; default: dist/
#
# Debian's own lmdb, pyfuse3 and trio are older than ckptfs needs, so the package has a virtual environment
# of its own in /usr/lib/ckptfs, filled from the locks, with Debian's Python. It needs what `make setup`
# needs, and dpkg-deb.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/../.." && pwd)
here=$root/vagrant/packaging
out=${1:-$root/dist}
python=/usr/bin/python3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM
stage=$scratch/stage
home=/usr/lib/ckptfs

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

command -v dpkg-deb >/dev/null || die "Cannot build a package: dpkg-deb is missing. This is for Debian and Ubuntu."
minor=$("$python" -c 'import sys; print(sys.version_info[1])')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml")
arch=$(dpkg --print-architecture)
distribution=$(. /etc/os-release && echo "$ID$VERSION_ID")

# ---- The virtual environment ----------------------------------------------------------------

pip() { "$scratch/builder/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

wheels() {
    "$python" -m venv "$scratch/builder"
    pip install --require-hashes --only-binary :all: --requirement "$here/lock/build.txt"
    pip wheel --require-hashes --no-build-isolation --wheel-dir "$scratch/wheels" --requirement "$here/lock/run.txt"
    # A copy: setuptools leaves its build directory in the sources.
    mkdir "$scratch/source"
    (cd "$root" && cp -r pyproject.toml README.md LICENSE ckptfs "$scratch/source")
    find "$scratch/source" -name '*.so' -delete
    pip wheel --no-deps --no-build-isolation --wheel-dir "$scratch/wheels" "$scratch/source"
}

environment() {
    "$python" -m venv --without-pip "$stage$home"
    pip --python "$stage$home/bin/python" install --no-index --no-deps --no-compile "$scratch/wheels"/*.whl
    # Scripts name the place where they were made.
    sed -i "s#$stage##g" "$stage$home"/bin/ckptfs "$stage$home"/bin/mount.fuse.ckptfs "$stage$home/pyvenv.cfg"
    rm -f "$stage$home"/bin/activate* "$stage$home"/bin/Activate*
    "$python" -m compileall -q -s "$stage" "$stage$home/lib"
    [ -n "$(find "$stage$home" -name '_server.*.so')" ] || die "Cannot build a package: the compiled server was not built."
}

# ---- What else there is ---------------------------------------------------------------------

run_staged() { PYTHONDONTWRITEBYTECODE=1 "$stage$home/bin/python" -m ckptfs "$@"; }

extras() {
    mkdir -p "$stage/usr/bin" "$stage/usr/sbin" "$stage/usr/lib/systemd/user" "$stage/usr/share/doc/ckptfs"
    ln -s ../lib/ckptfs/bin/ckptfs "$stage/usr/bin/ckptfs"
    ln -s ../lib/ckptfs/bin/mount.fuse.ckptfs "$stage/usr/sbin/mount.fuse.ckptfs"
    cp "$here/ckptfs@.service" "$stage/usr/lib/systemd/user/"
    cp "$root/LICENSE" "$stage/usr/share/doc/ckptfs/copyright"
    cp "$root/README.md" "$root/CHANGELOG.md" "$stage/usr/share/doc/ckptfs/"
    mkdir -p "$stage/usr/share/man/man1"
    run_staged manual | gzip -9n >"$stage/usr/share/man/man1/ckptfs.1.gz"
    completion bash share/bash-completion/completions/ckptfs
    completion zsh share/zsh/vendor-completions/_ckptfs
    completion fish share/fish/vendor_completions.d/ckptfs.fish
}

completion() {
    mkdir -p "$stage/usr/${2%/*}"
    run_staged completion "$1" >"$stage/usr/$2"
}

control() {
    mkdir -p "$stage/DEBIAN"
    cat >"$stage/DEBIAN/control" <<CONTROL
Package: ckptfs
Version: $version~$distribution
Architecture: $arch
Maintainer: the ckptfs authors <ckptfs@localhost>
Installed-Size: $(du -sk "$stage/usr" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), fuse3, libfuse3-$(libfuse), libc6
Recommends: git
Section: utils
Priority: optional
Description: directory that remembers: a FUSE workspace with instant checkpoints
 ckptfs mounts a directory as a file system that keeps its whole history: every
 checkpoint is a read-only directory below .checkpoints, and the workspace goes
 back to any of them at once, and forward again.
CONTROL
    cp "$here/prerm" "$here/postrm" "$stage/DEBIAN/"
    chmod 755 "$stage/DEBIAN/prerm" "$stage/DEBIAN/postrm"
}

# libfuse3.so.3 is in libfuse3-3, libfuse3.so.4 in libfuse3-4.
libfuse() { find "$stage$home" -path '*pyfuse3*' -name '*.so' -exec objdump -p {} + | sed -n 's/.*NEEDED *libfuse3\.so\.//p' | sort -u; }

umask 022
wheels
environment
extras
control
mkdir -p "$out"
package=$out/ckptfs_$version~${distribution}_$arch.deb
dpkg-deb --root-owner-group --build "$stage" "$package" >/dev/null
echo "$package"
