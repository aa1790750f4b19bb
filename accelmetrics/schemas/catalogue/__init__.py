"""The catalogue: every metric that the built-in backends know, one row each.

The tables are plain data. What is looked up in them is built on the first look-up, so that importing this costs next to
nothing.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from accelmetrics.schemas.catalogue import apple, gpu, gpu_links, gpu_process, gpu_profiling, host, ipu, neuron, torch, tpu
from accelmetrics.schemas.metric import NOTHING, Metric, split_key


class Section(NamedTuple):
    """A part of the catalogue, as it is printed.

    Attributes:
        family: What the rows are about: ``GPU``, ``Host``.
        title: The section's heading.
        rows: Its metrics.
    """

    family: str
    title: str
    rows: tuple[Metric, ...]


SECTIONS: tuple[Section, ...] = (
    Section("GPU", "Activity", gpu.ACTIVITY),
    Section("GPU", "Memory", gpu.MEMORY),
    Section("GPU", "Temperature", gpu.TEMPERATURE),
    Section("GPU", "Power", gpu.POWER),
    Section("GPU", "Clocks", gpu.CLOCKS),
    Section("GPU", "Throttling", gpu.THROTTLING),
    Section("GPU", "Memory errors", gpu_links.ERRORS),
    Section("GPU", "Faults", gpu_links.FAULTS),
    Section("GPU", "PCIe", gpu_links.PCIE),
    Section("GPU", "NVLink", gpu_links.NVLINK),
    Section("GPU", "xGMI", gpu_links.XGMI),
    Section("GPU", "Profiling", gpu_profiling.PROFILING),
    Section("GPU", "The watched process on a GPU", gpu_process.PROCESS),
    Section("GPU", "Apple silicon", apple.GPU),
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
    Section("Host", "Apple silicon", apple.MACHINE),
    Section("Program", "PyTorch", torch.MEMORY),
)
CATALOGUE: tuple[Metric, ...] = tuple(row for section in SECTIONS for row in section.rows)


class KeyMatch(NamedTuple):
    """A concrete key, recognised.

    Attributes:
        row: The metric.
        instance: What stands at the placeholder: ``3`` in ``gpu.3.temp``, ``0.mig.1`` in ``gpu.0.mig.1.smActive``, ``/`` in
            ``disk./.usageGB``; empty without one.
        alias: Whether the key is another spelling of the row's own.
        link: What stands at a second placeholder: ``7`` in ``gpu.3.nvlink.7.state``.
        listed: The catalogue's own row; ``row`` is made of it for a kind of device that has no rows of its own.
    """

    row: Metric
    instance: str
    alias: bool
    link: str
    listed: Metric


class _Index(NamedTuple):
    plain: dict[str, tuple[Metric, bool]]
    by_device_part: dict[str, dict[str, tuple[Metric, bool]]]
    templates: list[tuple[str, str, bool, Metric, bool]]


@cache
def _index() -> _Index:
    index = _Index({}, {}, [])
    for row in CATALOGUE:
        for spelling in (row.key, *row.aliases):
            _enter(index, row, spelling, spelling != row.key)
    return index


def _enter(index: _Index, row: Metric, spelling: str, alias: bool) -> None:
    if row.device_part:
        head, _, name = spelling.partition(".{i}.")
        index.by_device_part.setdefault(head, {})[name] = (row, alias)
    elif "{" in spelling:
        prefix, _, rest = spelling.partition("{")
        placeholder, _, suffix = rest.partition("}")
        index.templates.append((prefix, suffix, placeholder == "i", row, alias))
    else:
        index.plain[spelling] = (row, alias)


# What the built-in backends give: generated from their coverage, so that no backend is loaded to look it up.


def expected_names(backend: str, partition: bool = False) -> tuple[str, ...]:
    """The names that a built-in backend owes at every reading of every device, or partition: each has a value or a reason.

    Aliases' names are among them. Left out are the keys of instances that may not exist (a process on the device, a link).
    """
    return tuple(_coverage(backend)["partitions" if partition else "devices"])


def expected_keys(backend: str) -> tuple[str, ...]:
    """The whole keys that a built-in backend owes at every reading: those that belong to no device, nor to a disk, mount point or CPU."""
    return tuple(_coverage(backend)["machine"])


def rows_for(backend: str) -> tuple[Metric, ...]:
    """The rows that a built-in backend gives, in the catalogue's order."""
    return tuple(row for row in CATALOGUE if backend in sources_of(row))


def sources_of(row: Metric) -> Mapping[str, str]:
    """By built-in backend, where it reads a metric, in words."""
    return _sources().get(row.key, NOTHING)


def partitions_of(row: Metric) -> tuple[str, ...]:
    """The backends whose partitions of a device have a metric too; what the board has as a whole (power, temperature) stays with it."""
    return () if row.conditional else tuple(each for each in sources_of(row) if row.name in _coverage(each)["partitions"])


def _coverage(backend: str) -> Mapping[str, Mapping[str, str]]:
    from accelmetrics.schemas.catalogue.sources import COVERAGE

    return COVERAGE.get(backend, COVERAGE[""])


@cache
def _sources() -> Mapping[str, Mapping[str, str]]:
    from accelmetrics.schemas.catalogue.sources import COVERAGE, KINDS

    found: dict[str, dict[str, str]] = {}
    for backend, parts in COVERAGE.items():
        for part, names in parts.items():
            head = f"{KINDS[backend]}.process.{{i}}." if part == "processes" else f"{KINDS[backend]}.{{i}}."
            for name, words in names.items():
                seen = resolve(f"{head}{name}") or resolve(name)
                if seen is not None and not seen.alias:
                    found.setdefault(seen.listed.key, {})[backend] = words
    for key, words in torch.SOURCES.items():
        found[key] = {"torch": words}
    return found


def resolve(key: str) -> KeyMatch | None:
    """Recognise a concrete key (``gpu.3.powerWatts``) or a template, under any of its spellings; None when it is unknown."""
    index = _index()
    if plain := index.plain.get(key):
        return KeyMatch(plain[0], "", plain[1], "", plain[0])
    return _resolve_device(index, key) or _resolve_template(index, key)


def _resolve_device(index: _Index, key: str) -> KeyMatch | None:
    device, name = split_key(key)
    kind, _, instance = device.partition(".")
    if not device:
        return None
    names = _rows_of(f"{kind}.process" if key.startswith(f"{kind}.process.") else kind)
    found, link = names.get(name), ""
    if found is None:
        name, link = _split_link(name)
        found = names.get(name)
    return KeyMatch(found[0], instance, found[1], link, found[2]) if found else None


@cache
def _rows_of(part: str) -> dict[str, tuple[Metric, bool, Metric]]:
    """By name, the rows of a kind of device: its own, or those of GPUs, which mean the same on every accelerator."""
    own = _index().by_device_part.get(part)
    if own is not None:
        return {name: (row, alias, row) for name, (row, alias) in own.items()}
    kind, _, process = part.partition(".")
    rows = _index().by_device_part["gpu.process" if process else "gpu"]
    return {NEUTRAL_NAMES.get(name, name): (row_for(kind, row), alias, row) for name, (row, alias) in rows.items()}


NEUTRAL_NAMES = {"gpu": "utilization"}
"""Names that say which kind of device they are about, and what they are on devices of other kinds."""


def has_own_rows(kind: str) -> bool:
    """Whether a kind of device has rows of its own. Devices of other kinds have those of GPUs."""
    return kind in _index().by_device_part


def row_for(kind: str, row: Metric) -> Metric:
    """A GPU's row as devices of another kind have it, if they have no rows of their own; any other row unchanged."""
    if row.key.partition(".")[0] != "gpu" or has_own_rows(kind):
        return row
    head = row.key.removesuffix(row.name).replace("gpu", kind, 1)
    aliases = tuple(alias.replace("gpu", kind, 1) for alias in row.aliases)
    return row._replace(key=head + NEUTRAL_NAMES.get(row.name, row.name), aliases=aliases)


def _split_link(name: str) -> tuple[str, str]:
    """``nvlink.7.state`` as the template that its row has, and the number of the link."""
    head, _, rest = name.partition(".")
    link, _, last = rest.partition(".")
    return (f"{head}.{{link}}.{last}", link) if _is_number(link) or link == "{link}" else (name, "")


def _resolve_template(index: _Index, key: str) -> KeyMatch | None:
    for prefix, suffix, numbered, row, alias in index.templates:
        instance = key[len(prefix) : len(key) - len(suffix)]
        if instance and key == f"{prefix}{instance}{suffix}" and (not numbered or _is_number(instance)):
            return KeyMatch(row, instance, alias, "", row)
    return None


def _is_number(text: str) -> bool:
    return (text.isascii() and text.isdecimal()) or text == "{i}"


def match(key: str) -> Metric | None:
    """The row of a concrete key or template, under any of its spellings; None when the catalogue does not have it."""
    sighting = resolve(key)
    return sighting.row if sighting else None


def find(key: str) -> Metric:
    """As :func:`match`.

    Raises:
        UnknownNameError: The catalogue does not have the key; the message suggests the nearest.
    """
    return _found(key).row


def listed(key: str) -> Metric:
    """The catalogue's own row of a key, which is the GPU's for devices of kinds without rows of their own. Raises as :func:`find`."""
    return _found(key).listed


def _found(key: str) -> KeyMatch:
    found = resolve(key)
    if found is None:
        from accelmetrics.schemas.errors import UnknownNameError

        raise UnknownNameError("metric", key, (row.key for row in CATALOGUE))
    return found
