"""One round: every runtime is asked once, and what that came to for each device and for all together.

A device is spoken for by one port. Where two programs that know nothing of each other both have a device 0, the first port
keeps it, and what the other one says cannot be told from it: the devices that nobody speaks for say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelmetrics.backends.tpu.chips import Chip
from accelmetrics.backends.tpu.fields import FIELDS, NAMES, Value, derived
from accelmetrics.backends.tpu.gauges import SDK_ONLY, Gauges
from accelmetrics.backends.tpu.holders import Holders
from accelmetrics.backends.tpu.machine import GRPC_NAMES as MACHINE_GRPC_NAMES
from accelmetrics.backends.tpu.machine import OWED, machine_values
from accelmetrics.backends.tpu.machine import SDK_NAMES as MACHINE_SDK_NAMES
from accelmetrics.backends.tpu.places import Place, chip_groups
from accelmetrics.backends.tpu.runtime import HOST, PORTS_VARIABLE, PortAnswers
from accelmetrics.backends.tpu.sdk import SdkReading
from accelmetrics.backends.tpu.sdk_values import device_values
from accelmetrics.schemas.reasons import Reason, Unavailable

GRPC_NAMES = (*(field.grpc for field in FIELDS if field.grpc), *MACHINE_GRPC_NAMES)
SDK_NAMES = (*(name for field in FIELDS for name in field.sdk), *MACHINE_SDK_NAMES)


class Speakers:
    """Which port speaks for which device, kept from round to round."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}
        self._contested: dict[int, tuple[int, int]] = {}

    @property
    def contest(self) -> str:
        """Which devices two ports claim, in words."""
        return "; ".join(
            f"the runtimes on ports {first} and {second} both have a device {n}" for n, (first, second) in self._contested.items()
        )

    def choose(self, gauges: Sequence[Gauges]) -> dict[int, Gauges]:
        """By device, who speaks for it this time. Another port may take over from one that is gone, unless both were there once."""
        by_port = {one.port: one for one in gauges if one.failure is None}
        chosen: dict[int, Gauges] = {}
        for number in sorted({number for one in by_port.values() for number in one.ids}):
            claims = [port for port, one in by_port.items() if number in one.ids]
            if len(claims) > 1:
                self._contested.setdefault(number, (claims[0], claims[1]))
            port = self._ports.get(number)
            if port in claims or (port is not None and number in self._contested):
                claims = [claim for claim in claims if claim == port]
            if claims:
                self._ports[number] = claims[0]
                chosen[number] = by_port[claims[0]]
        return chosen

    def port_of(self, number: int) -> int | None:
        """Who spoke for a device last."""
        return self._ports.get(number)


class Round:
    """What asking once came to.

    Args:
        number: Counted from 1.
        finished: When it had ended, on the monotonic clock.
        ports: What the ports said.
        gauges: The same, by device.
        sdk: What the SDK said last.
        holders: Who holds the chips.
    """

    def __init__(
        self,
        number: int,
        finished: float,
        ports: Sequence[PortAnswers],
        gauges: Sequence[Gauges],
        sdk: SdkReading,
        holders: Holders,
    ) -> None:
        self.number = number
        self.finished = finished
        self.holders = holders
        self._ports = ports
        self._gauges = gauges
        self._sdk = sdk

    def devices(self, listed: Sequence[Place], speakers: Speakers, per_chip: int) -> list[dict[str, Value]]:
        """Every device's values and reasons, in the order in which they are listed."""
        chosen = speakers.choose(self._gauges)
        # A runtime that says nothing about any device says at least why.
        for mute in (one for one in self._gauges if one.failure is None and not one.ids):
            silent = [place.number for place in listed if speakers.port_of(place.number) in (None, mute.port)]
            chosen = {**dict.fromkeys(silent, mute), **chosen}
        spoken = [place for place in listed if place.number in chosen] or listed
        told = self._from_sdk(chip_groups(spoken, per_chip), per_chip)
        return [self._device(place, chosen.get(place.number), told, speakers) for place in listed]

    def machine(self) -> dict[str, Value]:
        """What belongs to all devices together."""
        nobody = self._nobody()
        return dict.fromkeys(OWED, nobody) if nobody is not None else machine_values(self._ports, self._sdk)

    def _device(
        self, place: Place, speaker: Gauges | None, told: Mapping[str, Mapping[int, Value] | Unavailable], speakers: Speakers
    ) -> dict[str, Value]:
        silent = self._why_silent(place, speakers) if speaker is None else None
        if silent is not None and silent.reason == Reason.NOT_IN_USE:
            return dict.fromkeys(NAMES, silent)
        values: dict[str, Value] = {}
        for field in FIELDS:
            value = silent or (speaker.value(field.name, place.number) if speaker else SDK_ONLY)
            values[field.name] = _second_best(value, told[field.name], place.number, only=silent is None and not field.grpc)
        return {**values, **derived(values)}

    def _from_sdk(self, chips: Sequence[Sequence[int]], per_chip: int) -> dict[str, Mapping[int, Value] | Unavailable]:
        told: dict[str, Mapping[int, Value] | Unavailable] = {}
        for field in FIELDS:
            series = self._sdk.first(field.sdk)
            told[field.name] = series if isinstance(series, Unavailable) else device_values(field, series.data, chips, per_chip)
        return told

    def _why_silent(self, place: Place, speakers: Speakers) -> Unavailable:
        """Why no runtime speaks for a device."""
        known = speakers.port_of(place.number)
        failures = [one for one in self._ports if one.failure is not None and one.failure.reason != Reason.NOT_IN_USE]
        own = [one for one in failures if one.port == known] or ([] if known is not None else failures)
        if own and own[0].failure is not None:
            return own[0].failure
        pids = self.holders.of(place.chip.node) if place.chip else ()
        if speakers.contest and known is None and (pids or not self.holders.complete):
            return Unavailable(Reason.DRIVER_ERROR, f"{speakers.contest}: which chip each means cannot be told")
        asked = ", ".join(str(one.port) for one in self._ports)
        if pids:
            hint = f"start it with {PORTS_VARIABLE} set, and this program too"
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"process {pids[0]} holds it and serves no metrics on {HOST}:{asked}: {hint}")
        if not self.holders.complete:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {HOST}:{asked} tells of it; who holds it cannot be seen")
        return Unavailable(Reason.NOT_IN_USE, f"no program holds it: no runtime on {HOST}:{asked} tells of it")

    def _nobody(self) -> Unavailable | None:
        """Why there is nothing to say of all devices together; None when some runtime answers."""
        failures = [one.failure for one in self._ports if one.failure is not None]
        if len(failures) < len(self._ports):
            return None
        broken = [failure for failure in failures if failure.reason != Reason.NOT_IN_USE]
        return (broken or failures)[0]


def gauges_of(ports: Sequence[PortAnswers], per_chip: int, seconds: float) -> list[Gauges]:
    """What each port says of its devices."""
    return [Gauges(port, per_chip, seconds) for port in ports]


def devices_per_duty_cycle(chips: Sequence[Chip]) -> int:
    """How many devices share a duty cycle on this machine, whose chips are all of one generation."""
    shared = [chip.devices for chip in chips if chip.generation.duty_cycle_of_chip]
    return max(shared, default=1)


def _second_best(value: Value, told: Mapping[int, Value] | Unavailable, number: int, only: bool) -> Value:
    """The SDK's value where the runtime has none, and the SDK's reason where the runtime would never have had one."""
    if not isinstance(value, Unavailable):
        return value
    other = told if isinstance(told, Unavailable) else told.get(number, value)
    return other if only or not isinstance(other, Unavailable) else value
