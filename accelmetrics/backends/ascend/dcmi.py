"""Ascend NPUs through ``libdcmi.so``, the library of their driver.

The library has two sets of functions: ``dcmi_…`` take a card and a chip, ``dcmiv2_…`` the number of a chip. The 950 has only the second
set. A chip has the logical number that programs use, and is recognised by the id of its die. A card with two dies (A3) reports its total
power for each die. For a chip that is divided (vNPU) the driver reports a utilisation of 512, which is not given.

Functions, structs, units and errors are those of the vendor's header and manuals of 2026. Never tested on a real NPU.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from accelmetrics.backends.ascend.npu_smi import CLOSED, INSTALL, JOIN, MANAGER, MOST_WATTS, RATED, may_open
from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import MEMORY, DeviceSample, Field, PolledBackend, PollOnce
from accelmetrics.backends.kit.library import load_first
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

DRIVER = "/usr/local/Ascend/driver/lib64"
LIBRARIES = ("libdcmi.so", f"{DRIVER}/driver/libdcmi.so", f"{DRIVER}/libdcmi.so", "/usr/local/dcmi/libdcmi.so")
BY_CARD, BY_NUMBER = "dcmi", "dcmiv2"
LACKING, NOT_SUPPORTED = -1, -8255
"""Our own code for a function that the library does not have, and the library's code for "not supported"."""
ERRORS = {
    LACKING: (Reason.NOT_SUPPORTED, "this library has no such function"),
    -8002: (Reason.NO_PERMISSION, "this user may not"),
    -8006: (Reason.TIMED_OUT, "the device did not answer"),
    -8007: (Reason.DEVICE_LOST, "there is no such device"),
    -8008: (Reason.DEVICE_LOST, "there is no such device"),
    -8013: (Reason.NOT_SUPPORTED, "not told in a container"),
    NOT_SUPPORTED: (Reason.NOT_SUPPORTED, "not supported"),
}
HBM, DDR = 2, 0
"""Kinds of memory for ``ecc_info``."""
NPU, CARDS, CHIPS, PROCESSES, ROOM = 0, 64, 16, 64, 4096
"""Type of a chip that computes; most cards, chips and processes; bytes of a buffer, many times the largest struct."""
PROCESS = struct.Struct("@iL")
ECC_OFF = Unavailable(Reason.NOT_SUPPORTED, "ECC is switched off")
# A place is a function and the position of the number in the function's struct.
FIELDS = (
    Field("utilization", "utilization_rate", "%", words="dcmi_get_device_utilization_rate(), AI Core; of the 950 the NPU"),
    Field("temp", "temperature.0", "C"),
    Field("powerWatts", "power_info.0", "0.1 W", high=MOST_WATTS, of_whole=True),
    Field("memoryAllocatedBytes", "memory.1", "MiB", words="dcmi_get_device_hbm_info(), else dcmi_get_device_memory_info_v3()"),
    Field("memoryTotalBytes", "memory.0", "MiB", words="dcmi_get_device_hbm_info(), else dcmi_get_device_memory_info_v3()"),
    *MEMORY,
    Field("smClock", "aicore_info.1", "MHz"),
    Field("maxSmClock", "aicore_info.0", "MHz"),
    Field("dramActive", "bandwidth", "%", words="dcmi_get_device_utilization_rate(), memory bandwidth"),
    Field("memoryTemp", "hbm_info.3", "C", zero_is_missing=True),
    Field("memoryClock", "hbm_info.1", "MHz", zero_is_missing=True),
    Field("eccMode", "ecc_info.0", "1"),
    Field("correctedMemoryErrors", "ecc_info.1", "1"),
    Field("uncorrectedMemoryErrors", "ecc_info.2", "1"),
    Field("correctedMemoryErrorsAggregate", "ecc_info.3", "1"),
    Field("uncorrectedMemoryErrorsAggregate", "ecc_info.4", "1"),
    Field("retiredPagesDoubleBit", "ecc_info.6", "1"),  # position 5, for single-bit errors, is reserved and always 0
)


def why(function: str, code: int) -> Unavailable:
    """Return the reason for an error code of a function."""
    reason, words = ERRORS.get(code, (Reason.DRIVER_ERROR, f"error {code}"))
    return Unavailable(reason, f"{function}: {words}")


def connect() -> PollOnce:
    """Load the library and initialise the set of functions that works on this machine.

    Raises:
        SourceError: The library is missing, or cannot open the driver.
    """
    library: Any = load_first("libdcmi.so", LIBRARIES, INSTALL)
    codes = []
    for prefix in (BY_CARD, BY_NUMBER):
        init = getattr(library, f"{prefix}_init", None)
        codes.append(LACKING if init is None else init())
        if codes[-1] == 0:
            return partial(poll, library, prefix)
    # The most informative of the two codes: the set that the chips do not support says only that.
    code = next((each for each in codes if each not in (LACKING, NOT_SUPPORTED)), codes[0])
    if not may_open():
        raise SourceError(Reason.NO_PERMISSION, f"this user may not open {MANAGER}: dcmi_init: error {code}", advice=JOIN)
    raise SourceError(Reason.DRIVER_UNAVAILABLE, f"dcmi_init: error {code}: libdcmi.so cannot open the driver", advice=CLOSED.advice)


def poll(library: Any, prefix: str) -> Iterator[DeviceSample]:
    """Yield a sample for each chip. A chip that cannot be read does not affect the others.

    Raises:
        SourceError: After all chips, why some may be missing.
    """
    failures: list[Unavailable] = []
    driver = ctypes.create_string_buffer(ROOM)
    has_version = getattr(library, f"{prefix}_get_driver_version", lambda *_: LACKING)(driver, 256) == 0
    for ids, number in (_by_card if prefix == BY_CARD else _by_number)(library, failures):
        record = _read(library, prefix, ids)
        record |= {"number": number, "driver": driver.value.decode("utf-8", "replace") if has_version else ""}
        yield DeviceSample(record, _processes(library, prefix, ids), whole=f"card {ids[0]}" if prefix == BY_CARD else "")
    if failures:
        raise SourceError(*failures[0])


def _by_card(library: Any, failures: list[Unavailable]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the computing chips as (card, chip), each with its logical number. Failures are added to ``failures``."""
    count, cards = ctypes.c_int(), (ctypes.c_int * CARDS)()
    if code := library.dcmi_get_card_list(ctypes.byref(count), cards, CARDS):
        raise SourceError(*why("dcmi_get_card_list", code))
    for card in cards[: max(0, min(count.value, CARDS))]:
        chips = ctypes.c_int()
        if code := library.dcmi_get_device_num_in_card(card, ctypes.byref(chips)):
            failures.append(why("dcmi_get_device_num_in_card", code))
        for chip in range(0 if code else min(chips.value, CHIPS)):
            kind, number = ctypes.c_int(-1), ctypes.c_int(-1)
            if code := library.dcmi_get_device_type(card, chip, ctypes.byref(kind)):
                failures.append(why("dcmi_get_device_type", code))
            elif kind.value == NPU:
                failed = library.dcmi_get_device_logic_id(ctypes.byref(number), card, chip)
                yield (card, chip), None if failed else number.value


def _by_number(library: Any, _: list[Unavailable]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the chips of the 950 by number."""
    count, chips = ctypes.c_int(), (ctypes.c_int * CARDS)()
    if code := library.dcmiv2_get_device_list(chips, ctypes.byref(count), CARDS):
        raise SourceError(*why("dcmiv2_get_device_list", code))
    for chip in chips[: max(0, min(count.value, CARDS))]:
        yield (chip,), chip


def _read(library: Any, prefix: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Return the library's values of a chip: for each function the numbers of its struct, or the reason in place of each number."""

    def ask(name: str, layout: str, *more: int) -> list[Any]:
        buffer, full = ctypes.create_string_buffer(ROOM), f"{prefix}_get_device_{name}"
        function = getattr(library, full, None)
        code = LACKING if function is None else function(*ids, *more, buffer)
        values = list(struct.unpack_from(layout, buffer))
        return [why(full, code)] * len(values) if code else values

    is_newer = prefix == BY_NUMBER
    hbm = ask("hbm_info", "@QI4xQiI")
    # A chip without HBM (310P) reports an error or a size of 0 here. Its memory is DDR, which another function reports.
    has_hbm = isinstance(hbm[0], int) and hbm[0] > 0
    size, available = (hbm[0], 0) if has_hbm else ask("memory_info_v3", "@QQ")
    ecc = ask("ecc_info", "@i6I", HBM if has_hbm else DDR)
    (name,) = ask("chip_info", "@32x32s")
    place = ask("pcie_info" if is_newer else "pcie_info_v2", "@4Ii3I")[4:]
    die = ask(*(("die_id", "@5I", 2) if is_newer else ("die_v2", "@5I", 1)))
    is_known = isinstance(name, bytes)
    record = {
        # Kinds of utilisation: 2 is the AI core, 13 the NPU, 5 and 10 the bandwidth of DDR and of HBM.
        "utilization_rate": ask("utilization_rate", "@I", 13 if is_newer else 2)[0],
        "bandwidth": ask("utilization_rate", "@I", 10 if has_hbm else 5)[0],
        "temperature": ask("temperature", "@i"),
        "power_info": ask("power_info", "@i"),
        "aicore_info": ask("aicore_info", "@2I"),
        "hbm_info": hbm if has_hbm else [Unavailable(Reason.NOT_SUPPORTED, "the chip has no HBM")] * len(hbm),
        "memory": [size, hbm[2] if has_hbm else size if isinstance(size, Unavailable) else size - available],
        "ecc_info": [ecc[0], *[ECC_OFF] * (len(ecc) - 1)] if ecc[0] == 0 else ecc,
        "name": name.partition(b"\0")[0].decode("utf-8", "replace").strip() if is_known else "",
        "address": "" if isinstance(place[0], Unavailable) else "{:04x}:{:02x}:{:02x}.{:x}".format(*place),
        "die": "-".join(f"{word:08X}" for word in die) if isinstance(die[0], int) and any(die) else "",
    }
    # A 310 reports its rated power.
    return record | {"power_info": [RATED]} if record["name"] == "310" else record


def _processes(library: Any, prefix: str, ids: tuple[int, ...]) -> Processes:
    """Return the processes of a chip with their memory on it. The library lists at most 32."""
    name = f"{prefix}_get_device_{'resource_info' if prefix == BY_CARD else 'proc_mem_info'}"
    buffer, count = ctypes.create_string_buffer(PROCESS.size * PROCESSES), ctypes.c_int()
    function = getattr(library, name, None)
    code = LACKING if function is None else function(*ids, buffer, ctypes.byref(count))
    if code:
        return why(name, code)
    listed = PROCESS.iter_unpack(buffer.raw[: PROCESS.size * max(0, min(count.value, PROCESSES))])
    return tuple(DeviceProcess(pid, "compute", memory) for pid, memory in listed if pid > 0)


LIBRARY = PolledBackend(
    "ascend",
    kind="npu",
    vendor="huawei",
    source="dcmi",
    connect=connect,
    fields=FIELDS,
    identity={"vendor_index": "number", "name": "name", "uuid": "die", "pci_bus_id": "address", "driver_version": "driver"},
    interval=1.0,
    processes="dcmi_get_device_resource_info()",
    advice="see whether npu-smi info lists any NPU, and dmesg why not",
)
