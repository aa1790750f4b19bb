"""Which devices a user asked for: by number, key or UUID."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelmetrics.sampling.options import Choice
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.snapshot import DeviceSlot


class Selection:
    """The devices asked for.

    A bare number ``n`` is the device ``gpu.n``. A device is chosen with its partitions. Devices of a kind that is not
    mentioned are left out only if they are GPUs: ``gpus=[0]`` says nothing about TPUs.

    Args:
        choices: What the user wrote; None for everything.
    """

    def __init__(self, choices: Sequence[Choice] | None) -> None:
        self._choices = (
            None if choices is None else tuple(f"gpu.{choice}" if isinstance(choice, int) else _key(choice) for choice in choices)
        )
        self.kinds = {"gpu", *(choice.partition(".")[0] for choice in self._choices or () if "." in choice)}

    def wants(self, place: DeviceSlot) -> bool:
        """Whether a device was asked for."""
        if self._choices is None or place.identity.kind not in self.kinds:
            return True
        return any(_is(place, choice) or _is_part(place, choice) for choice in self._choices)

    def names(self, place: DeviceSlot) -> bool:
        """Whether a choice is this device, of whatever kind it is."""
        return any(_is(place, choice) for choice in self._choices or ())

    def check(self, places: Iterable[DeviceSlot]) -> None:
        """Refuse a choice that no device answers to.

        Args:
            places: Every device there is, selected or not.

        Raises:
            UnknownNameError: Listing the devices there are.
        """
        listed = list(places)
        for choice in self._choices or ():
            if not any(_is(place, choice) for place in listed):
                raise UnknownNameError(
                    "device", choice, [f"{place.key} ({place.identity.uuid})" if place.identity.uuid else place.key for place in listed]
                )


def _key(choice: str) -> str:
    return f"gpu.{choice}" if choice.isdigit() else choice


def _is(place: DeviceSlot, choice: str) -> bool:
    return choice == place.key or _begins(place.identity.uuid, choice)


def _is_part(place: DeviceSlot, choice: str) -> bool:
    """Whether a choice is the device that this one is a partition of."""
    parent = place.identity.parent
    return bool(parent) and (place.key.startswith(f"{choice}.") or _begins(parent, choice))


def _begins(uuid: str, choice: str) -> bool:
    return bool(uuid) and uuid.lower().startswith(choice.lower()) and len(choice) >= MIN_UUID_PREFIX


MIN_UUID_PREFIX = 8
"""Shorter beginnings of a UUID, such as ``GPU-1``, are more likely a mistake than a choice."""
