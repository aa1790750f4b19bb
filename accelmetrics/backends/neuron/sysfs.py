"""The driver's own counters, below ``/sys/devices/virtual/neuron_device``: read, and never written.

Writing a counter clears it for all programs, and the file ``reset`` resets the chip: nothing here opens a file for writing.
Each counter is a directory with ``total`` and ``present``. Of memory, ``total`` is what is in use now and ``present`` the
last change (AWS's sysfs guide); of time (µs) and operations, ``total`` accumulates since the driver was loaded.

Some runtimes do not fill the counters of time and operations: one at exactly 0 has never counted, which is no 0 %. Nothing
here says which program uses a core.

Power is a share of the chip's highest, of which the driver has a new sample each minute; no watts stand anywhere. It is read beside
``neuron-monitor`` too, which does not print it.

AWS's guide says that driver 2.31 moved several counters. What stands elsewhere there is not read: it is missing with words,
detection says so, and ``neuron-monitor`` is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends import neuron
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, ReadOptions
from accelmetrics.backends.kit import DeviceRecord, DeviceSample, Field, PolledBackend, PollOnce, Rate, Source, number, quoted
from accelmetrics.backends.kit.fields import Derived, Row
from accelmetrics.backends.kit.sysfs import DeviceDirectory
from accelmetrics.backends.kit.system import Files, read_text
from accelmetrics.backends.neuron import INSTALL_TOOL, MOVED, ROOT, monitor
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, HOST_MEMORY, POWER
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

TOOL_ONLY = Unavailable(Reason.NOT_SUPPORTED, "only neuron-monitor says this: install aws-neuronx-tools")
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
"""What the tool alone says is missing with that reason."""
VALID, NO_SAMPLE = "POWER_STATUS_VALID", "POWER_STATUS_NO_DATA"
POWER_FILE, POWER_PACE = "stats/power/utilization", 30.0
"""The file below a chip's directory, and the seconds between two looks at it: its numbers change once a minute."""
LASTS = 0.95
"""Seconds between two readings of the counters: readings every second that come a little early find them due."""
IDENTITY = {
    "vendor_index": "@number",
    "name": "../info/architecture/device_name",
    "architecture": "info/architecture/arch_type",
    "serial": "../info/serial_number",
}


class Directory(DeviceDirectory):
    """The counters of one core, under its number on the machine, or of a chip. They are the driver's: to read them wakes nothing."""

    wakes = False

    def __init__(self, number_: int, path: str, files: Files) -> None:
        super().__init__(path, files)
        self._number = number_

    def get(self, place: str) -> object:
        """Return what stands at a place, or why it is missing."""
        if place == "@number":
            return self._number
        said = super().get(place)
        if said is None:
            return Unavailable(Reason.NOT_SUPPORTED, f"this driver has no {self.path.removeprefix(ROOT)}/{place} ({MOVED})")
        return NEVER_COUNTED if said == "0" and place.startswith(_COUNTED) else said


_UNTOLD = DeviceRecord({str(row.where).lower(): NOT_BY_PROCESS for row in FIELDS if not isinstance(row, Derived)})
"""A core for a consumer that watches a process."""


class Machine(DeviceRecord):
    """What belongs to no core, for one consumer.

    Args:
        chips: By number, the chips' counters.
        cores: The cores' counters.
        most: How many cores a chip has.
        watched: Whether the consumer watches a process.
    """

    def __init__(self, chips: Mapping[str, Directory], cores: Sequence[Directory], most: int, watched: bool) -> None:
        self._chips = chips
        self._cores = cores
        self._most = most
        self._watched = watched

    def instances(self, place: str) -> Iterable[str]:
        """List the numbers of the chips."""
        return self._chips

    def get(self, place: str) -> object:
        """Return a sum over chips or cores, or what one chip counts."""
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
    """The cores and chips that there are now, as a poll."""

    def __init__(self) -> None:
        self._files = Files()
        self._known: dict[str, Directory] = {}

    def __call__(self) -> Iterable[DeviceSample]:
        numbered = neuron.chips()
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
            return _UNTOLD if options.watched else core

        samples = [DeviceSample(core, NOT_BY_PROCESS, begin=core.begin, scoped=partial(scoped, core)) for core in cores]
        return [*samples, DeviceSample({}, begin=begin, machine=True, scoped=machine)]

    def _directory(self, number_: int, path: str) -> Directory:
        return self._known.setdefault(path, Directory(number_, path, self._files))

    def close(self) -> None:
        """Give all descriptors back."""
        self._files.close()


def power_of(position: int, said: object) -> object:
    """Return one number of ``<status>,<time>,<min>,<max>,<avg>``, or why there is none: unmeasured ones are printed as 0.00."""
    status, *numbers = str(said).strip().split(",")
    if status == NO_SAMPLE:
        return Unavailable(Reason.NOT_SUPPORTED, "the driver has no sample of the power")
    if status != VALID or len(numbers) != 1 + len(POWER):
        return Unavailable(Reason.DRIVER_ERROR, f"the driver could not sample the power: {quoted(said)}")
    return numbers[1 + position]


def open_power() -> PollOnce:
    """Read the power of all chips, with no descriptor kept."""

    def poll() -> Iterable[DeviceSample]:
        said = {str(chip): read_text(f"{ROOT}/neuron{chip}/{POWER_FILE}") for chip in neuron.chips()}
        return [DeviceSample({_CHIP: {chip: {"power": power} for chip, power in said.items() if power}}, machine=True)]

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
    """Make a backend of the driver's counters, read when asked: the second reading has rates already.

    From then on they are read once a second, as ``neuron-monitor`` prints them: 16 chips have more than a thousand files.
    """
    return PolledBackend(
        "neuron",
        kind="trn",
        vendor="aws",
        source="sysfs",
        connect=CounterPoll,
        lasts=LASTS,
        fields=FIELDS,
        machine=MACHINE,
        identity=IDENTITY,
        also=(POWER_SOURCE,),
        advice=INSTALL_TOOL,
        clock=clock,
    )
