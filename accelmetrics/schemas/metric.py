"""One row of the catalogue: everything that is known about one metric, wherever it is read.

A row says nothing about vendors: which of them give a metric, and where each reads it, is in the backends' coverage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple

Unit = Literal["%", "1", "By", "MiBy", "GiBy", "By/s", "W", "J", "Cel", "MHz", "Hz", "s", "us", "Mbit/s", "GT/s", "rpm"]
"""UCUM-style units. ``1`` is a plain number (a count, a state, a ratio); the key's row says which."""
Kind = Literal["gauge", "counter"]
Preset = Literal["core", "standard", "all"]
"""Presets of a selection, each within the next."""

ABSOLUTE_ZERO = -273.15
"""The smallest temperature, in degrees Celsius."""
UTILIZATION = ("gpu", "utilization", "dutyCycle", "tensorcoreUtilization", "neuroncore_utilization", "ipu utilisation (%)")
MEMORY_USED = ("memoryAllocatedBytes", "hbmCapacityUsage")
POWER = ("powerWatts", "ipu power (W)")
TEMPERATURE = ("temp", "average die temp (C)")
VITAL = frozenset((*UTILIZATION, *TEMPERATURE, *POWER, *MEMORY_USED))
"""Metrics of which a device that answers gives one; they stand here, since every reading needs them."""
PARTITION = "mig"
"""The word between a device's key and the number of its partition: ``gpu.0.mig.1``."""
ANY_KIND = "{kind}"
"""Stands in a row's key where the metric means the same on every kind of device."""
LINK, CODE = "{link}", "{code}"
"""Stand in a row's name for the number of a link, and the code of an error."""
NO_KINDS = frozenset({"cpu", "disk", "ib", "openmetrics", "torch"})
"""Words that numbers or names of other things follow in keys: ``cpu.3.cpu_percent`` is about no device."""

# A plain dict, not a mapping proxy: it travels through pickle to a child process.
NOTHING: Mapping[str, str] = {}


class Metric(NamedTuple):
    """What a key means, wherever it appears.

    Attributes:
        key: The template: ``{kind}.{i}.powerWatts`` for devices of every kind, ``tpu.{i}.dutyCycle`` where one kind alone has it,
            ``{kind}.process.{i}.temp``, ``disk.{path}.usageGB``, ``cpu``.
        unit: The unit of the value under this key, on every vendor.
        kind: ``gauge``, or ``counter`` for a number that only rises (until the source is reset).
        meaning: One sentence.
        prometheus: Metric name and labels in our own exposition, ``accel_power_watts``,
            ``accel_temperature_celsius{sensor="core"}``, ``accel_host_cpu_ratio{cpu="{i}"}`` (a placeholder of the key stands
            for the instance); empty when the value is derivable or has no place there.
        otel: OpenTelemetry metric name and attributes, ``hw.temperature{hw.sensor_location="core"}``; ``{kind}`` stands for the
            device's kind.
        aliases: Other templates under which the same value is emitted too (documented spellings).
        integer: Whether the value is always a whole number.
        maximum: The largest value that is possible, where the meaning sets one (100 for most percentages).
        minimum: The smallest value that is possible.
        preset: The smallest preset of a selection that has it: ``core`` for the few of each device that are looked at first, ``all``
            for detail, of which a machine has many or which costs much to read.
    """

    key: str
    unit: Unit
    kind: Kind
    meaning: str
    prometheus: str = ""
    otel: str = ""
    aliases: tuple[str, ...] = ()
    integer: bool = False
    maximum: float | None = None
    minimum: float | None = 0.0
    preset: Preset = "standard"

    @property
    def name(self) -> str:
        """The part that a backend gives: ``powerWatts`` of ``{kind}.{i}.powerWatts``; the whole key for the machine's."""
        return name_of(self.key)

    @property
    def names(self) -> tuple[str, ...]:
        """The name, and those of the aliases."""
        return (self.name, *map(name_of, self.aliases))

    @property
    def field(self) -> str:
        """The attribute of the typed view: ``power_watts``."""
        return field_of(self.name)

    @property
    def device_part(self) -> str:
        """What a backend's name is appended to: ``{kind}.{i}``, ``tpu.{i}``, ``{kind}.process.{i}``; empty for the machine's keys."""
        return self.key[: -len(self.name) - 1] if self.name != self.key else ""

    @property
    def of_process(self) -> bool:
        """Whether it is about the watched process on a device."""
        return ".process." in self.device_part

    @property
    def templated(self) -> bool:
        """Whether the name itself still holds a placeholder: a disk, a mount point, a CPU, a link."""
        return "{" in self.name


class DeviceKey(NamedTuple):
    """A key of a device, taken apart.

    Attributes:
        device: The key of the device, or partition, that it is about: ``gpu.0``, ``gpu.0.mig.1``.
        kind: The first word: ``gpu``.
        name: What follows: ``powerWatts``.
        process: Whether it is about the watched process there: ``gpu.process.0.temp``.
    """

    device: str
    kind: str
    name: str
    process: bool


@lru_cache(maxsize=1 << 14)
def device_key(key: str) -> DeviceKey | None:
    """Take a key or template apart; None for one that is about no device."""
    kind, _, rest = key.partition(".")
    of_process = rest.startswith("process.")
    number, _, name = rest.removeprefix("process.").partition(".")
    if not name or not is_number(number) or not (is_kind(kind) or kind == ANY_KIND):
        return None
    if name.startswith(f"{PARTITION}."):
        partition, _, below = name[len(PARTITION) + 1 :].partition(".")
        if below and is_number(partition):
            number, name = f"{number}.{PARTITION}.{partition}", below
    return DeviceKey(f"{kind}.{number}", kind, name, of_process)


def is_kind(word: object) -> bool:
    """Tell whether a word may be the kind of devices: lower-case letters and digits, and not what other keys begin with."""
    return isinstance(word, str) and word.isascii() and word.isalnum() and word.islower() and word[0].isalpha() and word not in NO_KINDS


def is_number(text: str) -> bool:
    """Tell whether this is the number of a device, a link, a CPU or an error, or the placeholder of one."""
    return (text.isascii() and text.isdecimal()) or text in ("{i}", LINK, CODE)


def fill(template: str, number: str) -> str:
    """Put the number of a link or an error in its place: ``nvlink.{link}.state`` gives ``nvlink.7.state``."""
    return template.replace(LINK, number).replace(CODE, number)


def name_of(template: str) -> str:
    """Strip the device part of a key template, if it has one."""
    found = device_key(template)
    return found.name if found else template


def field_of(name: str) -> str:
    """Return the snake-case attribute for a name: ``tempLimit.slowdown`` gives ``temp_limit_slowdown``."""
    words = []
    before = ""
    for letter in name:
        if letter.isupper() and (before.islower() or before.isdigit()):
            words.append("_")
        words.append(letter.lower() if letter.isalnum() else "_")
        before = letter
    return "_".join(filter(None, "".join(words).split("_")))


def answered(names: Iterable[str]) -> bool:
    """Return whether any of these metrics was asked of the device. Xid errors are not: they are counted of a lost GPU, too."""
    return any(name not in ("xidErrors", "lastXid") and not name.startswith("xid.") for name in names)


def split_series(series: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a row's ``prometheus`` or ``otel``; a label may hold a placeholder of the key."""
    name, _, rest = series.partition("{")
    labels = {}
    for pair in filter(None, rest.removesuffix("}").split(",")):
        label, _, value = pair.partition("=")
        labels[label] = value.strip('"')
    return name, labels


class BaseUnit(NamedTuple):
    """The unit that Prometheus and OpenTelemetry want instead of another one, and the way there.

    Attributes:
        unit: The base unit.
        times: What a value is multiplied by.
        over: What it is divided by; dividing gives 0.7 for 70 %, which multiplying by 0.01 does not.
        suffix: How a Prometheus name ends.
    """

    unit: str
    times: int = 1
    over: int = 1
    suffix: str = ""


BASE_UNITS: Mapping[str, BaseUnit] = {
    "1": BaseUnit("1"),
    "%": BaseUnit("1", over=100, suffix="_ratio"),
    "By": BaseUnit("By", suffix="_bytes"),
    "MiBy": BaseUnit("By", 2**20, suffix="_bytes"),
    "GiBy": BaseUnit("By", 2**30, suffix="_bytes"),
    "By/s": BaseUnit("By/s", suffix="_bytes_per_second"),
    "MiBy/s": BaseUnit("By/s", 2**20, suffix="_bytes_per_second"),
    "Mbit/s": BaseUnit("By/s", 125_000, suffix="_bytes_per_second"),
    "W": BaseUnit("W", suffix="_watts"),
    "J": BaseUnit("J", suffix="_joules"),
    "mJ": BaseUnit("J", over=1000, suffix="_joules"),
    "Cel": BaseUnit("Cel", suffix="_celsius"),
    "Hz": BaseUnit("Hz", suffix="_hertz"),
    "MHz": BaseUnit("Hz", 10**6, suffix="_hertz"),
    "s": BaseUnit("s", suffix="_seconds"),
    "uJ": BaseUnit("J", over=10**6, suffix="_joules"),
    "ns": BaseUnit("s", over=10**9, suffix="_seconds"),
    "us": BaseUnit("s", over=10**6, suffix="_seconds"),
    "GT/s": BaseUnit("{transfer}/s", 10**9, suffix="_transfers_per_second"),
    "rpm": BaseUnit("rpm", suffix="_rpm"),
}
"""By unit; ``mJ``, ``uJ``, ``ns`` and ``MiBy/s`` are those of dialects alone."""
