"""Record the readings of a machine and replay them elsewhere, to test a monitor on hardware that is not at hand.

>>> from accelmetrics import Sampler
>>> from accelmetrics.testing import Recorder, Recording
>>> with Sampler() as sampler, Recorder("node.jsonl", sampler) as recorder:   # on the machine that has it
...     recorder.take(samples=60, interval=1.0)
>>> backends = Recording.load("node.jsonl").backends()                        # anywhere
>>> Sampler(backends).sample().metrics["gpu.0.powerWatts"]                    # doctest: +SKIP
300.0
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any

from accelmetrics.backends.contract import Block, Coverage, Detection, Reading, ReadOptions
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError, Reason, SourceError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.snapshot import Snapshot


class Recorder:
    """Writes the snapshots of a sampler to a file, as one JSON document per line.

    Args:
        path: The file. An existing file is replaced.
        sampler: The sampler to record.
    """

    def __init__(self, path: str | Path, sampler: Sampler) -> None:
        self._sampler = sampler
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed with the recorder

    def take(self, samples: int = 1, interval: float = 0.0) -> list[Snapshot]:
        """Record ``samples`` snapshots, ``interval`` seconds apart, and return them."""
        taken: list[Snapshot] = []
        due = time.monotonic()
        for _ in range(samples):
            time.sleep(max(0.0, due - time.monotonic()))
            taken.append(self._sampler.sample())
            self._file.write(taken[-1].to_json() + "\n")
            self._file.flush()
            due += interval
        return taken

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Recording:
    """Recorded snapshots, in order of time.

    Attributes:
        snapshots: The snapshots.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        if not snapshots:
            raise InvalidOptionError("a recording needs at least one snapshot")
        self.snapshots = tuple(snapshots)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file of :class:`Recorder` or of the ``jsonl`` exporter. A last line that was cut off is left out.

        Raises:
            DocumentError: A line is not a document. The message names the line.
        """
        from accelmetrics.schemas import recording  # loads pydantic

        found = recording.RecordFile(path)
        snapshots = [record.snapshot for record in found]
        is_cut = not Path(path).read_bytes().endswith(b"\n")
        if found.skipped > is_cut:
            raise DocumentError(found.complaint)
        return cls(snapshots)

    def backends(self, loop: bool = False) -> list[ReplayBackend]:
        """Return backends that replay the recording: one for each kind of device, and one for the host.

        Args:
            loop: Start again after the last snapshot. Otherwise all values are ``stale`` from then on.
        """
        kinds = dict.fromkeys(device.kind for snapshot in self.snapshots for device in snapshot.devices)
        found: list[ReplayBackend] = [ReplayBackend(self.snapshots, kind, loop) for kind in kinds]
        if any(_host_part(snapshot.metrics, snapshot) for snapshot in self.snapshots):
            found.append(ReplayBackend(self.snapshots, None, loop))
        return found


class ReplayBackend:
    """Replays the recorded values of one kind of device, or of the host. Each reader starts at the first snapshot.

    Args:
        snapshots: The recorded snapshots.
        kind: The kind of devices; None for the host.
        loop: Start again after the last snapshot.
    """

    interval = 0.0
    source = "recording"

    def __init__(self, snapshots: Sequence[Snapshot], kind: DeviceKind | None, loop: bool = False) -> None:
        self.kind = kind
        self.name = f"replay-{kind or 'host'}"
        self.snapshots = tuple(snapshots)
        self.loop = loop
        listed = {device.index: device.identity for snapshot in self.snapshots for device in snapshot.devices if device.kind == kind}
        self.numbers = tuple(sorted(listed))
        self.devices = tuple(listed[index] for index in self.numbers)
        self.machine_wide = kind is None

    def detect(self) -> Detection:
        """Return that the devices are present."""
        return Detection(True, f"a recording of {len(self.snapshots)} snapshots", len(self.devices))

    def open(self) -> ReplayBackend:
        """Return this object, which is its own driver."""
        return self

    def coverage(self) -> Coverage:
        """Return an empty coverage, so that metrics that were not recorded need no reason."""
        return Coverage()

    def own_metrics(self) -> Iterable[Metric]:
        """Return no rows: recorded metrics are in the catalogue, or keep their keys."""
        return ()

    def reader(self, options: ReadOptions) -> _Replay:
        """Return a reader that starts at the first snapshot."""
        return _Replay(self)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Replay:
    def __init__(self, backend: ReplayBackend) -> None:
        self._backend = backend
        again = cycle if backend.loop else iter
        self._left = [again(backend.snapshots) for _ in range(max(1, len(backend.devices)))]

    def read(self, unit: int, progress: list[Any]) -> Reading:
        progress.append(None)
        backend, snapshot = self._backend, next(self._left[unit], None)
        if snapshot is None:
            raise SourceError(Reason.STALE, "the recording is over")
        if backend.kind is None:
            return Reading.of(_host_part(snapshot.metrics, snapshot), _host_part(snapshot.unavailable, snapshot))
        found = [device for device in snapshot.devices if (device.kind, device.index) == (backend.kind, backend.numbers[unit])]
        if not found:
            raise SourceError(Reason.DEVICE_LOST, "the device is not in this part of the recording")
        of_device, of_process = found[0].values, snapshot.values_of(f"{backend.kind}.process.{found[0].index}")
        blocks = [Block(tuple(of_device), tuple(of_device.values())), Block(tuple(of_process), tuple(of_process.values()), process=True)]
        return Reading(blocks, dict(found[0].unavailable), snapshot.processes.get(found[0].key, snapshot.unlisted.get(found[0].key)))


def _host_part(flat: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Return the entries whose keys belong to no device."""
    kinds = {device.kind for device in snapshot.devices}
    return {key: value for key, value in flat.items() if key.partition(".")[0] not in kinds}
