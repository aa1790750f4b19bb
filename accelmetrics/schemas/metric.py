"""A row of the metric catalogue: everything known about one metric, independent of where it is read.

A row says nothing about vendors. The backends' coverage says which vendors give a metric, and where each one reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple

Unit = Literal["%", "1", "By", "MiBy", "GiBy", "By/s", "W", "J", "Cel", "MHz", "Hz", "s", "us", "Mbit/s", "GT/s", "rpm"]
"""UCUM-style units. ``1`` is a plain number (a count, a state, a ratio); the metric's meaning says which."""
Kind = Literal["gauge", "counter"]
Preset = Literal["core", "standard", "all"]
"""Presets of a selection. Each one contains the one before it."""

ABSOLUTE_ZERO = -273.15
"""The lowest temperature, in degrees Celsius."""
UTILIZATION = ("gpu", "utilization", "dutyCycle", "tensorcoreUtilization", "neuroncore_utilization", "ipu utilisation (%)")
MEMORY_USED = ("memoryAllocatedBytes", "hbmCapacityUsage")
POWER = ("powerWatts", "ipu power (W)")
TEMPERATURE = ("temp", "average die temp (C)")
VITAL = frozenset((*UTILIZATION, *TEMPERATURE, *POWER, *MEMORY_USED))
"""Metrics that show that a device answers: it gives at least one of them. They are defined here because every reading needs them."""
PARTITION = "mig"
"""The word between a device's key and its partition's number: ``gpu.0.mig.1``."""
ANY_KIND = "{kind}"
"""Placeholder in a row's key for a metric that has the same meaning on every kind of device."""
LINK, CODE = "{link}", "{code}"
"""Placeholders in a row's name for the number of a link and the code of an error."""
NO_KINDS = frozenset({"cpu", "disk", "ib", "openmetrics", "torch"})
"""Words that are no kinds of devices, although a number or a name follows them in keys: ``cpu.3.cpu_percent``."""

# A plain dict, not a mapping proxy: it travels through pickle to a child process.
NOTHING: Mapping[str, str] = {}


class Metric(NamedTuple):
    """A metric: the meaning of a key.

    Attributes:
        key: The key template: ``{kind}.{i}.powerWatts`` for devices of every kind, ``tpu.{i}.dutyCycle`` for one kind only,
            ``{kind}.process.{i}.temp``, ``disk.{path}.usageGB``, ``cpu``.
        unit: The unit of the value under this key, for every vendor.
        kind: ``gauge``, or ``counter`` for a number that only rises (until the source is reset).
        meaning: A description in one sentence.
        prometheus: Metric name and labels in our own exposition, ``accel_power_watts``, ``accel_temperature_celsius{sensor="core"}``,
            ``accel_host_cpu_ratio{cpu="{i}"}`` (a placeholder of the key stands for the instance); empty if the value can be derived
            or has no place there.
        otel: OpenTelemetry metric name and attributes, ``hw.temperature{hw.sensor_location="core"}``; ``{kind}`` stands for the
            device's kind.
        aliases: Other templates under which the same value is also reported (documented spellings).
        integer: Whether the value is always an integer.
        maximum: The largest possible value, if the meaning defines one (100 for most percentages).
        minimum: The smallest possible value.
        preset: The smallest preset that contains it: ``core`` for the few main metrics of each device, ``all`` for details that are
            numerous or expensive to read.
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
        """The name that a backend gives: ``powerWatts`` of ``{kind}.{i}.powerWatts``. It is the whole key for the machine."""
        return name_of(self.key)

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the names of the aliases."""
        return (self.name, *map(name_of, self.aliases))

    @property
    def field(self) -> str:
        """The attribute name in the typed view: ``power_watts``."""
        return field_of(self.name)

    @property
    def device_part(self) -> str:
        """The template without the name: ``{kind}.{i}``, ``{kind}.process.{i}``, ``tpu.{i}``; empty for the machine."""
        return self.key[: -len(self.name) - 1] if self.name != self.key else ""

    @property
    def of_process(self) -> bool:
        """Whether it describes the watched process on a device."""
        return ".process." in self.device_part

    @property
    def templated(self) -> bool:
        """Whether the name itself contains a placeholder: a disk, a mount point, a CPU, a link."""
        return "{" in self.name


class DeviceKey(NamedTuple):
    """The parts of a device's key.

    Attributes:
        device: The key of the device or partition: ``gpu.0``, ``gpu.0.mig.1``.
        kind: The first word: ``gpu``.
        name: The name of the metric: ``powerWatts``.
        process: Whether it describes the watched process on the device: ``gpu.process.0.temp``.
    """

    device: str
    kind: str
    name: str
    process: bool


@lru_cache(maxsize=1 << 14)
def device_key(key: str) -> DeviceKey | None:
    """Return the parts of a key or template; None if it does not describe a device."""
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
    """Return whether a word can be a kind of devices: lower-case letters and digits, and no word of other keys."""
    return isinstance(word, str) and word.isascii() and word.isalnum() and word.islower() and word[0].isalpha() and word not in NO_KINDS


def is_number(text: str) -> bool:
    """Return whether a text is a number in a key (of a device, a link, a CPU or an error), or a placeholder of one."""
    return (text.isascii() and text.isdecimal()) or text in ("{i}", LINK, CODE)


def fill(template: str, number: str) -> str:
    """Insert the number of a link or an error into a template: ``nvlink.{link}.state`` becomes ``nvlink.7.state``."""
    return template.replace(LINK, number).replace(CODE, number)


def name_of(template: str) -> str:
    """Return a key template without its device part, if it has one."""
    found = device_key(template)
    return found.name if found else template


def field_of(name: str) -> str:
    """Return the snake-case attribute of a name: ``tempLimit.slowdown`` becomes ``temp_limit_slowdown``."""
    words = []
    before = ""
    for letter in name:
        if letter.isupper() and (before.islower() or before.isdigit()):
            words.append("_")
        words.append(letter.lower() if letter.isalnum() else "_")
        before = letter
    return "_".join(filter(None, "".join(words).split("_")))


def answered(names: Iterable[str]) -> bool:
    """Return whether any of these metrics shows that the device answered.

    Xid errors do not show it: they are counted for lost GPUs too.
    """
    return any(name not in ("xidErrors", "lastXid") and not name.startswith("xid.") for name in names)


def split_series(series: str) -> tuple[str, dict[str, str]]:
    """Return name and labels of a row's ``prometheus`` or ``otel`` text. A label may contain a placeholder of the key."""
    name, _, rest = series.partition("{")
    labels = {}
    for pair in filter(None, rest.removesuffix("}").split(",")):
        label, _, value = pair.partition("=")
        labels[label] = value.strip('"')
    return name, labels


class BaseUnit(NamedTuple):
    """The base unit that Prometheus and OpenTelemetry want in place of a unit, and the conversion.

    Attributes:
        unit: The base unit.
        times: The factor.
        over: The divisor. Dividing by 100 gives exactly 0.7 for 70 %; multiplying by 0.01 does not.
        suffix: The suffix of a Prometheus name.
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
"""Base units by unit. ``mJ``, ``uJ``, ``ns`` and ``MiBy/s`` occur only in dialects."""
