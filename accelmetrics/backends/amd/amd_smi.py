"""The command ``amd-smi``: ``metric`` at each poll, and ``static`` (identities and limits of the cards) once a minute.

Up to ROCm 6.4 the output is a list, ``[{"gpu": 0, "usage": {…}}, …]``; since 7.0 the list is in ``{"gpu_data": […]}``. Warnings and
headings may surround it, several documents may follow each other, and the last may be cut off. In every form a card is an object with its
number under ``gpu``. An incomplete object is left out.

Units are as printed; "MB" is 1,048,576 bytes. An energy of 0 means that there is no counter. The tool prints the energy in joules instead
of the counter itself.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends.amd.cards import JOIN_GROUPS, LOAD_DRIVER, card_name, compute_memory, counts_energy, gpus, is_integrated
from accelmetrics.backends.amd.gpu_metrics import RESIDENCIES
from accelmetrics.backends.amd.rocm_smi import Flag, Flags
from accelmetrics.backends.amd.values import (
    UNDOCUMENTED_ENERGY,
    card_key,
    device_memory,
    exact_joules,
    memory_rows,
    of_card,
)
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock
from accelmetrics.backends.kit import (
    Command,
    Completed,
    Derived,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Says,
    coded,
    json_documents,
    pcie_generation,
    text,
)
from accelmetrics.backends.kit.fields import flat
from accelmetrics.backends.kit.system import let_sleep
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

INTERVAL = 2.0
"""Seconds between two runs."""
STATIC_PACE = 60.0
"""Seconds between two runs of ``static``."""
TIMEOUT = 10.0
"""Seconds after which a run is killed. It takes one to two on a loaded machine with eight cards."""
DIRECTORIES = ("/opt/rocm/bin",)
INSTALL = "install ROCm's amd-smi-lib"

SAYS = (
    Says(
        "missing the following required groups|permission (needed|denied)|AMDSMI_STATUS_NO_PERM",
        Reason.NO_PERMISSION,
        "amd-smi may not read the devices",
        JOIN_GROUPS,
    ),
    Says("driver not (loaded|initialized)|DRIVER_NOT_LOADED", Reason.DRIVER_UNAVAILABLE, "amdgpu is not loaded", LOAD_DRIVER, gone=True),
)
HIGHEST = 10_000
"""Above all card numbers."""

# The last spelling in a row is that of ROCm 6.0.
LIMITS = ("limit.ppt0.socket_power_limit", "limit.socket_power", "limit.current_power", "limit.max_power")
STATIC_FIELDS = (
    Field("enforcedPowerLimitWatts", LIMITS, "W"),
    Field("tempLimit.slowdown", ("limit.slowdown_edge_temperature", "limit.slowdown_hotspot_temperature"), "C"),
    Field("tempLimit.shutdown", ("limit.shutdown_edge_temperature", "limit.shutdown_hotspot_temperature"), "C"),
    Field("maxPcieLinkWidth", ("bus.max_pcie_width", "bus.max_pcie_lanes")),
    Field("maxPcieLinkGen", "bus.max_pcie_speed", convert=pcie_generation),
)
STATIC_PLACES = [place for row in STATIC_FIELDS for place in ((row.where,) if isinstance(row.where, str) else row.where)]
_THROTTLE = "throttle.{}_violation_status"


_active = coded(active=1, not_active=0)
FIELDS = of_card(
    Field("gpu", ("usage.gfx_activity", "usage.gfx_usage"), "%"),
    Field("memory", ("usage.umc_activity", "usage.mem_usage"), "%"),
    Field("memoryReadWriteActivity", ("usage.umc_activity", "usage.mem_usage"), "%"),
    Field("temp", ("temperature.edge", "temperature.hotspot"), "C"),
    Field("hotspotTemp", "temperature.hotspot", "C"),
    Field("memoryTemp", "temperature.mem", "C"),
    Field("powerWatts", ("power.socket_power", "power.current_power"), "W", zero_is_missing=True),
    Field(
        *("energyJoules", "energy.total_energy_consumption", "J", partial(exact_joules, unit="J")),
        words='amd-smi "energy.total_energy_consumption", without the rounding of its unit',
    ),
    Field("fanSpeed", "fan.usage", "%", high=200),
    Field("smClock", ("clock.gfx_0.clk", "clock.gfx.clk", "clock.sys.clk", "clock.gfx.cur_clk"), "MHz"),
    Field("maxSmClock", ("clock.gfx_0.max_clk", "clock.gfx.max_clk", "clock.sys.max_clk"), "MHz"),
    Field("memoryClock", ("clock.mem_0.clk", "clock.mem.clk", "clock.mem.cur_clk"), "MHz"),
    Field("maxMemoryClock", ("clock.mem_0.max_clk", "clock.mem.max_clk"), "MHz"),
    Field("correctedMemoryErrors", ("ecc.total_correctable_count", "ecc.total_correctable", "ecc.correctable")),
    Field("uncorrectedMemoryErrors", ("ecc.total_uncorrectable_count", "ecc.total_uncorrectable", "ecc.uncorrectable")),
    Field("pcieReplays", "pcie.replay_count"),
    Field("pcieLinkWidth", ("pcie.width", "pcie.current_lanes")),
    Field("pcieLinkGen", ("pcie.speed", "pcie.current_speed"), convert=pcie_generation),
    Field("throttle.swPowerCap", _THROTTLE.format("ppt"), convert=_active),
    *(Field(f"_{cause}", _THROTTLE.format(cause), "1", _active) for cause in ("socket_thermal", "hbm_thermal", "prochot", "vr_thermal")),
    Derived("throttle.swThermalSlowdown", ("_socket_thermal", "_hbm_thermal"), max, 'amd-smi "socket_thermal" or "hbm_thermal" violation'),
    Derived("throttle.hwThermalSlowdown", ("_prochot", "_vr_thermal"), max, 'amd-smi "prochot" or "vr_thermal" violation'),
    Derived("throttled", tuple(RESIDENCIES), max, "amd-smi: any of these violations"),
    Field("memoryOverDrive", ("overdrive.mem_overdrive", "mem_overdrive"), "%"),
    *STATIC_FIELDS,
    *memory_rows(
        'amd-smi "mem_usage.used_vram"; an APU: the pool that compute uses, else with "used_gtt"',
        'amd-smi "mem_usage.total_vram"; an APU: the pool that compute uses, else with "total_gtt"',
    ),
)
FLAGS: Mapping[Flag, Sequence[str]] = {
    ("--mem-usage",): [f"mem_usage.{what}_{kind}" for what in ("used", "total") for kind in ("vram", "gtt")],
    **{
        (f"--{section}",): [
            place
            for row in FIELDS
            if not isinstance(row, Derived)
            for place in ((row.where,) if isinstance(row.where, str) else row.where)
            if place.startswith(f"{section}.")
        ]
        for section in ("usage", "temperature", "fan", "ecc", "pcie", "energy", "clock", "power")
    },
}
"""Sections of ``metric`` with a flag in every release, and the places in each."""
NAMES = ("asic.market_name", "board.product_name")
IDENTITY = {
    "vendor_index": "gpu",
    "name": "name",
    "uuid": "uuid",
    "pci_bus_id": "address",
    "serial": "board.product_serial",
    "part_number": "board.model_number",
    "architecture": "asic.target_graphics_version",
    "driver_version": ("driver.version", "driver.driver_version"),
    "firmware": ("ifwi.version", "vbios.version"),
    "unified": "unified",
}

_LATER_FUNCTION = re.compile(r"\.([1-7])$", re.ASCII)
_START = re.compile(r'\{\s*"gpu"\s*:\s*(\d{1,4})\s*(?=[,}])', re.ASCII)


CardOutput = tuple[dict[int, dict[str, Any]], bool]
"""Output of a run: the cards by the tool's number, or by a number from :data:`HIGHEST` on if a number repeats; and whether all cards are
complete.
"""


def parse(printed: str) -> CardOutput:
    """Parse the output. Accepts any text: unknown text gives no cards."""
    cards: dict[int, dict[str, Any]] = {}
    malformed = False
    for document in json_documents(printed):
        listed = document.get("gpu_data", [document]) if isinstance(document, dict) else document
        found: dict[int, dict[str, Any]] = {}
        for card in listed if isinstance(listed, list) else ():
            if isinstance(card, dict) and type(card.get("gpu")) is int and 0 <= card["gpu"] < HIGHEST:
                # A number that repeats gets a unique key, so that no card is lost.
                found[card["gpu"] if card["gpu"] not in found else HIGHEST + len(found)] = card
        cards.update(found)
        malformed = malformed or 0 < len(found) < len(listed)
    return cards, not malformed and all(int(number) in cards for number in _START.findall(printed))


def sample(card: Mapping[str, Any], kinds: dict[str, bool] | None = None) -> DeviceSample:
    """Return the sample of a card.

    Args:
        card: The card's printed values.
        kinds: For each card number whether the card is part of a processor, if it was ever known. New results are added.
    """
    printed = flat(card).get
    address, serial = text(printed("bus.bdf")).lower(), text(printed("asic.asic_serial")).lower().removeprefix("0x")
    uuid = f"0x{serial}" if serial.strip("0") else ""
    device = text(printed("asic.device_id"))
    unified = is_integrated(address, device)
    kinds, number = {} if kinds is None else kinds, text(card.get("gpu"))
    unified = kinds.get(number, False) if unified is None else kinds.setdefault(number, unified)
    compute = compute_memory(address) if unified else None
    names = [name for place in NAMES if (name := text(printed(place))) and not name.startswith("0x")]
    later = _LATER_FUNCTION.search(address)
    name = names[0] if names else card_name(device, text(printed("asic.rev_id")))
    values: dict[str, object] = {
        "name": name,
        # The kernel's and rocm-smi's unique id is the chip's serial number, here in capitals. All partitions have the chip's number, and
        # each has its own function of the PCI address.
        "uuid": f"{uuid}/xcp{later[1]}" if uuid and later else uuid,
        "address": address,
        "unified": unified,
        # The tool's "MB" is 1,048,576 bytes.
        **device_memory(printed, unified, "mem_usage.used_{}", "mem_usage.total_{}", unit="MiB", compute=compute),
    }
    if device and not counts_energy(name, device) and not text(printed("vram.type")).upper().startswith("HBM"):
        values["energy"] = {"total_energy_consumption": UNDOCUMENTED_ENERGY}
    return DeviceSample({**card, **values}, whole=card_key(uuid, address))


def _connect(command: Command, clock: Clock) -> PollOnce:
    command.find()
    flags = Flags(command, FLAGS, ("metric",), ("--json",), implied=True)
    kinds: dict[str, bool] = {}
    static: dict[int, dict[str, Any]] = {}
    missing: dict[str, Unavailable] = {}
    due = -math.inf

    def poll() -> Iterable[DeviceSample]:
        nonlocal static, missing, due
        # Running the tool would wake sleeping cards.
        let_sleep(gpus(), "amd-smi")
        cards, complete = output(flags.run(lambda completed: bool(parse(completed.stdout)[0])))
        if clock.monotonic() >= due:
            try:
                static, _ = output(command.run("static", "--json"))
            except SourceError as error:
                # Only the values of `static` are missing then.
                missing = {place: Unavailable(error.reason, f"amd-smi static: {error.message}") for place in STATIC_PLACES}
            due = clock.monotonic() + STATIC_PACE
        # If a number repeats within a run, it is unknown which static values belong to which card.
        repeated = {card["gpu"] for run in (cards, static) for number, card in run.items() if number >= HIGHEST}
        for number, card in sorted(cards.items()):
            known = None if card["gpu"] in repeated else static.get(number)
            yield sample({**flags.missing, **(known or missing), **card}, kinds)
        if not complete:
            raise SourceError(Reason.PARSE_ERROR, "amd-smi's output was cut, or one card is malformed")

    def output(completed: Completed) -> CardOutput:
        parsed = parse(completed.stdout)
        if parsed[0]:
            return parsed
        if '"gpu"' in completed.stdout and not completed.truncated and command.known_error(completed) is None:
            raise SourceError(Reason.PARSE_ERROR, f"amd-smi's output was cut or holds no card (exit status {completed.returncode})")
        raise command.failure(completed)

    return poll


def backend(clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, timeout: float = TIMEOUT) -> PolledBackend:
    """Return the backend of this source.

    Args:
        clock: Clock for ages.
        interval: Seconds between two runs.
        timeout: Seconds after which a run is killed.
    """
    directories = (f"{os.environ.get('ROCM_PATH', '/opt/rocm')}/bin", *DIRECTORIES)
    command = Command("amd-smi", directories=tuple(dict.fromkeys(directories)), install=INSTALL, says=SAYS, timeout=timeout)
    return PolledBackend(
        "amd",
        kind="gpu",
        source="amd-smi",
        connect=partial(_connect, command, clock),
        fields=FIELDS,
        identity=IDENTITY,
        interval=interval,
        clock=clock,
    )
