"""The driver's counters below ``/sys/devices/virtual/neuron_device``, which are only read.

Writing a counter clears it for all programs, and writing the file ``reset`` resets the chip. So no file is opened for writing. Each counter
is a directory with ``total`` and ``present``. For memory, ``total`` is the amount in use now and ``present`` the last change (AWS's sysfs
guide). For time (µs) and operations, ``total`` accumulates since the driver was loaded.

Some runtimes do not fill the counters of time and operations. So a counter of exactly 0 has never counted, and is not 0 %. The counters do
not show which program uses a core.

Power is a percentage of the chip's highest power; the driver gives no watts. It takes a new sample each minute. The power is also read when
``neuron-monitor`` is the source, since the tool does not print it.

AWS's guide says that driver 2.31 moved several counters. Moved counters are not read: their metrics are missing with a reason, detection
mentions it, and ``neuron-monitor`` is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends import neuron
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, ReadOptions
from accelmetrics.backends.kit import (
    Derived,
    DeviceDirectory,
    DeviceRecord,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Rate,
    Row,
    Source,
    number,
    quoted,
)
from accelmetrics.backends.kit.system import Files, read_text
from accelmetrics.backends.neuron import INSTALL_TOOL, MOVED, ROOT, monitor
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, HOST_MEMORY, POWER
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

TOOL_ONLY = Unavailable(Reason.NOT_SUPPORTED, "only neuron-monitor reports this: install aws-neuronx-tools")
NOT_BY_PROCESS = Unavailable(Reason.NOT_SUPPORTED, "the driver's counters do not tell processes apart: install aws-neuronx-tools")
NEVER_COUNTED = Unavailable(Reason.NOT_IN_USE, "the counter has never counted: no program has used the core, or its runtime leaves it out")

_COUNTED, _HOST, _DEVICE, _CHIP = "stats/other_info", "stats/memory_usage/host_mem", "stats/memory_usage/device_mem", "neuron"
FIELDS: tuple[Row, ...] = (
    Rate("neuroncore_utilization", f"{_COUNTED}/nc_time_in_use/total", "us"),
    Rate("flops", f"{_COUNTED}/flop_count/total", "1"),
    *(Field(f"neuroncore_memory_usage.{category}", f"{_DEVICE}/{category}/total") for category in CORE_MEMORY),
)
_COUNTS = (
    Field("trn.neuron_device_count", "chips", words=f"sysfs directories neuron{{n}} in {ROOT}"),
    Field("trn.neuroncore_per_device_count", "cores", words="sysfs directories neuron_core{n} of a chip"),
    Field("trn.host_total_memory_usage", f"{_HOST}/total", words=f'sysfs "{_HOST}/total", summed over chips'),
    Field("trn.neuron_device_total_memory_usage", f"{_DEVICE}/total", words=f'sysfs "{_DEVICE}/total", summed over cores'),
    *(
        Field(
            f"trn.host_memory_usage.{category}", f"{_HOST}/{category}/total", words=f'sysfs "{_HOST}/{category}/total", summed over chips'
        )
        for category in HOST_MEMORY
    ),
    *(Field(f"trn.device.{{i}}.{name}", f"{_CHIP}.{{}}.stats/hardware/{name}", words=f"sysfs stats/hardware/{name}") for name in ECC),
)
MACHINE = (*_COUNTS, *(row for row in monitor.MACHINE if row.metric not in {each.metric for each in _COUNTS}))
"""Metrics of the machine. The ones that only the tool has are listed too, so that they are missing with this reason."""
VALID, NO_SAMPLE = "POWER_STATUS_VALID", "POWER_STATUS_NO_DATA"
POWER_FILE, POWER_PACE = "stats/power/utilization", 30.0
"""File with the power below a chip's directory, and seconds between two readings of it: its numbers change once a minute."""
LASTS = 0.95
"""Seconds between two readings of the counters. Slightly below one, so that a sampler that reads every second finds them due each time."""
IDENTITY = {
    "vendor_index": "@number",
    "name": "../info/architecture/device_name",
    "architecture": "info/architecture/arch_type",
    "serial": "../info/serial_number",
}


class Directory(DeviceDirectory):
    """Counters of a core, with its number on the machine, or of a chip."""

    # The values are the driver's own numbers in memory, so reading them wakes no chip.
    wakes = False

    def __init__(self, number_: int, path: str, files: Files) -> None:
        super().__init__(path, files)
        self._number = number_

    def get(self, place: str) -> object:
        """Return the value at a place, or why it is missing."""
        if place == "@number":
            return self._number
        value = super().get(place)
        if value is None:
            return Unavailable(Reason.NOT_SUPPORTED, f"this driver has no {self.path.removeprefix(ROOT)}/{place} ({MOVED})")
        return NEVER_COUNTED if value == "0" and place.startswith(_COUNTED) else value


_NO_VALUES = DeviceRecord({str(row.where).lower(): NOT_BY_PROCESS for row in FIELDS if not isinstance(row, Derived)})
"""Record of a core for a consumer that watches a process: every value is missing."""


class Machine(DeviceRecord):
    """Values that belong to no core, for one consumer.

    Args:
        chips: The counters of the chips, by number.
        cores: The counters of the cores.
        most: Number of cores of a chip.
        watched: Whether the consumer watches a process.
    """

    def __init__(self, chips: Mapping[str, Directory], cores: Sequence[Directory], most: int, watched: bool) -> None:
        self._chips = chips
        self._cores = cores
        self._most = most
        self._watched = watched

    def instances(self, place: str) -> Iterable[str]:
        """Return the numbers of the chips."""
        return self._chips

    def get(self, place: str) -> object:
        """Return the sum over chips or cores, or the counter of one chip."""
        counts = {"chips": len(self._chips), "cores": self._most}
        if place in counts:
            return counts[place]
        if place.startswith(f"{_CHIP}."):
            _, chip, below = place.split(".", 2)
            return self._chips[chip].get(below)
        if not place.startswith((_HOST, _DEVICE)):
            return TOOL_ONLY
        if self._watched:
            return NOT_BY_PROCESS
        return monitor.total(
            number(each.get(place), "B", "B") for each in (self._chips.values() if place.startswith(_HOST) else self._cores)
        )


class CounterPoll:
    """Poll of the cores and chips that exist now."""

    def __init__(self) -> None:
        self._files = Files()
        self._known: dict[str, Directory] = {}

    def __call__(self) -> Iterable[DeviceSample]:
        numbered = neuron.chips()
        # Directories that the driver created again are opened again.
        self._known = {path: each for path, each in self._known.items() if each.look_again()}
        paths = {core: path for cores in numbered.values() for core, path in cores.items()}
        if not paths:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"the driver shows no cores in {ROOT}: {MOVED}")
        most, picked = max(map(len, numbered.values())), neuron.picked_core(paths)
        cores = [self._directory(core, path) for core, path in paths.items() if picked in (None, core)]
        chips = {str(chip): self._directory(chip, f"{ROOT}/neuron{chip}") for chip in numbered}

        def begin(progress: list[Any]) -> None:
            for each in (*cores, *chips.values()):
                each.begin(progress)

        def machine(options: ReadOptions, _: object) -> DeviceRecord:
            return Machine(chips, cores, most, options.watched)

        def scoped(core: Directory, options: ReadOptions, _: object) -> DeviceRecord:
            return _NO_VALUES if options.watched else core

        samples = [DeviceSample(core, NOT_BY_PROCESS, begin=core.begin, scoped=partial(scoped, core)) for core in cores]
        return [*samples, DeviceSample({}, begin=begin, machine=True, scoped=machine)]

    def _directory(self, number_: int, path: str) -> Directory:
        return self._known.setdefault(path, Directory(number_, path, self._files))

    def close(self) -> None:
        """Close all files."""
        self._files.close()


def power_of(position: int, printed: object) -> object:
    """Return one number of ``<status>,<time>,<min>,<max>,<avg>``, or why there is none."""
    status, *numbers = str(printed).strip().split(",")
    # Without a valid status the driver prints 0.00, which is no measured value.
    if status == NO_SAMPLE:
        return Unavailable(Reason.NOT_SUPPORTED, "the driver has no sample of the power")
    if status != VALID or len(numbers) != 1 + len(POWER):
        return Unavailable(Reason.DRIVER_ERROR, f"the driver could not sample the power: {quoted(printed)}")
    return numbers[1 + position]


def open_power() -> PollOnce:
    """Return the poll of the power of all chips. It keeps no file open."""

    def poll() -> Iterable[DeviceSample]:
        powers = {str(chip): read_text(f"{ROOT}/neuron{chip}/{POWER_FILE}") for chip in neuron.chips()}
        return [DeviceSample({_CHIP: {chip: {"power": power} for chip, power in powers.items() if power}}, machine=True)]

    return poll


POWER_SOURCE = Source(
    "sysfs power",
    open_power,
    (),
    POWER_PACE,
    machine=[
        Field(
            f"trn.device.{{i}}.power_utilization.{statistic}",
            f"{_CHIP}.{{}}.power",
            "%",
            convert=partial(power_of, position),
            words=f"sysfs {POWER_FILE}",
        )
        for position, statistic in enumerate(POWER)
    ],
)


def polled(clock: Clock = SYSTEM_CLOCK) -> PolledBackend:
    """Return the backend of the driver's counters.

    It reads on demand at first, so that the second reading already has rates, and then at most once a second.
    """
    return PolledBackend(
        "neuron",
        kind="trn",
        vendor="aws",
        source="sysfs",
        # The pace is that of neuron-monitor. A machine with 16 chips has more than a thousand of these files.
        connect=CounterPoll,
        lasts=LASTS,
        fields=FIELDS,
        machine=MACHINE,
        identity=IDENTITY,
        also=(POWER_SOURCE,),
        advice=INSTALL_TOOL,
        clock=clock,
    )
