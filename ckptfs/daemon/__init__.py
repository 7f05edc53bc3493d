"""The background process that holds a mount, from its preflight checks to its shutdown.

`preflight` checks whether a mount may happen, `mounts` looks at and changes the kernel's mounts,
`launch` forks, `lifecycle` is what the forked process does from opening the store to writing back,
and `shutdown` is how a mount ends. The package imports nothing by itself, so that a client command
can use `preflight` and `mounts` without paying for trio.
"""
