"""Plug-ins are found wherever ``importlib.metadata`` finds them, and it is not loaded where there are none."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.schemas import plug_ins

GROUP = "accelmetrics.tested"
POINTS = f"[{GROUP}]\nacme = acme_plug:made\n"
METADATA = "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n"


def in_wheel(folder: Path, info: str = "acme-1.0.dist-info", metadata: str = "METADATA") -> Path:
    """Write what is said of a package; with the entry of ``sys.path`` that has it."""
    place = folder / info
    place.mkdir(parents=True)
    (place / "entry_points.txt").write_text(POINTS)
    (place / metadata).write_text(METADATA)
    return folder


def in_egg(folder: Path) -> Path:
    return in_wheel(folder / "acme-1.0-py3.egg", "EGG-INFO", "PKG-INFO")


def in_archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "acme.zip", "w") as archive:
        for file in in_wheel(folder / "whole").rglob("*.*/*"):
            archive.write(file, file.relative_to(folder / "whole"))
    return folder / "acme.zip"


IN_EGG_INFO = partial(in_wheel, info="Acme.EGG-INFO", metadata="PKG-INFO")
LIKE_OURS = partial(in_wheel, info=f"{plug_ins.PACKAGE}.acme-1.0.dist-info")
"""A name that begins like ours, as older tools write it: newer ones have an underscore in the dot's place."""


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    plug_ins.registered.cache_clear()
    yield
    plug_ins.registered.cache_clear()


@pytest.mark.parametrize("put", [in_wheel, LIKE_OURS, IN_EGG_INFO, in_egg, in_archive])
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
    """Nothing is imported from there, but packages are found; what is no path at all has none."""
    paths = sys.path
    monkeypatch.setattr(sys, "path", [*paths, None, 3, 1.5])
    assert not plug_ins.registered(GROUP)
    plug_ins.registered.cache_clear()
    monkeypatch.setattr(sys, "path", [*paths, in_wheel(tmp_path)])
    assert list(plug_ins.registered(GROUP)) == ["acme"]


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
