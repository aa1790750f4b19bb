"""The programs that check deploy/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.support.missing import MissingHere
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.25", "1.28", "1.37")
"""Releases that manifests are held to: the oldest one that the chart names, one between, the newest one known."""

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """The path of a program: of this environment, or the system's."""
    own = Path(sys.prefix) / "bin" / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise MissingHere(f"tool: {name} is not installed")
    return found


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of :func:`tool` to its end, and keep what it says."""
    name, *rest = map(str, command)
    return subprocess.run([tool(name), *rest], capture_output=True, text=True, timeout=4 * HANG, stdin=subprocess.DEVNULL, **options)


def manifests(text: str) -> list[Manifest]:
    """The objects of a YAML text of several."""
    return [one for one in yaml.safe_load_all(text) if one]


def valid(objects: Iterable[Manifest]) -> None:
    """Hold Kubernetes' own kinds to its schemas, where keys that it does not know are errors too."""
    for one in objects:
        if not one["apiVersion"].startswith("monitoring.coreos.com/"):
            for release in KUBERNETES:
                kubernetes_validate.validate(one, release, strict=True)


def of_kind(kind: str, objects: Iterable[Manifest]) -> Manifest:
    """The one object of a kind."""
    (found,) = [one for one in objects if one["kind"] == kind]
    return found
