#!/bin/sh
# Links the programs of this checkout to where a shell and mount(8) find them: `make install`, `make uninstall`.
#
#     vagrant/install.sh install|uninstall
#
# PREFIX (/usr/local) says whose bin gets `ckptfs`, SBINDIR (/sbin) where mount(8) looks for its helper, and
# DESTDIR stands before both. Only links into this checkout are ever replaced or removed.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
venv=$root/.venv/bin
bin=${DESTDIR:-}${PREFIX:-/usr/local}/bin
sbin=${DESTDIR:-}${SBINDIR:-/sbin}

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

# Whether there is nothing at a place, or a link of ours, also one that leads nowhere any more.
is_ours() {
    if [ -L "$1" ]; then
        [ "$(readlink -- "$1")" = "$venv/${1##*/}" ]
    else
        [ ! -e "$1" ]
    fi
}

install_all() {
    for place in "$@"; do
        [ -x "$venv/${place##*/}" ] || die "Cannot install: $venv/${place##*/} is not there. Nothing was changed." \
            "Run first: make setup"
        is_ours "$place" || die "Cannot install: $place exists and is not of this checkout. Nothing was changed." \
            "Remove it, or choose other places: make install PREFIX=/opt/ckptfs"
    done
    mkdir -p -- "$bin" "$sbin"
    for place in "$@"; do
        ln -sfn -- "$venv/${place##*/}" "$place"
        echo "$place -> $venv/${place##*/}"
    done
}

# Whether a daemon runs from this checkout: without its links nothing would say how to unmount its workspace.
serves() {
    for process in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$process/cmdline" | sed 2q |
            grep -qxF -e "$venv/ckptfs" -e "$venv/mount.fuse.ckptfs" && return 0
    done
    return 1
}

# The command that unmounts each workspace, of this checkout or another. /proc/mounts writes spaces, tabs, newlines
# and backslashes as octal numbers, as printf reads them. A fork is unmounted with its workspace.
mounted() {
    grep ' fuse\.ckptfs ' /proc/mounts | grep -v '^[^ ]*//fork/' | while read -r _ place _; do
        printf "  %s/ckptfs umount '%b'\n" "$venv" "$(printf '%s' "$place" | sed 's/\\\([0-7]\{3\}\)/\\0\1/g')"
    done
}

# A store is never removed.
uninstall_all() {
    ! serves || die "Cannot uninstall: workspaces are mounted by this checkout's ckptfs. Nothing was removed." \
        "Unmount each as its user, which brings its directory up to date:" "$(mounted)"
    for place in "$@"; do
        if [ -L "$place" ] && is_ours "$place"; then
            rm -- "$place"
            echo "removed $place"
        fi
    done
    echo "Histories stay in ~/.local/share/ckptfs of each user; $venv/ckptfs workspaces lists them."
}

what=${1:-}
set -- "$bin/ckptfs" "$sbin/mount.fuse.ckptfs"
case $what in
install) install_all "$@" ;;
uninstall) uninstall_all "$@" ;;
*) die "usage: install.sh install|uninstall" ;;
esac
