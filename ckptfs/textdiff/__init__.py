"""Text diffs of bytes: lines in common, and git's format. Standard library only."""
