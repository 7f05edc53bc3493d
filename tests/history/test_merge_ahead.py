"""A merge that is planned while programs go on: its plan is used only if it does not matter which
came first, the merge or what they did."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckptfs import interrupts
from ckptfs.errors import TreeMoved
from ckptfs.fs import Filesystem
from ckptfs.history import forks, merge_ahead
from ckptfs.history.merge_ahead import Ahead, PlannedAhead
from ckptfs.history.merge_steps import THEIRS, MergePlan
from ckptfs.model import NO_CONTENT, ROOT_INO, Attributes, Inode, Place
from ckptfs.service import Service
from ckptfs.service.service import perform, plan_of
from ckptfs.store import check
from tests.history.edits import Edits
from tests.history.random_edits import NAMES, edit_at_random
from tests.history.test_merge import Lines, lines

__all__ = ["lines"]


def _steps(plan: MergePlan) -> set[tuple[object, ...]]:
    """What a plan does. A directory that something came into stays, whatever the plan says."""
    return {
        *(("remove", step.place) for step in plan.removes if not step.inode.is_dir),
        *(("move", step.source, step.to, step.name) for step in plan.moves),
        *(("make", step.inode.ino, step.to, step.name) for step in plan.makes),
        *(("rewrite", step.ours.ino, step.theirs.ino, step.text) for step in plan.rewrites),
        *(("describe", step.ours.ino, step.aspects) for step in plan.describes),
    }


def _plan_ahead(lines: Lines) -> PlannedAhead:
    """As the daemon has it, but that the other process is this one."""
    ahead = merge_ahead.begin(lines.edits.fs)
    for part in merge_ahead.parts_of(lines.plan(THEIRS), "token"):
        ahead.add(part)
    return ahead


def _take(lines: Lines) -> Ahead | None:
    return merge_ahead.take(lines.edits.fs, lines.theirs.epoch)


def _part(lines: Lines) -> None:
    """A tree of which both sides changed different files."""
    for name in ("mine", "theirs", "gone", "kept"):
        lines.edits.put(name, name.encode() * 20)
    lines.edits.mkdir("d")
    lines.part()
    lines.edits.put("theirs", b"changed there")
    lines.edits.remove("gone")
    lines.edits.put("d/new", b"made there")
    lines.come_back()
    lines.edits.put("mine", b"changed here")


def test_what_others_do_elsewhere_leaves_a_plan_as_it_is(lines: Lines) -> None:
    _part(lines)
    _plan_ahead(lines)
    lines.edits.put("kept", b"written meanwhile")
    lines.edits.put("d/more", b"made meanwhile")
    lines.edits.save()
    taken = _take(lines)
    assert taken is not None and taken.is_outdated
    assert _steps(taken.plan) == _steps(lines.plan(THEIRS))
    assert _take(lines) is None  # it is taken once


def test_a_plan_of_what_did_not_change_is_not_outdated(lines: Lines) -> None:
    _part(lines)
    _plan_ahead(lines)
    taken = _take(lines)
    assert taken is not None and not taken.is_outdated
    assert taken.plan == lines.plan(THEIRS)


@pytest.mark.parametrize("path", ["theirs", "gone", "d/new"])
def test_a_plan_does_not_hold_once_what_it_names_changed(lines: Lines, path: str) -> None:
    _part(lines)
    _plan_ahead(lines)
    lines.edits.put(path, b"written meanwhile")
    assert _take(lines) is None


def test_a_plan_does_not_hold_once_a_directory_that_it_fills_is_gone(lines: Lines) -> None:
    _part(lines)
    _plan_ahead(lines)
    lines.edits.remove("d")
    assert _take(lines) is None


def test_a_plan_does_not_hold_for_another_head(lines: Lines) -> None:
    _part(lines)
    _plan_ahead(lines)
    lines.edits.save()
    lines.edits.go_back(lines.base)
    assert _take(lines) is None


# -- what is merged --------------------------------------------------------------------------------


def _fork(work: Edits) -> Edits:
    """Another line, with a file that is to be merged."""
    made = forks.create(work.fs, "side")
    other = Edits(work.store.path, Filesystem(work.store, work.fs.clock, line=made.number))
    other.put("one", b"before the plan")
    return other


def _plan_merge_of(work: Edits, source: str) -> None:
    """As the daemon does for a client that asks for a merge; but nothing changes meanwhile."""
    parts = list(plan_of(Service(work.fs), "merge", {"source": source}))
    ahead = merge_ahead.begin(work.fs)
    for part in parts:
        ahead.add(part)


def test_what_is_written_behind_a_checkpoint_of_the_other_line_is_merged(lines: Lines) -> None:
    """The plan is of an epoch that is no head any more, so what changed since is not seen in it."""
    work = lines.edits
    other = _fork(work)
    _plan_merge_of(work, "side")
    other.save()
    other.put("two", b"after the plan")
    perform(Service(work.fs), "merge", {"source": "side"})
    assert lines.text(b"one") == b"before the plan"
    assert lines.text(b"two") == b"after the plan"
    assert check(work.store) == []


def test_a_plan_is_not_taken_for_another_checkpoint_of_that_name(lines: Lines) -> None:
    work = lines.edits
    other = _fork(work)
    service = Service(other.fs)
    perform(service, "save", {"message": "one", "tag": "t"})
    _plan_merge_of(work, "t")
    other.put("two", b"after the plan")
    second = perform(service, "save", {"message": "two"})
    perform(service, "tag", {"checkpoint": str(second["id"]), "tag": "t", "move": True})
    perform(Service(work.fs), "merge", {"source": "t"})
    assert lines.text(b"two") == b"after the plan"


def test_a_long_text_comes_in_parts(lines: Lines) -> None:
    """Each is taken between two requests."""
    texts = [b"".join(b"line %d\n" % number for number in range(90_000))]
    texts += [b"theirs\n" + texts[0], texts[0] + b"ours\n"]
    lines.edits.put("text", texts[0])
    lines.part()
    lines.edits.put("text", texts[1])
    lines.come_back()
    lines.edits.put("text", texts[2])
    ahead = merge_ahead.begin(lines.edits.fs)
    for part in merge_ahead.parts_of(lines.plan(), "token"):
        assert len(part) < 300_000
        ahead.add(part)
    taken = _take(lines)
    assert taken is not None and taken.plan == lines.plan()
    assert taken.plan.rewrites[0].text == b"theirs\n" + texts[0] + b"ours\n"


def test_a_plan_that_ends_in_a_conflict_is_made_once(lines: Lines) -> None:
    """Its token takes longer to make than requests may wait, if much has changed."""
    work = lines.edits
    work.put("text", b"base")
    lines.part()
    work.put("text", b"theirs")
    lines.come_back()
    work.put("text", b"ours")
    for number in range(1_000):
        work.put(f"f{number}", b"ours")
    source = str(lines.theirs.id)
    _plan_merge_of(work, source)
    with interrupts.watching(lambda: False), interrupts.limited(0):
        found = perform(Service(work.fs), "merge", {"source": source})
    assert [each["path"] for each in found["conflicts"]] == ["text"]
    assert found["token"]


# -- a plan that holds and an edit, in either order ------------------------------------------------


def _parted(path: Path, seed: int) -> Lines:
    """A small tree that both sides changed at random; the same for the same seed."""
    made, rng = Lines(Edits(path)), random.Random(seed)
    edit_at_random(made.edits, rng, 25, b"base")
    made.part()
    edit_at_random(made.edits, rng, 6, b"theirs")
    made.come_back()
    edit_at_random(made.edits, rng, 6, b"ours")
    return made


def _places(lines: Lines) -> list[tuple[Place, Inode]]:
    fs, found = lines.edits.fs, []
    pending = [ROOT_INO]
    while pending:
        parent = pending.pop()
        for name, inode in fs.entries(fs.head, parent):
            found.append(((parent, name), inode))
            if inode.is_dir:
                pending.append(inode.ino)
    return found


class _Edit(NamedTuple):
    """An edit that says by numbers where it is, wherever a merge moves that."""

    kind: str
    at: Place
    inode: Inode
    to: Place

    @classmethod
    def choose(cls, lines: Lines, rng: random.Random) -> _Edit:
        places = _places(lines)
        directories = [ROOT_INO, *(inode.ino for _, inode in places if inode.is_dir)]
        at, inode = rng.choice(places)
        kinds = ["make", "make directory", "move"]
        kinds += ["write", "mode", "remove"] if inode.is_file else []
        return cls(rng.choice(kinds), at, inode, (rng.choice(directories), rng.choice(NAMES)))

    def apply(self, fs: Filesystem) -> None:
        head = fs.head
        if self.kind == "make":
            made = fs.mknod(head, *self.to, 0o100644, 0, 0)
            fs.write(head, made.ino, 0, b"made meanwhile")
        elif self.kind == "make directory":
            fs.mkdir(head, *self.to, 0o755, 0, 0)
        elif self.kind == "move":
            fs.rename(head, *self.at, *self.to, 1)  # not over anything
        elif self.kind == "write":
            fs.write(head, self.inode.ino, 0, b"written meanwhile")
        elif self.kind == "mode":
            fs.setattr(head, self.inode.ino, Attributes(mode=0o640))
        else:
            fs.unlink(head, *self.at)


@pytest.mark.parametrize("seed", range(150))
def test_a_plan_that_holds_gives_what_the_edit_gives_after_the_merge(
    tmp_path: Path, seed: int
) -> None:
    before, after = (_parted(tmp_path / name, seed) for name in ("before", "after"))
    edit = _Edit.choose(before, random.Random(seed))
    _plan_ahead(before)
    with suppress(OSError):  # there may be something
        edit.apply(before.edits.fs)
    taken = _take(before)
    if taken is not None and taken.is_outdated:
        before.carry_out(taken.plan)
        after.merge(THEIRS)
        edit.apply(after.edits.fs)
        assert before.tree() == after.tree()
    for each in (before, after):
        assert check(each.edits.store) == []
        each.edits.store.close()


def test_copies_are_what_was_copied(tmp_path: Path) -> None:
    """Files that the quick way takes, and those beside its borders."""
    edits = Edits(tmp_path / "store")
    work = Lines(edits)
    for name in ("empty", "short", "long"):
        edits.put(name, b"before" * 300)
    work.part()
    contents = {
        b"empty": b"",
        b"short": b"x",
        b"long": b"y" * 70_000,
        b"new-empty": b"",
        b"new-short": b"z" * 5_000,
        b"new-long": b"w" * 200_000,
    }
    for name, data in contents.items():
        edits.put(name.decode(), data)
    edits.symlink("link", b"short")
    edits.put("two", b"names")
    edits.link("two", "names")
    edits.put("with", b"attribute")
    work.come_back()
    work.merge()
    assert {name: work.text(name) for name in contents} == contents
    assert edits.at("link").target == b"short"
    assert edits.at("two").ino == edits.at("names").ino
    assert edits.at("empty").content == NO_CONTENT
    edits.store.close()


# -- tokens, and other clients ---------------------------------------------------------------------


def _asked(lines: Lines, **more: object) -> dict[str, Any]:
    return {"source": str(lines.theirs.id), **more}


def _merge(lines: Lines, **more: object) -> dict[str, Any]:
    return perform(Service(lines.edits.fs), "merge", _asked(lines, **more))


def _hand_over(lines: Lines, **more: object) -> None:
    """A plan as another process makes it."""
    parts = list(plan_of(Service(lines.edits.fs), "merge", _asked(lines, **more)))
    ahead = merge_ahead.begin(lines.edits.fs)
    for part in parts:
        ahead.add(part)


def test_the_token_of_a_conflict_is_of_the_state_that_was_looked_at(lines: Lines) -> None:
    """Else its answer would be taken for one about what was written since."""
    lines.edits.put("text", b"base")
    lines.part()
    lines.edits.put("text", b"theirs")
    lines.come_back()
    lines.edits.put("text", b"ours")
    _hand_over(lines)
    lines.edits.put("text", b"written while it was planned")
    found = _merge(lines)
    assert [each["resolution"] for each in found["conflicts"]] == [None]
    with pytest.raises(TreeMoved):
        _merge(lines, token=found["token"], resolutions={"text": "theirs"})
    assert lines.text(b"text") == b"written while it was planned"
    again = _merge(lines, dry_run=True)
    assert _merge(lines, token=again["token"], resolutions={"text": "theirs"})["changed"]


def test_what_another_fork_writes_does_not_outdate_a_token(lines: Lines) -> None:
    _part(lines)
    work = lines.edits
    fork = forks.create(work.fs, "third")
    third = Edits(work.store.path, Filesystem(work.store, work.fs.clock, line=fork.number))
    token = _merge(lines, dry_run=True)["token"]
    _hand_over(lines, token=token)
    third.put("kept", b"of the third")
    assert _merge(lines, token=token)["changed"]


def test_what_was_written_here_outdates_a_token(lines: Lines) -> None:
    _part(lines)
    token = _merge(lines, dry_run=True)["token"]
    _hand_over(lines, token=token)
    lines.edits.put("kept", b"written meanwhile")
    with pytest.raises(TreeMoved):
        _merge(lines, token=token)


def test_who_only_asks_leaves_the_plan_of_another_client_alone(lines: Lines) -> None:
    _part(lines)
    lines.edits.put("theirs", b"changed here, too")
    _hand_over(lines, resolution=THEIRS)
    asked = _merge(lines, paths=["d/new"], resolution="ours", dry_run=True)
    assert (asked["added_paths"], asked["conflicts"]) == (["d/new"], [])
    taken = _take(lines)
    assert taken is not None and len(taken.plan.rewrites) == 1
