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


def examine(backend: str, env: Mapping[str, str], *more: str, named: bool = False, by: Runner = call, strict: int | None = None) -> Finding:
    """Run doctor for people, for programs and strictly; what it says of one backend.

    Args:
        backend: Which one.
        env: The machine.
        more: Further arguments.
        named: Whether that backend alone is selected.
        by: ``run`` where the process must be a new one, since this one may have loaded what must not be there.
        strict: The exit status that it must have with ``--strict``; without, 0.
    """
    selection = ["--backends", backend] if named else []
    if "--timeout" not in more:
        more = (*more, "--timeout", "20")  # what is late on a busy machine is no finding
    shown = by("doctor", *selection, *more, env=env)
    told = by("doctor", "--json", "--strict", *selection, *more, env=env)
    assert shown.stderr == told.stderr == ""
    facts = next(found for found in json.loads(told.stdout)["backends"] if found["name"] == backend)
    paragraph = next(part for part in shown.stdout.split("\n\n") if part.startswith(f"{backend}: "))
    if strict is not None:
        assert (shown.returncode, told.returncode) == (0, strict)
    return Finding(" ".join(paragraph.split()), facts, shown.returncode, told.returncode)
