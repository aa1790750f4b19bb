"""What ``doctor`` says of one source: to people, to programs and to the shell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.cli.shell import run


class Finding(NamedTuple):
    """What doctor said: for people, for programs, and to the shell."""

    words: str
    facts: dict[str, Any]
    status: int
    strict: int


def examine(backend: str, env: Mapping[str, str], *more: str, named: bool = False) -> Finding:
    """Run doctor for people, for programs and strictly; what it says of one backend."""
    selection = ["--backends", backend] if named else []
    shown = run("doctor", *selection, *more, env=env)
    strict = run("doctor", "--json", "--strict", *selection, *more, env=env)
    assert shown.stderr == strict.stderr == ""
    facts = next(found for found in json.loads(strict.stdout)["backends"] if found["name"] == backend)
    paragraph = next(part for part in shown.stdout.split("\n\n") if part.startswith(f"{backend}: "))
    return Finding(" ".join(paragraph.split()), facts, shown.returncode, strict.returncode)
