"""Plug-ins are found wherever ``importlib.metadata`` finds them, and it is not loaded where there are none."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.schemas import plug_ins

GROUP = "accelmetrics.tested"
POINTS = f"[{GROUP}]\nacme = acme_plug:made\n"
METADATA = "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n"


def in_wheel(folder: Path) -> Path:
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(POINTS)
    (info / "METADATA").write_text(METADATA)
    return folder


def in_egg_info(folder: Path) -> Path:
    info = folder / "Acme.EGG-INFO"
    info.mkdir()
    (info / "entry_points.txt").write_text(POINTS)
    (info / "PKG-INFO").write_text(METADATA)
    return folder


def in_wheel_of_a_name_that_begins_like_ours(folder: Path) -> Path:
    """As older tools write it: newer ones have an underscore in the dot's place."""
    in_wheel(folder).joinpath("acme-1.0.dist-info").rename(folder / f"{plug_ins.PACKAGE}.acme-1.0.dist-info")
    return folder


def in_egg(folder: Path) -> Path:
    info = folder / "acme-1.0-py3.egg" / "EGG-INFO"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(POINTS)
    (info / "PKG-INFO").write_text(METADATA)
    return info.parent


def in_archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "acme.zip", "w") as archive:
        archive.writestr("acme-1.0.dist-info/entry_points.txt", POINTS)
        archive.writestr("acme-1.0.dist-info/METADATA", METADATA)
    return folder / "acme.zip"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    plug_ins.registered.cache_clear()
    yield
    plug_ins.registered.cache_clear()


@pytest.mark.parametrize("put", [in_wheel, in_wheel_of_a_name_that_begins_like_ours, in_egg_info, in_egg, in_archive])
def test_what_another_package_registers(put: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not plug_ins.registered(GROUP)
    plug_ins.registered.cache_clear()
    monkeypatch.syspath_prepend(put(tmp_path))
    plain = importlib.metadata.entry_points(group=GROUP)
    assert list(plug_ins.registered(GROUP)) == [point.name for point in plain] == ["acme"]
    assert plug_ins.package(GROUP, "acme") == "package acme"


def test_a_package_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ``sys.path`` has as an empty text."""
    monkeypatch.chdir(in_wheel(tmp_path))
    monkeypatch.syspath_prepend("")
    assert list(plug_ins.registered(GROUP)) == ["acme"]


def test_a_path_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported from there, but packages are found."""
    monkeypatch.setattr(sys, "path", [*sys.path, in_wheel(tmp_path)])
    assert list(plug_ins.registered(GROUP)) == [point.name for point in importlib.metadata.entry_points(group=GROUP)] == ["acme"]


@pytest.mark.parametrize("odd", [None, 3, 1.5])
def test_what_is_no_path(odd: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, odd])
    assert not plug_ins.registered(GROUP)


def test_what_a_finder_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Packages may be anywhere for a finder of another kind."""

    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            return None

        def find_distributions(self, context: Any = None) -> list[importlib.metadata.Distribution]:
            return [importlib.metadata.PathDistribution(in_wheel_once / "acme-1.0.dist-info")]

    in_wheel_once = in_wheel(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert list(plug_ins.registered(GROUP)) == ["acme"]


def test_the_package_itself_is_no_plug_in() -> None:
    """Nor does it take a look at every installed package to know."""
    assert not any(map(plug_ins.mentioned, ("accelmetrics.backends", "accelmetrics.exporters", "accelmetrics.dialects")))


def test_folders_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there has nothing; what is no folder may be anything."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing"), str(tmp_path)])
    (tmp_path / "old-1.0.egg-info").write_text(METADATA)
    (tmp_path / "bare-1.0.dist-info").mkdir()
    assert not plug_ins.mentioned(GROUP)
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path / "old-1.0.egg-info")])
    assert plug_ins.mentioned(GROUP)
