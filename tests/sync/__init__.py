"""Scan, write-back, import and export, driven without a mount."""
