"""Differences between two views of a workspace: records, inodes, trees, checkpoints, patches."""
