#!/bin/sh
# Builds the source distribution and a wheel for each Python, and tries each in an environment of its own:
# `make dist`.
#
#     vagrant/packaging/dist.sh [PYTHON...]       default: the Python of .venv
#
# They come from what git has committed, and go to dist/. A wheel has the tag of the oldest glibc that it
# runs with (auditwheel finds it); for an older one build in a manylinux container.
# Trying one means: pip installs it, with what it needs, and then it mounts, saves, restores and unmounts.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/../.." && pwd)
here=$root/vagrant/packaging
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM

# An environment with what builds, all of it from the locks.
builder() {
    "$1" -m venv "$2"
    "$2/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        --requirement "$here/lock/build.txt" --requirement "$here/lock/dist.txt"
}

try() {
    rm -rf "$scratch/tried"
    "$1" -m venv "$scratch/tried"
    "$scratch/tried/bin/pip" install --quiet --disable-pip-version-check "$2"
    (cd "$scratch" && sh "$here/try.sh" "$scratch/tried/bin/ckptfs")
    echo "$2: installed and tried with $("$1" --version)"
}

[ $# -gt 0 ] || set -- "$root/.venv/bin/python"
git clone --quiet --no-hardlinks "$root" "$scratch/source"
out=$scratch/out
for python in "$@"; do
    rm -rf "$scratch/builder"
    builder "$python" "$scratch/builder"
    PATH=$scratch/builder/bin:$PATH
    export PATH
    cd "$scratch/source"
    if ! ls "$out"/*.tar.gz >/dev/null 2>&1; then
        python -m build --no-isolation --sdist --outdir "$out" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
        try "$python" "$out"/*.tar.gz
    fi
    # From the source distribution, as a stranger would.
    rm -rf "$scratch/plain"
    python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        --wheel-dir "$scratch/plain" "$out"/*.tar.gz
    rm -rf "$scratch/repaired"
    auditwheel repair --wheel-dir "$scratch/repaired" "$scratch/plain"/*.whl >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; exit 1; }
    try "$python" "$scratch/repaired"/*.whl
    mv "$scratch/repaired"/*.whl "$out"
done
mkdir -p "$root/dist"
mv "$out"/* "$root/dist"
echo "In $root/dist:"
ls "$root/dist"
