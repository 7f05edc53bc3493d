#compdef ckptfs
# ckptfs: completion for zsh. Candidates come from `ckptfs __complete`.

_ckptfs() {
    local -a typed values shown below below_shown
    local line value text own=''

    typed=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    while IFS= read -r line; do
        value=${line%%$'\t'*} text=${line#*$'\t'}
        if [[ -z $value ]]; then
            own=$text
        elif [[ $value == */ ]]; then
            below+=("$value") below_shown+=("$value")
        else
            values+=("$value") shown+=("$value${text:+  -- $text}")
        fi
    done < <(command ckptfs __complete -- "${typed[@]}" 2>/dev/null)

    if [[ -n $own ]]; then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        case $own in
            files) _files ;;
            directories) _files -/ ;;
            commands) _command_names -e ;;
        esac
        return
    fi
    local ret=1
    (( $#values )) && compadd -V ckptfs -l -d shown -a values && ret=0
    (( $#below )) && compadd -V ckptfs-directories -S '' -d below_shown -a below && ret=0
    return ret
}

# From a file in $fpath, compinit calls it; from .zshrc, it is to be named.
if [[ $funcstack[1] == _ckptfs ]]; then
    _ckptfs "$@"
else
    compdef _ckptfs ckptfs
fi
