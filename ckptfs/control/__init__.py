"""Talking to a running daemon over its unix socket.

`protocol` is the wire, `client` and `server` its two ends, `runtime` the note by which a daemon
is found, `verbs` the table from an operation's name to the service. The package imports nothing
by itself: the client side costs only the standard library, the server side needs trio.
"""
