#!/bin/sh
# Mounts a workspace and says what to do next: `make run`, and the same inside the Vagrant VM.
#
#     vagrant/run.sh DIR
#
# It expects provision.sh to have run. Everything about mounting is ckptfs's own; this only makes the
# directory, lets a second call succeed, and prints.

set -eu

root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
bin=$root/.venv/bin/ckptfs

# Everything printed at the end. $W is the workspace, ready for a shell; $ALIAS a line that is not always needed.
next_steps() {
    cat <<END

  In your shell:
$ALIAS    cd $W
  Then work as in any directory, with any program:
    ckptfs status             where everything is
    ckptfs save "message"     save a checkpoint
    ls .checkpoints/          browse: every checkpoint is a directory
    ckptfs rewind             go back to the last checkpoint
  When you are done (the files stay, as an ordinary directory):
    cd / && ckptfs umount $W
END
}

# A word as a shell would need it typed: unchanged if plain, else in single quotes.
quoted() {
    case $1 in
    *[!A-Za-z0-9_./+:@%,=-]*) printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
    esac
}

# A shell that does not expand ~ after = hands it over as it stands.
absolute() {
    # shellcheck disable=SC2088  # the tilde itself is meant
    case $1 in
    '~') printf '%s' "$HOME" ;;
    '~/'*) printf '%s' "$HOME/${1#??}" ;;
    /*) printf '%s' "$1" ;;
    *) printf '%s' "$PWD/$1" ;;
    esac
}

make_directory() {
    reason=$(LC_ALL=C mkdir -p -- "$1" 2>&1) && return
    case $reason in
    # The mount of a daemon that died can be neither made nor looked at; `ckptfs mount` clears it.
    *"Transport endpoint is not connected"* | *"File exists"*) ;;
    *)
        printf 'Cannot create the workspace: %s\n' "$reason" >&2
        exit 1
        ;;
    esac
}

# True if this very directory, not one above it, is a mounted workspace.
is_mounted() {
    "$bin" status -w "$1" --json 2>/dev/null | "$root/.venv/bin/python" -c '
import json, os, sys
try:
    status = json.load(sys.stdin)
    same = os.path.samefile(status["workspace"], sys.argv[1])
except (ValueError, KeyError, OSError):
    sys.exit(1)
sys.exit(not (same and status["mounted"]))' "$1"
}

workspace=$(absolute "${1:?usage: run.sh DIR}")
make_directory "$workspace"
if is_mounted "$workspace"; then
    state="is already mounted"
else
    "$bin" mount "$workspace"
    state="is mounted"
fi

workspace=$(CDPATH='' cd -P -- "$workspace" && pwd)
W=$(quoted "$workspace")
ALIAS=
if [ "$(command -v ckptfs || true)" != "$bin" ]; then
    ALIAS="    alias ckptfs=$(quoted "$(quoted "$bin")")
"
fi
printf 'The workspace %s %s.\n' "$workspace" "$state"
next_steps
