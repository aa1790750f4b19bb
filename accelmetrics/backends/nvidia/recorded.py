"""Two replacements for NVML or a similar library: one records every call and its answer, the other replays a recording.

A call is identified by its function and its arguments: numbers, handles and texts by value, a structure by its input members. Its
output is found by comparing the buffers before and after the call. For equal calls, the recorded range reaches from the first to
the last byte that any of them changed. So there is no table of layouts, and functions that are new to this package are recorded
too.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from accelmetrics.backends.nvidia.metrics import FABRIC_CALL
from accelmetrics.backends.nvidia.nvml import INSUFFICIENT_SIZE, NOT_RECORDED, NOT_SUPPORTED, SUCCESS
from accelmetrics.schemas.errors import SourceError

Key = tuple[str, tuple[int | str | None, ...]]
"""A function and its arguments, with None for an output buffer."""
LARGEST_BUFFER = 1 << 18
"""Most bytes of a buffer that are compared."""
SHORTEST_WAIT, LONGEST_WAIT = 0.001, 3600.0
"""Seconds. A call that took less than the first is replayed without waiting. A call that never returned is replayed as one that takes
the second.
"""
MOST_ANSWERS = 50_000
OWN = slice(len("nvml"), None)
"""A function's name without the library's prefix, which has four letters for every vendor. The names below have no prefix."""
FIELDS, METRICS = "DeviceGetFieldValues", "GpmMetricsGet"
SAMPLE_HANDLES = {"GpmSampleGet": 1, "GpmMigSampleGet": 2}
"""Functions that take a sample, with the position of the sample's handle among their arguments."""
PLATFORM = "DeviceGetPlatformInfo"
VERSIONED = frozenset({PLATFORM, FABRIC_CALL[OWN]})
"""Functions that are tried with several versions of their structure; its first number is the version."""
_SINCE = {"DeviceGetProcessUtilization": 3}
"""The position of an argument that is a time, by function."""
_FIELD, _GPM_HEAD, _GPM_METRIC, _NUMBER = struct.Struct("=II32x"), struct.Struct("=4xIQQ"), struct.Struct("=I36x"), struct.Struct("=I")
_SAMPLE = "sample"


class CallKeys:
    """Makes the keys of calls. A GPM sample is identified by its device, because it does not matter which of a consumer's two it is."""

    def __init__(self) -> None:
        self._sampled_devices: dict[int, int | str | None] = {}

    def ask(self, function: str, arguments: tuple[Any, ...]) -> tuple[Key, list[tuple[int, int]]]:
        """Return the key of a call, and the address and size of each buffer that it writes."""
        own = function[OWN]
        values: list[int | str | None] = []
        buffers: list[tuple[int, int]] = []
        for argument in arguments:
            # ctypes does not export the type of byref()'s result.
            if isinstance(argument, ctypes.Array) or type(argument).__name__ == "CArgObject":
                # The result of `byref` knows its object. The offset in it follows from the address.
                owner = argument if isinstance(argument, ctypes.Array) else argument._obj
                address = ctypes.cast(argument, ctypes.c_void_p).value or 0
                end = ctypes.addressof(owner) + ctypes.sizeof(owner)
                buffers.append((address, max(0, min(end - address, LARGEST_BUFFER))))
                values.append(None)
            else:
                value = getattr(argument, "value", argument)
                values.append(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        if own in _SINCE:
            # A time differs at each call, so it cannot identify one.
            values[_SINCE[own]] = None
        if own in SAMPLE_HANDLES:
            place = SAMPLE_HANDLES[own]
            self._sampled_devices[values[place]] = values[0]  # type: ignore[index]  # a handle
            values[place] = _SAMPLE
        elif buffers:
            values += self._inputs(own, ctypes.string_at(*buffers[0]), values)
        return (function, tuple(values)), buffers

    def _inputs(self, function: str, data: bytes, values: list[int | str | None]) -> Iterable[int | str | None]:
        """Return the input members of a structure."""
        if function == FIELDS and isinstance(values[1], int):
            return [number for place in range(values[1]) for number in _FIELD.unpack_from(data, _FIELD.size * place)]
        if function == METRICS:
            count, older, newer = _GPM_HEAD.unpack_from(data)
            wanted = (_GPM_METRIC.unpack_from(data, _GPM_HEAD.size + _GPM_METRIC.size * place)[0] for place in range(count))
            return [self._sampled_devices.get(older), self._sampled_devices.get(newer), *wanted]
        return _NUMBER.unpack_from(data) if function in VERSIONED else ()


class RecordedCalls:
    """All calls of one library in one recording.

    Attributes:
        functions: Whether the library has each function that was looked up, by name.
        failure: Why it could not be loaded; None if it was.
    """

    def __init__(self) -> None:
        self.functions: dict[str, bool] = {}
        self.failure: SourceError | None = None
        self._call_keys = CallKeys()
        self._lock = threading.Lock()
        # Answers by key: return code (None until the call returns), seconds, each buffer up to the last byte that was changed so far.
        self._answers: dict[Key, list[list[Any]]] = {}
        self._spans: dict[Key, dict[int, tuple[int, int]]] = {}
        self._number = 0
        # A library that is reopened may return other handles. Each is mapped to the first handle that the same call returned.
        self._first_handles: dict[Key, int] = {}
        self._canonical_handles: dict[int | str | None, int] = {}

    def call(self, function: str, made: Callable[..., int], *arguments: Any) -> int:
        """Make a call, and record it."""
        with self._lock:
            (_, values), buffers = self._call_keys.ask(function, arguments)
            key = function, tuple(self._canonical_handles.get(value, value) for value in values)
            before = [ctypes.string_at(*buffer) for buffer in buffers]
            answer: list[Any] = [None, 0.0, []]
            self._number += 1
            if self._number <= MOST_ANSWERS:
                # Recorded before the call, so that one that never returns is in the recording as well.
                self._answers.setdefault(key, []).append(answer)
        started = time.monotonic()
        status = made(*arguments)
        seconds = time.monotonic() - started
        after = [ctypes.string_at(*buffer) for buffer in buffers]
        with self._lock:
            if status == SUCCESS and "Handle" in function and after:
                handle = int.from_bytes(after[0], sys.byteorder)
                first = self._canonical_handles[handle] = self._first_handles.setdefault(key, handle)
                after[0] = first.to_bytes(len(after[0]), sys.byteorder)
            spans = self._spans.setdefault(key, {})
            for place, (old, new) in enumerate(zip(before, after, strict=True)):
                if changed := int.from_bytes(old, "little") ^ int.from_bytes(new, "little"):
                    # The first and the last byte that differ.
                    first, last = ((changed & -changed).bit_length() - 1) // 8, (changed.bit_length() + 7) // 8
                    start, end = spans.get(place, (first, last))
                    spans[place] = min(start, first), max(end, last)
            # In place, because the recording has the list already.
            answer[:] = status, seconds, [new[: spans.get(place, (0, 0))[1]] for place, new in enumerate(after)]
        return status

    def to_dict(self, replace: Callable[[bytes], bytes], text: Callable[[str], str]) -> dict[str, Any]:
        """Return the recording in plain containers. Equal answers in a row are stored once, with their number.

        Args:
            replace: Replaces private data in the output of calls.
            text: The same for texts among the arguments.
        """
        with self._lock:
            recorded = {key: [list(answer) for answer in answers] for key, answers in self._answers.items()}
            spans = {key: dict(found) for key, found in self._spans.items()}
        calls = []
        for (function, values), answers in recorded.items():
            found: list[dict[str, Any]] = []
            for status, seconds, buffers in answers:
                places = spans.get((function, values), {}).items() if status is not None else ()
                parts = [[place, start, replace(buffers[place][start:end]).hex()] for place, (start, end) in places]
                if found and (found[-1]["status"], found[-1]["written"]) == (status, parts):
                    found[-1]["times"] += 1
                    found[-1]["seconds"] = max(found[-1]["seconds"], round(seconds, 6))
                else:
                    found.append({"status": status, "times": 1, "seconds": round(seconds, 6), "written": parts})
            calls.append({"function": function, "arguments": [text(v) if isinstance(v, str) else v for v in values], "answers": found})
        failure = self.failure
        why = {} if failure is None else {"reason": str(failure.reason), "detail": text(failure.message), "advice": text(failure.advice)}
        return {"failure": why, "functions": self.functions, "calls": calls}

    def written(self) -> set[tuple[str, bytes]]:
        """Return every function's output."""
        with self._lock:
            return {
                (function, data)
                for (function, _), answers in self._answers.items()
                for _, _, buffers in answers
                for data in buffers
                if data
            }


class RecordingLibrary:
    """A loaded library that records its calls.

    Args:
        loaded: The library.
        calls: The recording.
    """

    def __init__(self, loaded: Any, calls: RecordedCalls) -> None:
        self._loaded = loaded
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        """Look a function up.

        Raises:
            AttributeError: The library does not have it.
        """
        self._calls.functions[name] = False
        function = getattr(self._loaded, name)
        self._calls.functions[name] = True
        return partial(self._calls.call, name, function)


class ReplayedLibrary:
    """Answers calls from a recording. Equal calls get their answers in order, and the last one repeats.

    A call that was never made is answered with ``NOT_RECORDED``.

    Args:
        notes: The result of :meth:`RecordedCalls.to_dict`, from an archive that is not trusted.

    Attributes:
        was_used: Whether the library existed.
        failure: Why it could not be loaded; None if it was.

    Raises:
        ValueError: The recording has another form.
    """

    def __init__(self, notes: Mapping[str, Any]) -> None:
        self._call_keys = CallKeys()
        self._lock = threading.Lock()
        self._answers: dict[Key, list[tuple[int | None, int, float, list[tuple[int, int, bytes]]]]] = {}
        self._position: dict[Key, tuple[int, int]] = {}
        try:
            self._functions = {name for name, there in notes["functions"].items() if there is True}
            self.was_used = bool(notes["functions"])
            why = {name: str(words) for name, words in notes["failure"].items()}
            self.failure = SourceError(why["reason"], why["detail"], advice=why.get("advice", "")) if why else None
            for call in notes["calls"]:
                key = str(call["function"]), tuple(call["arguments"])
                self._answers[key] = [
                    (
                        None if answer["status"] is None else ctypes.c_int(answer["status"]).value,
                        int(answer["times"]),
                        float(answer["seconds"]),
                        [(int(place), int(start), bytes.fromhex(data)) for place, start, data in answer["written"]],
                    )
                    for answer in call["answers"]
                ]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"unknown form: {error!r}") from error

    def __getattr__(self, name: str) -> Any:
        """Look a function up.

        Raises:
            AttributeError: The library did not have it, or it was never looked up.
        """
        if name not in self._functions:
            raise AttributeError(f"the recorded library has no {name}")
        return partial(self._answer, name)

    def _answer(self, function: str, *arguments: Any) -> int:
        with self._lock:
            key, buffers = self._call_keys.ask(function, arguments)
            answers = self._answers.get(key)
            if not answers:
                return NOT_RECORDED
            index, used = self._position.get(key, (0, 0))
            status, times, seconds, written = answers[index]
            used += 1
            self._position[key] = (index + 1, 0) if used >= times and index + 1 < len(answers) else (index, used)
        # A driver that was slow or hung is so again.
        if status is None or seconds >= SHORTEST_WAIT:
            time.sleep(LONGEST_WAIT if status is None else min(max(0.0, seconds), LONGEST_WAIT))
        for place, start, data in written:
            # An archive from somebody else must not write outside the caller's buffers.
            if not (0 <= place < len(buffers) and start >= 0 and start + len(data) <= buffers[place][1]):
                return INSUFFICIENT_SIZE
            ctypes.memmove(buffers[place][0] + start, data, len(data))
        return NOT_SUPPORTED if status is None else status
