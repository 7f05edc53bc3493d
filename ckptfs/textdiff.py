"""Text diffs in git's format, which `git apply` and `patch -p1` take.

Owns the comparison of lines, the format, and the limits of what is shown. Works on bytes that
others read, with the standard library only, so that a client can render what a daemon sent.

Lines are compared by patience diff: lines that occur once in both texts are anchors, and what is
left between two anchors goes to difflib. Hunks then break at sensible lines, and the time is
proportional to the text where difflib alone is quadratic.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: Beyond this size on either side a file's diff is its sizes: a text would be too long to read.
TEXT_MAX = 1 << 20
#: The same for the length of a line: minified code and data on one line.
LINE_MAX = 1 << 16
#: A NUL among this many first bytes makes a file binary, as it does to git.
_BINARY_LOOK = 8000
_CONTEXT = 3

_NO_NEWLINE = b"\\ No newline at end of file\n"
_NULL = b"/dev/null"

BINARY = "binary"
TOO_LARGE = "too large"

_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}


class PatchFile(NamedTuple):
    """One file before or after. ``data`` is its bytes, a link's target, or None if not read."""

    path: bytes
    mode: int
    size: int
    data: bytes | None


class Stat(NamedTuple):
    """How many lines came and went; ``reason`` says why they were not counted, if so."""

    added: int
    removed: int
    reason: str = ""


def is_shown(size: int) -> bool:
    """Whether a file of this size is worth reading for a diff."""
    return size <= TEXT_MAX


def is_text(data: bytes) -> bool:
    """Whether bytes are compared by lines: they are text, and short enough to be read."""
    is_binary = b"\0" in data[:_BINARY_LOOK]
    return is_shown(len(data)) and not is_binary and not _has_long_line(data)


def render(old: PatchFile | None, new: PatchFile | None, *, same: bool = False) -> Iterator[bytes]:
    """The diff of one file, line by line. A change of type is a removal and a new file.

    ``same`` says that the bytes are known to be equal, and need not have been read.
    """
    if old and new and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        yield from render(old, None)
        yield from render(None, new)
        return
    reason = "" if same else _unshown(old, new)
    if reason == TOO_LARGE:
        # Nothing that git could apply in part: it must refuse a diff that is not whole.
        yield _first_line(old, new)
        yield _differ(old, new, reason)
        return
    body = [] if same else list(_body(old, new, reason))
    header = list(_header(old, new, same=not body))
    if header or body:
        yield _first_line(old, new)
        yield from header
        if not same:
            yield from _index(old, new)
        yield from body


def stat_of(old: PatchFile | None, new: PatchFile | None) -> Stat:
    reason = _unshown(old, new)
    if reason:
        return Stat(0, 0, reason)
    a, b = _lines_of(old), _lines_of(new)
    kept = sum(block.length for block in common_blocks(a, b))
    return Stat(len(b) - kept, len(a) - kept)


# -- one file --------------------------------------------------------------------------------------


def _first_line(old: PatchFile | None, new: PatchFile | None) -> bytes:
    one, other = old or new, new or old
    if one is None or other is None:
        raise ValueError("a diff of nothing")
    return b"diff --git %s %s\n" % (_spaced(b"a/" + one.path), _spaced(b"b/" + other.path))


def _header(old: PatchFile | None, new: PatchFile | None, *, same: bool) -> Iterator[bytes]:
    """What git's format tells besides the bytes."""
    if new is None:
        yield b"deleted file mode %06o\n" % git_mode(old.mode if old else 0)
    elif old is None:
        yield b"new file mode %06o\n" % git_mode(new.mode)
    else:
        if git_mode(old.mode) != git_mode(new.mode):
            yield b"old mode %06o\n" % git_mode(old.mode)
            yield b"new mode %06o\n" % git_mode(new.mode)
        if old.path != new.path:
            yield b"similarity index %d%%\n" % (100 if same else _similarity(old, new))
            yield b"rename from %s\n" % quoted(old.path)
            yield b"rename to %s\n" % quoted(new.path)


def _index(old: PatchFile | None, new: PatchFile | None) -> Iterator[bytes]:
    """The line by which `git apply --3way` finds the files, and `patch` that one is a link."""
    ids = (_blob_id(old), _blob_id(new))
    if all(ids):
        same_mode = old and new and git_mode(old.mode) == git_mode(new.mode)
        mode = b" %06o" % git_mode(new.mode) if new and same_mode else b""
        yield b"index %s..%s%s\n" % (*ids, mode)


def _blob_id(side: PatchFile | None) -> bytes:
    """git's name for the bytes, cut short as git does; empty if they were not read."""
    if side is None:
        return b"0000000"
    if side.data is None:
        return b""
    from hashlib import sha1  # late: only a diff needs it

    digest = sha1(b"blob %d\0" % len(side.data), usedforsecurity=False)
    digest.update(side.data)
    return digest.hexdigest()[:7].encode()


def git_mode(mode: int) -> int:
    """What git keeps of a mode: the type, and whether its owner may execute it."""
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & stat.S_IXUSR else 0o100644


def _similarity(old: PatchFile, new: PatchFile) -> int:
    found = stat_of(old, new)
    total = len(_lines_of(old)) + len(_lines_of(new))
    if found.reason or not total:
        return 0
    return min(99, 100 * (total - found.added - found.removed) // total)


def _body(old: PatchFile | None, new: PatchFile | None, reason: str) -> Iterator[bytes]:
    if old and new and old.data is not None and old.data == new.data:
        return
    if reason:
        yield _differ(old, new, reason)
        return
    a, b = _lines_of(old), _lines_of(new)
    hunks = list(_hunks(a, b))
    if hunks:
        yield b"--- %s\n" % _file_label(b"a/", old)
        yield b"+++ %s\n" % _file_label(b"b/", new)
    for hunk in hunks:
        yield from _hunk_lines(a, b, hunk)


def _unshown(old: PatchFile | None, new: PatchFile | None) -> str:
    """Why the bytes are not shown; empty if they are."""
    sides = [side for side in (old, new) if side is not None]
    if any(side.data is not None and b"\0" in side.data[:_BINARY_LOOK] for side in sides):
        return BINARY
    if any(side.data is None or _has_long_line(side.data) for side in sides):
        return TOO_LARGE
    return ""


def _has_long_line(data: bytes) -> bool:
    return len(data) > LINE_MAX and any(len(line) > LINE_MAX for line in data.split(b"\n"))


def _differ(old: PatchFile | None, new: PatchFile | None, reason: str) -> bytes:
    # git tells a binary patch by how this line begins and ends, and refuses it by name.
    first, second = _sized(b"a/", old), _sized(b"b/", new)
    if reason == BINARY:
        return b"Binary files %s and %s differ\n" % (first, second)
    return b"Files %s and %s differ, too large to show\n" % (first, second)


def _sized(prefix: bytes, side: PatchFile | None) -> bytes:
    if side is None:
        return _NULL
    return b"%s (%d bytes)" % (quoted(prefix + side.path), side.size)


def _file_label(prefix: bytes, side: PatchFile | None) -> bytes:
    """A name after --- or +++. A tab ends one with spaces in it, or patch takes half of it."""
    if side is None:
        return _NULL
    name = quoted(prefix + side.path)
    return name + b"\t" if b" " in name else name


def quoted(path: bytes) -> bytes:
    """A name as git writes it: in quotes with escapes if it has bytes that are not plain ASCII."""
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in path):
        return path
    return b'"' + b"".join(_escaped(byte) for byte in path) + b'"'


def _spaced(path: bytes) -> bytes:
    """A name on the first line, where `patch` takes one with spaces only in quotes."""
    name = quoted(path)
    return b'"' + name + b'"' if name == path and b" " in path else name


def _escaped(byte: int) -> bytes:
    if byte in _ESCAPES:
        return b"\\" + _ESCAPES[byte]
    return bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


# -- hunks -----------------------------------------------------------------------------------------


def _lines_of(side: PatchFile | None) -> list[bytes]:
    return split_lines(side.data) if side is not None and side.data else []


def _hunks(a: list[bytes], b: list[bytes]) -> Iterator[list[Region]]:
    """The regions that differ, in groups whose context lines would touch."""
    hunk: list[Region] = []
    for region in regions(common_blocks(a, b), len(a), len(b)):
        if hunk and region.old - hunk[-1].old_end > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(region)
    if hunk:
        yield hunk


def regions(blocks: list[Block], old_end: int, new_end: int) -> Iterator[Region]:
    """What lies between the equal blocks of two texts of so many lines."""
    i = j = 0
    for block in [*blocks, Block(old_end, new_end, 0)]:
        if i < block.old or j < block.new:
            yield Region(i, block.old, j, block.new)
        i, j = block.old + block.length, block.new + block.length


def _hunk_lines(a: list[bytes], b: list[bytes], hunk: list[Region]) -> Iterator[bytes]:
    before = min(_CONTEXT, hunk[0].old)
    after = min(_CONTEXT, len(a) - hunk[-1].old_end)
    start, end = hunk[0].old - before, hunk[-1].old_end + after
    new_start, new_end = hunk[0].new - before, hunk[-1].new_end + after
    yield b"@@ -%s +%s @@\n" % (_range(start, end), _range(new_start, new_end))
    at = start
    for region in hunk:
        yield from _marked(b" ", a[at : region.old])
        yield from _marked(b"-", a[region.old : region.old_end])
        yield from _marked(b"+", b[region.new : region.new_end])
        at = region.old_end
    yield from _marked(b" ", a[at:end])


def _range(start: int, end: int) -> bytes:
    """Lines as a hunk counts them: from 1, and an empty range by the line before it."""
    length = end - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if length else start, length)


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n" + _NO_NEWLINE


# -- common lines ----------------------------------------------------------------------------------

#: Where there are no anchors, difflib compares what is left, as long as the products of the
#: lengths stay below this in all; a text of the same few lines over and over would take minutes.
WORK_MAX = 4_000_000


class Block(NamedTuple):
    """``length`` lines that are equal, from ``old`` in one text and ``new`` in the other."""

    old: int
    new: int
    length: int


class Region(NamedTuple):
    """A part of each text: lines ``old`` up to ``old_end``, and ``new`` up to ``new_end``."""

    old: int
    old_end: int
    new: int
    new_end: int

    @property
    def is_empty(self) -> bool:
        return self.old == self.old_end or self.new == self.new_end

    @property
    def work(self) -> int:
        return (self.old_end - self.old) * (self.new_end - self.new)


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their newlines; only the last may lack one. A bare CR ends no line."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def common_blocks(a: Sequence[bytes], b: Sequence[bytes]) -> list[Block]:
    """Equal runs of lines, in order; neighbours are joined."""
    numbers: dict[bytes, int] = {}
    old = [numbers.setdefault(line, len(numbers)) for line in a]
    new = [numbers.setdefault(line, len(numbers)) for line in b]
    found: list[Block] = []
    left = WORK_MAX
    pending = [Region(0, len(old), 0, len(new))]
    while pending:
        region = _trim(old, new, pending.pop(), found)
        if region.is_empty:
            continue
        anchors = _anchors(old, new, region)
        if anchors:
            pending += _between(region, anchors)
        elif region.work <= left:
            left -= region.work
            found += _by_difflib(old, new, region)
    return _joined(sorted(found))


def _trim(old: list[int], new: list[int], region: Region, found: list[Block]) -> Region:
    """Take equal lines off both ends; note them as blocks."""
    i, i_end, j, j_end = region
    while i < i_end and j < j_end and old[i] == new[j]:
        i, j = i + 1, j + 1
    if i > region.old:
        found.append(Block(region.old, region.new, i - region.old))
    while i < i_end and j < j_end and old[i_end - 1] == new[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    if i_end < region.old_end:
        found.append(Block(i_end, j_end, region.old_end - i_end))
    return Region(i, i_end, j, j_end)


def _anchors(old: list[int], new: list[int], region: Region) -> list[tuple[int, int]]:
    """Lines that occur once on both sides and stand in the same order: the most of them.

    Where there are none and the region is too large for difflib, lines that occur equally often on
    both sides serve, the first as the anchor of the first and so on.
    """
    mine = old[region.old : region.old_end]
    its = new[region.new : region.new_end]
    counts, counts_new = Counter(mine), Counter(its)
    sure = {line for line, count in counts.items() if count == 1 == counts_new[line]}
    if not sure and region.work > WORK_MAX:
        sure = {line for line, count in counts.items() if count == counts_new[line]}
    places: dict[int, list[int]] = {}
    for i, line in enumerate(mine, region.old):
        if line in sure:
            places.setdefault(line, []).append(i)
    firsts = {line: iter(found) for line, found in places.items()}
    pairs = [(next(firsts[line]), j) for j, line in enumerate(its, region.new) if line in sure]
    return _longest_increasing(pairs)


def _longest_increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs, ordered by their second, in which the first rises too."""
    tops: list[int] = []
    top_pairs: list[int] = []
    before: list[int] = []
    for index, (i, _) in enumerate(pairs):
        pile = bisect_left(tops, i)
        before.append(top_pairs[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(i)
            top_pairs.append(index)
        else:
            tops[pile] = i
            top_pairs[pile] = index
    found = []
    index = top_pairs[-1] if top_pairs else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _between(region: Region, anchors: list[tuple[int, int]]) -> list[Region]:
    """The regions that the anchors cut; each begins with its anchor, which trimming takes off."""
    starts = [(region.old, region.new), *anchors]
    ends = [*anchors, (region.old_end, region.new_end)]
    return [Region(i, i_end, j, j_end) for (i, j), (i_end, j_end) in zip(starts, ends, strict=True)]


def _by_difflib(old: list[int], new: list[int], region: Region) -> list[Block]:
    from difflib import SequenceMatcher  # late: most texts have anchors enough

    i, i_end, j, j_end = region
    matcher = SequenceMatcher(None, old[i:i_end], new[j:j_end])
    return [
        Block(i + match.a, j + match.b, match.size)
        for match in matcher.get_matching_blocks()
        if match.size
    ]


def _joined(blocks: list[Block]) -> list[Block]:
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else Block(0, 0, 0)
        if (last.old + last.length, last.new + last.length) == (block.old, block.new) and joined:
            joined[-1] = last._replace(length=last.length + block.length)
        else:
            joined.append(block)
    return joined
