"""`NvmlSimulator`: simulated NVIDIA GPUs for a test, in this process or in others."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from . import _build, _control, _profiles
from ._clones import CLONES
from ._mig import Instance, lay_out
from ._names import NOT_AVAILABLE, Crash, Ret, ValueType, field_id, gpm_id
from ._profiles import Number, Ramp, Value

_KINDS = {"C": 1, "G": 2, "M": 4}
_STATE_VARIABLE = "NVMLSIM_STATE"
_NO_INSTANCE = 0xFFFFFFFF
_MOST_INSTANCES = 8
XID_EVENT = 0x8
"""`nvmlEventTypeXidCriticalError`."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A process on a GPU. `kind` holds C (compute), G (graphics), M (MPS), or several of them.

    The process shows up in utilisation calls only while one of its percentages is not 0. `timestamp_us` is the wall clock
    of its last activity; 0 stands for whenever it is read.
    """

    pid: int
    kind: str = "C"
    used: int = NOT_AVAILABLE
    sm: int = 0
    mem: int = 0
    enc: int = 0
    dec: int = 0
    jpg: int = 0
    ofa: int = 0
    timestamp_us: int = 0
    protected: int = 0
    gpu_instance: int = _NO_INSTANCE
    compute_instance: int = _NO_INSTANCE


@dataclasses.dataclass(frozen=True)
class LogEntry:
    """One call: when (monotonic ns), by whom, which function, on which GPU (None: it names none)."""

    time_ns: int
    pid: int
    thread: int
    function: str
    gpu: int | None


class Gpu:
    """One simulated GPU. What can be set is listed in `csrc/values.def` and `csrc/texts.def`."""

    def __init__(self, control: _control.Control, index: int) -> None:
        self._control = control
        self.index = index

    def set(self, **values: Value) -> None:
        """Sets values, seen by the next call of any process.

        A number is the value; None takes it away (NOT_SUPPORTED); a `Ret` makes every call that reads it answer that
        error; a `Ramp` changes by itself. A family takes one number for all of its members, a sequence from its first
        member on, or a mapping by index: `set(nvlink_data_tx_kib={3: 7}, gpm={"SM_UTIL": 40.0}, power_mw=300_000)`.
        """
        for name, value in values.items():
            if name in self._control.names.texts:
                self._set_text(name, value)
            else:
                self._set_family(name, value)

    def get(self, name: str) -> float | Ret:
        """What a driver call would read now from a value (`"power_mw"`, `"gpm[2]"`), or the error it would get."""
        return self._control.get_number(self.index, name)

    def set_field(self, field: int | str, value: float | Ret | None, scope: int = 0, kind: int = ValueType.UNSIGNED_LONG_LONG) -> None:
        """Overrides what nvmlDeviceGetFieldValues answers for a field (`"MEMORY_TEMP"` or its number) in one scope.

        Scope is the link, or `ALL_LINKS`; 0 where the field has none.
        """
        self._control.set_field(self.index, field_id(field), scope, int(kind), value)

    def clear_fields(self) -> None:
        """Fields follow the named values again."""
        self._control.clear_fields(self.index)

    def _set_text(self, name: str, value: Value) -> None:
        if not (value is None or isinstance(value, str | Ret)):
            raise TypeError(f"{name} is a text")
        self._control.set_text(self.index, name, value)

    def _set_family(self, name: str, value: Value) -> None:
        if isinstance(value, str):
            raise TypeError(f"{name} is a number")
        if value is None or isinstance(value, int | float | Ramp):
            self._set_number(name, value)
            return
        members: Iterable[tuple[int | str, Number]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, member in members:
            self._set_number(f"{name}[{gpm_id(key) if name == 'gpm' else int(key)}]", member)

    def _set_number(self, name: str, value: Number) -> None:
        if isinstance(value, Ramp):
            self._control.set_number(self.index, name, value.base)
            self._control.ramp(self.index, name, value.step, value.rate, value.low, value.high)
        else:
            self._control.set_number(self.index, name, value)


class NvmlSimulator:
    """A machine with simulated NVIDIA GPUs, as a context manager.

    In other processes: `subprocess.run(..., env=os.environ | simulator.environment())`. In this one: `simulator.load()`,
    after which pynvml and everything else that opens `libnvidia-ml.so.1` gets the simulator. Everything can be changed
    while they run. When the block ends, all that hangs is released and the driver is gone.

    `gpus` is a number, or one profile name per GPU. `hide` names functions that the library does not have, as an older
    driver's; since a process keeps the first library it loaded, use that in a process of its own.
    `clone` names another vendor's library of the same form (`hgml`), which then stands in the place of NVIDIA's with devices of
    that vendor; rules and counts go by NVML's names. Several may be in one process, each with a machine of its own.
    Raises `SimulatorUnavailable` where it cannot be built.
    """

    def __init__(
        self,
        gpus: int | Sequence[str] = 8,
        profile: str = "h100",
        *,
        hide: Iterable[str] = (),
        directory: Path | None = None,
        clone: str = "",
    ) -> None:
        made = CLONES[clone] if clone else None
        profiles = [profile] * gpus if isinstance(gpus, int) else list(gpus)
        settings = [_profiles.settings(made.product if made else name, index) for index, name in enumerate(profiles)]
        self.library = _build.build(hide=hide, clone=made)
        self._variable = _build.state_variable(made)
        self.state = (directory or _shared_memory()) / f"nvmlsim-{os.getpid()}-{uuid.uuid4().hex}"
        self._control = _control.Control(self.library.with_name(_build.CONTROL), self.state, len(profiles))
        self._previous: dict[str, str | None] = {}
        self._closed = False
        self._identities = [(str(values["name"]), str(values["uuid"])) for values in settings]
        self.gpu = [Gpu(self._control, index) for index in range(len(profiles))]
        self.set(driver_version="570.124.06", nvml_version="12.570.124.06", driver_branch="r570_00", cuda_version=12080)
        for gpu, values in zip(self.gpu, settings, strict=True):
            gpu.set(**values)

    def __enter__(self) -> NvmlSimulator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Releases what hangs, takes the driver away for good and restores the environment. Closing twice is no harm."""
        if self._closed:
            return
        self._closed = True
        previous, self._previous = self._previous, {}
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if previous:  # only now: a thread that is reading would find this machine again
            _control.library(self.library).nvmlsim_forget()
        self._control.close()
        self.state.unlink(missing_ok=True)

    # --- who sees it ---

    def environment(self) -> dict[str, str]:
        """The variables that make a subprocess see this machine."""
        rest = os.environ.get("LD_LIBRARY_PATH", "")
        path = f"{self.library.parent}:{rest}" if rest else str(self.library.parent)
        return {"LD_LIBRARY_PATH": path, self._variable: str(self.state)}

    def load(self) -> ctypes.CDLL:
        """Makes this process see this machine, until the simulator is closed; returns the library.

        A later `CDLL("libnvidia-ml.so.1")`, such as pynvml's, finds the library by its SONAME. Children inherit it too.
        """
        loaded = _control.library(self.library)
        for name, value in self.environment().items():
            self._previous.setdefault(name, os.environ.get(name))
            os.environ[name] = value
        loaded.nvmlsim_forget()  # another machine that this process may have seen
        return loaded

    # --- what it is ---

    def set(self, **values: int | str) -> None:
        """Sets the machine: the names in `csrc/system.def`, driver_version, nvml_version, driver_branch.

        Among them `latency_us` (every call), `pcie_latency_us` (default 20,000, as measured), `latency_spin` (1: latency burns
        CPU), `gpu_count` (how many GPUs are enumerated now).
        """
        for name, value in values.items():
            if isinstance(value, str):
                self._control.set_text(-1, name, value)
            else:
                self._control.set_system(name, value)

    def processes(self, gpu: int, table: Iterable[Process]) -> None:
        """Replaces the processes on a GPU, at once."""
        for entry in table:
            kinds = sum(bit for letter, bit in _KINDS.items() if letter in entry.kind)
            busy = (entry.sm, entry.mem, entry.enc, entry.dec, entry.jpg, entry.ofa)
            instances = (entry.gpu_instance, entry.compute_instance)
            self._control.add_process(entry.pid, kinds, entry.used, entry.protected, busy, entry.timestamp_us, instances)
        self._control.show_processes(gpu)

    def partition(self, gpu: int, profiles: Iterable[str] | None) -> list[Instance]:
        """Divides a GPU into MIG devices by their profiles, in place of those that it has; None ends MIG mode.

        `partition(0, ["3g.40gb", "1g.10gb"])`; an empty list is MIG mode without devices.
        """
        for slot in range(_MOST_INSTANCES):
            self._control.empty_slot(gpu, slot)
        self.gpu[gpu].set(mig_mode=int(profiles is not None), mig_pending=int(profiles is not None))
        layouts = enumerate(lay_out(profiles or ()))
        return [Instance(self._control, gpu, slot, layout, self._identities[gpu]) for slot, layout in layouts]

    def remove_instance(self, instance: Instance) -> None:
        """Destroys one MIG device; the others stay where they are."""
        self._control.empty_slot(instance.gpu, instance.slot)

    def uuid(self, gpu: int) -> str:
        """The UUID of a GPU."""
        return self._identities[gpu][1]

    # --- what goes wrong ---

    def xid(self, gpu: int, code: int, instance: Instance | None = None) -> None:
        """An Xid error happens on a GPU, or in one of its MIG devices."""
        ids = (instance.gpu_instance, instance.compute_instance) if instance else (_NO_INSTANCE, _NO_INSTANCE)
        self._control.event(gpu, XID_EVENT, code, ids)

    def event(self, gpu: int, kind: int, data: int = 0) -> None:
        """Another event happens, by its `nvmlEventType…` bit."""
        self._control.event(gpu, kind, data, (_NO_INSTANCE, _NO_INSTANCE))

    def rule(
        self,
        function: str,
        gpu: int | None = None,
        *,
        error: Ret | int | None = None,
        latency_us: int | None = None,
        hang: bool | str = False,
        crash: Crash | None = None,
        after: int = 0,
        times: int = 0,
    ) -> None:
        """Makes a function fail, slow, hang or crash; replaces its earlier rule. `"*"` stands for every function.

        `gpu` None means all GPUs and the calls that name none. `hang=True` blocks the callers until `release`,
        `clear_rules` or the simulator's end; `hang="lock"` also blocks every later call of any thread, as a driver that hangs
        with its global lock held does. The rule starts after `after` calls and then holds for `times` calls (0: for good).
        """
        how = 0 if not hang else 2 if hang == "lock" else 1
        column = -1 if gpu is None else gpu
        for name in self._control.names.functions if function == "*" else [function]:
            self._control.rule(name, column, int(error or 0), latency_us or 0, how, int(crash or 0), after, times)

    def release(self, function: str, gpu: int | None = None) -> None:
        """Takes a rule away; who hangs in it goes on and succeeds."""
        self.rule(function, gpu)

    def clear_rules(self) -> None:
        """Takes all rules away and releases everyone. GPUs stay lost and the driver stays away."""
        self._control.clear_rules()

    def lose(self, gpu: int, error: Ret = Ret.GPU_IS_LOST, *, enumerable: bool = False) -> None:
        """Every call on the GPU answers `error`, and so does looking up its handle unless it stays `enumerable`."""
        self._control.lose(gpu, int(error), 0 if enumerable else int(error))

    def fail_enumeration(self, gpu: int, error: Ret = Ret.UNKNOWN) -> None:
        """Looking up the GPU's handle answers `error`; handles that exist still work, and the count includes it."""
        self._control.lose(gpu, 0, int(error))

    def recover(self, gpu: int) -> None:
        """The GPU is back as it was."""
        self._control.lose(gpu, 0, 0)

    def driver_away(self, error: Ret = Ret.DRIVER_NOT_LOADED) -> None:
        """Every call answers `error`, and nvmlInit DRIVER_NOT_LOADED."""
        self._control.set_system("away_error", int(error))
        self._control.driver(False)

    def driver_back(self) -> None:
        """The driver is there again, reloaded: who was initialised must shut down and init anew; old handles are invalid."""
        self._control.driver(True)

    def fail_init(self, error: Ret = Ret.LIB_RM_VERSION_MISMATCH) -> None:
        """nvmlInit answers `error`, by default the one for a library that does not match the loaded driver."""
        self._control.set_system("init_error", int(error))

    # --- what was called ---

    @property
    def functions(self) -> frozenset[str]:
        """Every NVML function that the library can export."""
        return frozenset(self._control.names.functions)

    @property
    def implemented(self) -> frozenset[str]:
        """The functions that are more than a stub."""
        return frozenset(self._control.names.implemented)

    def calls(self) -> dict[tuple[str, int | None], int]:
        """How often each function was called on each GPU (None: a call that names none), by all processes together."""
        return {(name, None if gpu < 0 else gpu): count for name, gpu, count in self._control.calls()}

    def count(self, function: str) -> int:
        """How often a function was called, on all GPUs together."""
        return sum(count for name, _, count in self._control.calls() if name == function)

    def stubs_called(self) -> frozenset[str]:
        """Functions that were called and that only answer NOT_SUPPORTED."""
        return frozenset(name for name, _, _ in self._control.calls()) - self.implemented

    def reset_calls(self) -> None:
        """Counts from 0 again."""
        self._control.reset_calls()

    def wait_for(self, function: str, gpu: int | None = None, count: int = 1, timeout: float = 30.0) -> None:
        """Waits until a function was called that often; a call that hangs counts when it begins."""
        deadline = time.monotonic() + timeout
        while self.calls().get((function, gpu), 0) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{function} on GPU {gpu} was not called {count} times within {timeout} s")
            time.sleep(0.002)

    def start_log(self) -> None:
        """Logs every call from now on (the last 65,536 are kept)."""
        self._control.log_enable(True)

    def stop_log(self) -> None:
        """Logs no more; `log` still shows what was logged."""
        self._control.log_enable(False)

    def log(self) -> list[LogEntry]:
        """The calls of all processes in order."""
        entries = self._control.log()
        return [LogEntry(when, pid, thread, name, None if gpu < 0 else gpu) for when, pid, thread, name, gpu in entries]


@contextmanager
def attached(environment: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, this process sees the machine of a program with this environment: `NvmlSimulator.environment()` or none."""
    state = environment.get(_STATE_VARIABLE)
    if state is None:
        yield
        return
    loaded = _control.library(Path(environment["LD_LIBRARY_PATH"].partition(":")[0]) / _build.SONAME)
    before = os.environ.get(_STATE_VARIABLE)
    os.environ[_STATE_VARIABLE] = state
    try:
        yield
    finally:
        os.environ.pop(_STATE_VARIABLE)
        if before is not None:
            os.environ[_STATE_VARIABLE] = before
        loaded.nvmlsim_forget()


def _shared_memory() -> Path:
    """Where a state file never waits for a disk."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
