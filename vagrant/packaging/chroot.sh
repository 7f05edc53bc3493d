#!/bin/sh
# Tries provisioning and the Debian package in a bare system, as root:
#
#     vagrant/packaging/chroot.sh DIRECTORY       a fresh chroot, as debootstrap --variant=minbase makes it
#
# In it `make setup` is run in a checkout, the package is built, installed, tried, and removed
# while a workspace is mounted. All mounts are in a namespace that ends with this script.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/../.." && pwd)
base=$(CDPATH='' cd -P -- "${1:?usage: chroot.sh DIRECTORY}" && pwd)

if [ -z "${CKPTFS_IN_NAMESPACE:-}" ]; then
    CKPTFS_IN_NAMESPACE=1 exec unshare --mount --propagation private sh "$0" "$base"
fi

in_chroot() { chroot "$base" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

fail() {
    echo "In $base: $*" >&2
    exit 1
}

mount --bind "$base" "$base"
mount -t proc proc "$base/proc"
mount --rbind /dev "$base/dev"
# The network, as this machine has it.
cp -L /etc/resolv.conf "$base/etc/resolv.conf"
cp -L /etc/hosts "$base/etc/hosts"
# Not over the chroot's own: its package ca-certificates writes that anew.
cp -L /etc/ssl/certs/ca-certificates.crt "$base/etc/ckptfs-ca.crt"
printf '[global]\ncert = /etc/ckptfs-ca.crt\n' >"$base/etc/pip.conf"

rm -rf "$base/root/ckptfs"
git clone --quiet --no-hardlinks "$root" "$base/root/ckptfs"

echo "== make setup"
in_chroot apt-get -q update >/dev/null
in_chroot apt-get -q install -y --no-install-recommends make git >/dev/null 2>&1
in_chroot make --silent -C /root/ckptfs setup
in_chroot sh /root/ckptfs/vagrant/packaging/try.sh /root/ckptfs/.venv/bin/ckptfs
echo "== make deb"
rm -rf "$base/root/ckptfs/dist"
in_chroot sh /root/ckptfs/vagrant/packaging/deb.sh /root/ckptfs/dist
echo "== install"
in_chroot sh -c 'apt-get -q install -y /root/ckptfs/dist/*.deb >/dev/null'
in_chroot sh /root/ckptfs/vagrant/packaging/try.sh /usr/bin/ckptfs
for file in share/man/man1/ckptfs.1.gz share/bash-completion/completions/ckptfs \
    share/zsh/vendor-completions/_ckptfs share/fish/vendor_completions.d/ckptfs.fish \
    lib/systemd/user/ckptfs@.service sbin/mount.fuse.ckptfs; do
    in_chroot test -s "/usr/$file" || fail "the package has no /usr/$file"
done
in_chroot sh -c '/usr/bin/ckptfs doctor || [ $? -lt 100 ]' | sed 's/^/   /'
echo "== mount -t fuse.ckptfs"
in_chroot mkdir -p "/root/a space"
in_chroot mount -t fuse.ckptfs none "/root/a space"
in_chroot sh -c 'echo kept >"/root/a space/file"'
echo "== remove, while that is mounted"
in_chroot apt-get -q remove -y ckptfs | grep -A1 'is removed' || fail "removal does not say where stores are"
# As seen from inside: the namespace also has whatever is mounted on this machine.
! in_chroot grep -q 'fuse\.ckptfs' /proc/mounts || fail "a mount is left"
[ "$(cat "$base/root/a space/file")" = kept ] || fail "the directory was not brought up to date"
[ ! -e "$base/usr/lib/ckptfs" ] && [ ! -e "$base/usr/bin/ckptfs" ] || fail "files are left"
ls "$base"/root/.local/share/ckptfs/*/data.mdb >/dev/null || fail "the store is gone"
echo "== done"
