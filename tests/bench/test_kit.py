"""What a run needs from outside, on a machine where nothing can be had."""

import os
from pathlib import Path

import pytest

from bench import material
from bench.fuse_rivals import FUSE_RIVALS, SLOW, FuseRival
from bench.kit import Kit, NotToBeHad
from bench.scale import QUICK


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Kit:
    """A machine without any program, and without apt."""
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    return Kit(tmp_path, True, told.append)


def test_a_program_that_is_there_is_found(tmp_path: Path) -> None:
    kit = Kit(tmp_path, False, lambda _message: None)
    assert kit.program("git").name == "git"


def test_without_apt_a_rival_is_refused_with_the_reason(bare: Kit) -> None:
    with pytest.raises(NotToBeHad, match="there is no apt"):
        bare.program("bindfs")


def test_offline_nothing_is_installed(bare: Kit, told: list[str]) -> None:
    bare.install = False
    for name in FUSE_RIVALS:
        with pytest.raises(NotToBeHad, match="nothing is to be installed"):
            FUSE_RIVALS[name](bare, bare.cache)
    assert told == []


def test_the_slow_are_among_the_known() -> None:
    assert SLOW - FUSE_RIVALS.keys() == set()


def test_a_floor_that_does_not_compile_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text(
        "#!/bin/sh\necho note: a >&2; echo error: no fuse.h >&2; echo end >&2; exit 1"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kit = Kit(tmp_path, False, lambda _message: None)
    with pytest.raises(NotToBeHad, match=r"it does not compile: error: no fuse\.h$"):
        FUSE_RIVALS["floor"](kit, tmp_path)


def test_a_file_system_that_does_not_mount_leaves_nothing(tmp_path: Path) -> None:
    rival = FuseRival("broken", tmp_path, lambda _home: ["sh", "-c", "echo no luck >&2; exit 1"])
    with pytest.raises(NotToBeHad, match="does not mount: no luck"):
        rival.start()
    assert not rival.is_healthy()
    assert list(tmp_path.iterdir()) == []


def test_material_that_cannot_be_had_is_named_with_its_reason(bare: Kit) -> None:
    bare.install = False
    found, missing = material.gather(["wheels", "rg", "tree"], bare, QUICK)
    assert found.keys() == {"tree"}
    assert missing["rg"].startswith("rg: not installed")
    assert missing["wheels"] == "wheels: not in the cache, and nothing is to be fetched"


def test_material_is_made_once(tmp_path: Path) -> None:
    kit = Kit(tmp_path, False, lambda _message: None)
    home = tmp_path / "material" / "front-end-v2"
    home.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kit, "program", lambda _kit, name: Path(name))
        assert material.front_end(kit, QUICK) == home
