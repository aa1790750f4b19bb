"""The open driver: the library, the devices in NVML's order, and what has to be given back."""

from __future__ import annotations

from contextlib import ExitStack

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.nvidia.enumeration import ask_system
from accelmetrics.backends.nvidia.errors import source_error
from accelmetrics.backends.nvidia.library import Library, no_device, open_library
from accelmetrics.backends.nvidia.places import Place
from accelmetrics.backends.nvidia.reader import NvidiaReader
from accelmetrics.backends.nvidia.samples import SamplePool
from accelmetrics.schemas.identity import DeviceIdentity


class NvidiaDriver:
    """NVML, initialised, with its devices enumerated.

    Two drivers may be open at a time (NVML counts its users), each with its own places, paces and buffers.
    """

    source = "nvml"
    machine_wide = False

    def __init__(self, library: Library, places: list[Place], clock: Clock) -> None:
        self._library = library
        self._places = places
        self._clock = clock
        self._samples = SamplePool(library)

    @property
    def devices(self) -> tuple[DeviceIdentity, ...]:
        return tuple(place.identity for place in self._places)

    def reader(self, options: ReadOptions) -> NvidiaReader:
        return NvidiaReader(self._places, self._samples, self._clock, options)

    def close(self) -> None:
        self._samples.close()
        self._library.close()


def open_driver(clock: Clock) -> NvidiaDriver:
    """Initialise NVML and enumerate, or raise ``SourceError``."""
    library = open_library()
    with ExitStack() as on_failure:
        on_failure.callback(library.close)
        count = _count(library)
        system = ask_system(library)
        places = [Place(library, index, system, clock.monotonic()) for index in range(count)]
        on_failure.pop_all()
    return NvidiaDriver(library, places, clock)


def _count(library: Library) -> int:
    try:
        count = int(library.ask("nvmlDeviceGetCount"))
    except library.nvml.NVMLError as error:
        raise source_error(error.value, "the driver does not say how many GPUs there are") from error
    if count == 0:
        raise no_device()
    return count
