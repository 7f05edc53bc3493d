#!/bin/sh
# Tries an installed ckptfs: it mounts, saves, restores and unmounts, and the compiled server serves.
#
#     vagrant/packaging/try.sh /path/to/ckptfs

set -eu

ckptfs=$1
place=$(mktemp -d)
XDG_DATA_HOME=$place/data
export XDG_DATA_HOME
work=$place/work

end() {
    "$ckptfs" umount "$work" --force >/dev/null 2>&1 || :
    rm -rf "$place"
}
trap end EXIT INT TERM

fail() {
    echo "$ckptfs does not work: $*" >&2
    exit 1
}

mkdir "$work"
echo one >"$work/file"
"$ckptfs" --version >/dev/null
"$ckptfs" mount "$work" --json >"$place/mounted" || fail "it does not mount"
grep -q '"server": *"compiled"' "$place/mounted" || fail "the compiled server is missing: $(cat "$place/mounted")"
"$ckptfs" save "first" -w "$work" >/dev/null || fail "it does not save"
echo two >"$work/file"
"$ckptfs" restore latest -w "$work" --force >/dev/null || fail "it does not restore"
[ "$(cat "$work/file")" = one ] || fail "a restore left $(cat "$work/file")"
"$ckptfs" umount "$work" >/dev/null || fail "it does not unmount"
[ "$(cat "$work/file")" = one ] || fail "the directory was not brought up to date"
