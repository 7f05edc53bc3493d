"""ckptfs: a workspace that is a file system with a history.

Importing the package costs nothing; every part is imported where it is needed.
"""

__version__ = "0.1.0"
