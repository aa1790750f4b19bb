"""Huawei Ascend NPUs, through the driver's library (``libdcmi.so``), or ``npu-smi`` if the library is missing or refuses.

The library has two sets of functions: ``dcmi_…`` take a card and a chip, ``dcmiv2_…`` the number of a chip. The 950 has only the second
set. A chip has the logical number that programs use, and is recognised by the id of its die. A card with two dies (A3) reports its total
power for each die. For a chip that is divided (vNPU) the driver reports a utilisation of 512, which is not given.

``npu-smi info`` lists every chip and its processes (at most eight per chip). Its tables differ between chips: one NPU with one chip (910B);
two dies, where the first reports the power of both (A3); chips of a card that share a PCI address (310P); one cell per heading (950). A
chip has the number that programs use if the tool prints one (Device, Phy-ID), else the number of its NPU. ``npu-smi info -t`` prints
clocks, memory bandwidth, temperature and errors of one card. It runs every 30 s, since each run asks the firmware again.

Some printed numbers are no measurements and are not given: the power of a 310, which is its rated power, and isolated pages of single-bit
errors, always 0. For a divided chip (vNPU) the tool prints a utilisation of 0. Functions, structs, units and errors of
the library are those of the vendor's header and manuals of 2026, formats of the tool those of its manuals and of published outputs of
releases 23 to 26. Never tested on a real NPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Says,
    Source,
    SourcesBackend,
    each_device,
    first_match,
    load_first,
    number,
    sections,
    table,
    whole,
    with_units,
)
from accelmetrics.backends.kit.processes import DriverNumbers
from accelmetrics.backends.kit.system import exists, sysroot
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

MOST_WATTS = 3000
"""Highest power that is believed. Missing sensors report 3276.5 W and more."""
MANAGER = "/dev/davinci_manager"
INSTALL = "install Ascend's driver, which has libdcmi.so and npu-smi"
REFUSED = "dcmi module initialize failed"
CLOSED = Says(
    REFUSED,
    Reason.DRIVER_UNAVAILABLE,
    "npu-smi cannot open the driver",
    "load the driver (after an update of driver or firmware, restart the machine); in a container, start it with the Ascend runtime, or "
    "with the devices /dev/davinci0, davinci_manager, devmm_svm and hisi_hdc",
    gone=True,
)
JOIN = "add this user to the driver's group (sudo usermod -aG HwHiAiUser $USER) and log in again, or run as root"
COMMAND = Command(
    "npu-smi",
    ("info",),
    directories=("/usr/local/bin", "/usr/local/sbin"),
    install=INSTALL,
    says=(CLOSED, Says("not support", Reason.NOT_SUPPORTED, "npu-smi does not report it for this chip")),
    timeout=10.0,  # each run loads the driver's library again, which takes seconds
)
TOOL_FIELDS = (
    Field("utilization", ("AICore", "NPUUtil"), "%"),
    Field("temp", "Temp", "C"),
    Field("powerWatts", "Power", "W", high=MOST_WATTS),
    Field("memoryAllocatedBytes", "memory.0", "MB"),
    Field("memoryTotalBytes", "memory.1", "MB"),
    *MEMORY,
)
TOOL_IDENTITY = {"vendor_index": "number", "name": "Name", "pci_bus_id": "Bus-Id", "driver_version": "driver"}
RATED = Unavailable(Reason.NOT_SUPPORTED, "npu-smi prints the rated power of this chip, not what it draws")
COUNTS = ("Single Bit Error Count", "Double Bit Error Count", "Single Bit Aggregate Total Err Cnt", "Double Bit Aggregate Total Err Cnt")
ISOLATED, NEXT = "Double Bit Isolated Pages Count", "Double Bit Next-Isolated Pages Count"
DETAILS = {
    "common": ("Aicore curFreq", "Aicore Freq"),
    "usages": ("HBM Bandwidth Usage Rate", "DDR Bandwidth Usage Rate"),
    "memory": ("HBM Temperature", "HBM Clock Speed"),
    "ecc": tuple(f"{memory} {each}" for memory in ("HBM", "DDR") for each in (*COUNTS, ISOLATED, NEXT)),
}
"""Values that are read of each kind of ``npu-smi info -t``."""


def may_open() -> bool:
    """Return whether this user may open the driver's node; True if the node does not exist."""
    return not exists(MANAGER) or os.access(sysroot() + MANAGER, os.R_OK | os.W_OK)


def of_memory(name: str) -> tuple[str, str]:
    """Return the two places of a counter: for chips with HBM, and for chips without."""
    return f"HBM {name}", f"DDR {name}"


IN_DETAILS = (
    Field("smClock", "Aicore curFreq", "MHz"),
    Field("maxSmClock", "Aicore Freq", "MHz"),
    Field("dramActive", DETAILS["usages"], "%"),
    Field("memoryTemp", "HBM Temperature", "C", zero_is_missing=True),
    Field("memoryClock", "HBM Clock Speed", "MHz", zero_is_missing=True),
    Field("correctedMemoryErrors", of_memory(COUNTS[0]), "1"),
    Field("uncorrectedMemoryErrors", of_memory(COUNTS[1]), "1"),
    Field("correctedMemoryErrorsAggregate", of_memory(COUNTS[2]), "1"),
    Field("uncorrectedMemoryErrorsAggregate", of_memory(COUNTS[3]), "1"),
    Field("retiredPagesDoubleBit", of_memory(ISOLATED), "1"),
    Field("retiredPagesPending", of_memory(NEXT), "1", convert=lambda value: value if whole(value) is None else int(value != "0")),
)
_HEADER = re.compile(r"(?:\s*(?:NPU ID|Chip Count)\s*:[^\n]*\n|[^\S\n]*\n)*")
_CHIP = r"\s*Chip (?:ID|Name)\s*:\s*(?P<chip>\S+)"


def chips(printed: str) -> dict[str, dict[str, Any]]:
    """Return the values of each chip of a card from the output of ``npu-smi info -t``, with their units.

    The card's controller (MCU) is left out.
    """
    header = _HEADER.match(printed)
    rest = printed[header.end() if header else 0 :]
    # Depending on the question, the line with the chip's id is the first or the last of its block. A card with a single
    # chip may have no such line.
    found = sections(rest, begins=_CHIP) if re.match(_CHIP, rest) else sections(rest, ends=_CHIP)
    found = found or [{"chip": "0", **record} for record in sections(f"\n{rest}", begins="$")]
    return {record["chip"]: with_units(record) for record in found if record["chip"].isdecimal()}


def programs(printed: str) -> tuple[dict[tuple[str, str], tuple[DeviceProcess, ...]], set[str]]:
    """Parse the table of processes.

    Returns:
        The processes by NPU and chip, and the NPUs that the table covers, including NPUs without processes.
    """
    found: dict[tuple[str, str], tuple[DeviceProcess, ...]] = {}
    outside = not DriverNumbers(()).shared
    for row in table(printed, r"\bProcess id\b"):
        npu = row.get("NPU") or row.get("NPU ID", "")
        # In a container the first column has the process id of the host. Since release 26 another column has the container's own.
        here = whole(row.get("Process id in container")) if outside else None
        pid, memory = here or whole(row.get("Process id")), number(row.get("Process memory"), "MB", "By")
        if pid:
            process = DeviceProcess(pid, "compute", None if isinstance(memory, Unavailable) else round(memory))
            found[npu, row.get("Chip") or "0"] = (*found.get((npu, row.get("Chip") or "0"), ()), process)
    return found, {npu for npu, _ in found} | set(re.findall(r"No running processes found in NPU (\d+)", printed))


class Chips:
    """Poll of all chips, and the device number of each chip of a card."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], str] = {}

    def __call__(self) -> PollOnce:
        """Return the poll of ``npu-smi info``."""
        ask = COMMAND.poll(self.parse)()

        def poll() -> Iterator[DeviceSample]:
            try:
                yield from ask()
            except SourceError as error:
                # The tool prints the same message without rights and without a driver.
                if REFUSED in error.message and not may_open():
                    raise SourceError(Reason.NO_PERMISSION, f"this user may not open {MANAGER}: {error.message}", advice=JOIN) from error
                raise

        return poll

    def parse(self, printed: str) -> Iterator[DeviceSample]:
        """Parse the output of ``npu-smi info``."""
        heading = re.search(r"(?m)^.*\bProcess id\b.*$", printed)
        listed, processes = (printed, "") if heading is None else (printed[: heading.start()], printed[heading.start() :])
        listed = listed.replace("NPU Util(%)", "NPUUtil(%) ")  # one space before the next heading; `table` needs two
        driver = first_match(printed, r"\bVersion: *(\S+)")
        found: list[dict[str, Any]] = []
        cut: SourceError | None = None
        try:
            found.extend(table(listed, r"^\W*NPU\b.*\bName\b"))
        except SourceError as error:
            cut = error
        users, covered = programs(processes)
        several = any(row.get("Chip", "0") != "0" for row in found)
        self._numbers = {}
        for row in found:
            row |= {"driver": driver, "npu": row.get("NPU") or row.get("NPU ID", ""), "chip": row.get("Chip") or "0"}
            # If an NPU has several chips and no number is printed, the NPU's number does not identify the chip.
            row["number"] = row.get("Device") or row.get("Phy-ID") or ("" if several else row["npu"])
            if row.get("Name") == "310":
                row["Power"] = RATED
            # Chips without HBM print 0 / 0 for it; their memory is DDR.
            memory = "Memory-Usage" if row.get("HBM-Usage.1", "0 MB") == "0 MB" else "HBM-Usage"
            row["memory"] = [row.get(f"{memory}.{side}") for side in range(2)]
            self._numbers[row["npu"], row["chip"]] = row["number"]
            yield DeviceSample(row, users.get((row["npu"], row["chip"]), () if row["npu"] in covered else None))
        # Raised after all complete rows, so that a table that is cut off still gives its complete devices.
        if cut is not None:
            raise cut

    def details(self) -> PollOnce:
        """Return the poll of ``npu-smi info -t``, which runs for each card."""
        ask = each_device(COMMAND, self._questions, ("-t", "{what}", "-i", "{npu}"), self._answers)()

        def poll() -> Iterable[DeviceSample]:
            merged: dict[str, dict[str, Any]] = {}
            for sample in ask():
                get = sample.record.get
                places = DETAILS[str(get("what"))]
                merged.setdefault(str(get("number")), {"number": get("number")}).update((place, get(place)) for place in places)
            return map(DeviceSample, merged.values())

        return poll

    def _questions(self) -> Sequence[Mapping[str, object]]:
        cards = {npu: device for (npu, _), device in sorted(self._numbers.items(), reverse=True) if device}
        return [{"npu": npu, "number": device, "what": what} for npu, device in cards.items() for what in DETAILS]

    def _answers(self, printed: str) -> Iterator[Mapping[str, Any]]:
        npu = first_match(printed, r"NPU ID *: *(\d+)")
        for chip, record in chips(printed).items():
            device = self._numbers.get((npu, chip))
            if device:
                # A chip without HBM has error counters of HBM too. Older releases print a single clock, which may be the current
                # or the rated one.
                left_out = [place for place in record if place.startswith("HBM") and record.get("HBM Capacity") == "0 MB"]
                left_out += ["Aicore Freq"] if "Aicore curFreq" not in record else []
                yield {**{place: value for place, value in record.items() if place not in left_out}, "number": device}


CHIPS = Chips()
TOOL = PolledBackend(
    "ascend",
    kind="npu",
    vendor="huawei",
    source="npu-smi",
    connect=CHIPS,
    fields=TOOL_FIELDS,
    identity=TOOL_IDENTITY,
    interval=2.0,
    also=(Source("npu-smi -t", CHIPS.details, IN_DETAILS, interval=30.0, identity={"vendor_index": "number"}),),
    processes='npu-smi "Process memory(MB)"',
    advice="check whether npu-smi info lists any NPU; dmesg may show why not",
)

# The library

DRIVER = "/usr/local/Ascend/driver/lib64"
LIBRARIES = ("libdcmi.so", f"{DRIVER}/driver/libdcmi.so", f"{DRIVER}/libdcmi.so", "/usr/local/dcmi/libdcmi.so")
BY_CARD, BY_NUMBER = "dcmi", "dcmiv2"
MISSING, NOT_SUPPORTED = -1, -8255
"""Our own code for a function that the library does not have, and the library's code for "not supported"."""
ERRORS = {
    MISSING: (Reason.NOT_SUPPORTED, "this library has no such function"),
    -8002: (Reason.NO_PERMISSION, "this user may not"),
    -8006: (Reason.TIMED_OUT, "the device did not answer"),
    -8007: (Reason.DEVICE_LOST, "there is no such device"),
    -8008: (Reason.DEVICE_LOST, "there is no such device"),
    -8013: (Reason.NOT_SUPPORTED, "not available in a container"),
    NOT_SUPPORTED: (Reason.NOT_SUPPORTED, "not supported"),
}
HBM, DDR = 2, 0
"""Kinds of memory for ``ecc_info``."""
NPU, MOST_CARDS, MOST_CHIPS, MOST_PROCESSES, ROOM = 0, 64, 16, 64, 4096
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
        codes.append(MISSING if init is None else init())
        if codes[-1] == 0:
            return partial(poll, library, prefix)
    # The most informative of the two codes: the set that the chips do not support says only that.
    code = next((each for each in codes if each not in (MISSING, NOT_SUPPORTED)), codes[0])
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
    has_version = getattr(library, f"{prefix}_get_driver_version", lambda *_: MISSING)(driver, 256) == 0
    for ids, logical in (_by_card if prefix == BY_CARD else _by_number)(library, failures):
        record = _read(library, prefix, ids)
        record |= {"number": logical, "driver": driver.value.decode("utf-8", "replace") if has_version else ""}
        yield DeviceSample(record, _processes(library, prefix, ids), whole=f"card {ids[0]}" if prefix == BY_CARD else "")
    if failures:
        raise SourceError(*failures[0])


def _by_card(library: Any, failures: list[Unavailable]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the computing chips as (card, chip), each with its logical number. Failures are added to ``failures``."""
    count, cards = ctypes.c_int(), (ctypes.c_int * MOST_CARDS)()
    if code := library.dcmi_get_card_list(ctypes.byref(count), cards, MOST_CARDS):
        raise SourceError(*why("dcmi_get_card_list", code))
    for card in cards[: max(0, min(count.value, MOST_CARDS))]:
        chips = ctypes.c_int()
        if code := library.dcmi_get_device_num_in_card(card, ctypes.byref(chips)):
            failures.append(why("dcmi_get_device_num_in_card", code))
        for chip in range(0 if code else min(chips.value, MOST_CHIPS)):
            kind, logical = ctypes.c_int(-1), ctypes.c_int(-1)
            if code := library.dcmi_get_device_type(card, chip, ctypes.byref(kind)):
                failures.append(why("dcmi_get_device_type", code))
            elif kind.value == NPU:
                failed = library.dcmi_get_device_logic_id(ctypes.byref(logical), card, chip)
                yield (card, chip), None if failed else logical.value


def _by_number(library: Any, _: list[Unavailable]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the chips of the 950 by number."""
    count, chips = ctypes.c_int(), (ctypes.c_int * MOST_CARDS)()
    if code := library.dcmiv2_get_device_list(chips, ctypes.byref(count), MOST_CARDS):
        raise SourceError(*why("dcmiv2_get_device_list", code))
    for chip in chips[: max(0, min(count.value, MOST_CARDS))]:
        yield (chip,), chip


def _read(library: Any, prefix: str, ids: tuple[int, ...]) -> dict[str, Any]:
    """Return the library's values of a chip: for each function the numbers of its struct, or the reason in place of each number."""

    def ask(name: str, layout: str, *more: int) -> list[Any]:
        buffer, full = ctypes.create_string_buffer(ROOM), f"{prefix}_get_device_{name}"
        function = getattr(library, full, None)
        code = MISSING if function is None else function(*ids, *more, buffer)
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
    buffer, count = ctypes.create_string_buffer(PROCESS.size * MOST_PROCESSES), ctypes.c_int()
    function = getattr(library, name, None)
    code = MISSING if function is None else function(*ids, buffer, ctypes.byref(count))
    if code:
        return why(name, code)
    listed = PROCESS.iter_unpack(buffer.raw[: PROCESS.size * max(0, min(count.value, MOST_PROCESSES))])
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
    advice="check whether npu-smi info lists any NPU; dmesg may show why not",
)
backend = SourcesBackend("ascend", "npu", {"dcmi": LIBRARY, "npu-smi": TOOL})
