"""The open driver and its consumers. Opening enumerates the GPUs so that no single one of them can hold the others up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.backends.nvidia.device import DeviceList, DeviceReader
from accelmetrics.backends.nvidia.gpm import SamplePool
from accelmetrics.backends.nvidia.gpu import Gpu
from accelmetrics.backends.nvidia.nvml import BACKEND, GONE, Library, Questions, no_device, open_library, source_error
from accelmetrics.backends.nvidia.xid import XidListener
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

MOST_GPUS = 1024
"""The most GPUs that are believed to be in one machine."""
PATIENCE, LATER_PATIENCE = 4.0, 1.0
"""Seconds without an answer to a single call after which it counts as hung, the first time and after that. Without persistence
mode a GPU that is not in use is initialised by looking up its handle, which takes up to three seconds."""


class NvidiaDriver:
    """NVML, initialised, with its devices enumerated.

    Two drivers may be open at a time (NVML counts its users), each with its own devices, paces and buffers.
    """

    source = "nvml"
    machine_wide = False

    def __init__(self, devices: DeviceList) -> None:
        self._list = devices
        self._samples = SamplePool(devices.library)

    @property
    def devices(self) -> tuple[DeviceIdentity, ...]:
        return self._list.identities

    def reader(self, options: ReadOptions) -> NvidiaReader:
        return NvidiaReader(self._list, self._samples, options)

    def close(self) -> None:
        if not self._list.listener.close() or not all(entry.opened for entry in self._list.entries):
            return  # a call that hangs uses the library still
        self._samples.close()
        self._list.library.close()


class NvidiaReader:
    """One consumer: what it watches, and what its rates are taken from."""

    def __init__(self, devices: DeviceList, samples: SamplePool, options: ReadOptions) -> None:
        self._list = devices
        self._samples = samples
        self._now = devices.clock.monotonic
        # Memory and utilisation are the whole tree's by definition, so ``options.children`` changes nothing here.
        self._tree = ProcessTree(options.pid)
        self._readers: dict[int, DeviceReader] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        reader = self._readers.get(unit)
        if reader is None:
            reader = self._readers[unit] = DeviceReader(self._list.entries[unit], self._samples, self._tree)
        return reader.read(self._now(), progress)


def open_driver(clock: Clock) -> NvidiaDriver:
    """Initialise NVML and enumerate its devices.

    Raises:
        SourceError: That is not possible, or there are none.
    """
    library = open_library()
    with ExitStack() as on_failure:
        on_failure.callback(library.close)
        count = _count(library)
        devices = DeviceList(library, XidListener(library), clock)
        questions = Questions(library, [], GONE)
        cuda = questions.number("nvmlSystemGetCudaDriverVersion_v2") or 0
        devices.runtime_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        devices.driver_version = questions.text("nvmlSystemGetDriverVersion")
        gpus = [Gpu(devices, index) for index in range(count)]
        on_failure.pop_all()
    devices.entries.extend(gpus)
    open_all(gpus)
    devices.update()
    return NvidiaDriver(devices)


def _count(library: Library) -> int:
    questions = Questions(library, [], frozenset())
    count = questions.number("nvmlDeviceGetCount_v2", most=2**32 - 1)
    if count is None:
        raise source_error(questions.status, "the driver does not say how many GPUs there are")
    if count > MOST_GPUS:
        words = f"the driver says that there are {count} GPUs: more than {MOST_GPUS} are not believed"
        raise SourceError(Reason.INVALID_VALUE, words, backend=BACKEND, advice="reload the driver, or reboot")
    if count == 0:
        raise no_device()
    return count


def open_all(gpus: Iterable[Gpu]) -> None:
    """Open GPUs one after the other on a thread, as far as the driver answers.

    When a call has not returned for a while, the thread keeps the GPU that it is stuck with, and another one goes on with the rest. The
    GPU is listed with all that is known of it once the call returns.
    """
    pending = deque(gpus)
    patience = PATIENCE
    while pending:
        progress: list[Any] = []
        done, abandoned = threading.Event(), threading.Event()
        arguments = (pending, progress, done, abandoned)
        threading.Thread(target=_open_pending, args=arguments, name="accelmetrics-nvidia-open", daemon=True).start()
        seen = -1
        while not done.wait(patience):
            if len(progress) == seen:
                abandoned.set()
                patience = LATER_PATIENCE
                break
            seen = len(progress)


def _open_pending(pending: deque[Gpu], progress: list[Any], done: threading.Event, abandoned: threading.Event) -> None:
    while pending and not abandoned.is_set():
        guarded(pending.popleft().open, progress)
    done.set()
