"""One sampler's devices as the watched program sees them: their visible numbers, which are reported, and under which keys.

The program's environment is read once, before the first reading: a program reads its lists when it starts. Whether a device is
reported, and under which key, is decided when it is seen first, and kept; :meth:`Viewer.show` is called when a driver's
listing changes, never while devices are read.

With ``visible="renumber"`` the program's n-th device takes the n-th of the numbers that its vendor's devices have, or n
itself where one vendor alone makes the kind: for a program on one vendor's GPUs ``gpu.0`` is its device 0, and on a mixed host
no two vendors ever meet under one key, whichever opens first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from accelmetrics.backends.environment import Environment, environment_of
from accelmetrics.backends.visible import Visibility, visibility
from accelmetrics.sampling.inventory import VENDOR_NUMBERED
from accelmetrics.sampling.options import Options
from accelmetrics.schemas.snapshot import DeviceSlot

RENUMBER = "renumber"
UNSEEN = "unseen"
"""Stands for the key of a device that is not reported; no device has it."""


class Viewer:
    """Attributes: ``caveat``, what to know about a selection by visibility, in words; empty when nothing."""

    def __init__(self, options: Options) -> None:
        self.caveat = ""
        self._options = options
        self._known: list[DeviceSlot] = []
        self._shown: dict[str, DeviceSlot | None] = {}
        self._environment: Environment | None = None

    def show(self, known: Sequence[DeviceSlot]) -> dict[str, DeviceSlot]:
        """By the inventory's key: the place under which a device is reported; no entry for one that is not.

        Args:
            known: Every device of one backend.
        """
        if list(known) != self._known:
            self._known = list(known)
            self._shown = self._decide(known)
        reported = {key: place for key, place in self._shown.items() if place is not None}
        if self._options.visible == RENUMBER:
            return dict(sorted(reported.items(), key=lambda entry: entry[1].index))
        return reported

    def _decide(self, known: Sequence[DeviceSlot]) -> dict[str, DeviceSlot | None]:
        seen = self._look(known)
        marked = [place._replace(visible_index=position) for place, position in zip(known, seen.positions, strict=True)]
        if not self._options.visible:
            return {place.key: place for place in marked}
        self.caveat = "; ".join(seen.caveats)
        # What cannot be told is not left out: only what is known to be hidden is.
        kept = [place if sees is not False else None for place, sees in zip(marked, seen.visible, strict=True)]
        if self._options.visible == RENUMBER:
            kept, unnumbered = _renumbered(kept, known)
            self.caveat = "; ".join(filter(None, (self.caveat, unnumbered)))
        return self._settled(known, kept)

    def _settled(self, known: Sequence[DeviceSlot], kept: Sequence[DeviceSlot | None]) -> dict[str, DeviceSlot | None]:
        """What was decided before, for devices that were known then; the others as far as their keys are free."""
        settled: dict[str, DeviceSlot | None] = {}
        for place in known:
            before = self._shown.get(place.key)
            settled[place.key] = before._replace(identity=place.identity) if before else None
        taken = {shown.key for shown in settled.values() if shown is not None}
        for place, new in zip(known, kept, strict=True):
            if place.key not in self._shown and new is not None and new.key not in taken:
                settled[place.key] = new
        return settled

    def _look(self, known: Sequence[DeviceSlot]) -> Visibility:
        environment = self._read()
        if environment.values is None:
            return Visibility((None,) * len(known), (None,) * len(known), (), (environment.why,))
        return visibility(environment.values, [place.identity for place in known])

    def _read(self) -> Environment:
        if self._environment is None:
            # A child of ours that reads for us (isolation="process") has inherited what we had when it was started.
            named = self._options.pid if self._options.watched else None
            self._environment = environment_of(os.getpid() if named is None else named)
        return self._environment


def _renumbered(kept: list[DeviceSlot | None], known: Sequence[DeviceSlot]) -> tuple[list[DeviceSlot | None], str]:
    """The places with the program's numbers; as they are, with the reason, where not every one has such a number of its own."""
    taken = [(place.identity.kind, place.visible_index) for place in kept if place is not None]
    numbers = _numbers(known)
    if len(set(taken)) < len(taken) or any(position is None for _, position in taken):
        return kept, "the devices keep their usual numbers, since the program's cannot be told"
    if any(kind not in VENDOR_NUMBERED and position is not None and position >= len(numbers[kind]) for kind, position in taken):
        return kept, "the devices keep their usual numbers: the program sees more partitions than there are whole devices"
    return [None if place is None else _with_number(place, numbers[place.identity.kind]) for place in kept], ""


def _numbers(known: Sequence[DeviceSlot]) -> dict[str, list[int]]:
    """By kind, the numbers of whole devices, rising."""
    numbers: dict[str, list[int]] = {place.identity.kind: [] for place in known}
    for place in known:
        if not place.identity.parent:
            numbers[place.identity.kind].append(place.index)
    return {kind: sorted(found) for kind, found in numbers.items()}


def _with_number(place: DeviceSlot, numbers: Sequence[int]) -> DeviceSlot:
    position = place.visible_index
    assert position is not None  # _renumbered has looked
    kind = place.identity.kind
    number = position if kind in VENDOR_NUMBERED else numbers[position]
    return place._replace(key=f"{kind}.{number}", index=number)
