"""Settings of a workspace: `config.toml` in its store, over the user's file for all workspaces.

Owns the names, the defaults and what a value may look like. A file has what was set and nothing
else; it may be edited by hand. Which file is the user's is the caller's to say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ckptfs.commands import MASKED, RECORDS
from ckptfs.config import open_settings, write_atomically
from ckptfs.errors import SettingInvalid
from ckptfs.fs.exclusion import spec_of
from ckptfs.history.collisions import CHOICES, TELL
from ckptfs.history.retention import MinFree, RetentionPolicy
from ckptfs.textmerge import driver_words

FILE = "config.toml"

_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_PERCENT = re.compile(r"(\d{1,2}(?:[.]\d{1,2})?)\s*%", re.ASCII)
_TIME = re.compile(r"(\d{1,9})\s*(ms|[smhdw])", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise ValueError("a number is wanted, as 100")
    return int(text)


def _percent(text: str) -> int:
    found = int(text.rstrip(" %")) if _COUNT.fullmatch(text.rstrip(" %")) else 0
    if not 1 <= found <= 100:
        raise ValueError("per cent are wanted, from 1 to 100")
    return found


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError("a size is wanted, as 500M or 10G; 0 is no limit")
    return int(found[1]) * _SIZE_UNITS[found[2].lower()]


def min_free_of(text: str) -> MinFree:
    """A size, a share of the disk, or both with a comma between them: then the smaller one."""
    size = percent = None
    for part in map(str.strip, text.split(",")):
        if size is None and _SIZE.fullmatch(part):
            size = _size(part)
        elif percent is None and (found := _PERCENT.fullmatch(part)):
            percent = float(found[1])
        else:
            raise ValueError("a size, a share of the disk or both is wanted, as 1G, 5% or 512M,5%")
    return MinFree(size, percent)


def _min_free(text: str) -> int:
    """In bytes, where it says how many."""
    return min_free_of(text).bytes or 0


def _time_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError("a time is wanted, as 500ms, 90m, 12h or 30d")
    return round(int(found[1]) * _TIME_UNITS[found[2].lower()] * 1_000_000_000)


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ValueError("on or off is wanted")
    return _SWITCHES[text.lower()]


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]} is wanted")
        return text.lower()

    return read


def _command(text: str) -> int:
    """A command is its words, as a shell would take them apart; how many there are."""
    return len(shlex.split(text))


def _driver(text: str) -> int:
    """A command that gets the three texts by their places, or the name of a known one."""
    driver_words(text)
    return _command(text)


def patterns_of(text: str) -> tuple[str, ...]:
    """Patterns as in .gitignore: one on a line, or on one line with commas between them."""
    parts = text.splitlines() if "\n" in text else [part.strip() for part in text.split(",")]
    found = tuple(part for part in parts if part.strip() and not part.startswith("#"))
    spec_of(found)
    return found


def patterns_text(patterns: Iterable[str]) -> str:
    """The patterns as `patterns_of` reads them."""
    return "".join(pattern + "\n" for pattern in patterns)


def _patterns(text: str) -> int:
    return len(patterns_of(text))


def names_of(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _names(text: str) -> int:
    return len(names_of(text))


class Setting(NamedTuple):
    """``read`` makes a number or a word of the text, or says in a ValueError what is wanted."""

    read: Callable[[str], int | str]
    default: str
    meaning: str


SETTINGS: Mapping[str, Setting] = {
    "retention.automatic": Setting(_switch, "on", "let automatic checkpoints expire"),
    "retention.max_checkpoints": Setting(_count, "100", "at most so many, if they may expire"),
    "retention.keep_all": Setting(_time_ns, "1h", "all of them stay for so long"),
    "retention.hourly": Setting(_time_ns, "1d", "then one in an hour, to this age"),
    "retention.daily": Setting(_time_ns, "30d", "then one a day, to this age"),
    "retention.max_size": Setting(_size, "0", "expire more while the store uses more than this"),
    "retention.min_free": Setting(_min_free, "512M,5%", "expire more while the disk has less free"),
    "moments.max": Setting(_count, "1000", "at most so many moments"),
    "moments.max_size": Setting(_size, "2G", "expire moments, while only they hold more than this"),
    "moments.keep": Setting(_time_ns, "1d", "moments stay for so long, within these limits"),
    "moments.stood": Setting(_time_ns, "1s", "what has stood for so long is kept when it goes"),
    "auto.harnesses": Setting(_names, "", "programs whose every child is a step, with commas"),
    "collisions": Setting(_one_of(*CHOICES), TELL, "a file that another session changed meanwhile"),
    "exclude.patterns": Setting(_patterns, "", "keep these out of history, as in .gitignore"),
    "record.command": Setting(_one_of(*RECORDS), MASKED, "of commands, record so much in history"),
    "hooks.on_restore": Setting(_command, "", "run this after a restore, with its JSON on stdin"),
    "merge.driver": Setting(_driver, "", "merge texts that conflict: git, mergiraf or a command"),
    "serve.keep_cpus_awake": Setting(_switch, "on", "root only: no deep sleep between requests"),
    "serve.priority": Setting(_switch, "on", "root only: before programs that want the CPU"),
    "store.compress": Setting(_switch, "on", "compress history while nothing else happens"),
    "upkeep.cpu": Setting(_percent, "50", "per cent of one processor, at most, for that"),
}

#: What is run as a program. It counts only from files that the caller or root alone can write.
COMMANDS = frozenset({"hooks.on_restore", "merge.driver"})


class Settings(NamedTuple):
    """What holds for a workspace: the text of each setting, and where it was set."""

    texts: dict[str, str]
    origins: dict[str, Path | None]
    #: Commands that do not count, each with the reason.
    refused: dict[str, str]

    def value(self, name: str) -> int:
        """A setting read: a number, bytes, nanoseconds, or whether it is on."""
        found = SETTINGS[name].read(self.texts[name])
        assert isinstance(found, int), f"{name} is no number"
        return found

    @property
    def record_command(self) -> str:
        """How much of a command line goes into history: one of `ckptfs.commands.RECORDS`."""
        return str(SETTINGS["record.command"].read(self.texts["record.command"]))

    @property
    def collisions(self) -> str:
        """What happens at a collision: one of `ckptfs.history.collisions.CHOICES`."""
        return str(SETTINGS["collisions"].read(self.texts["collisions"]))

    @property
    def exclude(self) -> tuple[str, ...]:
        return patterns_of(self.texts["exclude.patterns"])

    @property
    def harnesses(self) -> tuple[str, ...]:
        return names_of(self.texts["auto.harnesses"])

    @property
    def retention(self) -> RetentionPolicy:
        return RetentionPolicy(
            max_checkpoints=self.value("retention.max_checkpoints"),
            keep_all_ns=self.value("retention.keep_all"),
            hourly_ns=self.value("retention.hourly"),
            daily_ns=self.value("retention.daily"),
            max_bytes=self.value("retention.max_size"),
            min_free=min_free_of(self.texts["retention.min_free"]),
            moments_max=self.value("moments.max"),
            moments_ns=self.value("moments.keep"),
            moment_bytes=self.value("moments.max_size"),
        )


def load(files: Iterable[Path]) -> Settings:
    """The settings of these files, a later one over an earlier; an absent one says nothing."""
    texts = {name: setting.default for name, setting in SETTINGS.items()}
    origins: dict[str, Path | None] = dict.fromkeys(SETTINGS)
    refused: dict[str, str] = {}
    for file in files:
        found, reason = _read(file)
        for name, text in found.items():
            require_valid(name, text, file)
            if text and name in COMMANDS and reason:
                refused[name] = reason
                continue
            refused.pop(name, None)
            texts[name], origins[name] = text, file
    return Settings(texts, origins, refused)


def require_known(name: str, where: Path | str = "") -> None:
    if name not in SETTINGS:
        raise SettingInvalid(name, "there is no such setting", where)


def require_valid(name: str, text: str, where: Path | str = "") -> None:
    require_known(name, where)
    try:
        if not _is_text(text):
            raise ValueError("TOML holds UTF-8 only")
        SETTINGS[name].read(text)
    except ValueError as error:
        raise SettingInvalid(name, f"{error}, not {text!r}", where) from error


def _is_text(text: str) -> bool:
    """Whether it can be written at all: a file with half a surrogate pair cannot be read again."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def store(file: Path, name: str, text: str | None) -> None:
    """Set one setting in a file, or take it out again."""
    require_known(name)
    texts, _ = _read(file)
    if text is None:
        texts.pop(name, None)
    else:
        require_valid(name, text)
        texts[name] = text
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, _written(texts).encode())


def _read(file: Path) -> tuple[dict[str, str], str]:
    """Names and texts of one file, and why its commands are not run. TOML's numbers and switches
    are as good as texts."""
    try:
        opened, reason = open_settings(file)
        with opened:
            tables = tomllib.load(opened)
    except FileNotFoundError:
        return {}, ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise SettingInvalid("file", problem.lower(), file) from error
    texts = {}
    for section, entries in tables.items():
        for key, value in entries.items() if isinstance(entries, dict) else [("", entries)]:
            name = f"{section}.{key}" if key else section
            texts[name] = _text(value)
    return texts, reason


def _text(value: object) -> str:
    if isinstance(value, list):
        return patterns_text(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(texts: dict[str, str]) -> str:
    lines = ["# Settings of ckptfs. `ckptfs config` lists what there is."]
    section = ""
    for name in sorted(texts, key=lambda name: ("." in name, name)):  # TOML has tables last
        above, _, key = name.rpartition(".")
        if above != section:
            section = above
            lines += ["", f"[{section}]"]
        # What JSON writes for a text is one of TOML's basic strings, too.
        lines.append(f"{key} = {json.dumps(texts[name])}")
    return "\n".join(lines) + "\n"
