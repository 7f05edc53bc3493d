"""Every error that is not a plain ``OSError`` of a file-system operation.

Each class owns three things: ``kind`` (stable, for machines), ``exit_code`` (what the command
line ends with) and the words. A message names the failed thing first, then says what is
unchanged; the hint says what to do. Nothing here prints, and nothing here knows who raises.
The classes stand in three modules; every name is exported here, so others import only
`ckptfs.errors`.

    CkptfsError                     1
    ├── UsageError                  2
    ├── ProblemsFound               3
    ├── SystemRefused               4
    ├── StoreError
    │   ├── StoreMissing           10
    │   ├── NotAStore              11
    │   ├── StoreVersionUnknown    12
    │   ├── StoreInUse             13
    │   ├── StoreUnreadable        14
    │   ├── StoreReadOnly          15
    │   ├── StoreFull              16
    │   ├── StoreCorrupt           17
    │   ├── StoreUnwritten         34
    │   ├── StoreGone              38
    │   ├── StoreExposed           29
    │   ├── StoreUntrusted         35
    │   ├── BackupFailed           18
    │   ├── StoreBusy              19
    │   ├── CompactFailed          85
    │   └── PurgeUnfinished        86
    ├── MountpointError
    │   ├── MountpointMissing      20
    │   ├── MountpointNotDirectory 21
    │   ├── MountpointNotEmpty     22
    │   ├── AlreadyMounted         23
    │   ├── MountpointInStore      24
    │   ├── StoreInMountpoint      25
    │   ├── DangerousRoot          26
    │   ├── MountpointBusy         27
    │   └── NestedWorkspace        28
    ├── MountError
    │   ├── MountFailed            30
    │   ├── NoFuse                 31
    │   ├── NoFusermount           32
    │   └── NoPermission           33
    ├── WorkspaceError
    │   ├── WorkspaceUnknown       40
    │   ├── WorkspaceReadOnly      36
    │   ├── MountedByOther         39
    │   ├── NotMounted             41
    │   ├── CheckpointUnknown      42
    │   ├── WorkspaceNotEmpty      43
    │   ├── NothingToUndo          44
    │   ├── PathUnknown            45
    │   ├── TreeMoved              46
    │   ├── MergeConflict          90
    │   ├── MergeDriverFailed      95
    │   ├── NotConfirmed           47
    │   ├── TagInvalid             48
    │   ├── TagTaken               49
    │   ├── CheckpointPinned       70
    │   ├── SettingInvalid         71
    │   ├── ForkInvalid            87
    │   ├── ForkTaken              88
    │   ├── ForkBusy               91
    │   ├── ForksTooMany           92
    │   ├── ForkUnknown            89
    │   ├── StateInvalid           72
    │   ├── StateNotWritten        73
    │   ├── AuthorUnknown          74
    │   ├── TaskUnknown            75
    │   ├── TaskInvalid            76
    │   └── TaskConflict           77
    ├── SyncError
    │   ├── SourceMissing          50
    │   ├── DestinationInvalid     51
    │   ├── OverlappingTrees       52
    │   ├── Conflict               53
    │   └── WriteBackIncomplete    54
    ├── TeamError
    │   ├── TeamUnknown            80
    │   ├── TeamInvalid            81
    │   ├── SnapshotUnknown        82
    │   ├── TeamBusy               83
    │   └── TeamRestoreFailed      84
    ├── ExtraMissing               78
    ├── AgentSettingsInvalid       79
    ├── PeerUntrusted              63
    ├── Interrupted                64
    └── ControlError               60
        ├── DaemonGone             61
        ├── DaemonSilent           65
        ├── ProtocolMismatch       62
        ├── ReaderEnded            67
        └── RefusedInSandbox       66

130 is an interrupt from the keyboard; 1 is a fault in ckptfs itself.
"""

from ckptfs.errors.base import (
    AnyPath,
    CkptfsError,
    ErrorRecord,
    ExtraMissing,
    Interrupted,
    SystemRefused,
    UsageError,
    every_error,
    from_record,
    no_paths,
    reason_of,
    shell,
)
from ckptfs.errors.store import (
    AlreadyMounted,
    BackupFailed,
    CompactFailed,
    ControlError,
    DaemonGone,
    DaemonSilent,
    DangerousRoot,
    MountError,
    MountFailed,
    MountpointBusy,
    MountpointError,
    MountpointInStore,
    MountpointMissing,
    MountpointNotDirectory,
    MountpointNotEmpty,
    NestedWorkspace,
    NoFuse,
    NoFusermount,
    NoPermission,
    NotAStore,
    PeerUntrusted,
    ProblemsFound,
    ProtocolMismatch,
    PurgeUnfinished,
    ReaderEnded,
    RefusedInSandbox,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreExposed,
    StoreFull,
    StoreGone,
    StoreInMountpoint,
    StoreInUse,
    StoreMissing,
    StoreReadOnly,
    StoreUnreadable,
    StoreUntrusted,
    StoreUnwritten,
    StoreVersionUnknown,
)
from ckptfs.errors.workspace import (
    AgentSettingsInvalid,
    AuthorUnknown,
    CheckpointPinned,
    CheckpointUnknown,
    Conflict,
    DestinationInvalid,
    ForkBusy,
    ForkInvalid,
    ForksTooMany,
    ForkTaken,
    ForkUnknown,
    MergeConflict,
    MergeDriverFailed,
    MountedByOther,
    NotConfirmed,
    NothingToUndo,
    NotMounted,
    OverlappingTrees,
    PathUnknown,
    SettingInvalid,
    SnapshotUnknown,
    SourceMissing,
    StateInvalid,
    StateNotWritten,
    SyncError,
    TagInvalid,
    TagTaken,
    TaskConflict,
    TaskInvalid,
    TaskUnknown,
    TeamBusy,
    TeamError,
    TeamInvalid,
    TeamRestoreFailed,
    TeamUnknown,
    TreeMoved,
    WorkspaceError,
    WorkspaceNotEmpty,
    WorkspaceReadOnly,
    WorkspaceUnknown,
    WriteBackIncomplete,
)

__all__ = [
    "AgentSettingsInvalid",
    "AlreadyMounted",
    "AnyPath",
    "AuthorUnknown",
    "BackupFailed",
    "CheckpointPinned",
    "CheckpointUnknown",
    "CkptfsError",
    "CompactFailed",
    "Conflict",
    "ControlError",
    "DaemonGone",
    "DaemonSilent",
    "DangerousRoot",
    "DestinationInvalid",
    "ErrorRecord",
    "ExtraMissing",
    "ForkBusy",
    "ForkInvalid",
    "ForkTaken",
    "ForkUnknown",
    "ForksTooMany",
    "Interrupted",
    "MergeConflict",
    "MergeDriverFailed",
    "MountError",
    "MountFailed",
    "MountedByOther",
    "MountpointBusy",
    "MountpointError",
    "MountpointInStore",
    "MountpointMissing",
    "MountpointNotDirectory",
    "MountpointNotEmpty",
    "NestedWorkspace",
    "NoFuse",
    "NoFusermount",
    "NoPermission",
    "NotAStore",
    "NotConfirmed",
    "NotMounted",
    "NothingToUndo",
    "OverlappingTrees",
    "PathUnknown",
    "PeerUntrusted",
    "ProblemsFound",
    "ProtocolMismatch",
    "PurgeUnfinished",
    "ReaderEnded",
    "RefusedInSandbox",
    "SettingInvalid",
    "SnapshotUnknown",
    "SourceMissing",
    "StateInvalid",
    "StateNotWritten",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreExposed",
    "StoreFull",
    "StoreGone",
    "StoreInMountpoint",
    "StoreInUse",
    "StoreMissing",
    "StoreReadOnly",
    "StoreUnreadable",
    "StoreUntrusted",
    "StoreUnwritten",
    "StoreVersionUnknown",
    "SyncError",
    "SystemRefused",
    "TagInvalid",
    "TagTaken",
    "TaskConflict",
    "TaskInvalid",
    "TaskUnknown",
    "TeamBusy",
    "TeamError",
    "TeamInvalid",
    "TeamRestoreFailed",
    "TeamUnknown",
    "TreeMoved",
    "UsageError",
    "WorkspaceError",
    "WorkspaceNotEmpty",
    "WorkspaceReadOnly",
    "WorkspaceUnknown",
    "WriteBackIncomplete",
    "every_error",
    "from_record",
    "no_paths",
    "reason_of",
    "shell",
]
