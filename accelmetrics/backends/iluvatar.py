"""Iluvatar GPUs, through ``libixml.so`` of CoreX, or the XML of ``ixsmi`` if the library is missing.

The library exports functions and return codes under NVML's own names. It is loaded privately, so that it does not replace NVIDIA's library
in this process. The GPUs of a board print the same serial number, and the board's power in addition to their own.

The calls are those of the vendor's header for CoreX 4.2, the XML is that of ixsmi 4.4. Never tested on a real device.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    coded,
    figure,
    switched,
    text,
    xml_records,
)
from accelmetrics.backends.nvidia.clones import clone
from accelmetrics.backends.nvidia.metrics import LARGEST_32, LEAST_LIMIT, MOST_POWER, TEN_SECONDS, Call, NvmlMetric

COREX = "/usr/local/corex*"
COMMAND = Command(
    "ixsmi",
    ("-q", "-x"),
    directories=(f"{COREX}/bin",),
    environment={"LD_LIBRARY_PATH": "{bin}/../lib64:{bin}/../lib"},
    install="install Iluvatar's CoreX, which has ixsmi",
)
FIELDS = (
    Field("gpu", "utilization.gpu_util", "%"),
    Field("memory", "utilization.memory_util", "%"),
    Field("encoderUtilization", "utilization.encoder_util", "%"),
    Field("decoderUtilization", "utilization.decoder_util", "%"),
    Field("memoryTotalBytes", "memory_usage.total", "MiB"),
    Field("memoryAllocatedBytes", "memory_usage.used", "MiB"),
    Field("memoryFreeBytes", "memory_usage.free", "MiB"),
    *MEMORY,
    Field("temp", "temperature.gpu_temp", "C"),
    Field("memoryTemp", "temperature.memory_temp", "C"),
    Field("powerWatts", ("power_readings.gpu_power_draw", "power_readings.power_draw"), "W"),
    Field("enforcedPowerLimitWatts", ("power_readings.current_gpu_power_limit", "power_readings.enforced_power_limit"), "W"),
    POWER_SHARE,
    Field("boardPowerWatts", "power_readings.board_power_draw", "W", of_whole=True),
    Field("smClock", "clocks.sm_clock", "MHz"),
    Field("memoryClock", "clocks.mem_clock", "MHz"),
    Field("fanSpeed", "fan_speed", "%"),
    Field("performanceState", "performance_state", "1", convert=figure),
    Field("eccMode", "ecc_mode.current_ecc", "1", convert=switched),
    Field("computeMode", "compute_mode", "1", convert=coded(default=0, prohibited=2, exclusive_process=3)),
    Field("correctedEccErrors", "ecc_errors.single_bit", "1"),
    Field("uncorrectedEccErrors", "ecc_errors.double_bit", "1"),
    Field("pcieLinkGen", "pci.pci_gpu_link_info.pcie_gen.current_link_gen", "1"),
    Field("pcieLinkWidth", "pci.pci_gpu_link_info.link_widths.current_link_width", "1", convert=figure),
)
IDENTITY = {
    **{"uuid": "uuid", "name": "product_name", "pci_bus_id": "@id", "serial": "serial"},
    **{"vendor_index": "minor_number", "driver_version": "driver_version", "firmware": "vbios_version"},
}


def parse(printed: str) -> Iterator[DeviceSample]:
    """Parse the output of ``ixsmi -q -x``."""
    for gpu in xml_records(printed, "gpu"):
        yield DeviceSample(gpu, whole=text(gpu.get("serial")))


def _called(metric: str, function: str, maximum: int = LARGEST_32, minimum: int = 0, divisor: int = 1) -> NvmlMetric:
    return NvmlMetric(metric, Call((function,)), every=TEN_SECONDS, maximum=maximum, minimum=minimum, divisor=divisor)


_ERRORS = Call(("ixmlDeviceGetEccErros",), "II", ("single", "double"), pointers=(0, 4))  # the vendor's spelling

TOOL = PolledBackend(
    "iluvatar",
    kind="gpu",
    source="ixsmi",
    connect=COMMAND.poll(parse),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    advice="check whether ixsmi lists any GPU; dmesg may show why not",
)
backend = clone(
    "iluvatar",
    source="ixml",
    library=("libixml.so", f"{COREX}/lib64/libixml.so", f"{COREX}/lib/libixml.so"),
    spelling=(("NVIDIA", "Iluvatar"),),
    rows={
        # NVIDIA's library has fields for these metrics. This library has no fields, so functions are called.
        "enforcedPowerLimitWatts": _called("enforcedPowerLimitWatts", "nvmlDeviceGetPowerManagementLimit", MOST_POWER, LEAST_LIMIT, 1000),
        "pcieReplays": _called("pcieReplays", "nvmlDeviceGetPcieReplayCounter"),
        "correctedEccErrors": NvmlMetric("correctedEccErrors", _ERRORS, "single", every=TEN_SECONDS),
        "uncorrectedEccErrors": NvmlMetric("uncorrectedEccErrors", _ERRORS, "double", every=TEN_SECONDS),
    },
    metrics=(
        *("gpu", "memory", "memoryTotalBytes", "memoryFreeBytes", "memoryAllocated*", "temp", "tempLimit.*", "*axOpTemp", "fanSpeed"),
        *("power[WP]*", "*PowerLimitWatts", "smClock", "memoryClock", "graphicsClock", "videoClock", "throttle*", "computeMode"),
        *("eccMode*", "*correctedEccErrors", "pcieLink*", "maxPcieLink*", "pcieReplays", "pcie[TR]xBytes"),
        *("grEngineActive", "smActive", "smOccupancy", "dramActive", "pipe*"),
        # The library reports the memory of processes, but not their utilisation.
        *("process.memoryAllocated*", "process.temp", "process.power[WP]*", "process.enforcedPowerLimitWatts"),
    ),
    tool=TOOL,
)
