"""Hygon DCUs, through the files of their kernel driver, the same as amdgpu's, or ``hy-smi`` if the files are not visible.

DTK ships the same tool under AMD's name, ``rocm-smi``. So the tool is checked first, and a device that has another vendor id on the PCI bus
is left out. Keys begin with ``DCU`` before DTK 25.04 and with ``HCU`` since then.

Formats are those of published outputs of DTK 22.10 to 26.04 (Z100, K100, BW). Tested with stand-ins, never on a real card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from accelmetrics.backends.amd import PROCESSES
from accelmetrics.backends.amd.cards import HYGON
from accelmetrics.backends.amd.rocm_smi import link_generation, link_width
from accelmetrics.backends.contract import Clock, Coverage, Driver
from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    Says,
    Source,
    SourcesBackend,
    json_documents,
    quoted,
    text,
    with_units,
)
from accelmetrics.backends.kit.fields import joined_words
from accelmetrics.backends.kit.system import PCI, read_text
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import pci_address

NODES = "--device=/dev/kfd --device=/dev/mkfd --device=/dev/dri"
COMMAND = Command(
    ("hy-smi", "rocm-smi"),
    directories=("/opt/hyhal/bin", "/usr/local/hyhal/bin", "/opt/dtk*/bin"),
    # A tool without rights or devices proves nothing about its vendor, so these messages are accepted too.
    proof=("--showproductname", r"\b[DH]CU\[|C-3000|Hygon|End of SMI Log|hy-smi|permission|permitted|no device"),
    install="install Hygon's driver (hyhal), which has hy-smi",
    says=(
        Says("no device", Reason.DRIVER_UNAVAILABLE, "hy-smi sees no DCU", f"in a container, start it with {NODES}", gone=True),
        Says(
            "not initialized|hy(d)?cu not found",
            Reason.DRIVER_UNAVAILABLE,
            "the kernel driver is not loaded",
            "sudo modprobe hycu",
            gone=True,
        ),
    ),
    timeout=8.0,
)
FLAGS = ("--showuse", "--showmemuse", "--showtemp", "--showpower", "--showclocks", "--showbus", "--showmeminfo", "vram", "--json")
STEADY_FLAGS = ("--showproductname", "--showuniqueid", "--showserial", "--showmaxpower", "--showbus", "--json")
EDGE, JUNCTION, CORE, MEMORY_SENSOR = (f"temperature (sensor {name})" for name in ("edge", "junction", "core", "mem"))
LINK = ("pcie clock speed", "pcie clock level")
FIELDS = (
    Field("gpu", ("hcu use", "dcu use"), "%"),
    Field("memoryAllocatedBytes", "vram total used memory", "MiB"),
    Field("memoryTotalBytes", "vram total memory", "MiB"),
    *MEMORY,
    Field("temp", (EDGE, JUNCTION, CORE), "C"),
    Field("hotspotTemp", JUNCTION, "C"),
    Field("memoryTemp", MEMORY_SENSOR, "C"),
    Field("powerWatts", "average graphics package power", "W"),
    POWER_SHARE,
    Field("smClock", ("sclk clock speed", "sclk clock speed:"), "MHz"),
    Field("memoryClock", ("mclk clock speed", "mclk clock speed:"), "MHz"),
    Field("pcieLinkGen", LINK, "1", convert=link_generation),
    Field("pcieLinkWidth", LINK, "1", convert=link_width),
)
STEADY = (Field("enforcedPowerLimitWatts", "max graphics package power", "W"),)
TABLE = (
    Field("gpu", ("hcu%", "dcu%"), "%"),
    # The tool calls it use; it is the share of the memory's size, not of time.
    Field("memoryAllocated", "vram%", "%"),
    Field("temp", "temp", "C"),
    Field("powerWatts", "avgpwr", "W"),
    Field("enforcedPowerLimitWatts", "pwrcap", "W"),
    POWER_SHARE,
    Field("decoderUtilization", "dec%", "%"),
    Field("encoderUtilization", "enc%", "%"),
)
PLACE = {"vendor_index": "number", "pci_bus_id": "address"}
IDENTITY = {**PLACE, "uuid": "unique id", "serial": "serial number", "name": ("card series", "card model")}
NO_COMMA = re.compile(r'(?<=[^\s:,{\[\\])"\s*"(?=[^"\n]+"\s*:)')
LINE = re.compile(r"\s*(?:[DH]CU|GPU)\[(\d{1,4})\]\s*: *([^:]+?) *:\s*(.*?)\s*", re.ASCII)
CARD = re.compile(r"card(\d{1,4})", re.ASCII)


def parse(printed: str) -> Iterator[DeviceSample]:
    """Yield the cards of a document, or of the lines that the tool prints if it ignores ``--json``.

    Args:
        printed: The output of the tool.

    Raises:
        SourceError: There is no card.
    """
    cards: dict[str, dict[str, object]] = {}
    # The tool's JSON may lack commas between its members. They are inserted first.
    for document in json_documents(NO_COMMA.sub('", "', printed)):
        for name, values in document.items() if isinstance(document, Mapping) else ():
            found = CARD.fullmatch(name)
            if found is not None and isinstance(values, Mapping):
                cards.setdefault(found[1], {}).update(values)
    for line in () if cards else printed.splitlines():
        if found := LINE.fullmatch(line):
            cards.setdefault(found[1], {})[found[2]] = found[3]
    if not cards:
        raise SourceError(Reason.PARSE_ERROR, f"hy-smi printed no card: {quoted(printed)}")
    for number, card in cards.items():
        address = text(card.get("PCI Bus")).partition(" ")[0]  # "0000:09:00.0 --> SN: …"
        if read_text(f"{PCI}/{pci_address(address)}/vendor") in (None, HYGON.vendor_id):
            yield DeviceSample({**with_units(card), "number": number, "address": address})


def parse_table(printed: str) -> Iterator[DeviceSample]:
    """Yield the cards of the table that the tool prints without arguments."""
    names: list[str] = []
    for words in map(str.split, printed.splitlines()):
        if words[:1] in (["HCU"], ["DCU"]):
            names = words
        # No heading and no cell of this table contains a blank.
        elif words and words[0].isdecimal() and len(words) == len(names):
            yield DeviceSample({**dict(zip(names, words, strict=True)), "number": words[0]})


TOOL = PolledBackend(
    "hygon",
    kind="gpu",
    source="hy-smi",
    connect=COMMAND.poll(parse, *FLAGS),
    fields=FIELDS,
    identity=PLACE,
    interval=2.0,
    also=(
        Source("hy-smi, its table", COMMAND.poll(parse_table), TABLE, identity={"vendor_index": "number"}, instead_of="hy-smi"),
        Source("hy-smi --show", COMMAND.poll(parse, *STEADY_FLAGS), STEADY, 60.0, identity=IDENTITY),
    ),
    advice="check whether hy-smi lists any DCU; dmesg may show why not (kernel module hycu or hydcu)",
)


def open_files(clock: Clock) -> Driver:
    """Return the driver of the kernel driver's files."""
    from accelmetrics.backends.amd.in_process import InProcessDriver

    return InProcessDriver(clock, ("sysfs",), HYGON)


def coverage() -> Coverage:
    """Return the metrics of the files and of the command. Only the files have processes."""
    from accelmetrics.backends.amd import in_process

    pairs = (*in_process.CARDS.words.items(), *TOOL.coverage().devices.items())
    return Coverage(joined_words(pairs), in_process.PARTITIONS.words, processes=PROCESSES)


backend = SourcesBackend("hygon", "gpu", {"sysfs": open_files, "hy-smi": TOOL}, coverage=coverage)
