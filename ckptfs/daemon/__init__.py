"""The background process that holds a mount, and the way there.

`rules` says whether a mount may happen, `mounts` looks at and changes the kernel's mounts,
`launch` forks, `life` is what the forked process does from opening the store to writing back.
The package imports nothing by itself, so that a client command can use `rules` and `mounts`
without paying for trio.
"""
