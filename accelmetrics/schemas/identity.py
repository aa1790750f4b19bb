"""The identity of a device, what runs on it, and how a source fared: the light records that a snapshot is made of."""

from __future__ import annotations

import re
from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple

DeviceKind = str
"""The first word of a device's keys: ``gpu``, ``tpu``, ``npu``, or any other lower-case word that a backend gives."""
Status = Literal["ok", "absent", "degraded", "failed", "timed_out"]


_PCI_ADDRESS = re.compile(
    r"(?:(?:0x)?(?P<domain>[0-9a-f]{1,8}):)?(?:0x)?(?P<bus>[0-9a-f]{1,2}):(?:0x)?(?P<slot>[0-9a-f]{1,2})\.(?:0x)?(?P<function>[0-7])"
)
_BACKENDS = {"google": "tpu", "aws": "neuron", "habana": "gaudi", "huawei": "ascend"}
"""Of built-in backends, those that are not named after the vendor whose devices they list."""


def pci_address(text: str) -> str:
    """Write a PCI address as the kernel does: ``0000:3b:00.0``. Addresses are equal where this gives the same of both.

    Vendors print its domain with two, four or eight digits or none, with ``0x`` and without, and in either case. What is no PCI address
    stays as it is, in lower case and without white space around it.
    """
    text = text.strip().lower()
    found = _PCI_ADDRESS.fullmatch(text)
    if found is None:
        return text
    return f"{int(found['domain'] or '0', 16):04x}:{found['bus']:0>2}:{found['slot']:0>2}.{found['function']}"


class DeviceIdentity(NamedTuple):
    """What does not change about a device while it is there.

    Attributes:
        kind: The first word of its key. It is ``gpu``, ``tpu``, …
        vendor: The vendor in one lower-case word. It is ``nvidia``, ``amd``, …
        vendor_index: The vendor's own number for it. It is NVML's index, or the card number of rocm-smi.
        name: The product name as the driver gives it.
        uuid: The vendor's unique id, empty when there is none.
        pci_bus_id: The PCI address as the vendor writes it, empty when unknown. Most write ``00000000:C1:00.0``.
        serial: The board's serial number, empty when unknown.
        architecture: The chip's architecture, empty when unknown. It is ``Hopper``, ``gfx942``, …
        driver_version: The driver's version, empty when unknown.
        runtime_version: The newest CUDA or ROCm version that the driver supports, empty when unknown.
        firmware: VBIOS or firmware version, empty when unknown.
        cores: Number of the vendor's cores; None when unknown. NVIDIA's are CUDA cores.
        memory_total_bytes: Memory of the device in bytes; None when unknown. It is None where that changes, too.
        numa_node: NUMA node of its slot; None when unknown.
        cpu_affinity: CPUs near to its slot, as ranges: ``0-31,64-95``; empty when unknown.
        unified: Whether it shares the host's memory.
        parent: UUID of the device that it is a partition of, empty for a whole device.
        gpu_instance_id: Of a MIG instance, the id of its GPU instance; None when unknown. Its compute instances share it.
        minor_number: ``N`` of its device node ``/dev/nvidiaN``; None when unknown. It is not always the vendor's number.
        part_number: Part number of its board, as its maker has it; empty when unknown.
        compute_capability: CUDA compute capability, ``9.0``; empty when unknown.
        fabric: How it stands in the fabric that connects several machines' devices; empty when there is none.
        chassis_serial: Serial number of the chassis or rack that it is in, empty when unknown.
        chassis_slot: Slot of that chassis, its switches counted; None when unknown.
        tray_index: Number of its tray among the compute trays of the chassis; None when unknown.
        host_id: Number of its host within the slot; None when unknown.
        module_id: Number of it within the host; None when unknown.
    """

    kind: DeviceKind
    vendor: str
    vendor_index: int
    name: str = ""
    uuid: str = ""
    pci_bus_id: str = ""
    serial: str = ""
    architecture: str = ""
    driver_version: str = ""
    runtime_version: str = ""
    firmware: str = ""
    cores: int | None = None
    memory_total_bytes: int | None = None
    numa_node: int | None = None
    cpu_affinity: str = ""
    unified: bool = False
    parent: str = ""
    fabric: str = ""
    gpu_instance_id: int | None = None
    minor_number: int | None = None
    part_number: str = ""
    compute_capability: str = ""
    chassis_serial: str = ""
    chassis_slot: int | None = None
    tray_index: int | None = None
    host_id: int | None = None
    module_id: int | None = None

    @property
    def backend(self) -> str:
        """The built-in backend that lists devices of its vendor; of other vendors, the vendor."""
        return _BACKENDS.get(self.vendor, self.vendor)

    @property
    def anchor(self) -> str:
        """What the device is recognised by after a driver reload: its UUID, else its PCI address, else its number."""
        return self.uuid or self.pci_bus_id or f"{self.vendor}:{self.kind}:{self.vendor_index}"


class DeviceProcess(NamedTuple):
    """One process that uses a device.

    Attributes:
        pid: Process id as the driver reports it. It is the machine's, or that of the PID namespace of the program that asked.
        type: ``compute``, ``graphics`` or ``compute+graphics``; empty when the driver does not say.
        memory_bytes: Device memory that it holds, in bytes; None where not said.
        utilization: Share of the device's compute time, in percent; None where not said.
        memory_utilization: Share of the memory controller's time, in percent; None where not said.
    """

    pid: int
    type: str = ""
    memory_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None


class BackendStatus(NamedTuple):
    """How one backend fared in one snapshot.

    Attributes:
        name: The backend's name.
        status: Whether it is there and gave what it should. It is ``ok``; ``absent`` (nothing of this vendor here); ``degraded`` (some
            devices or values are missing that should be there); ``failed``; ``timed_out`` (a call is in progress without an answer).
        detail: What was found or what went wrong, in words.
        source: Where the numbers come from, empty while nothing is open. It is ``nvml``, ``rocm-smi``, …
        duration_seconds: How long the reading took; None when there was none.
        read_at: When the source was read (RFC 3339, UTC); empty when it never was.
        age_seconds: How old the reading was; None when there was none. Its age is that when the snapshot was put together.
        sequence: Number of the reading: one that is served twice keeps its number.
        devices: Devices that it lists; where it never listed any, those found without its driver. They are whole devices, found on the PCI
            bus say, and at least one where the driver itself speaks of an error. A library without a device is none.
        reason: Why it could not be opened, as a reason of missing values; empty for one that is open or absent.
    """

    name: str
    status: Status
    detail: str = ""
    source: str = ""
    duration_seconds: float | None = None
    read_at: str = ""
    age_seconds: float | None = None
    sequence: int = 0
    devices: int = 0
    reason: str = ""

    @property
    def silent(self) -> bool:
        """Whether it gave nothing, though it has devices here or has been read before."""
        return self.status in ("failed", "timed_out") and (self.devices > 0 or self.sequence > 0)


class DeviceSlot(NamedTuple):
    """A device and where it stands in this process.

    Attributes:
        key: What the keys of its metrics begin with: ``gpu.0``.
        index: The number in its key.
        visible_index: Its position under the vendor's ``*_VISIBLE_DEVICES``; None where that hides it.
        identity: What does not change about it.
        listed_by: The name of the backend that lists it; empty where that is not known, as in documents.
    """

    key: str
    index: int  # type: ignore[assignment]  # read by name, never searched
    visible_index: int | None
    identity: DeviceIdentity
    listed_by: str = ""

    @property
    def backend(self) -> str:
        """The backend that lists it; where that is not known, the one that lists devices of this vendor."""
        return self.listed_by or self.identity.backend

    @property
    def unique_id(self) -> str:
        """What tells it from all others to another system: its UUID, else its PCI address, else its key; never empty."""
        return self.identity.uuid or self.identity.pci_bus_id or self.key
