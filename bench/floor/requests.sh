#!/bin/sh
# Which FUSE requests a command causes, by kind, in all mounts of the machine. As root; needs perf.
#
#     sh bench/floor/requests.sh tar xf tree.tar -C ~/proj
set -eu
record=$(mktemp)
trap 'rm -f "$record"' EXIT
perf record --quiet --all-cpus --event fuse:fuse_request_send --output "$record" -- "$@" >/dev/null
perf script --input "$record" 2>/dev/null | grep -o '(FUSE_[A-Z0-9_]*)' | sort | uniq -c | sort -rn
