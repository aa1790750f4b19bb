"""Ascend NPUs through ``npu-smi``, the tool of the driver.

``npu-smi info`` lists every chip and its processes (at most eight per chip). Its tables differ between chips: one NPU with one chip (910B);
two dies, where the first reports the power of both (A3); chips of a card that share a PCI address (310P); one cell per heading (950). A
chip has the number that programs use if the tool prints one (Device, Phy-ID), else the number of its NPU. ``npu-smi info -t`` prints
clocks, memory bandwidth, temperature and errors of one card. It runs every 30 s, since each run asks the firmware again.

Some printed numbers are no measurements and are not given: the power of a 310, which is its rated power, and isolated pages of single-bit
errors, always 0. For a divided chip (vNPU) the tool prints a utilisation of 0. Formats are those of the vendor's manuals and of published
outputs of releases 23 to 26. Never tested on a real NPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accelmetrics.backends.kit import (
    MEMORY,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Says,
    Source,
    each_device,
    first_match,
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
    says=(CLOSED, Says("not support", Reason.NOT_SUPPORTED, "npu-smi does not tell it of this chip")),
    timeout=10.0,  # each run loads the driver's library again, which takes seconds
)
FIELDS = (
    Field("utilization", ("AICore", "NPUUtil"), "%"),
    Field("temp", "Temp", "C"),
    Field("powerWatts", "Power", "W", high=MOST_WATTS),
    Field("memoryAllocatedBytes", "memory.0", "MB"),
    Field("memoryTotalBytes", "memory.1", "MB"),
    *MEMORY,
)
IDENTITY = {"vendor_index": "number", "name": "Name", "pci_bus_id": "Bus-Id", "driver_version": "driver"}
RATED = Unavailable(Reason.NOT_SUPPORTED, "npu-smi prints the rated power of this chip, not what it draws")
ERRORS = ("Single Bit Error Count", "Double Bit Error Count", "Single Bit Aggregate Total Err Cnt", "Double Bit Aggregate Total Err Cnt")
ISOLATED, NEXT = "Double Bit Isolated Pages Count", "Double Bit Next-Isolated Pages Count"
DETAILS = {
    "common": ("Aicore curFreq", "Aicore Freq"),
    "usages": ("HBM Bandwidth Usage Rate", "DDR Bandwidth Usage Rate"),
    "memory": ("HBM Temperature", "HBM Clock Speed"),
    "ecc": tuple(f"{memory} {each}" for memory in ("HBM", "DDR") for each in (*ERRORS, ISOLATED, NEXT)),
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
    Field("correctedMemoryErrors", of_memory(ERRORS[0]), "1"),
    Field("uncorrectedMemoryErrors", of_memory(ERRORS[1]), "1"),
    Field("correctedMemoryErrorsAggregate", of_memory(ERRORS[2]), "1"),
    Field("uncorrectedMemoryErrorsAggregate", of_memory(ERRORS[3]), "1"),
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
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(Source("npu-smi -t", CHIPS.details, IN_DETAILS, interval=30.0, identity={"vendor_index": "number"}),),
    processes='npu-smi "Process memory(MB)"',
    advice="see whether npu-smi info lists any NPU, and dmesg why not",
)
