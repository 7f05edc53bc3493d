"""Scan and materialise: a directory and the store, each brought up to date from the other."""

from ckptfs.sync.agreed import settle
from ckptfs.sync.materialise import export_tree
from ckptfs.sync.results import (
    Conflict,
    ExportResult,
    ImportResult,
    Progress,
    ScanResult,
    Skipped,
    SyncResult,
    WriteBackResult,
)
from ckptfs.sync.scan import import_tree, scan
from ckptfs.sync.scan_behind import ScanBehind
from ckptfs.sync.write_back import push, write_back

__all__ = [
    "Conflict",
    "ExportResult",
    "ImportResult",
    "Progress",
    "ScanBehind",
    "ScanResult",
    "Skipped",
    "SyncResult",
    "WriteBackResult",
    "export_tree",
    "import_tree",
    "push",
    "scan",
    "settle",
    "write_back",
]
