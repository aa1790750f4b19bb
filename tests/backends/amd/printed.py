"""What the commands' parsers and tables make of printed text, without a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from accelmetrics.backends.amd import amd_smi, rocm_smi
from accelmetrics.backends.amd.rocm_smi import PrintedCard
from accelmetrics.backends.contract import Value
from accelmetrics.backends.kit.fields import flat
from accelmetrics.backends.kit.polled import DeviceSample, PolledBackend
from accelmetrics.schemas.identity import DeviceIdentity


def read(backend: PolledBackend, sample: DeviceSample) -> dict[str, Value]:
    """Every metric that a backend's first source makes of one device, by all of its names."""
    table = backend.tables[0][0]
    found = table.read(flat(sample.record), {}, 0.0)
    table.derive(found)
    return {name: value for metric, value in found.items() for name in table.names(metric)}


def listed(backend: PolledBackend, samples: Iterable[DeviceSample]) -> Sequence[DeviceIdentity]:
    """The devices that a backend makes of them."""
    every = list(samples)
    backend.specs = (backend.specs[0]._replace(connect=lambda: lambda: every),)
    return backend.open().devices


ROCM_SMI, AMD_SMI = rocm_smi.backend(), amd_smi.backend()


def read_card(card: PrintedCard) -> dict[str, Value]:
    """Every metric of a card that rocm-smi printed."""
    return read(ROCM_SMI, next(iter(rocm_smi.samples(({0: card}, {}, True)))))


def identify(cards: Mapping[int, PrintedCard], root: PrintedCard) -> Sequence[DeviceIdentity]:
    """The devices behind what rocm-smi printed."""
    return listed(rocm_smi.backend(), rocm_smi.samples((dict(cards), root, True)))
