# ckptfs: names checkpoints that are taken before a change after the command line that was typed.
#
# Before each command line its text goes to .checkpoints/.step of the workspace around the current
# directory, and an empty line when the prompt is back: builtins write both, and nothing is forked.
# Outside of workspaces nothing is written.

if status is-interactive

# Where a workspace was found last, and its control file; the control file that was told of a line.
set -g __ckptfs_pwd ''
set -g __ckptfs_step ''
set -g __ckptfs_named ''

# Whether a file may be written to. After an unmount a link may be in its place.
function __ckptfs_is_own
    test -w "$argv[1]"; and test -f "$argv[1]"; and test -O "$argv[1]"; or return 1
    not begin
        test -L "$argv[1]"; or test -L (string replace -r '/[^/]*$' '' -- "$argv[1]")
    end
end

# A control file can be written to and stands in no listing. An ordinary file of that name does.
function __ckptfs_is_control
    __ckptfs_is_own $argv[1]; or return 1
    set -l listed (string replace -r '.$' '' -- $argv[1])*
    not contains -- $argv[1] $listed
end

# Finds the control file of the workspace around the current directory.
function __ckptfs_find
    test "$PWD" = "$__ckptfs_pwd"; and __ckptfs_is_own "$__ckptfs_step"; and return 0
    set -l up (pwd -P)
    test "$up" = /; and set up ''
    while true
        if __ckptfs_is_control $up/.checkpoints/.step
            set -g __ckptfs_pwd $PWD
            set -g __ckptfs_step $up/.checkpoints/.step
            return 0
        end
        test -z "$up"; and return 1
        set up (string replace -r '/[^/]*$' '' -- $up)
    end
end

function __ckptfs_preexec --on-event fish_preexec
    __ckptfs_find; or return
    set -g __ckptfs_named $__ckptfs_step
    string sub -l 1000 -- "$argv[1]" >$__ckptfs_step 2>/dev/null
end

# Before the prompt: the step is over.
function __ckptfs_postexec --on-event fish_postexec
    test -n "$__ckptfs_named"; and __ckptfs_is_own "$__ckptfs_named"
    and echo >$__ckptfs_named 2>/dev/null
    set -g __ckptfs_named ''
end

end
