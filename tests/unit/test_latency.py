"""The wish for CPUs that wake up fast, with a file in place of the kernel's device."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ckptfs.fuse.latency import Latency

ANY = 2_000_000_000


def wishes(device: Path) -> list[int]:
    return [number for (number,) in struct.iter_unpack("i", device.read_bytes())]


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def driver(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "current_driver"
    path.write_text(f"{name}\n")
    return path


@pytest.mark.parametrize("name, wish", [("haltpoll", 0), ("intel_idle", 2)])
def test_it_is_made_when_requests_come_and_taken_back(
    tmp_path: Path, device: Path, name: str, wish: int
) -> None:
    latency = Latency(device, driver(tmp_path, name))
    assert wishes(device) == [ANY]
    latency.hold()
    latency.hold()
    assert wishes(device) == [ANY, wish]
    latency.relax()
    latency.relax()
    assert wishes(device) == [ANY, wish, ANY]
    latency.close()


def test_without_a_driver_it_asks_for_little(tmp_path: Path, device: Path) -> None:
    latency = Latency(device, tmp_path / "absent")
    latency.hold()
    latency.close()
    assert wishes(device) == [ANY, 2]


def test_without_the_device_nothing_is_done(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    latency = Latency(absent, absent)
    latency.hold()
    latency.relax()
    latency.close()
    assert not absent.exists()


def test_it_can_be_switched_off(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFS_LATENCY", "off")
    latency = Latency(device, driver(tmp_path, "haltpoll"))
    latency.hold()
    assert wishes(device) == []
    assert latency.reason == "CKPTFS_LATENCY=off"


def test_the_settings_can_switch_it_off(tmp_path: Path, device: Path) -> None:
    latency = Latency(device, driver(tmp_path, "haltpoll"), wanted=False)
    latency.hold()
    assert wishes(device) == []
    assert latency.reason == "the settings say so"


def test_after_the_end_nothing_is_asked_for(tmp_path: Path, device: Path) -> None:
    latency = Latency(device, driver(tmp_path, "haltpoll"))
    latency.close()
    latency.hold()
    assert wishes(device) == [ANY]
