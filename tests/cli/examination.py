"""What ``doctor`` says of one source: to people, to programs and to the shell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.cli.shell import call


class Finding(NamedTuple):
    """What doctor said: for people, for programs, and to the shell."""

    words: str
    facts: dict[str, Any]
    status: int
    strict: int


Runner = Callable[..., subprocess.CompletedProcess[str]]


def examine(backend: str, env: Mapping[str, str], *more: str, named: bool = False, by: Runner = call) -> Finding:
    """Run doctor for people, for programs and strictly; what it says of one backend.

    Args:
        backend: Which one.
        env: The machine.
        more: Further arguments.
        named: Whether that backend alone is selected.
        by: ``run`` where the process must be a new one, since this one may have loaded what must not be there.
    """
    selection = ["--backends", backend] if named else []
    if "--timeout" not in more:
        more = (*more, "--timeout", "20")  # what is late on a busy machine is no finding
    shown = by("doctor", *selection, *more, env=env)
    strict = by("doctor", "--json", "--strict", *selection, *more, env=env)
    assert shown.stderr == strict.stderr == ""
    facts = next(found for found in json.loads(strict.stdout)["backends"] if found["name"] == backend)
    paragraph = next(part for part in shown.stdout.split("\n\n") if part.startswith(f"{backend}: "))
    return Finding(" ".join(paragraph.split()), facts, shown.returncode, strict.returncode)
