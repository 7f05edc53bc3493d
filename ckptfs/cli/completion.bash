# ckptfs: completion for bash 4.4 or newer. Candidates come from `ckptfs __complete`.

_ckptfs() {
    local -a words=() values=() texts=()
    local word glue='' current cut line value text at

    # bash splits words at = and : as well; ckptfs wants them whole.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == [=:]* || -n $glue ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        glue=''
        [[ $word == *[=:] ]] && glue=1
    done
    [[ ${#words[@]} -gt 0 ]] || words=('')
    current=${words[-1]}
    # What stands before the last break stays on the line as it is.
    cut=${current%"${current##*[=:]}"}
    # An open quote is not part of the word.
    words[-1]=${current#[\"\']}

    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            $'\tfiles') _ckptfs_own -f "${current#"$cut"}" ;;
            $'\tdirectories') _ckptfs_own -d "${current#"$cut"}" ;;
            $'\tcommands') _ckptfs_own -c "${current#"$cut"}" ;;
            *) values+=("${line%%$'\t'*}") texts+=("${line#*$'\t'}") ;;
        esac
    done < <(command ckptfs __complete -- "${words[@]}" 2>/dev/null)

    [[ ${#values[@]} -gt 0 ]] && compopt -o nosort 2>/dev/null
    for at in "${!values[@]}"; do
        value=${values[at]#"$cut"} text=${texts[at]}
        # Inside of quotes the shell needs no more of them.
        [[ $current == [\"\']* ]] || printf -v value %q "$value"
        [[ ${values[at]} == */ ]] && compopt -o nospace 2>/dev/null
        # Among several, bash puts in only what they begin with alike: the rest is for the eye.
        if [[ -n $text && ${#values[@]} -gt 1 && ${COMP_TYPE:-9} != 37 && ${COMP_TYPE:-9} != 42 ]]; then
            value="$value  ($text)"
            value=${value:0:${COLUMNS:-80}-2}
        fi
        COMPREPLY+=("$value")
    done
}

# The shell's own files, directories or commands.
_ckptfs_own() {
    local found
    compopt -o filenames 2>/dev/null
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <(compgen "$1" -- "$2")
}

complete -F _ckptfs ckptfs
