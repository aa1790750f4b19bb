"""The open driver: the library, the devices in NVML's order, and what has to be given back."""

from __future__ import annotations

from contextlib import ExitStack

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.nvidia.enumeration import ask_system
from accelmetrics.backends.nvidia.errors import source_error
from accelmetrics.backends.nvidia.library import Library, no_device, open_library
from accelmetrics.backends.nvidia.opening import open_places
from accelmetrics.backends.nvidia.places import Common, Place
from accelmetrics.backends.nvidia.reader import NvidiaReader
from accelmetrics.backends.nvidia.roster import Roster
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.backends.nvidia.xid import Listener
from accelmetrics.schemas.identity import DeviceIdentity


class NvidiaDriver:
    """NVML, initialised, with its devices enumerated.

    Two drivers may be open at a time (NVML counts its users), each with its own places, paces and buffers.
    """

    source = "nvml"
    machine_wide = False

    def __init__(self, common: Common) -> None:
        self._common = common
        self._roster = common.roster
        self._samples = SamplePool(common.library)

    @property
    def devices(self) -> tuple[DeviceIdentity, ...]:
        return self._roster.devices

    def reader(self, options: ReadOptions) -> NvidiaReader:
        return NvidiaReader(self._roster, self._samples, self._common.clock, options)

    def close(self) -> None:
        if not self._common.listener.close() or self._common.roster.opening:
            return  # a call that hangs uses the library still
        self._samples.close()
        self._common.library.close()


def open_driver(clock: Clock) -> NvidiaDriver:
    """Initialise NVML and enumerate, or raise ``SourceError``."""
    library = open_library()
    with ExitStack() as on_failure:
        on_failure.callback(library.close)
        count = _count(library)
        common = Common(library, ask_system(library), Roster(), Listener(library), clock)
        places = [Place(common, index) for index in range(count)]
        on_failure.pop_all()
    common.roster.places.extend(places)
    open_places(places)
    common.roster.note()
    return NvidiaDriver(common)


def _count(library: Library) -> int:
    try:
        count = int(library.ask("nvmlDeviceGetCount"))
    except library.nvml.NVMLError as error:
        raise source_error(error.value, "the driver does not say how many GPUs there are") from error
    if count == 0:
        raise no_device()
    return count
