"""How fast ckptfs is, as a ratio to the same work on the disk's own file system.

Run as `python -m bench`; see README.md. The harness uses ckptfs only through its command line
and its mount, as a user does, and imports nothing of it.
"""
