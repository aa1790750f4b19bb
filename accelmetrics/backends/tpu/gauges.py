"""What one runtime says of each of its devices.

The numbers are the runtime's own device ids. On TPU v2 and v3 the duty cycle is told of chips, and both devices of a chip
have it; memory is told of devices everywhere and is never multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelmetrics.backends.tpu.fields import FIELDS, STALE_AFTER, DeviceField, Value, checked
from accelmetrics.backends.tpu.labels import device_id
from accelmetrics.backends.tpu.messages import Distribution, Entry, Summary
from accelmetrics.backends.tpu.runtime import PortAnswers
from accelmetrics.schemas.reasons import Reason, Unavailable

NOT_LISTED = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not have it")
SDK_ONLY = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not serve it, only libtpu's SDK has it")
NOT_OF_THIS = Unavailable(Reason.NOT_SUPPORTED, "the runtime says it of other devices, not of this one")


class Gauges:
    """One port's devices and their numbers.

    Args:
        answers: What the port said.
        per_chip: How many devices share a duty cycle.
        now: Seconds since 1970.

    Attributes:
        port: The port.
        failure: Why nothing came of asking it.
        ids: The devices that it names, in order.
    """

    def __init__(self, answers: PortAnswers, per_chip: int, now: float) -> None:
        self.port = answers.port
        self.failure = answers.failure
        self._now = now
        self._values: dict[str, dict[int, Value]] = {}
        self._missing: dict[str, Unavailable] = {}
        for field in FIELDS:
            self._take(field, answers)
        for field in FIELDS:
            if field.duty_cycle and per_chip > 1:
                self._values[field.name] = self._fanned_out(self._values[field.name], per_chip)
        self.ids = sorted({number for values in self._values.values() for number in values})

    def value(self, name: str, number: int) -> Value:
        """A device's number, or why there is none."""
        return self._values[name].get(number, self._missing[name])

    def _take(self, field: DeviceField, answers: PortAnswers) -> None:
        answer = answers.metrics.get(field.grpc, NOT_LISTED if field.grpc else SDK_ONLY)
        values: dict[int, Value] = {}
        missing = answer if isinstance(answer, Unavailable) else NOT_OF_THIS
        for entry in () if isinstance(answer, Unavailable) else answer:
            number = device_id(entry.attribute)
            if number is None:
                missing = Unavailable(Reason.PARSE_ERROR, f"the runtime does not say of which device its {field.grpc} is")
            else:
                values[number] = self._read(field, entry)
        self._values[field.name], self._missing[field.name] = values, missing

    def _read(self, field: DeviceField, entry: Entry) -> Value:
        age = self._now - entry.seconds
        if field.momentary and entry.seconds > 0 and age > STALE_AFTER:
            return Unavailable(Reason.STALE, f"the runtime noted it {age:.0f} s ago")
        if entry.measure is None:
            return Unavailable(Reason.PARSE_ERROR, "the runtime's entry holds no value")
        if isinstance(entry.measure, (Distribution, Summary)):
            return Unavailable(Reason.PARSE_ERROR, "the runtime answered a distribution")
        return checked(field, entry.measure)

    def _fanned_out(self, chips: dict[int, Value], per_chip: int) -> dict[int, Value]:
        """From chips to devices, as Google's own ``tpu-info`` does it: in order where the numbers fit, else by arithmetic."""
        others = sorted({number for values in self._values.values() if values is not chips for number in values})
        if set(chips) == set(others):
            return chips  # the runtime told it of devices already
        numbers = others if len(others) == per_chip * len(chips) else _devices_of(sorted(chips), per_chip)
        repeated = [chips[chip] for chip in sorted(chips) for _ in range(per_chip)]
        return dict(zip(numbers, repeated, strict=True))


def _devices_of(chips: Sequence[int], per_chip: int) -> list[int]:
    return [chip * per_chip + core for chip in chips for core in range(per_chip)]
