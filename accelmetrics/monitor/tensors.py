"""Numbers of frameworks: noted without waiting for the device that computes them, and converted on another thread.

No framework is imported: what is not loaded cannot have made a value. What may change afterwards is copied where it is noted: PyTorch's
tensors on the stream that the program uses, so that a later step of that stream does not change the copy. JAX's arrays never change.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, SupportsFloat, cast

Pending = Callable[[], "float | None"]
"""Gives a number that a device computes; None while it is not there yet, as far as that can be told without waiting."""

EXCHANGE_CAPTURE_MODE = {
    "libcuda.so.1": "cuThreadExchangeStreamCaptureMode",
    "libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
"""By library, what sets how a thread's calls count while graphs are captured."""
RELAXED = 2
"""The mode in which they disturb none."""
_this_thread = threading.local()


def noted(value: object) -> float | Pending:
    """Return a value that is one number: at once if the host has it, else what gives it later.

    Raises:
        TypeError: It has several elements, or is of ranks that have not been reduced.
        Exception: Whatever a framework raises.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        return _of_torch(value)
    if not hasattr(value, "shape"):
        return float(cast("SupportsFloat", value))
    array = getattr(sys.modules.get("jax"), "Array", None)
    if array is not None and isinstance(value, array):
        return _of_jax(value)
    own = getattr(sys.modules.get("numpy"), "ndarray", ())
    if isinstance(value, own) or type(value).__module__ == "numpy":
        host: Any = value
        _single(host.size)
        return float(host.item())
    return lambda: float(cast("SupportsFloat", value))  # of TensorFlow and others, whose tensors do not change


def _of_jax(array: Any) -> Pending:
    """Take the part of an array that this process holds, as an object of its own.

    The program may give the array itself to a computation that reuses its memory. Asking that one whether it is ready ends the
    process (jax 0.10); this one raises.
    """
    _single(array.size)
    if not array.is_fully_replicated:
        raise TypeError("an array that is not replicated")
    own = array.addressable_data(0)
    return lambda: float(own.item()) if own.is_ready() else None


def _of_torch(tensor: Any) -> float | Pending:
    """Copy a tensor on the stream that the program uses; the events of CUDA, ROCm and XPU tell when that is done."""
    _single(tensor.numel())
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor: converting one that is not reduced is a collective
        if not all(placement.is_replicate() for placement in placements):
            raise TypeError("a DTensor that is not replicated: pass tensor.full_tensor()")
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return float(tensor.item())
    device: Any = getattr(sys.modules["torch"], tensor.device.type, None)
    if getattr(device, "is_current_stream_capturing", bool)():
        raise TypeError("a tensor of a graph that is being captured: log it where the graph is replayed")
    copy = tensor.clone()
    if not (hasattr(device, "Event") and hasattr(device, "current_stream")):
        return lambda: float(copy.item())
    event = device.Event()
    event.record(device.current_stream(tensor.device))

    def fetch() -> float | None:
        _let_others_capture()
        if not event.query():
            return None
        with device.stream(device.Stream(copy.device)):  # on the program's stream it would wait for what is queued there
            return float(copy.item())

    return fetch


def _let_others_capture() -> None:
    """Have calls of this thread not end the capture of a graph in another thread, as an event's query would otherwise do."""
    if not getattr(_this_thread, "relaxed", False):
        _this_thread.relaxed = True
        for library, function in EXCHANGE_CAPTURE_MODE.items():
            with suppress(OSError, AttributeError):
                found = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # only what the framework has loaded
                getattr(found, function)(ctypes.byref(ctypes.c_int(RELAXED)))


def _single(elements: int) -> None:
    if elements != 1:
        raise TypeError(f"{elements} elements, and not one number")
