# ckptfs: completion for fish. Candidates come from `ckptfs __complete`.

function __ckptfs_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -e words[1]
    for line in (command ckptfs __complete -- $words $current 2>/dev/null)
        switch $line
            case \tfiles
                __ckptfs_own __fish_complete_path $current
            case \tdirectories
                __ckptfs_own __fish_complete_directories $current
            case \tcommands
                complete -C "$current"
            case '*'
                echo $line
        end
    end
end

# The shell's own files or directories; behind --option= with that before them.
function __ckptfs_own
    set -l parts (string match -r '^(--[a-z-]+=)(.*)$' -- $argv[2])
    if test (count $parts) -eq 3
        for found in ($argv[1] $parts[3])
            echo "$parts[2]$found"
        end
    else
        $argv[1] $argv[2]
    end
end

complete -c ckptfs -f -a '(__ckptfs_complete)'
