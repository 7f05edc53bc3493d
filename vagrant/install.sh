#!/bin/sh
# Links the programs of this checkout to where a shell and mount(8) find them: `make install`, `make uninstall`.
#
#     vagrant/install.sh install|uninstall
#
# PREFIX (/usr/local) says whose bin gets `ckptfs` and whose share its manual page and completion, SBINDIR (/sbin)
# where mount(8) looks for its helper, and DESTDIR stands before both. Only links into this checkout are ever replaced
# or removed.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
venv=$root/.venv/bin
pages=$root/.venv/share/ckptfs
bin=${DESTDIR:-}${PREFIX:-/usr/local}/bin
share=${DESTDIR:-}${PREFIX:-/usr/local}/share
sbin=${DESTDIR:-}${SBINDIR:-/sbin}

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

# What a place links to.
source_of() {
    case $1 in
    "$share"/*) echo "$pages/${1##*/}" ;;
    *) echo "$venv/${1##*/}" ;;
    esac
}

# Whether there is nothing at a place, or a link of ours, also one that leads nowhere any more.
is_ours() {
    if [ -L "$1" ]; then
        [ "$(readlink -- "$1")" = "$(source_of "$1")" ]
    else
        [ ! -e "$1" ]
    fi
}

write_pages() {
    mkdir -p -- "$pages"
    "$venv/ckptfs" manual >"$pages/ckptfs.1"
    "$venv/ckptfs" completion bash >"$pages/ckptfs"
    "$venv/ckptfs" completion zsh >"$pages/_ckptfs"
    "$venv/ckptfs" completion fish >"$pages/ckptfs.fish"
    # Root's files in a user's checkout would be in the way of `make clean`.
    [ "$(id -u)" != 0 ] || chown -R --reference="$venv" "$root/.venv/share"
}

install_all() {
    for program in "$venv/ckptfs" "$venv/mount.fuse.ckptfs"; do
        [ -x "$program" ] || die "Cannot install: $program is not there. Nothing was changed." \
            "Run first: make setup"
    done
    for place in "$@"; do
        is_ours "$place" || die "Cannot install: $place exists and is not of this checkout. Nothing was changed." \
            "Remove it, or choose other places: make install PREFIX=/opt/ckptfs"
    done
    write_pages
    for place in "$@"; do
        mkdir -p -- "${place%/*}"
        ln -sfn -- "$(source_of "$place")" "$place"
        echo "$place -> $(source_of "$place")"
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
set -- "$bin/ckptfs" "$sbin/mount.fuse.ckptfs" "$share/man/man1/ckptfs.1" \
    "$share/bash-completion/completions/ckptfs" "$share/zsh/site-functions/_ckptfs" \
    "$share/fish/vendor_completions.d/ckptfs.fish"
case $what in
install) install_all "$@" ;;
uninstall) uninstall_all "$@" ;;
*) die "usage: install.sh install|uninstall" ;;
esac
