"""One row of the catalogue: everything that is known about one metric, in one place."""

# Annotations are evaluated here: a named tuple whose annotations are strings takes a millisecond longer to make.
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Unit = Literal["%", "1", "By", "MiBy", "GiBy", "By/s", "W", "J", "Cel", "MHz", "Hz", "s", "us", "Mbit/s", "GT/s"]
"""UCUM-style units. ``1`` is a plain number (a count, a state, a ratio); the key's row says which."""
Kind = Literal["gauge", "counter"]

DEVICE_KINDS = ("gpu", "tpu", "trn", "ipu", "npu", "hpu")
"""The first words of device keys that built-in backends give; those of other packages may have any other."""

PROGRAM_WORDS = ("torch",)
"""The first words of keys that the watched program itself gives."""

PARTITION = "mig"
"""The word between a device's key and the number of its partition: ``gpu.0.mig.1``."""

_NO_DEVICES = ("cpu", "disk", *PROGRAM_WORDS)
"""Words after which a number is not a device's: ``cpu.3.cpu_percent``."""
_NUMBER = r"(?:[0-9]+|{i})"
_DEVICE_KEY = re.compile(rf"([a-z][a-z0-9]*)\.(?:process\.)?({_NUMBER}(?:\.{PARTITION}\.{_NUMBER})?)\.(.+)", re.DOTALL)

# A plain dict, not a mapping proxy: rows of a plug-in travel through pickle to a child process.
NOTHING: Mapping[str, str] = {}


class Metric(NamedTuple):
    """What a key means, wherever it appears. Which backends give it, their coverage says.

    Attributes:
        key: The template, as W&B spells it: ``gpu.{i}.powerWatts``, ``gpu.process.{i}.temp``, ``disk.{path}.usageGB``, ``cpu``.
        unit: The unit of the value under this key, on every vendor.
        kind: ``gauge``, or ``counter`` for a number that only rises (until the source is reset).
        meaning: One sentence.
        aliases: Other templates under which the same value is emitted too (documented spellings).
        integer: Whether the value is always a whole number.
        maximum: The largest value that is possible, where the meaning sets one (100 for most percentages).
        minimum: The smallest value that is possible.
        conditional: The key exists only while some instance does (a process on the device, a link, a partition).
        prometheus: Metric name and labels in our own exposition, ``accel_power_watts``,
            ``accel_temperature_celsius{sensor="core"}``, ``accel_host_cpu_ratio{cpu="{i}"}`` (a placeholder of the key stands
            for the instance); empty when the value is derivable or has no place there.
        otel: OpenTelemetry metric name and attributes, ``hw.temperature{hw.sensor_location="core"}``.
        factor: What the value is multiplied by to reach the base unit that Prometheus and OpenTelemetry use.
    """

    key: str
    unit: Unit
    kind: Kind
    meaning: str
    aliases: tuple[str, ...] = ()
    integer: bool = False
    maximum: float | None = None
    minimum: float | None = 0.0
    conditional: bool = False
    prometheus: str = ""
    otel: str = ""
    factor: float = 1.0

    @property
    def name(self) -> str:
        """The part that a backend gives: ``powerWatts`` of ``gpu.{i}.powerWatts``; the whole key for the host's."""
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
        """What a backend's name is appended to: ``gpu.{i}``, ``gpu.process.{i}``; empty for the host's keys."""
        return self.key[: -len(self.name) - 1] if self.name != self.key else ""

    @property
    def of_host(self) -> bool:
        """Whether it is the host's: not a device's, nor of all devices of a kind (``tpu.grpcTcpMinRtt.meanUs``), nor the program's."""
        return not self.device_part and is_host_key(self.key)

    @property
    def templated(self) -> bool:
        """Whether the name itself still holds a placeholder: a disk, a mount point, a CPU, a link."""
        return "{" in self.name


def name_of(template: str) -> str:
    """Strip the device part of a key template, if it has one."""
    head, found, name = template.partition(".{i}.")
    kind, _, rest = head.partition(".")
    return name if found and kind not in _NO_DEVICES and rest in ("", "process") else template


def split_key(key: str) -> tuple[str, str]:
    """Split the key or the template of a metric into its device, or partition, and its name; no device where it belongs to none."""
    found = _DEVICE_KEY.fullmatch(key)
    return (f"{found[1]}.{found[2]}", found[3]) if found and found[1] not in _NO_DEVICES else ("", key)


def is_host_key(key: str) -> bool:
    """Whether a key is the host's: not a device's, nor of all devices of a kind, nor the program's."""
    return key.partition(".")[0] not in (*DEVICE_KINDS, *PROGRAM_WORDS) and not split_key(key)[0]


def field_of(name: str) -> str:
    """The snake-case attribute for a name: ``tempLimit.slowdown`` gives ``temp_limit_slowdown``."""
    words = []
    before = ""
    for letter in name:
        if letter.isupper() and (before.islower() or before.isdigit()):
            words.append("_")
        words.append(letter.lower() if letter.isalnum() else "_")
        before = letter
    return "_".join(filter(None, "".join(words).split("_")))


def split_series(series: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a row's ``prometheus`` or ``otel``; a label may hold a placeholder of the key."""
    name, _, rest = series.partition("{")
    labels = {}
    for pair in filter(None, rest.removesuffix("}").split(",")):
        label, _, value = pair.partition("=")
        labels[label] = value.strip('"')
    return name, labels
