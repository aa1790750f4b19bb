"""The command ``rocm-smi`` of any release.

Since 2.x it prints one object: ``{"card0": {"GPU use (%)": "7", …}, "card1": {…}, "system": {…}}``, with strings as values. Warnings,
exceptions of libraries and progress of other tools may surround it, and it may be cut off. So all objects in the text that contain cards
are used together. If there is none, the complete cards of an incomplete object are found by their numbers. An incomplete card is left out.

The exit status proves little: it is 0 if the driver is missing or nothing was printed, and may be non-zero with complete output. So the
cards decide, and without cards the tool's messages.

Keys are spelled as in the newest release; case does not matter. Known traps, each with a row or a line below:

- "GPU memory use (%)" (up to 6.1.1) is the utilisation of the memory controller, the same as "GPU Memory Read/Write Activity (%)" in later
  releases. It is never the share of allocated memory.
- "GFX Activity" and "Memory Activity" are raw accumulators, not percentages.
- The second die of an MI250 has no power, an energy counter that stays 0 and, in some releases, a cap of 0 W.
- An APU's VRAM is a carve-out of the host's memory. The APU uses VRAM and GTT.
- Up to 4.x a card without a fan has a fan speed of 0 % and no "Fan RPM". Later releases do not print a fan that stands still.
- RAS error counts are printed only as tables, which are not in the JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from accelmetrics.backends.amd.gpu_metrics import JOULE
from accelmetrics.backends.amd.values import (
    TOTAL,
    UNDOCUMENTED_ENERGY,
    USED,
    card_key,
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
    Says,
    json_documents,
    number,
    pcie_generation,
    quoted,
    text,
)
from accelmetrics.backends.kit.commands import tool_state
from accelmetrics.backends.kit.system import let_sleep
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

INTERVAL = 2.0
"""Seconds between two runs."""
TIMEOUT = 8.0
"""Seconds after which a run is killed. The tool takes 1 to 3 s, and opening a source may take 10 s."""
DIRECTORIES = ("/opt/rocm/bin", "/usr/bin", "/usr/local/bin")
ALL = ("-a", "--json")
"""Arguments for releases that do not know some of the flags. They do not print the bytes of memory."""

# Flags

CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
TRACEBACK = "Traceback (most recent call last)"

Flag = tuple[str, ...]
"""A flag with its arguments: ``("--showmeminfo", "vram", "gtt")``."""


def is_crash(completed: Completed) -> bool:
    """Return whether a tool crashed."""
    # A shell in between reports a signal as 128 + its number. A Python program ends with a traceback.
    return any(completed.returncode in (-number, 128 + number) for number in CRASHES) or TRACEBACK in completed.stderr


class Flags:
    """Flags with which a tool is run. A tool that crashes on one of them is run again without it, so that the cards stay.

    rocm-smi 5.2.3 aborts on ``--showsclkrange`` and ``--showmclkrange`` for some cards. Since a tool that crashes prints nothing, the flag
    is found by running the tool with different sets of flags. The flag is left out until the tool's file changes.

    Args:
        command: The tool.
        prints: For each flag the places of a card's record that it gives. The order matters: the first two flags show whether the tool
            crashes on any flag, and the last two are the first suspects.
        before: Arguments before the flags: a subcommand.
        after: Arguments after the flags.
        implied: Whether the tool prints everything, and more, without any flag.

    Attributes:
        crashing: Flags that are left out.
    """

    def __init__(
        self, command: Command, prints: Mapping[Flag, Sequence[str]], before: Flag = (), after: Flag = (), *, implied: bool = False
    ) -> None:
        self._command = command
        self._prints = prints
        self._before, self._after = before, after
        self._implied = implied
        self._tool: tuple[object, ...] = ()
        self._is_searched = False
        self.crashing: tuple[Flag, ...] = ()

    def run(self, gives_cards: Callable[[Completed], bool]) -> Completed:
        """Run the tool without the flags that crash it.

        Args:
            gives_cards: Whether a run printed cards. Then it counts as successful, even with complaints.

        Raises:
            SourceError: As :meth:`~accelmetrics.backends.kit.commands.Command.run` does.
        """
        # An update of the tool changes its file, and may have repaired the flags.
        tool = tool_state(self._command.find())
        if tool != self._tool:
            self._tool, self._is_searched, self.crashing = tool, False, ()
        flags = [flag for flag in self._prints if flag not in self.crashing]
        completed = self._ask([] if self._implied and not self.crashing else flags)
        if not is_crash(completed) or self._is_searched or gives_cards(completed):
            return completed
        # A search costs many runs, so it is done only once for each version of the tool, and not if the tool crashes on any flag.
        self._is_searched = True
        # The last two flags are searched first, since they are the first suspects.
        found = [] if all(is_crash(self._ask([flag])) for flag in flags[:2]) else self._search(flags[-2:], flags[:-2])
        self.crashing = (*self.crashing, *found)
        return self._ask([flag for flag in flags if flag not in found]) if found else completed

    @property
    def missing(self) -> dict[str, Unavailable]:
        """Reason for each place of a flag that crashes the tool."""
        name = self._command.names[0]
        return {
            place: Unavailable(Reason.DRIVER_ERROR, f"{name} crashes with {flag[0]}, so it is run without it")
            for flag in self.crashing
            for place in self._prints[flag]
        }

    def _search(self, *groups: Sequence[Flag]) -> list[Flag]:
        """Return the flags that crash the tool, by bisection of the groups."""
        found: list[Flag] = []
        for flags in groups:
            if flags and is_crash(self._ask(flags)):
                # If neither half crashes alone, only their combination does, and nothing is left out.
                half = len(flags) // 2
                found += self._search(flags[:half], flags[half:]) if half else flags
        return found

    def _ask(self, flags: Sequence[Flag]) -> Completed:
        return self._command.run(*self._before, *(word for flag in flags for word in flag), *self._after)


# What is printed
EDGE = ("Temperature (Sensor edge) (C)", "Temperature (Sensor #1) (C)")
JUNCTION = ("Temperature (Sensor junction) (C)", "Temperature (Sensor #2) (C)")
MEMORY = ("Temperature (Sensor memory) (C)", "Temperature (Sensor mem) (C)", "Temperature (Sensor #3) (C)")
# Up to 6.1.1 "GPU memory use (%)" is the utilisation of the memory controller, as its later name says. It is never the
# share of allocated memory.
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
"""Flags, with the places of a card's record that each prints. The list of processes is left out, since it is slow."""

_LINK = re.compile(r"(\d{1,3}(?:\.\d)?)\s*GT/s,? x(\d{1,2})\b", re.ASCII)
_CLOCK_LEVEL = re.compile(r"\w+\s*(\(.*mhz\s*\))", re.IGNORECASE | re.ASCII)
_DECIMAL_GFX = re.compile(r"gfx(9|1\d)(\d)(\d\d)", re.ASCII)
_GFX = re.compile(r"gfx[0-9a-f]{3,5}", re.ASCII)


def _clock(printed: object) -> object:
    """Return a clock, which may follow the number of its level: ``1 (800Mhz)``."""
    level = _CLOCK_LEVEL.fullmatch(printed) if isinstance(printed, str) else None
    return level[1] if level else printed


def _highest(printed: object) -> object:
    """Return the upper end of a range of clocks: ``500Mhz - 1700Mhz``."""
    return text(printed).rpartition("-")[2].strip() or printed


def link_generation(printed: object) -> object:
    """Return the PCIe generation of a printed link: ``1 (16.0GT/s x16)`` or ``8.0GT/s, x16 619Mhz``; None for other text."""
    found = _LINK.search(quoted(printed))
    return found and pcie_generation(found[1])


def link_width(printed: object) -> object:
    """Return the width of a printed link; None for other text."""
    found = _LINK.search(quoted(printed))
    return found and found[2]


FIELDS = of_card(
    Field("gpu", "GPU use (%)", "%"),
    Field("memory", ACTIVITY, "%"),
    Field("memoryReadWriteActivity", ACTIVITY, "%"),
    Field("memoryOverDrive", "GPU Memory OverDrive value (%)", "%", high=100),
    Field("temp", (*EDGE, *JUNCTION), "C"),
    Field("memoryTemp", MEMORY, "C"),
    Field("hotspotTemp", JUNCTION, "C"),
    # The second die of an MI250 has no power of its own.
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
    Field("pcieLinkGen", PCIE, convert=link_generation),
    Field("pcieLinkWidth", PCIE, convert=link_width),
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
"""A card: its values as printed, by key. Keys are in lower case without surrounding white space, since releases differ only in these."""

_CARD = re.compile(r"card(\d{1,4})", re.IGNORECASE | re.ASCII)
_CARD_START = re.compile(r'"card(\d{1,4})"\s*:\s*(?=\{)', re.IGNORECASE | re.ASCII)
_DECODER = json.JSONDecoder()


Output = tuple[dict[int, PrintedCard], PrintedCard, bool]
"""Output of a run: the cards by the tool's number, which is no position; the values of no single card, empty if they were not printed; and
whether the output was complete and every card was an object.
"""


def parse(printed: str) -> Output:
    """Parse the output. Accepts any text: unknown text gives no cards."""
    cards: dict[int, PrintedCard] = {}
    system: PrintedCard = {}
    invalid = False
    for document in json_documents(printed):
        for key, value in document.items() if isinstance(document, dict) else ():
            card = _CARD.fullmatch(key.strip())
            if card and isinstance(value, dict):
                cards[int(card[1])] = _lowered(value)
            elif card:
                # Reported after the cards that can be used.
                invalid = True
            elif key == "system":
                system = _lowered(value) or system
    if cards:
        return cards, system, not invalid
    _, *cut = _CARD_START.split(printed)
    for number_, text_ in zip(cut[::2], cut[1::2], strict=True):
        with suppress(ValueError, RecursionError):  # malformed or cut off, too many digits for int(), or nested too deeply
            cards[int(number_)] = _lowered(_DECODER.raw_decode(text_)[0])
    return cards, {}, False


def _lowered(value: object) -> PrintedCard:
    if not isinstance(value, dict):
        return {}
    return {key.strip().lower(): item.strip() if isinstance(item, str) else item for key, item in value.items()}


# The cards of an output


def samples(output: Output, kinds: dict[int, bool] | None = None) -> Iterator[DeviceSample]:
    """Yield the cards in the order of their numbers.

    Args:
        output: The parsed output.
        kinds: For each card number whether the card is part of a processor, if it was ever known. New results are added.
    """
    kinds = {} if kinds is None else kinds
    cards, system, _ = output
    for number_, card in sorted(cards.items()):
        uuid, address, known = unique_id(card), text(card.get("pci bus")), is_unified(card)
        unified = kinds.get(number_, False) if known is None else kinds.setdefault(number_, known)
        compute = compute_memory(address) if unified else None
        memory = device_memory(card.get, unified, "{} total used memory (b)", "{} total memory (b)", compute=compute)
        names = [name for key in NAMES if (name := text(card.get(key))) and not name.startswith("0x")]
        values: dict[str, object] = {
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
        # Some releases print these sensors for every card, with 0 degrees if there is none.
        hbm = [number(reading) for key, reading in card.items() if key.startswith("temperature (sensor hbm")]
        has_hbm = any(not isinstance(degrees, Unavailable) and degrees > 0 for degrees in hbm)
        if device and not has_hbm and not counts_energy(str(values["name"]), device):
            values |= {place.lower(): UNDOCUMENTED_ENERGY for place in FLAGS["--showenergycounter",] if place.lower() in card}
        missing = [value for value in (memory[USED], memory[TOTAL]) if isinstance(value, Unavailable)]
        if not missing or unified or any(value.reason != Reason.NOT_SUPPORTED for value in missing):
            # The printed percentage is the share of VRAM, which means nothing for an APU. Nor does it replace impossible bytes.
            values[ALLOCATED] = None
        if number(card.get(FAN)) == 0 and "fan rpm" not in card:
            # Releases up to 4.x print 0 % and no "Fan RPM" for a card without a fan.
            why = "0 % without RPM: this release prints that for a card without a fan"
            values[FAN] = Unavailable(Reason.NOT_SUPPORTED, why)
        yield DeviceSample({**card, **values}, whole=card_key(uuid, address))


def unique_id(card: PrintedCard) -> str:
    """Return the card's unique id as printed (``0x5c…``); empty without one."""
    printed = text(card.get("unique id"))
    # Some cards without an id print zeros.
    return "" if printed.removeprefix("0x").strip("0") == "" else printed


def _device_id(card: PrintedCard) -> str:
    return text(card.get("device id")) or text(card.get("gpu id"))


def is_unified(card: PrintedCard) -> bool | None:
    """Return whether the card is part of a processor and shares its memory; None if unknown.

    The kernel decides if it knows the card's address. Otherwise the card's values do: only such a GPU has a socket power, and an edge
    sensor as its only temperature.
    """
    known = is_integrated(text(card.get("pci bus")), _device_id(card))
    if known is not None:
        return known
    edge, other, socket = (
        any(not isinstance(number(card.get(key.lower())), Unavailable) for key in keys) for keys in (EDGE, (*JUNCTION, *MEMORY), (SOCKET,))
    )
    return None if not edge and not other else edge and not other and socket


def architecture(printed: str) -> str:
    """Return an architecture in the compilers' spelling (``gfx90a``); empty for other text."""
    match = _DECIMAL_GFX.fullmatch(printed)
    # Releases since 6.1 print the stepping in decimal: `gfx9010` is gfx90a.
    if match:
        return f"gfx{match[1]}{match[2]}{int(match[3]):x}"
    return printed if _GFX.fullmatch(printed) else ""


# Running the tool

INSTALL = "install ROCm's package rocm-smi-lib (Debian and Ubuntu also have it as rocm-smi), or put rocm-smi on PATH"
ADVICE = "run rocm-smi by hand, and check dmesg for errors"
FOREIGN = re.compile(r"\b[DH]CU\b")
"""Word that Hygon's tool of the same name prints where AMD's prints "GPU"."""
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
            # The next polls use `-a` at once.
            knows_flags = False
            completed = command.run(*ALL)
        return completed

    def poll() -> Iterable[DeviceSample]:
        # Running the tool would wake sleeping cards.
        let_sleep(gpus(), "rocm-smi")
        while FOREIGN.search((completed := ask()).stdout):  # ends with an error if there is no further tool of this name
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
    """Return whether the tool rejects a flag."""
    return completed.returncode == _REFUSED_STATUS or _REFUSED.search(completed.stderr) is not None


def failure(command: Command, completed: Completed) -> SourceError:
    """Return the error for a run without cards."""
    known = command.known_error(completed)
    if known is not None:
        return known
    if _refused(completed):
        words = f"this rocm-smi knows neither the flags nor -a --json: {completed.words}"
        return SourceError(Reason.NOT_SUPPORTED, words, advice="update ROCm")
    if "{" in completed.stdout and not completed.truncated:
        return SourceError(Reason.PARSE_ERROR, f"rocm-smi's output was cut or holds no card (exit status {completed.returncode})")
    return command.failure(completed)


def backend(clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, timeout: float = TIMEOUT) -> PolledBackend:
    """Return the backend of this source.

    Args:
        clock: Clock for ages.
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
