#!/bin/sh
# Brings a machine from "git, make, Python 3.11" to a working .venv/bin/ckptfs.
#
#     vagrant/provision.sh          what running ckptfs needs        (`make setup`, and the Vagrant VM)
#     vagrant/provision.sh tests    and what its test suite needs    (`make setup-tests`)
#     vagrant/provision.sh deep     and what the long tests need     (`make test-deep`)
#
# It owns the system packages and the virtual environment. It refuses to know what a workspace is.
# It asks for what is needed (a command, a header), never for a package, so that a Python from pyenv
# or a hand-built libfuse counts; package names appear only where something has to be installed.
# A second call finds everything in place and ends within a second.
#
# Python packages come from the locks in vagrant/packaging/lock, each file checked by its hash.
#
# PYTHON=/path/to/python3 chooses the interpreter. UNLOCKED=1 takes whatever versions pyproject.toml allows.

set -eu

mode=${1:-run}
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
venv=$root/.venv
locks=$root/vagrant/packaging/lock
python=

say() { printf '%s\n' "$@" >&2; }

die() {
    say "$@"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# ---- Python ---------------------------------------------------------------------------------

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# New enough, and with all that a virtual environment and an extension need.
whole() {
    new_enough "$1" && "$1" - >/dev/null 2>&1 <<'PYTHON'
import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PYTHON
}

# The first interpreter that is new enough; with PYTHON given, that one or none. The distribution's
# own, if nothing is missing there, goes before one that was built by hand: it is compiled with a
# profile of itself, and requests take a tenth less.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    elif whole /usr/bin/python3; then
        set -- /usr/bin/python3
    else
        # /usr/bin/python3 last: a pyenv shim may stand before it with an older version.
        set -- python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3
    fi
    for candidate in "$@"; do
        if new_enough "$candidate"; then
            python=$candidate
            return
        fi
    done
    return 1
}

refuse_python() {
    found=$("${PYTHON:-python3}" -c 'import platform; print(platform.python_version())' 2>&1) ||
        found="not usable (${found##*: })"
    die "Cannot set up: ckptfs needs Python 3.11 or newer, and ${PYTHON:-python3} is $found." \
        "Nothing was changed. Install a newer one, then: make setup PYTHON=/path/to/python3"
}

ask_python() { "$python" -c "import os, sys, sysconfig; sys.exit(not ($1))" >/dev/null 2>&1; }
python_version() { "$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# A Python below /usr gets its missing parts from packages; any other brings them or never will.
refuse_foreign_python() {
    ask_python 'sys.base_prefix == "/usr"' || die \
        "Cannot set up: the Python at $(command -v "$python") came without $1." \
        "Nothing was changed. Install it whole, or use the system's: make setup PYTHON=/usr/bin/python3"
}

# ---- What is needed, by its own presence ----------------------------------------------------

present() {
    case $1 in
    python3) find_python || have python3 ;;
    ensurepip) ask_python '__import__("ensurepip") and __import__("venv")' ;;
    Python.h) ask_python 'os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' ;;
    gcc) have gcc && echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 ;;
    libasan) have gcc && [ -f "$(gcc -print-file-name=libasan.so)" ] ;;
    libfuse3) have pkg-config && pkg-config --exists fuse3 ;;
    fusermount3) have fusermount3 || [ -x /usr/bin/fusermount3 ] ;;
    *) have "$1" ;;
    esac
}

# The packages that bring it, by family; a name that is a package everywhere stands for itself.
packages_for() {
    case $family:$1 in
    apt:ensurepip) echo "python$(python_version)-venv" ;;
    apt:Python.h) echo "python$(python_version)-dev" ;;
    apt:gcc) echo gcc libc6-dev ;;
    apt:libfuse3) echo libfuse3-dev ;;
    apt:libasan | pacman:libasan) echo gcc ;;
    dnf:libasan) echo libasan libubsan ;;
    zypper:libasan) echo libasan8 libubsan1 ;;
    apt:npm) echo nodejs npm ;;
    zypper:mkfs.btrfs) echo btrfsprogs ;;
    *:mkfs.btrfs) echo btrfs-progs ;;
    pacman:python3 | pacman:ensurepip | pacman:Python.h) echo python ;;
    pacman:gcc) echo gcc ;;
    pacman:pkg-config) echo pkgconf ;;
    pacman:libfuse3) echo fuse3 ;;
    pacman:sqlite3) echo sqlite ;;
    dnf:ensurepip) echo python3 ;;
    dnf:Python.h) echo python3-devel ;;
    dnf:sqlite3) echo sqlite ;;
    dnf:npm) echo nodejs-npm ;;
    dnf:vim) echo vim-enhanced ;;
    zypper:python3 | zypper:ensurepip) echo python311 ;;
    zypper:Python.h) echo python311-devel ;;
    zypper:npm) echo npm-default ;;
    dnf:gcc | zypper:gcc) echo gcc glibc-devel ;;
    dnf:pkg-config | zypper:pkg-config) echo pkgconf-pkg-config ;;
    dnf:libfuse3 | zypper:libfuse3) echo fuse3-devel ;;
    *:fusermount3) echo fuse3 ;;
    *:setfacl) echo acl ;;
    *:getfattr) echo attr ;;
    *:inotifywait) echo inotify-tools ;;
    *:bwrap) echo bubblewrap ;;
    *:autoreconf) echo autoconf ;;
    *) echo "$1" ;;
    esac
}

find_family() {
    family=
    for tool in apt-get dnf pacman zypper; do
        if have "$tool"; then
            family=${tool%-get}
            return
        fi
    done
}

# ---- System packages ------------------------------------------------------------------------

install_command() {
    case $family in
    apt) echo "apt-get install -y" ;;
    pacman) echo "pacman -S --needed" ;;
    *) echo "$family install" ;;
    esac
}

# Every package list of a system that is not apt's, where the package tool is unknown.
name_packages() {
    needs=$1
    families=${family:-apt dnf pacman zypper}
    for family in $families; do
        say "    $(install_command) $(list_packages "$needs")"
    done
}

list_packages() {
    for need in $1; do
        packages_for "$need"
    done | tr ' ' '\n' | sort -u | tr '\n' ' ' | sed 's/ $//'
}

# Sets `as_root` to what must stand before a command that needs root; fails if nothing would do.
find_root() {
    as_root=
    [ "$(id -u)" -ne 0 ] || return 0
    have sudo || return 1
    as_root=sudo
    # Where no password can be typed, sudo must do without one.
    [ -t 0 ] || sudo -n true 2>/dev/null
}

apt_get() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2; }

apt_install() {
    # A package list that cannot be refreshed (one broken third-party source) may still do.
    apt_get update || say "apt-get update failed (see above); trying with the package lists at hand."
    apt_get install -y --no-install-recommends "$@"
}

missing_of() {
    for need in "$@"; do
        present "$need" || printf '%s ' "$need"
    done
}

# Installs what is missing of the given needs, or ends with the command that would.
require() {
    missing=$(missing_of "$@")
    [ -n "$missing" ] || return 0
    find_family
    if [ "$family" != apt ]; then
        say "Cannot set up: missing here: ${missing% }; and there is no apt to install it with." \
            "Nothing was changed. Install these packages as root, then run make again:"
        name_packages "$missing"
        exit 1
    fi
    packages=$(list_packages "$missing")
    if ! find_root; then
        die "Cannot set up: missing here: ${missing% }; installing it needs root, or sudo without a password." \
            "Nothing was changed. Run this as root, then run make again:" \
            "    apt-get update && apt-get install -y $packages"
    fi
    say "Installing system packages: $packages"
    # shellcheck disable=SC2086  # a list of package names
    apt_install $packages || die "Cannot set up: the packages were not installed (the reason stands above)." \
        "Run this as root, then run make again:" \
        "    apt-get update && apt-get install -y $packages"
    missing=$(missing_of "$@")
    [ -z "$missing" ] || die "Cannot set up: ${missing% } is still missing after installing $packages."
}

require_python() {
    require python3
    find_python || refuse_python
    present ensurepip || refuse_foreign_python "ensurepip"
    present Python.h || refuse_foreign_python "its header files (Python.h)"
}

# npm alone may stay away: on Debian it is hundreds of packages, and the test that uses it can skip.
try_npm() { (require npm) || say "Going on without npm: the test that uses it will be skipped."; }

# The coding agents of tests/real_agents, as its package.json pins them: 1.6 GB, so for the long tests
# only. None needs its install script, and a script of a package may do anything.
install_agents() {
    agents=$venv/agents
    wanted=$root/tests/real_agents/package.json
    if ! have npm || cmp -s "$wanted" "$agents/installed.json"; then
        return
    fi
    say "Installing coding agents into .venv/agents (1.6 GB, about a minute)"
    rm -rf "$agents"
    mkdir -p "$agents"
    cp "$wanted" "$agents/package.json"
    if (cd "$agents" && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error >&2); then
        cp "$wanted" "$agents/installed.json"
    else
        say "Going on without coding agents (npm's reason stands above): the tests that run them will fail."
    fi
}

# ---- The virtual environment ----------------------------------------------------------------

# What a finished installation depends on. Python sources do not count: the package is installed
# editable.
fingerprint() {
    echo "$root"
    "$venv/bin/python" --version
    cksum <"$root/pyproject.toml"
    cksum <"$root/vagrant/provision.sh"
    cat "$locks"/*.txt | cksum
    cat "$root"/ckptfs/fuse/server/*.[ch] | cksum
}

# Every distribution that the package asks for is there; the names are in pyproject.toml only.
all_installed() {
    "$venv/bin/python" - "$mode" <<'PYTHON' 2>/dev/null
import sys
from importlib.metadata import distribution
from pip._vendor.packaging.requirements import Requirement

extras = {"run": [""], "tests": ["dev"], "deep": ["dev", "fuzz"]}[sys.argv[1]]
for wanted in map(Requirement, distribution("ckptfs").requires or []):
    if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
        distribution(wanted.name)
PYTHON
}

# With PYTHON given, a .venv made with another one does not count.
is_chosen() {
    identity='import sys; print(sys.base_prefix, sys.version)'
    [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$identity")" = "$("$venv/bin/python" -c "$identity")" ]
} 2>/dev/null

stamp_of() { echo "$venv/.ckptfs-$1"; }

is_current() {
    stamp=$(stamp_of "$mode")
    is_chosen || return
    [ -f "$stamp" ] && [ -x "$venv/bin/ckptfs" ] && [ "$(cat "$stamp")" = "$(fingerprint 2>&1)" ] &&
        all_installed
}

# A venv that was moved has scripts that name its old place; one whose Python went away is dead.
is_usable() {
    is_chosen && new_enough "$venv/bin/python" && grep -qsF "$venv/bin/" "$venv/bin/pip"
}

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }

# What compiles pyfuse3 goes into .venv first: pip would bring it into a build environment unchecked.
install_locked() {
    { pip_install --require-hashes --only-binary :all: --requirement "$locks/build.txt" &&
        pip_install --require-hashes --no-build-isolation --requirement "$locks/$mode.txt"; } ||
        die "Cannot install what ckptfs needs into .venv: pip's reason stands above." \
            "If it could not reach a package index, check the network or pip's configuration, then run make again." \
            "If the index lacks these versions, take others, whose files are not checked: make setup UNLOCKED=1"
    rm -f "$root"/ckptfs/fuse/server/_server.*.so # an old one must not pass for the new one
    pip_install --no-deps --no-build-isolation --editable "$root" ||
        die "Cannot install ckptfs into .venv: pip's reason stands above."
}

install_unlocked() {
    case $mode in
    run) what=$root ;;
    tests) what="${root}[dev]" ;;
    deep) what="${root}[dev,fuzz]" ;;
    esac
    old=$venv/old-server # it must not pass for the new one, and comes back if there is none
    rm -rf "$old" && mkdir "$old"
    mv "$root"/ckptfs/fuse/server/_server.*.so "$old" 2>/dev/null || true
    pip_install --editable "$what" || {
        mv "$old"/* "$root/ckptfs/fuse/server" 2>/dev/null || true
        die "Cannot install ckptfs into .venv: pip's reason stands above." \
            "If it could not reach a package index, check the network or pip's configuration. Then run make again."
    }
    rm -rf "$old"
}

build_venv() {
    if ! is_usable; then
        say "Creating .venv with $("$python" --version) ($(command -v "$python"))"
        "$python" -m venv --clear "$venv" || die "Cannot create $venv (the reason stands above)."
    fi
    say "Installing ckptfs into .venv (the first time pyfuse3 is compiled: about a minute)"
    rm -f "$(stamp_of "$mode")"
    if [ -n "${UNLOCKED:-}" ]; then install_unlocked; else install_locked; fi
    fingerprint >"$(stamp_of run)"
    [ "$mode" = run ] || fingerprint >"$(stamp_of "$mode")"
}

# In development a warning of the compiler is an error; for users it is none of their business.
check_warnings() {
    "$python" - "$root" <<'PYTHON' >&2 || die "Cannot go on: the compiler warns of the compiled server (above)."
import os, subprocess, sys, sysconfig, tomllib
os.chdir(sys.argv[1])
with open("pyproject.toml", "rb") as file:
    (extension,) = tomllib.load(file)["tool"]["setuptools"]["ext-modules"]
flags = [*extension["extra-compile-args"], "-Werror", "-O2", "-I" + sysconfig.get_path("include")]
runs = [
    subprocess.Popen(["gcc", *flags, "-c", source, "-o", os.devnull])
    for source in extension["sources"]
]
sys.exit(any([run.wait() for run in runs]))
PYTHON
}

has_server() { ls "$root"/ckptfs/fuse/server/_server.*.so >/dev/null 2>&1; }

# Without it everything works, several times slower: users are told, developers must not miss it.
check_server() {
    has_server && return
    [ "$mode" = run ] || die "Cannot go on: the compiled server was not built. To see why:" \
        "    .venv/bin/pip install --verbose --no-deps --editable ."
    say "Warning: the compiled server could not be built, so requests take the portable path, which is" \
        "several times slower. \`ckptfs status\` shows it too. To see why:" \
        "    .venv/bin/pip install --verbose --no-deps --editable ."
}

# Bytecode of the sources as they are: a command that has to compile them first takes twice as long,
# every time where the environment forbids Python to keep it.
compile_sources() { "$venv/bin/python" -m compileall -q "$root/ckptfs" || say "Going on without bytecode."; }

main() {
    case $mode in
    run) tools= ;;
    tests | deep) # what the mounted tests drive, and the programs that agents and people work with
        tools="git sqlite3 rsync tar setfacl getfattr inotifywait gcc zsh fish"
        tools="$tools bwrap tmux vim ed autoreconf automake"
        [ "$mode" = tests ] || tools="$tools libasan" ;;
    *) die "usage: provision.sh [run|tests|deep]" ;;
    esac
    # A quota is tested by root alone, and others seldom have its tools in their PATH.
    [ -z "$tools" ] || [ "$(id -u)" -ne 0 ] || tools="$tools mkfs.btrfs"
    # shellcheck disable=SC2086  # a list of words
    if is_current; then
        require fusermount3 make $tools
    else
        require_python
        require ensurepip Python.h gcc pkg-config libfuse3 fusermount3 make $tools
        [ "$mode" = run ] || check_warnings
        build_venv
        say "ckptfs is set up: .venv/bin/ckptfs"
    fi
    check_server
    compile_sources
    [ "$mode" = run ] || try_npm
    [ "$mode" != deep ] || install_agents
}

main
