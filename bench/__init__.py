"""How fast ckptfs is, as a ratio to the same work on the disk's own file system.

Run as `python -m bench`; see README.md. The harness uses ckptfs as a user does: through its
command line, its mount, and the client of its socket.
"""
