"""NVIDIA GPUs, through NVML (``libnvidia-ml.so.1``), the library behind nvidia-smi.

How it reads: ``pynvml`` (nvidia-ml-py) loads and initialises the library. A reading calls the library through ``ctypes``
partials bound once per device, whose answers land in one preallocated buffer that is decoded at once.

How often: utilisation, memory, temperature, power, clocks and counters at every reading; processes, encoder, decoder and
fan every second; limits, error counters, links, fabric and BAR1 every ten seconds; what never changes once. An answer of "not
supported" is remembered until the driver is opened again, every other failure is asked again at the next reading.

What can hang costs one device: opening the driver asks only what devices are listed by, on a thread that is replaced when a call
does not return; everything else about a device is asked at its own first reading.

MIG: each instance is a device of its own below its GPU, with what an instance has (memory, processes, GPM shares). What the
board has stays with the GPU. Instances that turn up while the driver is open are listed within ten seconds; one that is
destroyed is lost and keeps its place.

Deliberately not done: no call that measures inside the driver (PCIe throughput takes 20 ms a direction), no sleeping
between two GPM samples (they are those of two consecutive readings), no question about the fabric on drivers that it crashes.

Which file: ``detection`` looks without the driver, ``nvml`` is the library and its return codes, ``metrics`` the table of what
there is. ``gpu`` opens the driver and finds the GPUs, ``mig`` their instances. ``driver`` lists them and reads one of them for one
consumer, out of what ``fast``, ``groups``, ``links``, ``gpm``, ``xid`` and ``processes`` read. One value more is a row in
``metrics`` and one in the catalogue, then ``make generate``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from accelmetrics.backends.contract import Coverage, Detection, Driver
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric

__all__ = ["NvidiaBackend", "backend"]


class NvidiaBackend:
    """NVIDIA GPUs through NVML; nothing of it is loaded before it is needed.

    Args:
        clock: What the paces of slow values and the intervals of rates are measured on.
    """

    name = "nvidia"
    kind: DeviceKind | None = "gpu"
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def detect(self) -> Detection:
        from accelmetrics.backends.nvidia.detection import detect

        return detect()

    def open(self) -> Driver:
        from accelmetrics.backends.nvidia.gpu import open_driver

        return open_driver(self._clock)

    def coverage(self) -> Coverage:
        from accelmetrics.backends.nvidia.metrics import coverage

        return coverage()

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = NvidiaBackend()
