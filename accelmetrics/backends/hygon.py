"""Hygon DCUs: through the files of their kernel driver, which are those of amdgpu, or ``hy-smi`` where they are not to be seen.

DTK has the same tool under the name of AMD's, ``rocm-smi``: it is asked whose it is first, and no device is taken that the PCI bus knows
as another vendor's. Its JSON may lack commas, which are put in. The memory that is "in use" by its words is a share of the size, not of
time. Keys begin with ``DCU`` before DTK 25.04 and with ``HCU`` since.

Formats are those of published outputs of DTK 22.10 to 26.04 (Z100, K100, BW). Read on stand-ins, never yet on a real card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from accelmetrics.backends.amd import PROCESSES
from accelmetrics.backends.amd.cards import HYGON
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
from accelmetrics.backends.kit.fields import joined_words, pcie_generation
from accelmetrics.backends.kit.system import PCI, read_text
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import pci_address

NODES = "--device=/dev/kfd --device=/dev/mkfd --device=/dev/dri"
COMMAND = Command(
    ("hy-smi", "rocm-smi"),
    directories=("/opt/hyhal/bin", "/usr/local/hyhal/bin", "/opt/dtk*/bin"),
    # What hinders it is no sign of another vendor.
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
ABOUT = ("--showproductname", "--showuniqueid", "--showserial", "--showmaxpower", "--showbus", "--json")


def lanes(printed: str) -> str | None:
    """Find the width in what is printed of the link: ``2 (32.0GT/s, x16 1100Mhz)``."""
    found = re.search(r"\bx(\d{1,3})\b", printed)
    return found[1] if found else None


def generation(printed: str) -> object:
    """Find the PCIe generation in it."""
    found = re.search(r"([\d.]{1,8}) ?GT/s", printed)
    return pcie_generation(found[1]) if found else None


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
    Field("pcieLinkGen", LINK, "1", convert=generation),
    Field("pcieLinkWidth", LINK, "1", convert=lanes),
)
STEADY = (Field("enforcedPowerLimitWatts", "max graphics package power", "W"),)
TABLE = (
    Field("gpu", ("hcu%", "dcu%"), "%"),
    Field("memoryAllocated", "vram%", "%"),
    Field("temp", "temp", "C"),
    Field("powerWatts", "avgpwr", "W"),
    Field("enforcedPowerLimitWatts", "pwrcap", "W"),
    POWER_SHARE,
    Field("decoderUtilization", "dec%", "%"),
    Field("encoderUtilization", "enc%", "%"),
)
PLACE = {"vendor_index": "number", "pci_bus_id": "address"}
WHO = {**PLACE, "uuid": "unique id", "serial": "serial number", "name": ("card series", "card model")}
NO_COMMA = re.compile(r'(?<=[^\s:,{\[\\])"\s*"(?=[^"\n]+"\s*:)')
LINE = re.compile(r"\s*(?:[DH]CU|GPU)\[(\d{1,4})\]\s*: *([^:]+?) *:\s*(.*?)\s*", re.ASCII)
CARD = re.compile(r"card(\d{1,4})", re.ASCII)


def parse(printed: str) -> Iterator[DeviceSample]:
    """Yield the cards of a document, or of the lines that are printed where ``--json`` goes unheeded.

    Args:
        printed: What the tool printed.

    Raises:
        SourceError: There is no card.
    """
    cards: dict[str, dict[str, object]] = {}
    for document in json_documents(NO_COMMA.sub('", "', printed)):
        for name, said in document.items() if isinstance(document, Mapping) else ():
            found = CARD.fullmatch(name)
            if found is not None and isinstance(said, Mapping):
                cards.setdefault(found[1], {}).update(said)
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
    """Yield the cards of the table that is printed without arguments. No heading and no cell of it has a blank."""
    names: list[str] = []
    for words in map(str.split, printed.splitlines()):
        if words[:1] in (["HCU"], ["DCU"]):
            names = words
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
        Source("hy-smi --show", COMMAND.poll(parse, *ABOUT), STEADY, 60.0, identity=WHO),
    ),
    advice="see whether hy-smi lists any DCU, and dmesg why not (kernel module hycu or hydcu)",
)


def open_files(clock: Clock) -> Driver:
    """Open the kernel driver's files."""
    from accelmetrics.backends.amd.in_process import InProcessDriver

    return InProcessDriver(clock, ("sysfs",), HYGON)


def coverage() -> Coverage:
    """Return what the files and the command give; processes are found by the files alone."""
    from accelmetrics.backends.amd import sysfs

    pairs = (*sysfs.CARDS.words.items(), *TOOL.coverage().devices.items())
    return Coverage(joined_words(pairs), sysfs.PARTITIONS.words, processes=PROCESSES)


backend = SourcesBackend("hygon", "gpu", {"sysfs": open_files, "hy-smi": TOOL}, coverage=coverage)
