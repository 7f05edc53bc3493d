#!/bin/sh
# Builds wheels that run on every distribution with glibc 2.34 or newer, for each Python: in the container
# of PyPA that such wheels are made in. Needs docker or podman, and the network.
#
#     vagrant/packaging/manylinux.sh [IMAGE]
#
# The compiled server needs kernel headers of 5.10 or newer, which the images before 2.34 do not have.
# They go to dist/. `make dist` builds and tries one for this machine alone, without a container.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/../.." && pwd)
image=${1:-quay.io/pypa/manylinux_2_34_$(uname -m)}
pythons="cp311-cp311 cp312-cp312 cp313-cp313 cp314-cp314"

if [ -z "${CKPTFS_IN_CONTAINER:-}" ]; then
    run=$(command -v podman || command -v docker) || {
        echo "Cannot build wheels for all distributions: neither podman nor docker is installed." >&2
        echo "For this machine alone: make dist" >&2
        exit 1
    }
    mkdir -p "$root/dist"
    exec "$run" run --rm --env CKPTFS_IN_CONTAINER=1 --volume "$root:/source:ro" \
        --volume "$root/dist:/dist" "$image" sh /source/vagrant/packaging/manylinux.sh
fi

# A copy: setuptools leaves its build directory in the sources.
rm -rf /tmp/source
git -c safe.directory=/source/.git clone --quiet --no-hardlinks /source /tmp/source
for python in $pythons; do
    [ -x "/opt/python/$python/bin/python" ] || { echo "$image has no $python" >&2; exit 1; }
    # The compiled part needs headers of the kernel and of Python only, both in the image.
    "/opt/python/$python/bin/python" -m pip wheel --quiet --no-deps --wheel-dir /tmp/plain /tmp/source
done
for wheel in /tmp/plain/*.whl; do
    unzip -l "$wheel" | grep -q '_server\..*\.so' || { echo "The compiled server was not built into $wheel" >&2; exit 1; }
    auditwheel repair --wheel-dir /dist "$wheel"
done
ls /dist
