"""The module ``amdsmi``: checked against the installed library, called per card, and skipped while one of its calls hangs.

A call is made only for selected metrics, and only once per reading. A call that answers "not supported" is not repeated for the card until
the driver is opened again. Units are the library's: watts, but microwatts for the cap; degrees; MHz; energy in 1/65536 J; memory in bytes;
PCIe speed in millions of transfers. Calls and names are those of ROCm 5.7 and later.

If the kernel's files are read too, the module is called on its own thread. A reading waits as long as calls return, and less than half a
second for a single call. After that the metrics of the module are ``timed_out`` until the call returns, and no reading waits. A hanging
call is never repeated: there is one thread per card, which serves one reading at a time, and one attempt per process to open the module,
for which only the start waits.

The module describes the library's structures, which change from release to release. A module of another release reads wrong numbers, or
writes beyond its buffers. So the versions of module and library are compared before a module is loaded:

1. the library is searched where ROCm installs it. Without a library no module is imported, since the import would print text and raise
   ``KeyError``;
2. the module that ROCm installed (``share/amd_smi``) is preferred, then one on Python's path;
3. the version of a module is read from its text. It must equal the library's version (``26.0.2``), or the version of the library's ROCm
   release (``7.0.2``), by which modules on PyPI are numbered. For a module that ROCm installed, the first two numbers suffice: ROCm 6.0
   ships 23.4.2 with a library of version 23.4.0;
4. after loading, the module must have loaded the same library that it was compared with.

The library's file name has the first two numbers (``libamd_smi.so.24.7.60300``). The library itself reports its version only after
``amdsmi_init`` (before it: 32, NOT_INIT), which wakes cards. So it is asked only if the file name is not enough, and never while a card
sleeps (:func:`open_cards` checks this).

The module is loaded under a private name, so that a program's own ``import amdsmi`` is not affected. Its prints go to standard error. The
library does not count its users, so it is never shut down: the program may use it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from accelmetrics.backends.amd.cards import compute_memory
from accelmetrics.backends.amd.gpu_metrics import JOULE
from accelmetrics.backends.amd.values import TOTAL, UNDOCUMENTED_ENERGY, USED, device_memory, memory_rows
from accelmetrics.backends.contract import MOST_DEVICES, Value
from accelmetrics.backends.guard import WAITS, Outcome, at_fork, guarded, waiting_for
from accelmetrics.backends.kit.fields import Chosen, DeviceRecord, Field, Table, pcie_generation
from accelmetrics.backends.kit.library import load_library, loading_failure
from accelmetrics.backends.kit.system import is_asleep
from accelmetrics.backends.loading import loading
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.snapshot import rfc3339_second

NO_PERMISSION = 10
NOT_SUPPORTED = (2, 3)
LOST = (31, 32)
"""Status codes of a lost device: it was not found, or the library is not initialised any more."""
DRIVER_NOT_LOADED = 34
ONES = (0xFFFF, 2**32 - 1, 2**64 - 1)
"""Values by which the library marks a missing value."""
_SERIAL = re.compile(r"[0-9a-f]{1,16}", re.ASCII)
MICROWATTS = 10_000
"""A power limit from here on is in microwatts: no card has a limit of 10 kW, or of 10 mW."""


def _temperature(sensor: str, metric: str, module: Any, handle: Any) -> Mapping[str, object]:
    kind, which = getattr(module.AmdSmiTemperatureType, sensor), getattr(module.AmdSmiTemperatureMetric, metric)
    return {"degrees": module.amdsmi_get_temp_metric(handle, kind, which)}


def _filled(answer: Mapping[str, object]) -> Mapping[str, object]:
    """Remove missing values, which the module up to ROCm 6.0 returns as all ones."""
    return {name: value for name, value in answer.items() if value not in ONES or "count" in name}


def _power(module: Any, handle: Any) -> Mapping[str, object]:
    answer = module.amdsmi_get_power_info(handle)
    found = dict(_filled(answer))
    limit = found.get("power_limit")
    # The limit is in watts in ROCm 6.0 and in microwatts since then, although the headers say otherwise. In 5.7, which has no current
    # power, it is the largest possible limit rather than the one that is set.
    if isinstance(limit, int):
        found["power_limit"] = None if "current_socket_power" not in answer else limit / 1e6 if limit >= MICROWATTS else limit
    return found


def _energy(module: Any, handle: Any) -> Mapping[str, object]:
    answer = module.amdsmi_get_energy_count(handle)
    counter = answer.get("energy_accumulator", answer.get("power"))  # "power" up to 6.2
    microjoules = answer["counter_resolution"]
    # The unit of the counter is 2**-16 J. Releases round it differently.
    return {"joules": counter / JOULE if math.isclose(microjoules, 1e6 / JOULE, rel_tol=0.01) else counter * microjoules / 1e6}


def _fan(module: Any, handle: Any) -> Mapping[str, object]:
    top = module.amdsmi_get_gpu_fan_speed_max(handle, 0)
    return {"percent": 100 * module.amdsmi_get_gpu_fan_speed(handle, 0) / top} if top > 0 else {}


def _pool(kind: str, module: Any, handle: Any) -> Mapping[str, object]:
    pool_kind = getattr(module.AmdSmiMemoryType, kind)
    return {"used": module.amdsmi_get_gpu_memory_usage(handle, pool_kind), "total": module.amdsmi_get_gpu_memory_total(handle, pool_kind)}


def _pcie(module: Any, handle: Any) -> Mapping[str, object]:
    if hasattr(module, "amdsmi_get_pcie_info"):
        answer = module.amdsmi_get_pcie_info(handle)
        return {**answer.get("pcie_static", {}), **answer.get("pcie_metric", {})}
    # Up to ROCm 6.0 there are two separate calls.
    return _filled({**module.amdsmi_get_pcie_link_caps(handle), **module.amdsmi_get_pcie_link_status(handle)})


def _ecc(module: Any, handle: Any) -> Mapping[str, object]:
    # For a card without ECC the count succeeds with zeros. Only this first call answers NOT_SUPPORTED.
    return module.amdsmi_get_gpu_total_ecc_count(handle) if module.amdsmi_get_gpu_ecc_enabled(handle) else {}


CALLS: Mapping[str, Callable[[Any, Any], Mapping[str, object]]] = {
    "activity": lambda module, handle: _filled(module.amdsmi_get_gpu_activity(handle)),
    **{
        f"{sensor}{suffix}": partial(_temperature, sensor.upper(), metric)
        for sensor in ("edge", "junction")
        for suffix, metric in (("", "CURRENT"), ("_critical", "CRITICAL"), ("_emergency", "EMERGENCY"))
    },
    "memory": partial(_temperature, "VRAM", "CURRENT"),
    "hbm": partial(_temperature, "HBM_0", "CURRENT"),
    "power": _power,
    "cap": lambda module, handle: module.amdsmi_get_power_cap_info(handle),
    "energy": _energy,
    "fan": _fan,
    "sclk": lambda module, handle: _filled(module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.GFX)),
    "mclk": lambda module, handle: _filled(module.amdsmi_get_clock_info(handle, module.AmdSmiClkType.MEM)),
    "ecc": _ecc,
    "replays": lambda module, handle: {"count": module.amdsmi_get_gpu_pci_replay_counter(handle)},
    "pcie": _pcie,
    "vram": partial(_pool, "VRAM"),
    "gtt": partial(_pool, "GTT"),
}
"""The call that gives a place, by the first word of the place."""
_generation = partial(pcie_generation, per=1000)
FIELDS = (
    Field("gpu", "activity.gfx_activity", "%"),
    Field("memory", "activity.umc_activity", "%"),
    Field("memoryReadWriteActivity", "activity.umc_activity", "%"),
    Field("temp", ("edge.degrees", "junction.degrees"), "C"),
    Field("hotspotTemp", "junction.degrees", "C"),
    Field("memoryTemp", "memory.degrees", "C"),
    Field("tempLimit.slowdown", ("edge_critical.degrees", "junction_critical.degrees"), "C"),
    Field("tempLimit.shutdown", ("edge_emergency.degrees", "junction_emergency.degrees"), "C"),
    Field("powerWatts", ("power.average_socket_power", "power.current_socket_power", "power.socket_power"), "W", zero_is_missing=True),
    Field("enforcedPowerLimitWatts", "cap.power_cap", "uW"),
    Field("enforcedPowerLimitWatts", "power.power_limit", "W"),
    Field("energyJoules", "energy.joules", "J"),
    Field("fanSpeed", "fan.percent", "%", high=200),
    Field("smClock", ("sclk.clk", "sclk.cur_clk"), "MHz"),
    Field("maxSmClock", "sclk.max_clk", "MHz"),
    Field("memoryClock", ("mclk.clk", "mclk.cur_clk"), "MHz"),
    Field("maxMemoryClock", "mclk.max_clk", "MHz"),
    Field("correctedMemoryErrors", "ecc.correctable_count"),
    Field("uncorrectedMemoryErrors", "ecc.uncorrectable_count"),
    Field("pcieReplays", ("replays.count", "pcie.pcie_replay_count")),
    Field("pcieLinkGen", "pcie.pcie_speed", convert=_generation),
    Field("maxPcieLinkGen", "pcie.max_pcie_speed", convert=_generation),
    Field("pcieLinkWidth", ("pcie.pcie_width", "pcie.pcie_lanes")),
    Field("maxPcieLinkWidth", ("pcie.max_pcie_width", "pcie.max_pcie_lanes")),
    *memory_rows(
        "amdsmi memory usage of VRAM; an APU: the pool that compute uses, else with GTT",
        "amdsmi memory total of VRAM; an APU: the pool that compute uses, else with GTT",
    ),
)
TABLE = Table("amdsmi", "gpu", FIELDS)
METRICS = frozenset(row.metric for row in FIELDS if isinstance(row, Field))


OVERDUE = Unavailable(Reason.TIMED_OUT, "a call into amdsmi has not returned")
FIRST_PATIENCE, LATER_PATIENCE = 0.4, 0.05
"""Seconds that a call may take: normally, and after a call hung, until the module has answered again."""
SLICE = 0.05
"""Seconds between two looks at a call's progress, and the most that one look adds: a busy interpreter is no hanging driver."""


class Trust:
    """Patience with the module, shared by a driver's cards: a library that hangs often hangs for all cards."""

    patience = FIRST_PATIENCE


class AmdsmiCard(DeviceRecord):
    """A card in the module: a record that calls the module when a place is looked up. Never read by two threads at once.

    Its calls are made on the reading thread, or on a thread of its own for a driver that reads the files too (:meth:`use_thread`).

    Args:
        module: The module.
        handle: The library's handle of the card.
        address: Its PCI address.

    Attributes:
        uuid: The chip's unique id, as the kernel writes it; empty if the library does not know it.
        compute: Memory in bytes according to the compute driver.
        close: Ends the thread after its current call.
    """

    def __init__(self, module: Any, handle: Any, address: str) -> None:
        # The kernel's unique id is the chip's serial number.
        printed = guarded(lambda: str(module.amdsmi_get_gpu_asic_info(handle)["asic_serial"])).value or ""
        serial = printed.lower().removeprefix("0x")
        self.uuid = f"0x{serial}" if _SERIAL.fullmatch(serial) and serial.strip("0") else ""
        self.compute = compute_memory(address)
        self._module = module
        self._handle = handle
        self._unsupported: dict[str, Unavailable] = {}
        self._answers: dict[str, Mapping[str, object] | Unavailable] = {}
        self._unified = False
        self._progress: list[Any] = []
        self._core = ""
        self._trust: Trust | None = None
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._returned: threading.Event | None = None  # of the latest call; None before the first
        self._given: Collection[str] = METRICS
        # The thread has no reference to this object between two calls, only to the queue. So it ends when this object is deleted.
        self.close = weakref.finalize(self, self._calls.put, None)
        self.close.atexit = False

    def use_thread(self, trust: Trust) -> None:
        """Make the calls on a thread of the card, with a driver's patience."""
        self._trust = trust

    @property
    def hangs(self) -> bool:
        """Whether an abandoned call has not returned yet."""
        return self._returned is not None and not self._returned.is_set()

    def read(self, wanted: Collection[str], unified: bool, progress: list[Any], chosen: Chosen) -> dict[str, Value]:
        """Return each selected metric as a value or a reason. While a call hangs, metrics that were given before are ``timed_out``.

        Args:
            wanted: The metrics.
            unified: Whether the card shares the host's memory.
            progress: List for progress, extended after each call.
            chosen: Where each metric is read, here or in the files.

        Raises:
            SourceError: The library no longer knows the card.
        """
        read = partial(self._read, wanted, unified, progress, chosen)
        if self._trust is None:
            return read()
        outcome = None if self.hangs else self._read_on_thread(read, progress, self._trust)
        if outcome is None:
            return {name: OVERDUE for name in wanted if name in self._given}
        if outcome.value is None:
            raise outcome.error or RuntimeError("amdsmi gave nothing")
        self._given = {name for name, value in outcome.value.items() if not isinstance(value, Unavailable)}
        return outcome.value

    def _read_on_thread(self, read: Callable[[], dict[str, Value]], progress: list[Any], trust: Trust) -> Outcome[dict[str, Value]] | None:
        """Return the result, waiting as long as calls return; None if a call hangs."""
        returned = threading.Event()
        outcomes: list[Outcome[dict[str, Value]]] = []

        def call() -> None:
            outcomes.append(guarded(read))
            returned.set()

        if self._returned is None:
            threading.Thread(target=_serve, args=(self._calls,), name="accelmetrics-amdsmi", daemon=True).start()
        self._returned = returned
        self._calls.put(call)
        seen, idle = len(progress), 0.0
        while not returned.wait(min(SLICE, trust.patience)):
            idle = idle + SLICE if len(progress) == seen else 0.0
            seen = len(progress)
            if idle >= trust.patience:
                trust.patience = LATER_PATIENCE
                return None
        trust.patience = FIRST_PATIENCE
        return outcomes[0]

    def _read(self, wanted: Collection[str], unified: bool, progress: list[Any], chosen: Chosen) -> dict[str, Value]:
        self._answers = dict(self._unsupported)
        self._unified, self._progress, self._core = unified, progress, chosen.get("temp", ("", ""))[1]
        return TABLE.read(self, {}, 0.0, given=METRICS - set(wanted), chosen=chosen)

    def get(self, place: str) -> object:
        if place in (USED, TOTAL):
            return device_memory(self.get, self._unified, "{}.used", "{}.total", compute=self.compute)[place]
        call, _, name = place.partition(".")
        sensor, _, limit = call.partition("_")
        if limit in ("critical", "emergency"):
            # The temperature limits belong to the sensor of `temp`.
            core = self._core or ("junction" if isinstance(self.get("edge.degrees"), Unavailable) else "edge")
            if ("edge" in core) != (sensor == "edge"):
                return None
        if call == "energy" and not isinstance(self.get("power.current_socket_power"), int):
            # As in the files: for cards without HBM the meaning of the counter is not documented. HBM is recognised by its sensor. MI300
            # and later have no sensor per stack; they are recognised by their current power, which no other card has.
            hbm = self.get("hbm.degrees")
            if isinstance(hbm, Unavailable):
                return hbm
            if not isinstance(hbm, int) or hbm <= 0:
                return UNDOCUMENTED_ENERGY
        if call not in self._answers:
            self._answers[call] = self._ask(call)
        answer = self._answers[call]
        return answer if isinstance(answer, Unavailable) else answer.get(name)

    def _ask(self, call: str) -> Mapping[str, object] | Unavailable:
        """Return the answer of a call, or why there is none."""
        # The module may raise any exception, not only its own.
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


# Finding the module, and comparing it with the library

LIBRARY = "libamd_smi.so"
DEFAULT_ROOT = "/opt/rocm"
PRIVATE_NAME = "_accelmetrics_amdsmi"
ROOM = 8192
"""Bytes of an answer, enough for the size in every release."""
INSTALL = "install the Python module of the installed ROCm release: it is in /opt/rocm/share/amd_smi, or amdsmi of that version on PyPI"
REINSTALL = "install ROCm's package amd-smi-lib again: `ldd` on the library shows what it lacks"

GPUS = 2
"""Argument of ``amdsmi_init`` that initialises GPUs only."""
YEAR = 23
"""First number of a version: since 2023 it is the year. The file of ROCm 5.7 may have a placeholder, ``libamd_smi.so.1.0.50700``."""

_VERSION = re.compile(r"^(?:__)?version(?:__)?\s*=\s*[\"'](\d+\.\d+\.\d+)", re.MULTILINE)
_FILE = re.compile(r"libamd_smi\.so\.(\d+\.\d+)(?:\.\d+)*", re.ASCII)
_RELEASE = re.compile(r"\A\s*(\d+\.\d+\.\d+)", re.ASCII)

Version = tuple[int, ...]


def load() -> Any:
    """Import the module that matches the installed library, and check that it has loaded this library.

    Raises:
        SourceError: There is no library, no module, or no matching module.
    """
    with loading:  # the module loads the library again
        library, known, release = find_library()
        mismatched = []
        for package in packages(library):
            is_shipped = package == _shipped(library)
            version = _version_in(package / "_version.py", _VERSION)
            if not version and is_shipped:  # before ROCm 6.1 only this file has the version
                version = _version_in(package.parent / "pyproject.toml", _VERSION)
            numbers = 2 if is_shipped else 3
            if version and version != release and len(known) < numbers and version[:2] == (known or version[:2]):
                known = _own_version(library)
            if version and (version == release or version[:numbers] == known[:numbers]):
                break
            mismatched.append(f"{package} is of version {_dotted(version) or 'unknown'}")
        else:
            if not mismatched:
                raise _refused(f"no Python module amdsmi was found for {library}")
            raise _refused(f"{'; '.join(mismatched)}, which does not match {_words(library, known, release)}: it is not used")
        module = _import(package)
        loaded = module.amdsmi_interface.amdsmi_wrapper._libraries[LIBRARY]
        # If a library is loaded twice under different names, its functions have the same addresses.
        first, second = (ctypes.cast(each.amdsmi_init, ctypes.c_void_p).value for each in (loaded, _opened(library)))
        if first != second:
            other = f"another library ({loaded._name}) than {_words(library, known, release)}"
            raise _refused(f"the module amdsmi loaded {other}: it is not used")
        return module


def find_library() -> tuple[Path, Version, Version]:
    """Find the library of the installed ROCm.

    Returns:
        Its path; the first two numbers of its version from its file name, empty without them; its ROCm release, empty if unknown.

    Raises:
        SourceError: There is no library, or it cannot be loaded.
    """
    named = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH", ""))
    roots = [Path(root) for root in dict.fromkeys([named, DEFAULT_ROOT]) if root.startswith("/")]  # the same order as in the module
    for root in roots:
        path = root / "lib" / LIBRARY
        if path.exists():
            _opened(path)
            numbered = _FILE.fullmatch(path.resolve().name)
            version = tuple(map(int, numbered[1].split("."))) if numbered else ()
            return path, version if version >= (YEAR,) else (), _version_in(root / ".info" / "version", _RELEASE)
    raise _refused(f"{LIBRARY} was found in none of {', '.join(str(root / 'lib') for root in roots)}")


def _words(library: Path, version: Version, release: Version) -> str:
    """Return a description of the library, for messages."""
    return f"{library} (version {_dotted(version) or 'unknown'}{f', of ROCm {_dotted(release)}' if release else ''})"


def packages(library: Path) -> list[Path]:
    """Return the directories of modules ``amdsmi``, best first."""
    elsewhere = (Path(directory or ".") / "amdsmi" for directory in sys.path)
    return [package for package in dict.fromkeys([_shipped(library), *elsewhere]) if (package / "__init__.py").is_file()]


def _shipped(library: Path) -> Path:
    """Return the directory of the module that ROCm installs."""
    return library.parent.parent / "share" / "amd_smi" / "amdsmi"


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return load_library(str(path))
    except OSError as error:
        why = loading_failure(str(path), error) or Unavailable(Reason.DRIVER_UNAVAILABLE, str(error))
        raise SourceError(*why, backend="amd", advice=REINSTALL) from error


def _own_version(path: Path) -> Version:
    """Initialise a library and return its version: the first three numbers of its answer, in every release so far."""
    library, answer = _opened(path), (ctypes.c_uint32 * (ROOM // 4))()
    try:
        status = library.amdsmi_init(ctypes.c_uint64(GPUS)) or library.amdsmi_get_lib_version(ctypes.byref(answer))
    except AttributeError as error:
        raise _refused(f"{path} cannot be loaded: {error}") from error
    if status:
        raise _refused(f"{path} does not start: amdsmi_init answers {status}")
    return tuple(answer[:3])


def _version_in(path: Path, form: re.Pattern[str]) -> Version:
    """Return the version in a file; empty if it has none."""
    try:
        found = form.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()
    return tuple(map(int, found[1].split("."))) if found else ()


def _import(package: Path) -> Any:
    spec = importlib.util.spec_from_file_location(PRIVATE_NAME, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None and spec.loader is not None  # both are set for an existing file
    module = importlib.util.module_from_spec(spec)
    _forget()
    sys.modules[PRIVATE_NAME] = module
    # The module prints while it is imported.
    with contextlib.redirect_stdout(sys.stderr):
        outcome = guarded(spec.loader.exec_module, module)
    if outcome.failure is not None:
        _forget()
        raise _refused(f"{package} cannot be imported: {outcome.failure.detail}") from outcome.error
    return module


def _forget() -> None:
    for name in [name for name in sys.modules if name == PRIVATE_NAME or name.startswith(f"{PRIVATE_NAME}.")]:
        del sys.modules[name]


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _refused(message: str) -> SourceError:
    return SourceError(Reason.DRIVER_UNAVAILABLE, message, backend="amd", advice=INSTALL)


def open_cards(addresses: Sequence[str]) -> dict[str, AmdsmiCard]:
    """Open the module and return its cards by PCI address, at least one.

    Raises:
        SourceError: A card sleeps, or the module, the library or the driver cannot be used.
    """
    # Opening the library would wake the card.
    asleep = [address for address in addresses if is_asleep(address)]
    if asleep:
        words = f"opening amdsmi would wake {', '.join(asleep)}, which is suspended"
        raise SourceError(Reason.SUSPENDED, words, backend="amd")

    def opened() -> dict[str, AmdsmiCard]:
        module = load()
        try:
            module.amdsmi_init()
            handles = module.amdsmi_get_processor_handles()
            if len(handles) > MOST_DEVICES:
                words = f"amdsmi lists {len(handles)} cards: more than {MOST_DEVICES} are implausible"
                raise SourceError(Reason.INVALID_VALUE, words, backend="amd")
            cards: dict[str, AmdsmiCard] = {}
            for handle in handles:
                address = module.amdsmi_get_gpu_device_bdf(handle).lower()
                if address not in cards:  # partitions may have the card's address; the first is the card
                    cards[address] = AmdsmiCard(module, handle, address)
            return cards
        except module.AmdSmiException as error:
            words = " ".join(str(error).split())
            kind = DriverGoneError if getattr(error, "err_code", 0) == DRIVER_NOT_LOADED else SourceError
            raise kind(Reason.DRIVER_UNAVAILABLE, f"amdsmi does not start: {words}", backend="amd") from error

    outcome = guarded(opened)
    if isinstance(outcome.error, SourceError):
        raise outcome.error
    if not outcome.value:
        words = "amdsmi lists no card" if outcome.failure is None else f"amdsmi cannot be used: {outcome.failure.detail}"
        raise SourceError(Reason.DRIVER_UNAVAILABLE, words, backend="amd", advice=INSTALL)
    return outcome.value


# Opening on a separate thread


class Attempt:
    """An attempt to open the module, which may hang in a library's constructor or in its first call into the driver.

    Args:
        addresses: The argument of :func:`open_cards`.

    Attributes:
        outcome: Its result; None until it returns.

    Raises:
        SourceError: No thread can be started.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.outcome: Outcome[dict[str, AmdsmiCard]] | None = None
        self._thread = threading.Thread(target=self._run, args=(addresses,), name="accelmetrics-amdsmi-opening", daemon=True)
        ATTEMPTS.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            ATTEMPTS.discard(self)
            raise SourceError(Reason.DRIVER_ERROR, f"cannot start a thread: {error}", backend="amd") from error

    def _run(self, addresses: Sequence[str]) -> None:
        with waiting_for("amdsmi"):
            self.outcome = guarded(open_cards, addresses)
        ATTEMPTS.discard(self)

    def cards(self, seconds: float) -> dict[str, AmdsmiCard]:
        """Return the cards by PCI address. Waits at most so many seconds.

        Raises:
            SourceError: It failed, or has not returned (``timed_out``).
        """
        self._thread.join(seconds)
        if self.outcome is None:
            wait = WAITS.get(self._thread.ident or 0)
            since = "it is being opened" if wait is None else f"{wait.tool} has not answered since {rfc3339_second(wait.since)}"
            raise SourceError(Reason.TIMED_OUT, since, backend="amd")
        if isinstance(self.outcome.error, SourceError):
            raise self.outcome.error
        if self.outcome.failure is not None:
            raise SourceError(*self.outcome.failure, backend="amd")
        return self.outcome.value or {}


ATTEMPTS: set[Attempt] = set()
"""Attempts that have not returned. While there is one, no other is started, since it would hang too."""

at_fork(after_in_child=ATTEMPTS.clear)


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run the calls one after the other, on the worker's thread."""
    while (call := calls.get()) is not None:
        call()
        del call  # a finished call must not keep its result alive while the thread waits
