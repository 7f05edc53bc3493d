"""Every verb once: what the command line, the control socket and later edges can ask for.

`Service` works on an open file system and returns values. It is synchronous, prints
nothing, and does not know whether the workspace is mounted; what a verb changed is durable when
it returns, by a commit or, where verbs follow each other, by the journal. The verbs stand in the
modules beside this one, by what they are about; here is the state that they share.
"""

from __future__ import annotations

from ckptfs.fs import Filesystem
from ckptfs.history import Changed
from ckptfs.service import keeping, looking, restoring, room, saving, trees, undoing


class Service:
    """The verbs of one workspace, on the file system that holds it."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs
        #: What changed without the kernel asking for it; whoever serves the mount tells it.
        self.unannounced: list[Changed] = []

    save = saving.save
    documents = saving.documents
    read_document = saving.read_document
    unchanged_since = saving.unchanged_since
    has_unsaved = saving.has_unsaved

    figures = looking.figures
    find = looking.find
    view = looking.view
    checkpoints = looking.checkpoints
    listed = looking.listed
    counts = looking.counts
    diff = looking.diff
    show = looking.show
    contents = looking.contents
    path_log = looking.path_log

    plan_restore = restoring.plan_restore
    restore = restoring.restore
    plan_selective = restoring.plan_selective
    restore_selective = restoring.restore_selective
    acting = restoring.acting

    steps_back = undoing.steps_back
    undo = undoing.undo
    redo = undoing.redo
    plan_back = undoing.plan_back
    head_back = undoing.head_back
    restores = undoing.restores

    delete = keeping.delete
    delete_named = keeping.delete_named
    keep_newest = keeping.keep_newest
    tag = keeping.tag
    pin = keeping.pin
    prune = keeping.prune
    expire = keeping.expire
    settings = keeping.settings
    settings_stamp = keeping.settings_stamp
    room_makers = keeping.room_makers
    shortage = keeping.shortage
    heaviest = keeping.heaviest
    record_command = keeping.record_command
    exclude = keeping.exclude
    add_excluded = keeping.add_excluded

    space = room.space
    compact = room.compact
    compresses = room.compresses
    plan_purge = room.plan_purge
    purge = room.purge
    check = room.check
    affected = room.affected
    backup = room.backup
    copy = room.copy

    is_empty = trees.is_empty
    import_tree = trees.import_tree
    export = trees.export
    take_in = trees.take_in
    catch_up = trees.catch_up
    owes_write_back = trees.owes_write_back
    owe_write_back = trees.owe_write_back
    settle_in = trees.settle_in
    bring_in = trees.bring_in
    write_back = trees.write_back
    write_back_mounted = trees.write_back_mounted
    mark_lower = trees.mark_lower
    lower_is_current = trees.lower_is_current
