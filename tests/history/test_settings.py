from __future__ import annotations

from pathlib import Path

import pytest

from ckptfs.commands import RECORDS
from ckptfs.errors import SettingInvalid
from ckptfs.history import settings
from ckptfs.history.retention import MinFree, RetentionPolicy


def test_the_defaults_are_the_policys_own(tmp_path: Path) -> None:
    found = settings.load([tmp_path / "absent"])
    assert found.retention == RetentionPolicy()
    assert found.value("store.compress") is True


def test_what_a_setting_is_said_to_mean_is_what_it_does() -> None:
    meaning = {name: setting.meaning for name, setting in settings.SETTINGS.items()}
    assert meaning["upkeep.cpu"] == "per cent of one processor, at most, for that"
    assert meaning["moments.max_size"] == "expire moments, while only they hold more than this"


def test_the_stores_file_overrides_the_users(tmp_path: Path) -> None:
    user, own = tmp_path / "user.toml", tmp_path / "new" / "own.toml"
    user.write_text("[retention]\nmax_checkpoints = 7\nautomatic = false\nmax_size = '2g'\n")
    settings.store(own, "retention.max_checkpoints", "9")
    settings.store(own, "retention.daily", "2w")
    found = settings.load([user, own])
    assert found.value("retention.max_checkpoints") == 9
    assert found.value("retention.automatic") is False
    assert found.retention.max_bytes == 2 << 30
    assert found.retention.daily_ns == 14 * 86_400 * 10**9
    assert found.origins["retention.max_checkpoints"] == own
    settings.store(own, "retention.max_checkpoints", None)
    assert settings.load([user, own]).value("retention.max_checkpoints") == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.max_checkpoints", "many"),
        ("retention.max_checkpoints", "-1"),
        ("retention.keep_all", "1"),
        ("retention.max_size", "1 parsec"),
        ("retention.automatic", "perhaps"),
        ("retention.min_free", "100%"),
        ("retention.min_free", "5 parsecs"),
        ("retention.min_free", "1G,2G"),
        ("retention.min_free", "5%,512M,"),
        ("retention.min_free", ""),
        ("retention.nonsense", "1"),
        ("record.command", "some"),
        ("record.command", ""),
        ('x"]\n[retention', "1"),
    ],
)
def test_a_wrong_value_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingInvalid):
        settings.store(tmp_path / "file", name, text)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("512M", MinFree(512 << 20, None)),
        ("7 %", MinFree(None, 7)),
        ("0.5%, 1g", MinFree(1 << 30, 0.5)),
        ("0", MinFree(0, None)),
    ],
)
def test_the_space_to_keep_free_is_a_size_or_a_share_of_the_disk(
    tmp_path: Path, text: str, meant: MinFree
) -> None:
    file = tmp_path / "config.toml"
    settings.store(file, "retention.min_free", text)
    assert settings.load([file]).retention.min_free == meant


@pytest.mark.parametrize("word", RECORDS)
def test_a_setting_may_be_one_of_some_words(tmp_path: Path, word: str) -> None:
    file = tmp_path / "config.toml"
    assert settings.load([file]).record_command == "masked"
    settings.store(file, "record.command", word.title())
    assert settings.load([file]).record_command == word


def test_a_wrong_word_is_answered_with_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="full, masked, name or off is wanted, not 'some'"):
        settings.store(tmp_path / "file", "record.command", "some")


@pytest.mark.parametrize("text", ["[retention", "max = 1", "[retention]\nmax_checkpoints='x'"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(SettingInvalid, match=str(tmp_path / "file")):
        settings.load([tmp_path / "file"])


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", ()),
        ("*.log", ("*.log",)),
        ("*.log, build/ ,", ("*.log", "build/")),
        ("a,b\nc d\n", ("a,b", "c d")),
        ("# none\n\n!keep\n", ("!keep",)),
    ],
)
def test_patterns_are_read_from_lines_or_commas(
    tmp_path: Path, text: str, patterns: tuple[str, ...]
) -> None:
    file = tmp_path / "config.toml"
    settings.store(file, "exclude.patterns", text)
    assert settings.load([file]).exclude == patterns


def test_patterns_may_be_a_toml_list(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[exclude]\npatterns = ["a,b", "*.log"]\n')
    assert settings.load([file]).exclude == ("a,b", "*.log")
    settings.store(file, "store.compress", "off")
    assert settings.load([file]).exclude == ("a,b", "*.log")


# The last: a byte of a name that is not UTF-8, which TOML cannot hold.
@pytest.mark.parametrize("text", ["[z-a]", "!", "a\\", "/", "*.log, [", "\udcff"])
def test_patterns_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    with pytest.raises(SettingInvalid):
        settings.store(file, "exclude.patterns", text)
    assert not file.exists()
