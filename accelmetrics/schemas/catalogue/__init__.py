"""The catalogue: the meaning of every metric, one row each, and the recognition of keys.

The tables are plain data and name no vendor: the backends that give a metric, and where each one reads it, are generated from the
backends' coverage into ``coverage.py``. Indexes are built on the first look-up, so that importing this costs next to nothing. Rows of
a plug-in are added when it is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import TypeVar

from accelmetrics.schemas.catalogue import devices, errors, gpu, host, ipu, neuron, tpu
from accelmetrics.schemas.metric import ANY_KIND, BASE_UNITS, CODE, LINK, NOTHING, Metric, device_key, field_of, fill, is_number
from accelmetrics.schemas.named_tuple import NamedTuple

_T = TypeVar("_T")


class Section(NamedTuple):
    """A section of the catalogue, as it is printed.

    Attributes:
        family: The subject of the rows: ``Device``, ``GPU``, ``Host``.
        title: The section's heading.
        rows: Its metrics.
    """

    family: str
    title: str
    rows: tuple[Metric, ...]


SECTIONS: tuple[Section, ...] = (
    Section("Device", "Activity", devices.ACTIVITY),
    Section("Device", "Memory", devices.MEMORY),
    Section("Device", "Temperature", devices.TEMPERATURE),
    Section("Device", "Power", devices.POWER),
    Section("Device", "Clocks", devices.CLOCKS),
    Section("Device", "Throttling", devices.THROTTLING),
    Section("Device", "Memory errors", errors.ERRORS),
    Section("Device", "PCIe", devices.PCIE),
    Section("Device", "The watched process on a device", devices.PROCESS),
    Section("GPU", "Activity", gpu.ACTIVITY),
    Section("GPU", "Faults", gpu.FAULTS),
    Section("GPU", "NVLink", gpu.NVLINK),
    Section("GPU", "xGMI", gpu.XGMI),
    Section("GPU", "Modes and NVLink-C2C", gpu.MODES),
    Section("GPU", "Profiling", gpu.PROFILING),
    Section("GPU", "Apple silicon", gpu.APPLE),
    Section("TPU", "Activity", tpu.ACTIVITY),
    Section("TPU", "Memory", tpu.MEMORY),
    Section("TPU", "Links and throttling", tpu.HEALTH),
    Section("TPU", "Transfers", tpu.TRANSFERS),
    Section("TPU", "Network", tpu.NETWORK),
    Section("TPU", "Programs", tpu.PROGRAMS),
    Section("Neuron", "NeuronCores", neuron.CORES),
    Section("Neuron", "Memory", neuron.MEMORY),
    Section("Neuron", "Machine and chips", neuron.MACHINE),
    Section("Neuron", "Execution", neuron.EXECUTION),
    Section("IPU", "Activity", ipu.ACTIVITY),
    Section("IPU", "Temperature, power and link", ipu.CONDITION),
    Section("Host", "The watched process", host.PROCESS),
    Section("Host", "Processor", host.PROCESSOR),
    Section("Host", "Memory", host.MEMORY),
    Section("Host", "Disks", host.DISKS),
    Section("Host", "Network", host.NETWORK),
    Section("Host", "InfiniBand and RoCE", host.INFINIBAND),
    Section("Host", "Apple silicon", host.APPLE),
    Section("Program", "PyTorch", host.PROGRAM),
)
CATALOGUE: tuple[Metric, ...] = tuple(row for section in SECTIONS for row in section.rows)


class KeyMatch(NamedTuple):
    """The meaning of a concrete key.

    Attributes:
        row: The metric.
        device: The key of the device, ``gpu.0.mig.1`` in ``gpu.0.mig.1.smActive``; empty for the machine's metrics.
        instance: The text at the placeholder in the row's name: ``7`` in ``gpu.3.nvlink.7.state``, ``/`` in ``disk./.usageGB``.
        alias: Whether the key is spelled by an alias of the row.
    """

    row: Metric
    device: str = ""
    instance: str = ""
    alias: bool = False


_added: dict[str, Metric] = {}
_forget_keys: list[Callable[[], None]] = []
_edition = [object()]


@cache
def _index() -> tuple[dict[str, tuple[Metric, bool]], dict[str, dict[str, tuple[Metric, bool]]], list[tuple[str, str, bool, Metric, bool]]]:
    """Return the indexes that keys are recognised by. Each row comes with whether the spelling is an alias.

    Returns:
        Rows by whole key; rows by device part without number, then name; and for the machine's keys with a placeholder: the text
        before and after it, whether it stands for a number, and the row.
    """
    whole: dict[str, tuple[Metric, bool]] = {}
    names: dict[str, dict[str, tuple[Metric, bool]]] = {}
    templates: list[tuple[str, str, bool, Metric, bool]] = []
    for row in (*_added.values(), *CATALOGUE):  # the catalogue last, so that its own rows take precedence
        for spelling in (row.key, *row.aliases):
            alias = spelling != row.key
            if row.device_part:
                head, _, name = spelling.partition(".{i}.")
                names.setdefault(head, {})[name] = (row, alias)
            elif "{" in spelling:
                prefix, _, rest = spelling.partition("{")
                placeholder, _, suffix = rest.partition("}")
                templates.append((prefix, suffix, placeholder == "i", row, alias))
            else:
                whole[spelling] = (row, alias)
    return whole, names, templates


def per_key(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Cache a function's results for each key until rows are added."""
    remembered = lru_cache(maxsize=16_384)(function)
    _forget_keys.append(remembered.cache_clear)
    return remembered


def add(rows: Iterable[Metric]) -> None:
    """Add rows for metrics of a plug-in.

    Keys that the catalogue has already keep their meaning. A row without a Prometheus or OpenTelemetry name gets one derived from its
    name and unit.
    """
    new = {}
    for row in rows:
        found = [match(spelling) for spelling in (row.key, *row.aliases)]
        if all(known is None or known.key in _added for known in found):
            new[row.key] = _named(row)
    if any(_added.get(key) != row for key, row in new.items()):
        _added.update(new)
        _index.cache_clear()
        _edition[0] = object()
        for forget in _forget_keys:
            forget()


def edition() -> object:
    """Return an object that is replaced whenever rows are added, to validate caches that depend on many keys."""
    return _edition[0]


def rows() -> tuple[Metric, ...]:
    """Return every row, including rows of plug-ins."""
    return (*CATALOGUE, *_added.values())


def _named(row: Metric) -> Metric:
    """Return the row with its names in other systems: ``accel_dma_bytes_total``, ``accel.dma_bytes``."""
    field = field_of(fill(row.name.replace("{i}", ""), ""))
    suffix = BASE_UNITS[row.unit].suffix if row.unit in BASE_UNITS else ""
    field = "".join(letter if letter.isascii() else "_" for letter in field)
    stem = field.removesuffix("_total").removesuffix("_percent").removesuffix(suffix)
    prometheus = f"accel_{stem}{suffix}{'_total' if row.kind == 'counter' else ''}"
    return row._replace(prometheus=row.prometheus or prometheus, otel=row.otel or f"accel.{field}")


def resolve(key: str) -> KeyMatch | None:
    """Return the match of a key (``gpu.3.powerWatts``) or template, under any of its spellings; None if it is unknown."""
    whole, by_part, templates = _index()
    if found := whole.get(key):
        return KeyMatch(found[0], alias=found[1])
    parts = device_key(key)
    if parts is not None:
        # ``nvlink.7.state`` has the row of ``nvlink.{link}.state``.
        first, _, rest = parts.name.partition(".")
        number, _, last = rest.partition(".")
        templates_of = [f"{first}.{each}.{last}" for each in (LINK, CODE)] if is_number(number) else []
        for head in (parts.kind, ANY_KIND):
            names = by_part.get(f"{head}.process" if parts.process else head, {})
            if found := names.get(parts.name):
                return KeyMatch(found[0], parts.device, alias=found[1])
            if found := next((names[each] for each in templates_of if each in names), None):
                return KeyMatch(found[0], parts.device, number, found[1])
    for prefix, suffix, numbered, row, alias in templates:
        instance = key[len(prefix) : len(key) - len(suffix)]
        if instance and key == f"{prefix}{instance}{suffix}" and (not numbered or is_number(instance)):
            return KeyMatch(row, f"gpu.{instance}" if prefix == "torch." else "", instance, alias)
    return None


@per_key
def recognise(key: str) -> KeyMatch | None:
    """Return the match of a key, like :func:`resolve`. A device's key without a row is a plain number without a meaning."""
    found = resolve(key)
    parts = None if found else device_key(key)
    if parts is None or parts.process:
        return found
    return KeyMatch(_named(Metric(f"{parts.kind}.{{i}}.{parts.name}", "1", "gauge", "", minimum=None)), parts.device)


def match(key: str) -> Metric | None:
    """Return the row of a concrete key or template, under any of its spellings; None if the catalogue does not have it."""
    found = resolve(key)
    return found.row if found else None


def find(key: str) -> Metric:
    """Return the row of a key, like :func:`match`.

    Raises:
        UnknownNameError: The catalogue does not have the key. The message suggests the nearest.
    """
    row = match(key)
    if row is None:
        from accelmetrics.schemas.errors import UnknownNameError

        parts = device_key(key)
        raise UnknownNameError("metric", key, (row.key.replace(ANY_KIND, parts.kind if parts else "gpu") for row in CATALOGUE))
    return row


# Coverage of backends


def coverage_of(backend: str) -> Mapping[str, Mapping[str, str]]:
    """Return a built-in backend's coverage: by part (``devices``, ``machine`` …), names with the place where each is read."""
    from accelmetrics.schemas.coverage import COVERAGE

    return COVERAGE.get(backend, {})


def expected_names(backend: str, partition: bool = False) -> tuple[str, ...]:
    """Return the names that a built-in backend must report for each device or partition at every reading: as a value or a reason."""
    return tuple(coverage_of(backend).get("partitions" if partition else "devices", NOTHING))


def expected_keys(backend: str) -> tuple[str, ...]:
    """Return the machine's keys, without placeholders, that a built-in backend must report at every reading: as a value or a reason."""
    return tuple(coverage_of(backend).get("machine", NOTHING))


@cache
def given_by() -> Mapping[str, Mapping[str, str]]:
    """Return, by the key of a row, the built-in backends that give it, each with the place where it is read."""
    from accelmetrics.schemas.coverage import KINDS

    found: dict[str, dict[str, str]] = {}
    for backend, kind in KINDS.items():
        for key, words in read_from(kind, coverage_of(backend)).items():
            found.setdefault(key, {})[backend] = words
    return found


def read_from(kind: str, coverage: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return, by the key of each row that a backend gives, the place where it is read.

    Args:
        kind: The kind of its devices; empty for the machine itself.
        coverage: The parts of its coverage.
    """
    found: dict[str, str] = {}
    for part, names in coverage.items():
        head = f"{kind}.process.0." if part == "processes" else f"{kind}.0."
        for name, words in names.items():
            row = match(name) if part == "machine" else match(f"{head}{name}") or match(name)
            if row is not None:
                found.setdefault(row.key, words)
    return found
