"""`Service`: the verbs on an open file system, and how one of them is carried out by its name.

The methods of `Service` return values. They are synchronous, print nothing, and do not know whether
the workspace is mounted; what a verb changed is durable when it returns, by a commit or, where
verbs follow each other, by the journal. They stand in the modules beside this one, by what they are
about; here is the state that they share. `perform` takes a request as it comes from a socket, a
command or a program, and answers in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from ckptfs import interrupts
from ckptfs.commands import shown
from ckptfs.errors import NotMounted
from ckptfs.fs import Filesystem
from ckptfs.history import Cause, Changed, Checkpoint
from ckptfs.history.diff.compare import NewCounts
from ckptfs.interrupts import Steps
from ckptfs.service import checkpoints as checkpoint_verbs
from ckptfs.service import queries, storage, trees, verbs
from ckptfs.service import restore as restore_verbs
from ckptfs.service import settings as settings_verbs
from ckptfs.service.arguments import JsonObject, OnProgress, decode
from ckptfs.service.verbs import CALLER, Verb


class Call(NamedTuple):
    """One call of a verb: the service, the caller, and what to call with progress."""

    service: Service
    cause: Cause
    on_progress: OnProgress | None = None


@dataclass
class Unannounced:
    """What verbs changed without the kernel asking for it; the server of the mount notifies it."""

    changed: list[Changed] = field(default_factory=list)
    #: The same in every checkpoint: these never change but by a purge.
    purged: list[Changed] = field(default_factory=list)
    #: Checkpoints that are gone.
    deleted: set[int] = field(default_factory=set)
    #: Names came into an empty workspace, of which the kernel knows that they are missing.
    new_names: bool = False

    def __bool__(self) -> bool:
        return bool(self.changed or self.purged or self.deleted or self.new_names)


class Service:
    """The verbs of one workspace, on the file system that holds it."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs
        self.unannounced = Unannounced()
        #: What was counted of checkpoints, where the store cannot be written to and cache it.
        self.new_counts: NewCounts | None = {} if fs.store.read_only else None
        #: Called when a verb has hidden something, where a daemon frees it in slices.
        self.free_later: Callable[[], None] | None = None

    def take_unannounced(self) -> Unannounced:
        taken, self.unannounced = self.unannounced, Unannounced()
        return taken

    save = checkpoint_verbs.save
    documents = checkpoint_verbs.documents
    read_document = checkpoint_verbs.read_document
    unchanged_since = checkpoint_verbs.unchanged_since
    has_unsaved = checkpoint_verbs.has_unsaved

    figures = queries.figures
    find = queries.find
    view = queries.view
    checkpoints = queries.checkpoints
    listed = queries.listed
    counts = queries.counts
    diff = queries.diff
    show = queries.show
    contents = queries.contents
    path_log = queries.path_log

    plan_restore = restore_verbs.plan_restore
    restore = restore_verbs.restore
    plan_selective = restore_verbs.plan_selective
    restore_selective = restore_verbs.restore_selective
    acting = restore_verbs.acting

    steps_back = restore_verbs.steps_back
    undo = restore_verbs.undo
    redo = restore_verbs.redo
    plan_back = restore_verbs.plan_back
    restores = restore_verbs.restores

    delete = checkpoint_verbs.delete
    delete_named = checkpoint_verbs.delete_named
    keep_newest = checkpoint_verbs.keep_newest
    tag = checkpoint_verbs.tag
    pin = checkpoint_verbs.pin
    prune = settings_verbs.prune
    expire = settings_verbs.expire
    expiring = settings_verbs.expiring
    settings = settings_verbs.settings
    settings_stamp = settings_verbs.settings_stamp
    room_makers = settings_verbs.room_makers
    shortage = settings_verbs.shortage
    heaviest = settings_verbs.heaviest
    record_command = settings_verbs.record_command
    on_collision = settings_verbs.on_collision
    exclude = settings_verbs.exclude
    add_excluded = settings_verbs.add_excluded

    space = storage.space
    compact = storage.compact
    compresses = storage.compresses
    upkeep_cpu = storage.upkeep_cpu
    plan_purge = storage.plan_purge
    purge = storage.purge
    owes_purge = storage.owes_purge
    finishing_purge = storage.finishing_purge
    check = storage.check
    affected = storage.affected
    backup = storage.backup

    is_empty = trees.is_empty
    import_tree = trees.import_tree
    export = trees.export
    scan = trees.scan
    catch_up = trees.catch_up
    owes_write_back = trees.owes_write_back
    owe_write_back = trees.owe_write_back
    adopt_directory = trees.adopt_directory
    bring_in = trees.bring_in
    begin_scan = trees.begin_scan
    end_scan = trees.end_scan
    count_entries = trees.count_entries
    write_back = trees.write_back
    write_back_mounted = trees.write_back_mounted
    mark_lower = trees.mark_lower
    lower_is_current = trees.lower_is_current


# -- by name ---------------------------------------------------------------------------------------


def perform(
    service: Service, op: str, args: Mapping[str, Any], on_progress: OnProgress | None = None
) -> JsonObject:
    """Do what a request asks for, and answer it. Raises UsageError before anything happens if
    there is no such verb, or it does not take these arguments."""
    verb = verbs.find(op)
    if verb.in_thread:
        service.fs.commit()
    return run(service, verb, verb.decode(args), caller_of(service, args), on_progress)


def caller_of(service: Service, args: Mapping[str, Any]) -> Cause:
    """The caller, as the client describes it, with as much of its command line as may go into
    history."""
    found = decode("read the request", CALLER, args)
    if found["command"]:
        found["command"] = shown(found["command"], service.record_command())
    return Cause(**found)


def run(
    service: Service,
    verb: Verb,
    values: Mapping[str, Any],
    cause: Cause,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Carry out a verb with decoded arguments. ``on_progress`` hears how far it is. One that runs
    in a thread beside requests works on what the caller committed before."""
    if verb.module == verbs.DAEMON:
        raise NotMounted(service.fs.store.path)
    call = Call(service, cause, on_progress)
    if verb.in_thread:
        return _carry_out(verb, call, values)
    if verb.reads(values):  # without an author, who would be noted in the store
        service.fs.flush()
        with interrupts.stoppable():
            return _carry_out(verb, call, values)
    with service.acting(cause):
        return _carry_out(verb, call, values)


def _carry_out(verb: Verb, call: Call, values: Mapping[str, Any]) -> JsonObject:
    done = function_of(verb)(call, **values)
    found: JsonObject = interrupts.finish(done) if verb.in_slices else done
    return found


def steps(
    service: Service,
    verb: Verb,
    values: Mapping[str, Any],
    cause: Cause,
    on_progress: OnProgress | None = None,
) -> Steps[JsonObject]:
    """A verb that runs in slices, for a caller that drives it."""
    found: Steps[JsonObject] = function_of(verb)(Call(service, cause, on_progress), **values)
    return found


def plan_of(service: Service, op: str, args: Mapping[str, Any]) -> Iterator[bytes]:
    """What a verb that is planned beforehand is to do, in parts, for the process that asked."""
    verb = verbs.find(op)
    plan: Callable[..., Iterator[bytes]] = getattr(_module(verb), f"plan_{verb.name}")
    service.fs.flush()
    return plan(Call(service, Cause()), **verb.decode(args))


def changed_names(service: Service, before: int | None) -> JsonObject:
    """What a restore that is done answers if names are asked for."""
    service.fs.flush()
    with interrupts.stoppable("The names that it changed are not told."):
        return restore_verbs.changed_names(service, before)


def function_of(verb: Verb) -> Callable[..., Any]:
    """The function that carries out a verb: it returns a JSON object, or steps to one."""
    found: Callable[..., Any] = getattr(_module(verb), f"do_{verb.name}")
    return found


def head_after(service: Service, verb: Verb, values: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint that a verb is about to make the head; None if it makes none."""
    if not verb.moves_head:
        return None
    head: Callable[..., Checkpoint | None] = getattr(_module(verb), f"head_{verb.name}")
    return head(service, **values)


def _module(verb: Verb) -> ModuleType:
    return import_module(f"ckptfs.service.{verb.module}")
