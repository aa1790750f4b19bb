"""The command ``rocm-smi``, whatever its release.

What it prints, from 2.x on, is one object: ``{"card0": {"GPU use (%)": "7", …}, "card1": {…}, "system": {…}}``, all values strings.
Around it stand warnings, exceptions of libraries and progress of other tools; the object may be cut. So every object in the text is
tried, those that hold cards are taken together, and when there is none the complete cards of a cut one are picked out by their numbers:
a card that is not complete is not there.

Its exit status says little: 0 when the driver is missing and when nothing was printed, other than 0 with a good payload. So the cards
decide, and where there are none its words do.

The keys are spelled as the newest release does; case makes no difference. Known traps, each with a row or a line below:

- "GPU memory use (%)" (up to 6.1.1) is how busy the memory controller is, like "GPU Memory Read/Write Activity (%)"
  after it. It is never how much memory is allocated.
- "GFX Activity" and "Memory Activity" are raw accumulators and no percentages.
- The second die of an MI250 has no power of its own, an energy counter that stays at 0 and, in some releases, a cap of 0 W.
- An APU's VRAM is a carve-out of the host's memory; what it uses is that and the GTT.
- Up to 4.x a card without a fan has a fan speed of 0 % but no "Fan RPM"; later a fan that stands still is not printed.
- RAS error counts are printed as tables only, which the tool leaves out of its JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from accelmetrics.backends.amd.cards import (
    JOIN_GROUPS,
    LOAD_DRIVER,
    PASS_DEVICES,
    card_name,
    compute_memory,
    counts_energy,
    gpus,
    is_integrated,
)
from accelmetrics.backends.amd.flags import Flag, Flags
from accelmetrics.backends.amd.gpu_metrics import JOULE
from accelmetrics.backends.amd.values import (
    TOTAL,
    UNDOCUMENTED_ENERGY,
    USED,
    card_of,
    device_memory,
    exact_joules,
    memory_rows,
    of_card,
)
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock
from accelmetrics.backends.kit import (
    PRINTED,
    Command,
    Completed,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    json_documents,
    number,
    quoted,
    text,
)
from accelmetrics.backends.kit.fields import Says, pcie_generation
from accelmetrics.backends.kit.system import let_sleep
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

INTERVAL = 2.0
"""Seconds between two runs."""
TIMEOUT = 8.0
"""Seconds. The tool takes 1 to 3; opening a source is allowed 10."""
DIRECTORIES = ("/opt/rocm/bin", "/usr/bin", "/usr/local/bin")
ALL = ("-a", "--json")
"""For releases that do not know some of the flags; without the bytes of memory."""

# What is printed
EDGE = ("Temperature (Sensor edge) (C)", "Temperature (Sensor #1) (C)")
JUNCTION = ("Temperature (Sensor junction) (C)", "Temperature (Sensor #2) (C)")
MEMORY = ("Temperature (Sensor memory) (C)", "Temperature (Sensor mem) (C)", "Temperature (Sensor #3) (C)")
ACTIVITY = ("GPU Memory Read/Write Activity (%)", "GPU memory use (%)")
AVERAGE, SOCKET = "Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)"
FAN, ALLOCATED = "fan speed (%)", "gpu memory allocated (vram%)"

PCIE = ("pcie clock level", "pcie clock level:", "pcie clock speed")
NAMES = ("card series", "device name", "card model")
FLAGS: Mapping[Flag, Sequence[str]] = {
    **dict.fromkeys((("--showuniqueid",), ("--showserial",), ("--showvbios",), ("--showbus",), ("--showproductname",)), ()),
    ("--showdriverversion",): (),
    ("--showuse",): ("GPU use (%)",),
    ("--showmemuse",): (*ACTIVITY, ALLOCATED),
    ("--showmeminfo", "vram", "gtt"): [f"{kind} Total {what}Memory (B)" for kind in ("VRAM", "GTT") for what in ("Used ", "")],
    ("--showmemoverdrive",): ("GPU Memory OverDrive value (%)",),
    ("--showtemp",): (*EDGE, *JUNCTION, *MEMORY),
    ("--showpower",): (AVERAGE, SOCKET),
    ("--showmaxpower",): ("Max Graphics Package Power (W)",),
    ("--showfan",): (FAN,),
    ("--showenergycounter",): ("Energy counter", "Accumulated Energy (uJ)"),
    ("--showreplaycount",): ("PCIe Replay Count",),
    ("--showclocks",): ("sclk clock speed:", "mclk clock speed:", PCIE[0]),
    ("--showsclkrange",): ("Valid sclk range",),
    ("--showmclkrange",): ("Valid mclk range",),
}
"""All that is read, and nothing that is slow: the processes are left out. By flag, what it prints of a card."""

_LINK = re.compile(r"(\d{1,3}(?:\.\d)?)\s*GT/s,? x(\d{1,2})\b", re.ASCII)
_CLOCK_LEVEL = re.compile(r"\w+\s*(\(.*mhz\s*\))", re.IGNORECASE | re.ASCII)
_DECIMAL_GFX = re.compile(r"gfx(9|1\d)(\d)(\d\d)", re.ASCII)
_GFX = re.compile(r"gfx[0-9a-f]{3,5}", re.ASCII)


def _clock(said: object) -> object:
    """Read a clock, which may be printed behind the number of its level: ``1 (800Mhz)``."""
    level = _CLOCK_LEVEL.fullmatch(said) if isinstance(said, str) else None
    return level[1] if level else said


def _highest(said: object) -> object:
    """Read the upper end of a range of clocks: ``500Mhz - 1700Mhz``."""
    return text(said).rpartition("-")[2].strip() or said


def _link(part: int, said: object) -> object:
    """Read the speed (1) or width (2) of a link, printed as ``1 (16.0GT/s x16)`` or ``8.0GT/s, x16 619Mhz``; None where it is neither."""
    found = _LINK.search(quoted(said))
    return found and found[part]


FIELDS = of_card(
    Field("gpu", "GPU use (%)", "%"),
    Field("memory", ACTIVITY, "%"),
    Field("memoryReadWriteActivity", ACTIVITY, "%"),
    Field("memoryOverDrive", "GPU Memory OverDrive value (%)", "%", high=100),
    Field("temp", (*EDGE, *JUNCTION), "C"),
    Field("memoryTemp", MEMORY, "C"),
    Field("hotspotTemp", JUNCTION, "C"),
    Field("powerWatts", (AVERAGE, SOCKET), "W", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", "Max Graphics Package Power (W)", "W"),
    Field("smClock", ("sclk clock speed:", "sclk clock speed", "sclk clock level"), PRINTED, _clock),
    Field("memoryClock", ("mclk clock speed:", "mclk clock speed", "mclk clock level"), PRINTED, _clock),
    Field("maxSmClock", "Valid sclk range", PRINTED, _highest),
    Field("maxMemoryClock", "Valid mclk range", PRINTED, _highest),
    Field("energyJoules", "Energy counter", f"{1 / JOULE:.16f} J", words='rocm-smi "Energy counter" / 65536'),
    Field(
        *("energyJoules", "Accumulated Energy (uJ)", "J", partial(exact_joules, unit="uJ")),
        words='rocm-smi "Accumulated Energy (uJ)" without the rounding of its unit',
    ),
    Field("pcieLinkGen", PCIE, convert=lambda said: pcie_generation(_link(1, said))),
    Field("pcieLinkWidth", PCIE, convert=partial(_link, 2)),
    Field("fanSpeed", FAN, "%", high=200),
    Field("pcieReplays", "PCIe Replay Count"),
    Field("memoryAllocated", ALLOCATED, "%", words=f'where no bytes are printed, "{ALLOCATED}"'),
    *memory_rows(
        'rocm-smi "VRAM Total Used Memory (B)"; an APU: the pool that compute uses, else with "GTT Total Used Memory (B)"',
        'rocm-smi "VRAM Total Memory (B)"; an APU: the pool that compute uses, else with "GTT Total Memory (B)"',
    ),
)
IDENTITY = {
    "vendor_index": "number",
    "name": "name",
    "uuid": "uuid",
    "pci_bus_id": "address",
    "serial": "Serial Number",
    "architecture": "architecture",
    "driver_version": "driver",
    "firmware": "VBIOS version",
    "unified": "unified",
}
PrintedCard = Mapping[str, object]
"""One card: keys in lower case without white space around them, since releases differ in nothing else. Values as printed."""

_CARD = re.compile(r"card(\d{1,4})", re.IGNORECASE | re.ASCII)
_CARD_START = re.compile(r'"card(\d{1,4})"\s*:\s*(?=\{)', re.IGNORECASE | re.ASCII)
_DECODER = json.JSONDecoder()


Output = tuple[dict[int, PrintedCard], PrintedCard, bool]
"""What one run printed: of each card, by the tool's number, which is no position; of no single card, empty where it did not print that;
and whether the cards stood in an object that was printed to its end, and none was anything but an object."""


def parse(printed: str) -> Output:
    """Read what the tool printed. Any text is fine; what is not understood gives no cards."""
    cards: dict[int, PrintedCard] = {}
    system: PrintedCard = {}
    strange = False
    for document in json_documents(printed):
        for key, value in document.items() if isinstance(document, dict) else ():
            card = _CARD.fullmatch(key.strip())
            if card and isinstance(value, dict):
                cards[int(card[1])] = _lowered(value)
            elif card:
                strange = True
            elif key == "system":
                system = _lowered(value) or system
    if cards:
        return cards, system, not strange
    _, *cut = _CARD_START.split(printed)
    for number_, text_ in zip(cut[::2], cut[1::2], strict=True):
        with suppress(ValueError, RecursionError):  # malformed or cut; a number too long for int(); nested beyond reason
            cards[int(number_)] = _lowered(_DECODER.raw_decode(text_)[0])
    return cards, {}, False


def _lowered(value: object) -> PrintedCard:
    if not isinstance(value, dict):
        return {}
    return {key.strip().lower(): item.strip() if isinstance(item, str) else item for key, item in value.items()}


# Whose it is


def samples(output: Output, kinds: dict[int, bool] | None = None) -> Iterator[DeviceSample]:
    """Yield the cards in the order of their numbers.

    Args:
        output: What was printed.
        kinds: By number, whether a card is part of a processor, as far as it was ever known: added to.
    """
    kinds = {} if kinds is None else kinds
    cards, system, _ = output
    for number_, card in sorted(cards.items()):
        uuid, address, known = unique_id(card), text(card.get("pci bus")), is_unified(card)
        unified = kinds.get(number_, False) if known is None else kinds.setdefault(number_, known)
        compute = compute_memory(address) if unified else None
        memory = device_memory(card.get, unified, "{} total used memory (b)", "{} total memory (b)", compute=compute)
        names = [name for key in NAMES if (name := text(card.get(key))) and not name.startswith("0x")]
        told: dict[str, object] = {
            "number": number_,
            "name": names[0] if names else card_name(_device_id(card), text(card.get("device rev"))),
            "uuid": uuid,
            "address": address,
            "architecture": architecture(text(card.get("gfx version"))),
            "driver": system.get("driver version"),
            "unified": unified,
            **memory,
        }
        device = _device_id(card)
        # Some releases print those sensors of every card: 0 degrees where there is none.
        hbm = [number(said) for key, said in card.items() if key.startswith("temperature (sensor hbm")]
        has_hbm = any(not isinstance(degrees, Unavailable) and degrees > 0 for degrees in hbm)
        if device and not has_hbm and not counts_energy(str(told["name"]), device):
            told |= {place.lower(): UNDOCUMENTED_ENERGY for place in FLAGS["--showenergycounter",] if place.lower() in card}
        missing = [value for value in (memory[USED], memory[TOTAL]) if isinstance(value, Unavailable)]
        if not missing or unified or any(value.reason != Reason.NOT_SUPPORTED for value in missing):
            # The printed percentage is of the VRAM: of an APU's carve-out it says nothing; and it does not outvote impossible bytes.
            told[ALLOCATED] = None
        if number(card.get(FAN)) == 0 and "fan rpm" not in card:
            why = "0 % without a number of revolutions: this release prints that for a card without a fan"
            told[FAN] = Unavailable(Reason.NOT_SUPPORTED, why)
        yield DeviceSample({**card, **told}, whole=card_of(uuid, address))


def unique_id(card: PrintedCard) -> str:
    """Return the card's unique id as printed (``0x5c…``); empty where it has none, which some print as zero."""
    printed = text(card.get("unique id"))
    return "" if printed.removeprefix("0x").strip("0") == "" else printed


def _device_id(card: PrintedCard) -> str:
    return text(card.get("device id")) or text(card.get("gpu id"))


def is_unified(card: PrintedCard) -> bool | None:
    """Return whether the card is part of a processor and shares its memory.

    The kernel says so where it knows the card's address. Otherwise it is told by what such a GPU has and a card has not:
    a socket's power, and an edge sensor alone.
    """
    known = is_integrated(text(card.get("pci bus")), _device_id(card))
    if known is not None:
        return known
    edge, other, socket = (
        any(not isinstance(number(card.get(key.lower())), Unavailable) for key in keys) for keys in (EDGE, (*JUNCTION, *MEMORY), (SOCKET,))
    )
    return None if not edge and not other else edge and not other and socket


def architecture(printed: str) -> str:
    """Spell an architecture as compilers do: ``gfx90a``, also from ``gfx9010``, as releases since 6.1 print its stepping."""
    match = _DECIMAL_GFX.fullmatch(printed)
    if match:
        return f"gfx{match[1]}{match[2]}{int(match[3]):x}"
    return printed if _GFX.fullmatch(printed) else ""


# How it is run

INSTALL = "install ROCm's package rocm-smi-lib (Debian and Ubuntu also have it as rocm-smi), or put rocm-smi on PATH"
ADVICE = "run rocm-smi by hand, and look at dmesg, to see what they say"
FOREIGN = re.compile(r"\b[DH]CU\b")
"""The word of Hygon's tool, which has the same name, for what AMD's calls "GPU"."""
SAYS = (
    Says(
        "permission denied|not permitted|insufficient permission|RSMI_STATUS_PERMISSION|returned 4 ",
        Reason.NO_PERMISSION,
        "rocm-smi may not read the devices",
        JOIN_GROUPS,
    ),
    Says(
        "driver not initialized|amdgpu not found",
        Reason.DRIVER_UNAVAILABLE,
        "the kernel driver amdgpu is not loaded",
        LOAD_DRIVER,
        gone=True,
    ),
    Says("no amd gpus|no drm devices|returned 8 ", Reason.DRIVER_UNAVAILABLE, "rocm-smi sees no AMD GPU", PASS_DEVICES, gone=True),
    Says(
        "rsmibindings|librocm_smi64|cannot open shared object",
        Reason.DRIVER_UNAVAILABLE,
        "rocm-smi cannot load its library",
        f"reinstall ROCm's package: {INSTALL}",
    ),
    Says("no json data to report", Reason.DRIVER_UNAVAILABLE, "rocm-smi has nothing to report about any card", PASS_DEVICES, gone=True),
)
_REFUSED = re.compile(r"^usage:|unrecognized arguments|invalid choice|expected (one|at least one) argument", re.IGNORECASE | re.MULTILINE)
_REFUSED_STATUS = 2


def _connect(command: Command) -> PollOnce:
    command.find()
    flags = Flags(command, FLAGS, ("--showid",), ("--json",))
    knows_flags = True
    kinds: dict[int, bool] = {}

    def ask() -> Completed:
        nonlocal knows_flags
        completed = flags.run(_gives_cards) if knows_flags else command.run(*ALL)
        if knows_flags and _refused(completed) and not _gives_cards(completed):
            knows_flags = False
            completed = command.run(*ALL)
        return completed

    def poll() -> Iterable[DeviceSample]:
        let_sleep(gpus(), "rocm-smi")
        while FOREIGN.search((completed := ask()).stdout):  # finding the next of this name fails where there is none
            command.disown("is another vendor's tool of the same name (Hygon's)")
        cards, system, complete = parse(completed.stdout)
        if not cards:
            raise failure(command, completed)
        if knows_flags:
            missing = {place.lower(): why for place, why in flags.missing.items()}
            cards = {number_: {**missing, **card} for number_, card in cards.items()}
        yield from samples((cards, system, complete), kinds)
        if not complete:
            raise SourceError(Reason.PARSE_ERROR, "rocm-smi's output was cut, or one card is malformed")

    return poll


def _gives_cards(completed: Completed) -> bool:
    return bool(parse(completed.stdout)[0])


def _refused(completed: Completed) -> bool:
    """Return whether the tool does not know one of the flags."""
    return completed.returncode == _REFUSED_STATUS or _REFUSED.search(completed.stderr) is not None


def failure(command: Command, completed: Completed) -> SourceError:
    """Return what a run without cards means."""
    said = command.said(completed)
    if said is not None:
        return said
    if _refused(completed):
        words = f"this rocm-smi knows neither the flags nor -a --json: {completed.words}"
        return SourceError(Reason.NOT_SUPPORTED, words, advice="update ROCm")
    if "{" in completed.stdout and not completed.truncated:
        return SourceError(Reason.PARSE_ERROR, f"rocm-smi's output was cut or holds no card (exit status {completed.returncode})")
    return command.failure(completed)


def backend(clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, timeout: float = TIMEOUT) -> PolledBackend:
    """Make the backend of this source.

    Args:
        clock: Where ages are taken from.
        interval: Seconds between two runs.
        timeout: Seconds after which a run is killed.
    """
    directories = dict.fromkeys((f"{os.environ.get('ROCM_PATH', '/opt/rocm')}/bin", *DIRECTORIES))
    command = Command("rocm-smi", directories=tuple(directories), install=INSTALL, says=SAYS, timeout=timeout)
    return PolledBackend(
        "amd",
        kind="gpu",
        source="rocm-smi",
        connect=lambda: _connect(command),
        fields=FIELDS,
        identity=IDENTITY,
        interval=interval,
        advice=ADVICE,
        clock=clock,
    )
