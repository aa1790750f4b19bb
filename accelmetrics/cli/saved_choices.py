"""Saved display choices of ``watch``: orders, columns, graphs and theme. A key saves them, and the next start reads them.

The file is JSON and not TOML: Python's standard library can write JSON, and nobody needs to edit the file by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, get_args

from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.text import shown
from accelmetrics.views.terminal.choices import DEVICE_ORDERS, NODE_ORDERS, PROCESS_ORDERS, Choices, Form, Graphs, ThemeChoice
from accelmetrics.views.terminal.style import SERIES
from accelmetrics.views.trails import SPANS

LARGEST = 1 << 16
"""Maximum size of the file in bytes."""


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


SAVED: Mapping[str, Callable[[object], bool]] = {
    "device_order": DEVICE_ORDERS.__contains__,
    "device_reverse": _flag,
    "device_hidden": _texts,
    "process_order": PROCESS_ORDERS.__contains__,
    "process_reverse": _flag,
    "process_hidden": _texts,
    "node_order": NODE_ORDERS.__contains__,
    "node_reverse": _flag,
    "metric": lambda value: isinstance(value, str),
    "beside": lambda value: _texts(value) and len(value) < SERIES,
    "scale": lambda value: isinstance(value, str) and value in SPANS,
    "graphs": get_args(Graphs).__contains__,
    "training": lambda value: isinstance(value, str),
    "form": get_args(Form).__contains__,
    "theme": get_args(ThemeChoice).__contains__,
}
"""Check of a value, by each saved field of ``Choices``."""


def choices_path() -> Path:
    """Return the path of the file: below ``XDG_CONFIG_HOME``, or ``~/.config``."""
    # The XDG specification says that a relative path is to be ignored.
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "accelmetrics" / "watch.json"  # noqa: PTH117  a text


def read_choices(choices: Choices) -> Choices:
    """Return the choices, updated from the file. They are unchanged if there is no file.

    Raises:
        AccelMetricsError: The file cannot be used. The message names the problem.
    """
    path = choices_path()
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        found = json.loads(data if len(data) <= LARGEST else b"")
    except FileNotFoundError:
        return choices
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
        raise _unusable(path, error.strerror if isinstance(error, OSError) else "the file is not JSON, or too large") from error
    if not isinstance(found, dict):
        raise _unusable(path, "the file is not a JSON object")
    given: dict[str, Any] = {}
    for name, possible in SAVED.items():  # unknown names, such as a later release's, are ignored
        if name in found and not possible(found[name]):
            raise _unusable(path, f"{name} cannot be {shown(found[name])}")
        if name in found:
            usual = getattr(choices, name)
            given[name] = type(usual)(found[name]) if _texts(found[name]) else found[name]
    return replace(choices, **given)


def _unusable(path: Path, why: object) -> AccelMetricsError:
    return AccelMetricsError(f"the saved choices in {path} are ignored: {why}; W saves new ones")


def write_choices(choices: Choices) -> Path:
    """Save the choices and return the path of the file.

    Raises:
        AccelMetricsError: They cannot be written.
    """
    from accelmetrics.exporters.files import replace_file  # here, to keep it out of the start of `watch`: few users save

    path = choices_path()
    values = {name: getattr(choices, name) for name in SAVED}
    text = json.dumps({name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise AccelMetricsError(f"the choices cannot be saved in {path}: {error.strerror}") from error
    return path
