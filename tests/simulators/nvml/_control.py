"""The control functions that the library exports (`csrc/control.c`), and the few conversions around them."""

from __future__ import annotations

import ctypes
import difflib
import functools
import math
from collections.abc import Iterable, Iterator
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

from ._names import Ret

_INT = POINTER(c_int)
_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "nvmlsim_create": (c_void_p, [c_char_p, c_int]),
    "nvmlsim_open": (c_void_p, [c_char_p]),
    "nvmlsim_detach": (None, [c_void_p]),
    "nvmlsim_close": (None, [c_void_p]),
    "nvmlsim_forget": (None, []),
    "nvmlsim_capacity": (c_int, [c_void_p]),
    "nvmlsim_set": (c_int, [c_void_p, c_int, c_char_p, c_int64, c_double, c_int]),
    "nvmlsim_ramp": (c_int, [c_void_p, c_int, c_char_p, c_double, c_double, c_double, c_double]),
    "nvmlsim_get": (c_int, [c_void_p, c_int, c_char_p, POINTER(c_double), POINTER(c_int64), _INT]),
    "nvmlsim_set_text": (c_int, [c_void_p, c_int, c_char_p, c_char_p, c_int]),
    "nvmlsim_system": (c_int, [c_void_p, c_char_p, c_int64]),
    "nvmlsim_set_field": (c_int, [c_void_p, c_int, c_uint32, c_uint32, c_int, c_int64, c_double, c_int]),
    "nvmlsim_clear_fields": (c_int, [c_void_p, c_int]),
    "nvmlsim_process_add": (
        c_int,
        [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, POINTER(c_uint32), c_uint64, POINTER(c_uint32)],
    ),
    "nvmlsim_process_commit": (c_int, [c_void_p, c_int]),
    "nvmlsim_instance": (c_int, [c_void_p, c_int, c_int, c_char_p, c_char_p, c_uint32, c_uint32, c_int64]),
    "nvmlsim_instance_memory": (c_int, [c_void_p, c_int, c_int, c_int64]),
    "nvmlsim_instance_gpm": (c_int, [c_void_p, c_int, c_int, c_int, c_double, c_int]),
    "nvmlsim_event": (c_int, [c_void_p, c_int, c_uint64, c_uint64, c_uint32, c_uint32]),
    "nvmlsim_function_name": (c_char_p, [c_int]),
    "nvmlsim_implemented": (c_int, [c_int]),
    "nvmlsim_rule": (c_int, [c_void_p, c_char_p, c_int, c_int, c_uint32, c_uint32, c_uint32, c_uint64, c_uint64]),
    "nvmlsim_clear_rules": (None, [c_void_p]),
    "nvmlsim_lose": (c_int, [c_void_p, c_int, c_int, c_int]),
    "nvmlsim_driver": (None, [c_void_p, c_int]),
    "nvmlsim_next_call": (c_int, [c_void_p, _INT, _INT, _INT, POINTER(c_uint64)]),
    "nvmlsim_reset_calls": (None, [c_void_p]),
    "nvmlsim_log_enable": (None, [c_void_p, c_int]),
    "nvmlsim_log_head": (c_uint64, [c_void_p]),
    "nvmlsim_log_capacity": (c_uint64, []),
    "nvmlsim_log_read": (c_int, [c_void_p, c_uint64, POINTER(c_int64)]),
    "nvmlsim_value_name": (c_char_p, [c_int, _INT, _INT]),
    "nvmlsim_text_name": (c_char_p, [c_int]),
    "nvmlsim_system_name": (c_char_p, [c_int]),
    "nvmlsim_header_version": (c_int, []),
}

SYSTEM_TEXTS = ("driver_version", "nvml_version", "driver_branch")


@functools.cache
def library(path: Path) -> ctypes.CDLL:
    """The library at `path` with its control functions declared; one per path, loaded for good."""
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Names:
    """What a library can be told: its values, texts, system settings and functions."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self.functions = list(_enumerate(loaded.nvmlsim_function_name))
        self.implemented = {name for number, name in enumerate(self.functions) if loaded.nvmlsim_implemented(number)}
        self.texts = set(_enumerate(loaded.nvmlsim_text_name))
        self.system = set(_enumerate(loaded.nvmlsim_system_name))
        count, real = c_int(), c_int()
        self.values: dict[str, int] = {}
        while name := loaded.nvmlsim_value_name(len(self.values), byref(count), byref(real)):
            self.values[name.decode()] = count.value


def _enumerate(give: ctypes._CFuncPtr) -> Iterator[str]:  # type: ignore[name-defined,unused-ignore]
    number = 0
    while name := give(number):
        yield name.decode()
        number += 1


class Control:
    """One state file, opened for control. The methods are the C functions with Python's types and errors."""

    def __init__(self, path: Path, state: Path, gpus: int | None) -> None:
        """Creates `state` with that many GPUs, or opens the one that exists if `gpus` is None."""
        self._c = library(path)
        self.names = Names(self._c)
        self.state = state
        encoded = str(state).encode()
        self._handle = self._c.nvmlsim_open(encoded) if gpus is None else self._c.nvmlsim_create(encoded, gpus)
        if not self._handle:
            raise ValueError(f"cannot {'open' if gpus is None else f'create {gpus} GPUs in'} {state}")

    def close(self) -> None:
        """Ends the state for everyone who uses it."""
        self._c.nvmlsim_close(self._take_handle())

    def detach(self) -> None:
        """Stops controlling it; others go on."""
        self._c.nvmlsim_detach(self._take_handle())

    def _take_handle(self) -> int:
        handle, self._handle = int(self._handle), None
        return handle

    @property
    def capacity(self) -> int:
        """The number of GPUs the state was created with."""
        return int(self._c.nvmlsim_capacity(self._handle))

    def set_number(self, gpu: int, name: str, value: float | Ret | None) -> None:
        """Sets a value; None takes it away, a `Ret` makes reading it answer that."""
        integer, real, ret = encode(value)
        self._check(self._c.nvmlsim_set(self._handle, gpu, name.encode(), integer, real, ret), name)

    def ramp(self, gpu: int, name: str, step: float, rate: float, low: float, high: float) -> None:
        """Lets a value that is set already change by itself."""
        self._check(self._c.nvmlsim_ramp(self._handle, gpu, name.encode(), step, rate, low, high), name)

    def get_number(self, gpu: int, name: str) -> float | Ret:
        """What a driver call would read now."""
        real, integer, ret = c_double(), c_int64(), c_int()
        self._check(self._c.nvmlsim_get(self._handle, gpu, name.encode(), byref(real), byref(integer), byref(ret)), name)
        if ret.value:
            return Ret(ret.value)
        return real.value if name.partition("[")[0] == "gpm" else integer.value

    def set_text(self, gpu: int, name: str, value: str | Ret | None) -> None:
        """Sets a text of a GPU, or of the machine for `gpu` -1. Lone surrogates stand for bytes that are not UTF-8 (PEP 383)."""
        content = value.encode(errors="surrogateescape") if isinstance(value, str) else None
        ret = 0 if content is not None else -1 if value is None else int(value)
        self._check(self._c.nvmlsim_set_text(self._handle, gpu, name.encode(), content, ret), name)

    def set_system(self, name: str, value: int) -> None:
        """Sets one of the machine's numbers."""
        self._check(self._c.nvmlsim_system(self._handle, name.encode(), value), name)

    def set_field(self, gpu: int, field: int, scope: int, kind: int, value: float | Ret | None) -> None:
        """Overrides a field's answer."""
        integer, real, ret = encode(value)
        ret = int(Ret.NOT_SUPPORTED) if ret < 0 else ret
        self._check(self._c.nvmlsim_set_field(self._handle, gpu, field, scope, kind, integer, real, ret), f"field {field}")

    def clear_fields(self, gpu: int) -> None:
        """Takes all overrides of fields away."""
        self._check(self._c.nvmlsim_clear_fields(self._handle, gpu), f"GPU {gpu}")

    def add_process(
        self, pid: int, kinds: int, used: int, protected: int, utilisation: Iterable[int], timestamp: int, instances: tuple[int, int]
    ) -> None:
        """Adds to the table that `show_processes` makes visible at once."""
        busy, partition = (c_uint32 * 6)(*utilisation), (c_uint32 * 2)(*instances)
        self._check(self._c.nvmlsim_process_add(self._handle, pid, kinds, used, protected, busy, timestamp, partition), "process table")

    def show_processes(self, gpu: int) -> None:
        """Replaces a GPU's process table by the one added up."""
        self._check(self._c.nvmlsim_process_commit(self._handle, gpu), f"GPU {gpu}")

    def fill_slot(self, gpu: int, slot: int, uuid: str, name: str, instances: tuple[int, int], memory: int) -> None:
        """Puts a MIG device into a slot, in place of the one that is there."""
        done = self._c.nvmlsim_instance(self._handle, gpu, slot, uuid.encode(), name.encode(), *instances, memory)
        self._check(done, f"MIG slot {slot}")

    def empty_slot(self, gpu: int, slot: int) -> None:
        """Takes the MIG device of a slot away."""
        self._check(self._c.nvmlsim_instance(self._handle, gpu, slot, None, None, 0, 0, 0), f"MIG slot {slot}")

    def set_instance_memory(self, gpu: int, slot: int, used: int) -> None:
        """What a MIG device holds, in bytes."""
        self._check(self._c.nvmlsim_instance_memory(self._handle, gpu, slot, used), f"MIG slot {slot}")

    def set_instance_gpm(self, gpu: int, slot: int, metric: int, value: float, ret: int) -> None:
        """One GPM metric of a MIG device, and what taking a sample of it answers."""
        self._check(self._c.nvmlsim_instance_gpm(self._handle, gpu, slot, metric, value, ret), f"MIG slot {slot}")

    def event(self, gpu: int, kind: int, data: int, instances: tuple[int, int]) -> None:
        """Something happens that event sets may wait for."""
        self._check(self._c.nvmlsim_event(self._handle, gpu, kind, data, *instances), f"GPU {gpu}")

    def rule(self, function: str, gpu: int, error: int, latency_us: int, hang: int, crash: int, after: int, times: int) -> None:
        """Sets the fault of a function on a GPU, or on all for -1."""
        done = self._c.nvmlsim_rule(self._handle, function.encode(), gpu, error, latency_us, hang, crash, after, times)
        self._check(done, function)

    def clear_rules(self) -> None:
        """No faults any more; what hangs goes on."""
        self._c.nvmlsim_clear_rules(self._handle)

    def lose(self, gpu: int, error: int, enumeration: int) -> None:
        """Makes a GPU, or the lookup of its handle, answer an error."""
        self._check(self._c.nvmlsim_lose(self._handle, gpu, error, enumeration), f"GPU {gpu}")

    def driver(self, present: bool) -> None:
        """Takes the driver away or brings it back."""
        self._c.nvmlsim_driver(self._handle, int(present))

    def calls(self) -> Iterator[tuple[str, int, int]]:
        """Every function that was called: its name, the GPU or -1, how often."""
        cursor, function, gpu, count = c_int(), c_int(), c_int(), c_uint64()
        while self._c.nvmlsim_next_call(self._handle, byref(cursor), byref(function), byref(gpu), byref(count)):
            yield self.names.functions[function.value], gpu.value, count.value

    def reset_calls(self) -> None:
        """All counters are 0 again."""
        self._c.nvmlsim_reset_calls(self._handle)

    def log_enable(self, on: bool) -> None:
        """Starts an empty log, or stops logging."""
        self._c.nvmlsim_log_enable(self._handle, int(on))

    def log(self) -> Iterator[tuple[int, int, int, str, int]]:
        """The log's entries from the oldest kept: time in ns, pid, thread id, function, GPU or -1."""
        head, capacity = self._c.nvmlsim_log_head(self._handle), self._c.nvmlsim_log_capacity()
        entry = (c_int64 * 5)()
        for sequence in range(max(0, head - capacity), head):
            if self._c.nvmlsim_log_read(self._handle, sequence, entry) == 0:
                yield entry[0], entry[1], entry[2], self.names.functions[entry[3]], entry[4]

    def _check(self, done: int, name: str) -> None:
        if done >= 0:
            return
        known = [*self.names.values, *self.names.texts, *self.names.system, *SYSTEM_TEXTS, *self.names.functions]
        near = difflib.get_close_matches(name.partition("[")[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near and near[0] != name else ""
        raise KeyError(f"the simulator does not take {name!r} here{hint}")


def encode(value: float | Ret | None) -> tuple[int, float, int]:
    """A value as the integer, the real number and the return code that the C side takes."""
    if value is None:
        return 0, 0.0, -1
    if isinstance(value, Ret):
        return 0, 0.0, int(value)
    # c_int64 wraps an unsigned number of 64 bits, such as the driver's all-ones, to the same bits.
    return c_int64(int(value) if math.isfinite(value) else 0).value, float(value), 0
