# ckptfs: names checkpoints that are taken before a change after the command line that was typed.
#
# Before each command line its text goes to .checkpoints/.step of the workspace around the current
# directory, and an empty line when the prompt is back: builtins write both, and nothing is forked.
# Outside of workspaces nothing is written.

if [[ -o interactive ]]; then

# Where a workspace was found last, and its control file; the control file that was told of a line.
typeset -g __ckptfs_pwd= __ckptfs_step= __ckptfs_named=

# Whether a file may be written to. After an unmount a link may be in its place.
__ckptfs_is_own() {
    emulate -L zsh
    [[ -w $1 && -f $1 && -O $1 && ! -L $1 && ! -L ${1:h} ]]
}

# A control file can be written to and stands in no listing. An ordinary file of that name does.
__ckptfs_is_control() {
    emulate -L zsh
    __ckptfs_is_own $1 || return
    local -a listed
    listed=(${1%?}[p](N))
    (( ! $#listed ))
}

# Finds the control file of the workspace around the current directory.
__ckptfs_find() {
    emulate -L zsh
    [[ $PWD == $__ckptfs_pwd ]] && __ckptfs_is_own $__ckptfs_step && return
    local up=$PWD
    while [[ -d $up && $#up -lt 4000 ]]; do
        if __ckptfs_is_control $up/.checkpoints/.step; then
            __ckptfs_pwd=$PWD __ckptfs_step=$up/.checkpoints/.step
            return
        fi
        [[ $up -ef / ]] && break
        up=$up/..
    done
    return 1
}

__ckptfs_preexec() {
    emulate -L zsh
    local line=${1:-$3}
    __ckptfs_find || return
    __ckptfs_named=$__ckptfs_step
    print -r -- "${line[1,1000]}" >|$__ckptfs_step
} 2>/dev/null

# Before the prompt: the step is over.
__ckptfs_precmd() {
    emulate -L zsh
    [[ -n $__ckptfs_named ]] && __ckptfs_is_own $__ckptfs_named && print >|$__ckptfs_named
    __ckptfs_named=
} 2>/dev/null

typeset -gaU preexec_functions precmd_functions
preexec_functions+=(__ckptfs_preexec)
precmd_functions+=(__ckptfs_precmd)

fi
