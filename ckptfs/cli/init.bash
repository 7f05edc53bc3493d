# ckptfs: names checkpoints that are taken before a change after the command line that was typed.
#
# Before each command line its text goes to .checkpoints/.step of the workspace around the current
# directory, and an empty line when the prompt is back: builtins write both, and nothing is forked.
# Outside of workspaces nothing is written.

if [[ $- == *i* && ${BASH_VERSINFO[0]}${BASH_VERSINFO[1]} -ge 44 && -z ${__ckptfs_next-} ]] &&
    shopt -q promptvars; then

# The number that the next line gets in the history; whether a line was typed of which nothing has
# run yet; the control file that was told of it; where a workspace was found last, and its file.
__ckptfs_next=0 __ckptfs_typed= __ckptfs_named= __ckptfs_pwd= __ckptfs_step=

# Whether a file may be written to. After an unmount a link may be in its place.
__ckptfs_is_own() {
    [[ -w $1 && -f $1 && -O $1 && ! -L $1 && ! -L ${1%/*} ]]
}

# A control file can be written to and stands in no listing. An ordinary file of that name does.
__ckptfs_is_control() {
    __ckptfs_is_own "$1" || return
    local - listed fails=
    set +f
    shopt -q failglob && fails=1 && shopt -u failglob
    listed=("${1%?}"[p])
    [[ -z $fails ]] || shopt -s failglob
    [[ ${listed[0]-} != "$1" ]]
}

# Finds the control file of the workspace around the current directory.
__ckptfs_find() {
    [[ $PWD == "$__ckptfs_pwd" ]] && __ckptfs_is_own "$__ckptfs_step" && return
    local up=$PWD
    while [[ -d $up && ${#up} -lt 4000 ]]; do
        if __ckptfs_is_control "$up/.checkpoints/.step"; then
            __ckptfs_pwd=$PWD __ckptfs_step=$up/.checkpoints/.step
            return
        fi
        [[ $up -ef / ]] && break
        up=$up/..
    done
    return 1
}

# A command line as bash-preexec tells it.
__ckptfs_line() {
    __ckptfs_find || return
    __ckptfs_named=$__ckptfs_step
    printf '%s\n' "${1:0:1000}" >|"$__ckptfs_step"
} 2>/dev/null

# Before each simple command: the first of a line tells the line, if the history has it, or else
# itself. Leaves $1 as the status, and $_ as it was, which is $2.
__ckptfs_preexec() {
    [[ -n $__ckptfs_typed && $BASH_COMMAND != __ckptfs_precmd &&
        ${FUNCNAME[1]-} != __ckptfs_precmd ]] || return "$1"
    __ckptfs_typed=
    __ckptfs_find || return "$1"
    __ckptfs_named=$__ckptfs_step
    { [[ $HISTCMD == "$__ckptfs_next" ]] && builtin fc -ln -0 -0 ||
        printf '%s\n' "${BASH_COMMAND:0:1000}"; } >|"$__ckptfs_step" 2>/dev/null
    return "$1"
}

# Before the prompt: the step is over.
__ckptfs_precmd() {
    __ckptfs_next=$HISTCMD __ckptfs_typed=
    [[ -n $__ckptfs_named ]] && __ckptfs_is_own "$__ckptfs_named" && printf '\n' >|"$__ckptfs_named"
    __ckptfs_named=
} 2>/dev/null

if [[ -n ${bash_preexec_imported-}${__bp_imported-} ]]; then
    preexec_functions+=(__ckptfs_line)
    precmd_functions+=(__ckptfs_precmd)
else
    # A subscript is arithmetic, and sets the variable without a fork.
    PS0=${PS0-}'${__ckptfs_nothing[__ckptfs_typed=1,0]-}'
    PROMPT_COMMAND=${PROMPT_COMMAND:+$PROMPT_COMMAND$'\n'}__ckptfs_precmd
    eval "__ckptfs_nothing=($(trap -p DEBUG))"
    if [[ -n ${__ckptfs_nothing[2]-} ]]; then
        trap -- '__ckptfs_preexec "$?" "$_"'$'\n'"${__ckptfs_nothing[2]}" DEBUG
    else
        trap '__ckptfs_preexec 0 "$_"' DEBUG
    fi
    __ckptfs_nothing=()
fi

fi
