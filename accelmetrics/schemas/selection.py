"""Selections of metrics to read and send: presets, names, keys and patterns, and exclusions.

``all`` loads nothing. Any other selection loads the catalogue when it is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.metric import ANY_KIND, Metric, device_key, fill
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import shown

ALL = "all"
PRESETS = {
    "core": "ten of each device: utilisation, memory used, total and share, temperature, power, its limit, energy, clock, throttled",
    "wandb": "what W&B's documentation lists and its collector emits",
    "standard": "all but detail of single links and CPUs, and profiling",
    ALL: "everything",
}
"""The content of each preset, in words."""
PROCESSES = "processes"
"""The item that selects the lists of processes (``snapshot.processes``), which are not a metric."""
_WITHIN = {"core": {"core"}, "standard": {"core", "standard"}, ALL: {"core", "standard", ALL}}
"""By preset, the ``preset`` values of the rows that it contains."""
_NUMBER = re.compile(r"(?<![^.])[\d*]+(?![^.])")
"""A part of a key that is a number or a pattern of one."""
_NAMED = re.compile(r"\{(?:path|device|port|label)\}")
"""A placeholder for any text, not for a number."""


class MetricSelection:
    """A choice of metrics.

    A key is wanted if a chosen item matches it and no excluded item does. With exclusions only, everything else is wanted.

    Args:
        items: A text with comma-separated items, or a list of items. An item is a preset (``core``, ``wandb``, ``standard``,
            ``all``), a metric's name (``powerWatts``, or its attribute's spelling ``power_watts``; ``process.temp`` for the watched
            process on a device), a key (``gpu.0.powerWatts``), or a pattern of names or keys in which ``*`` stands for any text
            (``nvlink.*``, ``gpu.0.*``). A leading ``-`` excludes. ``processes`` selects the lists of processes; metrics of the
            watched process select these lists too.
        default: Whether it is only a default, which :meth:`widened` extends by metrics that the user chose elsewhere.

    Attributes:
        items: The items, as given.
        default: Whether it is a default, or was made from one.
        everything: Whether no key is left out.
        processes: Whether the item ``processes`` is among the items.

    Raises:
        InvalidOptionError: There is no item, or one is not a text.
        UnknownNameError: An item is no preset, name, key or pattern. The message suggests the nearest.
    """

    __slots__ = ("_chosen", "_excluded", "_general", "_known", "default", "everything", "items", "processes")

    def __init__(self, items: str | Iterable[str] | MetricSelection = ALL, *, default: bool = False) -> None:
        self.default: bool = default or (isinstance(items, MetricSelection) and items.default)
        self.items: tuple[str, ...]
        if isinstance(items, MetricSelection):
            self.items = items.items
        else:
            listed: object = items.split(",") if isinstance(items, str) else items
            given: tuple[Any, ...] = tuple(listed) if isinstance(listed, Iterable) else ()
            if not given or not all(isinstance(item, str) and item.strip().removeprefix("-").strip() for item in given):
                raise InvalidOptionError(
                    f"metrics is {shown(items)}: it takes a text such as 'standard,-nvlink*' or a list of such items, none empty"
                )
            self.items = tuple(item.strip() for item in given)
        chosen = [item for item in self.items if not item.startswith("-")]
        # With exclusions only, everything else is wanted.
        self._chosen = tuple(_Item.of(item) for item in chosen or [ALL] if item != PROCESSES)
        self._excluded = tuple(_Item.of(item[1:].strip()) for item in self.items if item.startswith("-"))
        self._forget()

    def _forget(self) -> None:
        self._general = tuple(item.general for item in self._chosen)
        self.processes = PROCESSES in self.items
        self.everything = not self._excluded and any(item.text == ALL for item in self._chosen)
        self._known: dict[str, bool] = {}

    def wants(self, key: str) -> bool:
        """Return whether a key is wanted. Results are cached."""
        wanted = self.everything or self._known.get(key)
        if wanted is None:
            wanted = any(item.has(key) for item in self._chosen) and not any(item.has(key) for item in self._excluded)
            self._known[key] = wanted
        return wanted

    def wants_some(self, template: str) -> bool:
        """Return whether any key of a template may be wanted: ``gpu.{i}.powerWatts``, ``disk.{path}.usageGB``."""
        if self.everything:
            return True
        general = re.sub(r"\{\w+\}", "{i}", template)
        chosen = any(item.has(general) for item in self._general) or any(item.may_have(template) for item in self._chosen)
        return chosen and not any(item.has(general) for item in self._excluded)

    def widened(self, read: MetricSelection) -> MetricSelection:
        """Return a default selection, extended by the items that ``read`` names (not ``all``, no exclusions).

        A selection that is not a default is returned as it is.
        """
        named = [item for item in read.items if item != ALL and not item.startswith("-")]
        return MetricSelection((*self.items, *named)) if self.default and named else self

    def with_processes(self) -> MetricSelection:
        """Return the selection with the lists of processes added."""
        chosen = any(not item.startswith("-") for item in self.items)
        return MetricSelection((*self.items, PROCESSES) if chosen else (ALL, PROCESSES, *self.items))

    def __eq__(self, other: object) -> bool:
        return self.items == other.items if isinstance(other, MetricSelection) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.items)

    def __getstate__(self) -> tuple[object, ...]:
        """Pickle without caches, and so that unpickling does not check items.

        Another process may not have loaded a plug-in's rows yet.
        """
        return self.items, self._chosen, self._excluded, self.default

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.items, self._chosen, self._excluded, self.default = state
        self._forget()

    def __str__(self) -> str:
        return ",".join(self.items)

    def __repr__(self) -> str:
        return f"MetricSelection({str(self)!r})"


MetricChoice = str | Iterable[str] | MetricSelection
"""The types that a selection can be created from."""


def presets_of(row: Metric) -> tuple[str, ...]:
    """Return the presets that contain a metric, under any of its spellings."""
    from accelmetrics.schemas.catalogue import wandb

    return tuple(preset for preset in PRESETS if (wandb.has(row) if preset == "wandb" else row.preset in _WITHIN[preset]))


def asked_of(selection: MetricSelection, device: str) -> list[tuple[str, ...]]:
    """Return the possible names of each metric selected by name for a device. The name for the device's kind comes first."""
    found: list[tuple[str, ...]] = []
    for item in selection._chosen:
        key = device_key(item.text)
        if item.names and (key is None or key.device == device):
            from accelmetrics.schemas.catalogue import match

            kind = device.partition(".")[0]
            own = next((name for name in item.names if match(f"{kind}.0.{name}") is not None), item.names[0])
            if selection.wants(f"{device}.{own}"):
                found.append(tuple(dict.fromkeys((own, *item.names))))
    return found


def refuse_impossible(selection: MetricSelection, devices: bool, host: bool) -> None:
    """Refuse an item that none of the sources can give.

    Args:
        selection: The selection.
        devices: Whether a source has devices.
        host: Whether a source is the host.

    Raises:
        InvalidOptionError: Only devices, or only the host, have the metric, and there is no such source.
    """
    for item in selection._chosen if not (devices and host) else ():
        if item.names and not devices:
            raise InvalidOptionError(f"metrics has {item.text!r}, which only devices have: backends= selects no source with devices")
        if item.pattern is not None and not item.names and not host and "*" not in item.text:
            from accelmetrics.schemas.catalogue import given_by, match
            from accelmetrics.schemas.vitals import EXPECTED_NAMES

            row = match(item.text)
            if row is not None and list(given_by().get(row.key, ())) == ["host"]:
                own = EXPECTED_NAMES.get(item.text, ())[:1]
                hint = f"; that of devices is {own[0]}" if own else ""
                raise InvalidOptionError(f"metrics has {item.text!r}, which only the host has: backends= leaves the host out{hint}")


class _Item(NamedTuple):
    """An item, without its sign.

    Attributes:
        text: The item, as given.
        pattern: The pattern to match keys and names with; None for a preset.
        names: The devices' names for the metric that it names; each device gives at least one of them. Empty for any other item.
    """

    text: str
    pattern: re.Pattern[str] | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> _Item:
        """Return the item of a text, checked."""
        if text in PRESETS:
            return cls(text)
        if "*" in text:
            return cls(text, _pattern(text))
        if names := _spellings(text):
            return cls(text, re.compile("|".join(map(re.escape, names))), names)
        _check(text)
        from accelmetrics.schemas.catalogue import match

        key = device_key(text)
        no_name = key.process if key else text.startswith("process.") or match(text) is not None
        return cls(text, _pattern(text), () if no_name else (key.name if key else text,))

    @property
    def general(self) -> _Item:
        """The same item for any number: ``gpu.{i}.temp`` for ``gpu.1.temp``."""
        general = _NUMBER.sub(lambda number: "*" if "*" in number[0] else "{i}", self.text)
        return self if self.pattern is None or general == self.text else _Item(self.text, _pattern(general))

    def may_have(self, template: str) -> bool:
        """Return whether a key with an unknown disk, path or label may match. It is never False if one matches."""
        if self.pattern is None or _NAMED.search(template) is None:
            return False
        own, other = self.text.split("*"), _NAMED.split(template)
        begins = own[0].startswith(other[0]) or other[0].startswith(own[0])
        return begins and (own[-1].endswith(other[-1]) or other[-1].endswith(own[-1]))

    def has(self, key: str) -> bool:
        """Return whether a key matches."""
        if self.text == ALL:
            return True
        if self.pattern is not None:
            return any(map(self.pattern.fullmatch, (key, _name(key))))
        from accelmetrics.schemas.catalogue import match, wandb

        if self.text == "wandb":
            return wandb.is_known(key)
        row = match(key)
        return (row.preset if row else "standard") in _WITHIN[self.text]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))))


def _spellings(text: str) -> tuple[str, ...]:
    """Return the names of device metrics for a common name or an attribute's name; empty for any other text."""
    from accelmetrics.schemas.catalogue import match, rows
    from accelmetrics.schemas.vitals import EXPECTED_NAMES

    if match(text) is not None:  # a complete key has only its own meaning
        return ()
    for attribute, names in EXPECTED_NAMES.items():
        if text == attribute or (text in names and match(f"{ANY_KIND}.{{i}}.{text}") is not None):
            return names
    devices = (row for row in rows() if row.device_part and not row.of_process and not row.templated)
    return tuple(dict.fromkeys(row.name for row in devices if row.field == text != row.name))


def _name(key: str) -> str:
    """Return a device metric's name: ``powerWatts`` for ``gpu.0.powerWatts``, ``process.temp`` for ``gpu.process.0.temp``."""
    parts = device_key(key)
    if parts is None:
        return key
    return f"process.{parts.name}" if parts.process else parts.name


def _check(text: str) -> None:
    """Refuse a text that is no metric's name and no key of the machine, or a device's key with a misspelt name.

    Any other key of a device is accepted: a plug-in may give names that no row describes.

    Raises:
        UnknownNameError: The message suggests the nearest name.
    """
    from accelmetrics.schemas.catalogue import match, rows
    from accelmetrics.schemas.coverage import KINDS

    if match(text) is not None:
        return
    spellings = [spelling for row in rows() for spelling in (row.key, *row.aliases)]
    key = device_key(text)
    if key is None:
        known = {fill(_name(spelling), "*"): None for spelling in spellings}
        # ``nvlink.7.state`` is ``nvlink.{link}.state`` for one link.
        if text not in known and re.sub(r"\.\d+\.", ".*.", text) not in known:
            raise UnknownNameError("metric or preset", text, (*PRESETS, *known))
    elif key.kind in KINDS.values():
        import difflib  # takes a millisecond, so it is imported only for a key that the catalogue does not have

        parts = [found for found in map(device_key, spellings) if found and found.kind in (ANY_KIND, key.kind)]
        names = {fill(found.name, "*"): None for found in parts if found.process == key.process}
        if near := difflib.get_close_matches(key.name, names, cutoff=0.85):
            head = text.removesuffix(key.name)
            raise UnknownNameError("metric", text, [head + name for name in near])


ALL_METRICS = MetricSelection()
STANDARD = MetricSelection("standard", default=True)
"""The default selection of files and trackers."""
