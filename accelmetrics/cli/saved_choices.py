"""The choices that a key of ``watch`` has saved: orders, columns, graphs, the theme. They are read at the next start.

The file is JSON and not TOML: Python can write that without another package, and nobody needs to edit it by hand.
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
"""Bytes of the file, at most."""


class SavedChoicesError(AccelMetricsError):
    """The file of saved choices cannot be read or written, or has something that is none of them; the message says what."""


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
    "form": get_args(Form).__contains__,
    "theme": get_args(ThemeChoice).__contains__,
}
"""By field of ``Choices`` that is saved, whether a value can be one."""


def choices_path() -> Path:
    """Return where the file is: below ``XDG_CONFIG_HOME``, or ``~/.config``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "accelmetrics" / "watch.json"  # noqa: PTH117  a text


def read_choices(choices: Choices) -> Choices:
    """Return the choices with those that are saved; the same where there is no file.

    Raises:
        SavedChoicesError: The file cannot be used.
    """
    path = choices_path()
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        found = json.loads(data if len(data) <= LARGEST else b"")
    except FileNotFoundError:
        return choices
    except (OSError, ValueError, RecursionError) as error:  # the last: brackets in brackets without an end
        why = error.strerror if isinstance(error, OSError) else "it is no JSON document of a useful length"
        raise SavedChoicesError(f"the saved choices in {path} are not used: {why}; W writes them anew") from error
    if not isinstance(found, dict):
        raise SavedChoicesError(f"the saved choices in {path} are not used: they are no table of names and values; W writes them anew")
    given: dict[str, Any] = {}
    for name, possible in SAVED.items():  # names of later releases are passed over
        if name in found and not possible(found[name]):
            raise SavedChoicesError(f"the saved choices in {path} are not used: {name} cannot be {shown(found[name])}; W writes them anew")
        if name in found:
            usual = getattr(choices, name)
            given[name] = type(usual)(found[name]) if _texts(found[name]) else found[name]
    return replace(choices, **given)


def write_choices(choices: Choices) -> Path:
    """Save the choices; return where.

    Raises:
        SavedChoicesError: They cannot be written.
    """
    from accelmetrics.exporters.files import replace_file  # not at the start of `watch`: few ever save

    path = choices_path()
    values = {name: getattr(choices, name) for name in SAVED}
    text = json.dumps({name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise SavedChoicesError(f"the choices cannot be saved in {path}: {error.strerror}") from error
    return path
