"""T-Head (Alibaba) PPUs, through ``libhgml.so`` of the PPU SDK, or ``ppu-smi`` if the library is missing.

The library is NVML with other names, including MIG and GPM. Its links (ICN) use the field numbers of NVLink, so their metrics have NVLink's
names. Containers may have copies named ``libnvidia-ml.so.1`` and ``nvidia-smi``, which list the same devices. NVIDIA's backend recognises
them and leaves these devices out.

Compared with the library that the vendor publishes: its functions, and its answers without a device. The fields of ``ppu-smi`` are those of
the manual of SAIL 2.1. Never tested on a real device.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.backends.kit import MEMORY, POWER_SHARE, Command, Field, PolledBackend, Query
from accelmetrics.backends.nvidia.clones import clone

SDK = "/usr/local/PPU_SDK"
# For each metric the names of its field in different releases, and its unit if none is printed.
QUERIED = {
    "gpu": (("utilization.ppu", "utilization.gpu"), "%"),
    "memory": (("utilization.memory",), "%"),
    "memoryTotalBytes": (("memory.total",), "MiB"),
    "memoryAllocatedBytes": (("memory.used",), "MiB"),
    "temp": (("temperature.ppu", "temperature.gpu"), "C"),
    "powerWatts": (("power.draw",), "W"),
    "enforcedPowerLimitWatts": (("power.limit",), "W"),
    "smClock": (("clocks.current.cu", "clocks.current.sm"), "MHz"),
    "maxSmClock": (("clocks.max.sm",), "MHz"),
}
IDENTITY = {
    **{"vendor_index": "index", "uuid": "uuid", "name": "name", "pci_bus_id": "pci.bus_id", "driver_version": "driver_version"},
    "serial": ("ppu_serial", "serial"),
}


def _asked() -> Iterator[str]:
    for place in IDENTITY.values():
        yield from (place,) if isinstance(place, str) else place
    for places, _ in QUERIED.values():
        yield from places


# The tool's libraries are in the SDK's folder.
COMMAND = Command(
    "ppu-smi",
    directories=("/usr/local/bin", f"{SDK}/bin"),
    environment={"LD_LIBRARY_PATH": f"{SDK}/lib64"},
    install="install T-Head's PPU SDK, which has ppu-smi",
)
TOOL = PolledBackend(
    "thead",
    kind="gpu",
    source="ppu-smi",
    connect=Query(COMMAND, tuple(_asked()), "--query-ppu={fields}", "--format=csv,noheader"),
    fields=(*(Field(metric, places, unit) for metric, (places, unit) in QUERIED.items()), *MEMORY, POWER_SHARE),
    identity=IDENTITY,
    interval=2.0,
    advice="check whether ppu-smi lists any PPU; dmesg may show why not",
)
backend = clone(
    "thead",
    source="hgml",
    library=("libhgml.so", f"{SDK}/lib64/libhgml.so", f"{SDK}/lib/libhgml.so"),
    spelling=(
        *(("nvml", "hgml"), ("NVML", "HGML"), ("NVIDIA", "T-Head")),
        *(("NvLink", "IcnLink"), ("NVLINK", "ICNLINK"), ("NVLink", "ICN link"), ("Cuda", "Hggc")),
    ),
    metrics=(
        # Left out ("-"): the vendor's binding has no NVML field after 196, and the library none of these calls.
        *("-tempMargin", "-*Sram*", "-sramThresholdExceeded", "-recoveryAction", "-pcie*BytesTotal", "-fabric*", "-moduleEnergyJoules"),
        *("-nvlinkFec*", "-nvlink*Ratio", "-nvlinkRecoverySuccesses", "-nvlinkRecoveryFailures"),
        *(f"-nvlink{kind}Errors" for kind in ("Malformed", "Overrun", "Receive", "Remote", "Header", "Integrity", "Discard")),
        *("-nvlinkEffectiveErrors", "-nvlinkSymbolErrors"),
    ),
    tool=TOOL,
)
