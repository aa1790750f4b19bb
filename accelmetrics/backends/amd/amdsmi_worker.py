"""The module ``amdsmi``: what it says of a card, and how a call that hangs costs only what it gives.

A call is made only for metrics that are asked for, and only once per reading. One that answers "not supported" is not made again for
that card until the driver is opened anew. Units are the library's: watts, but microwatts for the cap; degrees; MHz; the energy counter
in 1/65536 J; memory in bytes, PCIe speed in millions of transfers.

Beside the kernel's files the module is asked on a thread of its own. A reading waits for it as long as its calls return, and for one that
stands still less than half a second; from then on what it used to give is ``timed_out`` until the call has returned, and no reading waits.
A stuck call is never repeated: there is one thread for a card, which serves one reading at a time, and one attempt in a process to open
the module, which is waited for at the beginning only.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from accelmetrics.backends.amd import amdsmi_library
from accelmetrics.backends.amd.gpu_metrics import JOULE
from accelmetrics.backends.amd.values import TOTAL, USED, device_memory, memory_rows, pcie_generation
from accelmetrics.backends.contract import MOST_DEVICES, Value
from accelmetrics.backends.guard import WAITS, Outcome, guarded, waiting_for
from accelmetrics.backends.kit.fields import DeviceRecord, Field, Table
from accelmetrics.backends.kit.system import is_asleep
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.snapshot import rfc3339_second

NO_PERMISSION = 10
NOT_SUPPORTED = (2, 3)
LOST = (31, 32)
"""Status codes: the device was not found, the library is not initialised (any more)."""
DRIVER_NOT_LOADED = 34


def _temperature(sensor: str, module: Any, handle: Any) -> Mapping[str, object]:
    kind, metric = getattr(module.AmdSmiTemperatureType, sensor), module.AmdSmiTemperatureMetric.CURRENT
    return {"degrees": module.amdsmi_get_temp_metric(handle, kind, metric)}


def _energy(module: Any, handle: Any) -> Mapping[str, object]:
    said = module.amdsmi_get_energy_count(handle)
    counter = said.get("energy_accumulator", said.get("power"))  # "power" up to 6.2
    microjoules = said["counter_resolution"]
    # Releases round the unit of the counter, 2**-16 J, differently.
    return {"joules": counter / JOULE if math.isclose(microjoules, 1e6 / JOULE, rel_tol=0.01) else counter * microjoules / 1e6}


def _fan(module: Any, handle: Any) -> Mapping[str, object]:
    top = module.amdsmi_get_gpu_fan_speed_max(handle, 0)
    return {"percent": 100 * module.amdsmi_get_gpu_fan_speed(handle, 0) / top} if top > 0 else {}


def _pool(kind: str, module: Any, handle: Any) -> Mapping[str, object]:
    pool_kind = getattr(module.AmdSmiMemoryType, kind)
    return {"used": module.amdsmi_get_gpu_memory_usage(handle, pool_kind), "total": module.amdsmi_get_gpu_memory_total(handle, pool_kind)}


def _pcie(module: Any, handle: Any) -> Mapping[str, object]:
    said = module.amdsmi_get_pcie_info(handle)
    return {**said.get("pcie_static", {}), **said.get("pcie_metric", {})}


CALLS: Mapping[str, Callable[[Any, Any], Mapping[str, object]]] = {
    "activity": lambda module, handle: module.amdsmi_get_gpu_activity(handle),
    "edge": partial(_temperature, "EDGE"),
    "junction": partial(_temperature, "JUNCTION"),
    "memory": partial(_temperature, "VRAM"),
    "power": lambda module, handle: module.amdsmi_get_power_info(handle),
    "cap": lambda module, handle: module.amdsmi_get_power_cap_info(handle),
    "energy": _energy,
    "fan": _fan,
    "sclk": lambda module, handle: module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.GFX),
    "mclk": lambda module, handle: module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.MEM),
    "ecc": lambda module, handle: module.amdsmi_get_gpu_total_ecc_count(handle),
    "pcie": _pcie,
    "vram": partial(_pool, "VRAM"),
    "gtt": partial(_pool, "GTT"),
}
"""By the first word of a place in the record, the call whose answer has it."""
_generation = partial(pcie_generation, per=1000)
FIELDS = (
    Field("gpu", "activity.gfx_activity", "%"),
    Field("memory", "activity.umc_activity", "%"),
    Field("memoryReadWriteActivity", "activity.umc_activity", "%"),
    Field("temp", ("edge.degrees", "junction.degrees"), "C"),
    Field("hotspotTemp", "junction.degrees", "C"),
    Field("memoryTemp", "memory.degrees", "C"),
    Field("powerWatts", ("power.average_socket_power", "power.current_socket_power", "power.socket_power"), "W", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", "cap.power_cap", "uW"),
    Field("energyJoules", "energy.joules", "J"),
    Field("fanSpeed", "fan.percent", "%", high=200),
    Field("smClock", "sclk.clk", "MHz"),
    Field("maxSmClock", "sclk.max_clk", "MHz"),
    Field("memoryClock", "mclk.clk", "MHz"),
    Field("maxMemoryClock", "mclk.max_clk", "MHz"),
    Field("correctedMemoryErrors", "ecc.correctable_count"),
    Field("uncorrectedMemoryErrors", "ecc.uncorrectable_count"),
    Field("pcieReplays", "pcie.pcie_replay_count"),
    Field("pcieLinkGen", "pcie.pcie_speed", convert=_generation),
    Field("maxPcieLinkGen", "pcie.max_pcie_speed", convert=_generation),
    Field("pcieLinkWidth", "pcie.pcie_width"),
    Field("maxPcieLinkWidth", "pcie.max_pcie_width"),
    *memory_rows("amdsmi memory usage of VRAM; an APU: with GTT", "amdsmi memory total of VRAM; an APU: with GTT"),
)
TABLE = Table("amdsmi", "gpu", FIELDS)
METRICS = frozenset(row.metric for row in FIELDS if isinstance(row, Field))


class AmdsmiCard(DeviceRecord):
    """One card behind the module, as a record that asks the module when a place is looked up. Not for several threads at once.

    Args:
        module: The module.
        handle: The library's handle.
    """

    def __init__(self, module: Any, handle: Any) -> None:
        self._module = module
        self._handle = handle
        self._unsupported: dict[str, Unavailable] = {}
        self._answers: dict[str, Mapping[str, object] | Unavailable] = {}
        self._unified = False
        self._progress: list[Any] = []

    def read(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> dict[str, Value]:
        """Read the metrics that are asked for, each a value or why there is none.

        Raises:
            SourceError: The library no longer knows the card.
        """
        self._answers = dict(self._unsupported)
        self._unified, self._progress = unified, progress
        return TABLE.read(self, {}, 0.0, given=METRICS - set(wanted))

    def get(self, place: str) -> object:
        if place in (USED, TOTAL):
            return device_memory(self.get, self._unified, "{}.used", "{}.total")[place]
        call, _, name = place.partition(".")
        if call not in self._answers:
            self._answers[call] = self._ask(call)
        answer = self._answers[call]
        return answer if isinstance(answer, Unavailable) else answer.get(name)

    def _ask(self, call: str) -> Mapping[str, object] | Unavailable:
        """Return one call's answer, or why there is none."""
        # The module throws what comes to pass in it, not its own errors alone.
        outcome = guarded(lambda: dict(CALLS[call](self._module, self._handle)))
        self._progress.append(call)
        failure = outcome.failure
        if failure is None:
            return outcome.value or {}
        code = getattr(outcome.error, "err_code", None)
        if code is None:
            return failure._replace(detail=f"amdsmi, {call}: {failure.detail}")
        words = " ".join(failure.detail.partition(": ")[2].split())
        if code in LOST:
            raise SourceError(Reason.DEVICE_LOST, f"amdsmi: {words}", backend="amd") from outcome.error
        if code in NOT_SUPPORTED:
            self._unsupported[call] = Unavailable(Reason.NOT_SUPPORTED, words)
            return self._unsupported[call]
        return Unavailable(Reason.NO_PERMISSION if code == NO_PERMISSION else Reason.DRIVER_ERROR, words)


def open_cards(addresses: Sequence[str]) -> dict[str, AmdsmiCard]:
    """Open the module, unless a card sleeps, which that would wake.

    Returns:
        The cards by PCI address; at least one.

    Raises:
        SourceError: Whatever is wrong with the module, the library or the driver below them.
    """
    asleep = [address for address in addresses if is_asleep(address)]
    if asleep:
        words = f"opening amdsmi would wake {', '.join(asleep)}, which is suspended"
        raise SourceError(Reason.SUSPENDED, words, backend="amd")

    def opened() -> dict[str, AmdsmiCard]:
        module = amdsmi_library.load()
        try:
            module.amdsmi_init()
            handles = module.amdsmi_get_processor_handles()
            if len(handles) > MOST_DEVICES:
                words = f"amdsmi lists {len(handles)} cards: more than {MOST_DEVICES} are not believed"
                raise SourceError(Reason.INVALID_VALUE, words, backend="amd")
            return {module.amdsmi_get_gpu_device_bdf(handle).lower(): AmdsmiCard(module, handle) for handle in handles}
        except module.AmdSmiException as error:
            words = " ".join(str(error).split())
            kind = DriverGoneError if getattr(error, "err_code", 0) == DRIVER_NOT_LOADED else SourceError
            raise kind(Reason.DRIVER_UNAVAILABLE, f"amdsmi does not start: {words}", backend="amd") from error

    outcome = guarded(opened)
    if isinstance(outcome.error, SourceError):
        raise outcome.error
    if not outcome.value:
        words = "amdsmi lists no card" if outcome.failure is None else f"amdsmi cannot be used: {outcome.failure.detail}"
        raise SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="amd", advice=amdsmi_library.INSTALL)
    return outcome.value


# On a thread of its own

OVERDUE = Unavailable(Reason.TIMED_OUT, "a call into amdsmi has not returned")
FIRST_PATIENCE, LATER_PATIENCE = 0.4, 0.05
"""Seconds for which a call may stand still: as a rule, and after one did, until the module has answered again."""
SLICE = 0.05
"""Seconds between two looks at a call's progress. More than that never counts: a busy interpreter is no hung driver."""


class Attempt:
    """An attempt to open the module, which may hang: a library's constructor, or its first call into the driver.

    Args:
        addresses: As for :func:`open_cards`.

    Attributes:
        outcome: What came of it; None while it has not returned.

    Raises:
        SourceError: No thread is to be had.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.outcome: Outcome[dict[str, AmdsmiCard]] | None = None
        self._returned = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(addresses,), name="accelmetrics-amdsmi-opening", daemon=True)
        ATTEMPTS.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            ATTEMPTS.discard(self)
            raise SourceError(Reason.DRIVER_ERROR, f"no thread is to be had: {error}", backend="amd") from error

    def _run(self, addresses: Sequence[str]) -> None:
        with waiting_for("amdsmi"):
            self.outcome = guarded(open_cards, addresses)
        ATTEMPTS.discard(self)
        self._returned.set()

    def cards(self, seconds: float) -> dict[str, AmdsmiCard]:
        """Return the cards by PCI address, waiting at most so long.

        Raises:
            SourceError: It failed, or has not returned (``timed_out``).
        """
        self._returned.wait(seconds)
        if self.outcome is None:
            wait = WAITS.get(self._thread.ident or 0)
            since = "" if wait is None else f"{wait.tool} has not answered since {rfc3339_second(wait.since)}"
            raise SourceError(Reason.TIMED_OUT, since or "it is being opened", backend="amd")
        if isinstance(self.outcome.error, SourceError):
            raise self.outcome.error
        if self.outcome.failure is not None:
            raise SourceError(*self.outcome.failure, backend="amd")
        return self.outcome.value or {}


ATTEMPTS: set[Attempt] = set()
"""Those that have not returned. While there is one no other is made, which would hang as well."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ATTEMPTS.clear)


class Trust:
    """Whether the module answers; shared by a driver's cards, since a library that hangs often hangs for all of them."""

    patience = FIRST_PATIENCE


class AmdsmiWorker:
    """One card behind the module, for a driver that has its files too. Never read by two threads at once.

    Args:
        card: The card.
        trust: The driver's.
    """

    def __init__(self, card: AmdsmiCard, trust: Trust) -> None:
        self._card = card
        self._trust = trust
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._returned = threading.Event()
        self._returned.set()
        self._gave: Collection[str] = METRICS
        # The thread knows the queue and the card alone, and so ends with this object.
        self._end = weakref.finalize(self, self._calls.put, None)
        self._end.atexit = False
        self._started = False

    @property
    def hangs(self) -> bool:
        """Whether a call that was given up has not returned yet."""
        return not self._returned.is_set()

    def close(self) -> None:
        """End the thread, once the call that it may be in has returned."""
        self._end()

    def read(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> dict[str, Value]:
        """Read as :meth:`AmdsmiCard.read` does; what the module used to give is ``timed_out`` while a call of it hangs."""
        outcome = None if self.hangs else self._ask(wanted, unified, progress)
        if outcome is None:
            return {name: OVERDUE for name in wanted if name in self._gave}
        if outcome.value is None:
            raise outcome.error or RuntimeError("amdsmi gave nothing")
        self._gave = {name for name, value in outcome.value.items() if not isinstance(value, Unavailable)}
        return outcome.value

    def _ask(self, wanted: Collection[str], unified: bool, progress: list[Any]) -> Outcome[dict[str, Value]] | None:
        """Wait for the answer while calls return; None where one does not."""
        card, returned = self._card, threading.Event()
        outcomes: list[Outcome[dict[str, Value]]] = []

        def call() -> None:
            outcomes.append(guarded(card.read, wanted, unified, progress))
            returned.set()

        if not self._started:
            threading.Thread(target=_serve, args=(self._calls,), name="accelmetrics-amdsmi", daemon=True).start()
            self._started = True
        self._returned = returned
        self._calls.put(call)
        seen, idle = len(progress), 0.0
        while not returned.wait(min(SLICE, self._trust.patience)):
            idle = idle + SLICE if len(progress) == seen else 0.0
            seen = len(progress)
            if idle >= self._trust.patience:
                self._trust.patience = LATER_PATIENCE
                return None
        self._trust.patience = FIRST_PATIENCE
        return outcomes[0]


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    """Make one call after the other, on the worker's thread."""
    while (call := calls.get()) is not None:
        call()
        del call
