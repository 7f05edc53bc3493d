"""Where things live, and the registry of workspaces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.config import Workspace
from ckptfs.errors import StoreMissing, WorkspaceUnknown


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path / "home")}


def test_data_dir_follows_xdg() -> None:
    assert config.data_dir({"XDG_DATA_HOME": "/x", "HOME": "/h"}) == Path("/x/ckptfs")
    assert config.data_dir({"HOME": "/h"}) == Path("/h/.local/share/ckptfs")
    assert config.data_dir({"XDG_DATA_HOME": "", "HOME": "/h"}) == Path("/h/.local/share/ckptfs")


def test_a_relative_data_home_is_ignored() -> None:
    assert config.data_dir({"XDG_DATA_HOME": "x", "HOME": "/h"}) == Path("/h/.local/share/ckptfs")


def test_without_home_the_list_of_users_answers() -> None:
    assert os.path.isabs(config.home({}))


def test_default_stores_are_readable_and_apart(environ: dict[str, str]) -> None:
    one = config.default_store(Path("/a/my proj"), environ)
    two = config.default_store(Path("/b/my proj"), environ)
    assert one.name.startswith("my-proj-")
    assert one != two
    assert one == config.default_store(Path("/a/my proj"), environ)


@pytest.mark.parametrize(
    "path", ["/", "/...", "/-", "/ümläut", os.fsdecode(b"/\xff\xfe"), "/" + "n" * 255]
)
def test_any_workspace_has_a_valid_store_name(path: str, environ: dict[str, str]) -> None:
    name = config.default_store(Path(path), environ).name
    assert name.isascii()
    assert not name.startswith(("-", "."))
    assert len(name) < 100


@pytest.mark.parametrize("store", ["/s", "/" + "d" * 120])
def test_the_socket_lies_in_the_store_however_long_its_path_is(store: str) -> None:
    assert Workspace(Path("/w"), Path(store)).socket == Path(store) / "control.sock"


@pytest.mark.parametrize(
    "path", ["/proj", "/a b/%2F", os.fsdecode(b"/\xff\x80"), "/d" * 150, "/new\nline"]
)
def test_the_registry_keeps_any_path(path: str, environ: dict[str, str]) -> None:
    workspace = Workspace(Path(path), Path("/elsewhere") / os.fsdecode(b"\xfe"))
    assert config.registered(workspace.path, environ) is None
    config.register(workspace, environ)
    assert config.registered(workspace.path, environ) == workspace
    assert list(config.known(environ)) == [workspace]
    config.forget(workspace.path, environ)
    assert config.registered(workspace.path, environ) is None


def test_registering_again_replaces(environ: dict[str, str]) -> None:
    config.register(Workspace(Path("/w"), Path("/one")), environ)
    config.register(Workspace(Path("/w"), Path("/two")), environ)
    assert config.registered(Path("/w"), environ) == Workspace(Path("/w"), Path("/two"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"v": 2}', b"\xff", b"null"])
def test_a_damaged_entry_is_no_entry(content: bytes, environ: dict[str, str]) -> None:
    config.register(Workspace(Path("/w"), Path("/s")), environ)
    entry = next((config.data_dir(environ) / "workspaces").iterdir())
    entry.write_bytes(content)
    assert config.registered(Path("/w"), environ) is None
    assert list(config.known(environ)) == []


def test_find_goes_up_to_the_nearest(tmp_path: Path, environ: dict[str, str]) -> None:
    store = tmp_path / "store"
    store.mkdir()
    outer, inner = tmp_path / "o", tmp_path / "o" / "i"
    config.register(Workspace(outer, store), environ)
    config.register(Workspace(inner, store), environ)
    assert config.find(inner / "x" / "y", environ).path == inner
    assert config.find(outer / "x", environ).path == outer


def test_find_says_where_it_looked(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(WorkspaceUnknown, match=f"Neither {tmp_path} nor"):
        config.find(tmp_path, environ)


def test_a_lost_store_does_not_hide_a_workspace_above(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    config.register(Workspace(tmp_path / "o", store), environ)
    config.register(Workspace(tmp_path / "o" / "i", tmp_path / "gone"), environ)
    assert config.find(tmp_path / "o" / "i", environ).path == tmp_path / "o"


def test_a_lost_store_is_named_if_it_is_all_there_is(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    config.register(Workspace(tmp_path / "w", tmp_path / "gone"), environ)
    with pytest.raises(StoreMissing, match="gone"):
        config.find(tmp_path / "w", environ)


def test_a_default_store_is_found_without_the_registry(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    store = config.default_store(tmp_path / "w", environ)
    store.mkdir(parents=True)
    (store / "data.mdb").touch()
    assert config.find(tmp_path / "w" / "deep", environ) == Workspace(tmp_path / "w", store)


def test_resolve_follows_links_and_needs_no_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert config.resolve(tmp_path / "link" / "x") == (tmp_path / "real" / "x").resolve()


def test_write_atomically_leaves_nothing_else(tmp_path: Path) -> None:
    config.write_atomically(tmp_path / "f", b"one")
    config.write_atomically(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
