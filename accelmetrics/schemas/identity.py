"""Basic records of a snapshot: the identity of a device, the processes on it, and the status of a source."""

from __future__ import annotations

import re
from typing import Literal

from accelmetrics.schemas.named_tuple import NamedTuple

DeviceKind = str
"""The first word of a device's keys: ``gpu``, ``tpu``, ``npu``, or any other lower-case word from a backend."""
Status = Literal["ok", "absent", "degraded", "failed", "timed_out"]


_PCI_ADDRESS = re.compile(
    r"(?:(?:0x)?(?P<domain>[0-9a-f]{1,8}):)?(?:0x)?(?P<bus>[0-9a-f]{1,2}):(?:0x)?(?P<slot>[0-9a-f]{1,2})\.(?:0x)?(?P<function>[0-7])"
)


def pci_address(text: str) -> str:
    """Return a PCI address in the kernel's notation: ``0000:3b:00.0``. Use it to compare addresses.

    Vendors print the domain with two, four or eight digits or none, with or without ``0x``, in upper or lower case. A text that is
    not a PCI address is returned in lower case, without surrounding white space.
    """
    text = text.strip().lower()
    found = _PCI_ADDRESS.fullmatch(text)
    if found is None:
        return text
    return f"{int(found['domain'] or '0', 16):04x}:{found['bus']:0>2}:{found['slot']:0>2}.{found['function']}"


class DeviceIdentity(NamedTuple):
    """The properties of a device that do not change while it is present.

    Attributes:
        kind: The first word of its key. It is ``gpu``, ``tpu``, …
        vendor: The vendor, as one lower-case word. It is ``nvidia``, ``amd``, …
        vendor_index: The vendor's own number of the device. It is NVML's index, or the card number of rocm-smi.
        name: The product name from the driver.
        uuid: The vendor's unique id; empty if there is none.
        pci_bus_id: The PCI address in the vendor's notation; empty if unknown. Most write ``00000000:C1:00.0``.
        serial: The board's serial number; empty if unknown.
        architecture: The chip's architecture; empty if unknown. It is ``Hopper``, ``gfx942``, …
        driver_version: The driver's version; empty if unknown.
        runtime_version: The newest CUDA or ROCm version that the driver supports; empty if unknown.
        firmware: VBIOS or firmware version; empty if unknown.
        cores: Number of the vendor's cores; None if unknown. NVIDIA's are CUDA cores.
        memory_total_bytes: Memory of the device in bytes; None if unknown. It is also None if the amount changes.
        numa_node: NUMA node of its slot; None if unknown.
        cpu_affinity: CPUs near its slot, as ranges: ``0-31,64-95``; empty if unknown.
        unified: Whether it shares the host's memory.
        parent: UUID of the device that it is a partition of; empty for a whole device.
        gpu_instance_id: Id of the GPU instance of a MIG instance; None if unknown. Its compute instances share it.
        minor_number: ``N`` of its device node ``/dev/nvidiaN``; None if unknown. It may differ from the vendor's number.
        part_number: The manufacturer's part number of its board; empty if unknown.
        compute_capability: CUDA compute capability, ``9.0``; empty if unknown.
        fabric: State of its connection to the fabric that links devices of several machines; empty if there is none.
        chassis_serial: Serial number of its chassis or rack; empty if unknown.
        chassis_slot: Its slot in that chassis, counting the switches; None if unknown.
        tray_index: Number of its tray among the compute trays of the chassis; None if unknown.
        host_id: Number of its host within the slot; None if unknown.
        module_id: Its number within the host; None if unknown.
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
        """The built-in backend that lists devices of this vendor; for other vendors, the vendor's name."""
        return {"google": "tpu", "aws": "neuron", "habana": "gaudi", "huawei": "ascend"}.get(self.vendor, self.vendor)

    @property
    def anchor(self) -> str:
        """The identifier that survives a driver reload: the UUID, else the PCI address, else the vendor's number."""
        return self.uuid or self.pci_bus_id or f"{self.vendor}:{self.kind}:{self.vendor_index}"


class DeviceProcess(NamedTuple):
    """A process that uses a device.

    Attributes:
        pid: Process id from the driver. It is the machine's, or that of the PID namespace of the program that asked.
        type: ``compute``, ``graphics`` or ``compute+graphics``; empty if the driver does not report it.
        memory_bytes: Device memory that it holds, in bytes; None if not reported.
        utilization: Share of the device's compute time, in percent; None if not reported.
        memory_utilization: Share of the memory controller's time, in percent; None if not reported.
    """

    pid: int
    type: str = ""
    memory_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None


class BackendStatus(NamedTuple):
    """The status of one backend in one snapshot.

    Attributes:
        name: The backend's name.
        status: Whether the source is present and gave everything that it should. It is ``ok``; ``absent`` (no hardware of this vendor
            here); ``degraded`` (some devices or values are missing that should be there); ``failed``; ``timed_out`` (a call is in
            progress without an answer).
        detail: The detected hardware or the error, in words.
        source: Where the numbers come from; empty while nothing is open. It is ``nvml``, ``rocm-smi``, …
        duration_seconds: Duration of the reading; None if there was none.
        read_at: When the source was read (RFC 3339, UTC); empty if it never was.
        age_seconds: Age of the reading when the snapshot was put together; None if there was none.
        sequence: Number of the reading; it stays the same if a reading is served again.
        devices: Number of devices that it lists, or that were found without its driver if it never listed any. They are whole
            devices, found on the PCI bus for example, and at least one if the driver itself reports an error. A library without a
            device is none.
        reason: Why it could not be opened, as a reason of missing values; empty if it is open or absent.
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
        """Whether it gave nothing, although it has devices here or was read before."""
        return self.status in ("failed", "timed_out") and (self.devices > 0 or self.sequence > 0)


class DeviceSlot(NamedTuple):
    """A device and its place in this process.

    Attributes:
        key: The device's key, and the prefix of its metrics' keys: ``gpu.0``.
        index: The number in its key.
        visible_index: Its position under the vendor's ``*_VISIBLE_DEVICES``; None if that hides it.
        identity: The properties that do not change.
        listed_by: The name of the backend that lists it; empty if unknown, as in documents.
    """

    key: str
    index: int  # type: ignore[assignment]  # read by name, never searched
    visible_index: int | None
    identity: DeviceIdentity
    listed_by: str = ""

    @property
    def backend(self) -> str:
        """The backend that lists it; if that is unknown, the one that lists devices of this vendor."""
        return self.listed_by or self.identity.backend

    @property
    def unique_id(self) -> str:
        """A unique identifier for other systems: the UUID, else the PCI address, else the key; never empty."""
        return self.identity.uuid or self.identity.pci_bus_id or self.key
