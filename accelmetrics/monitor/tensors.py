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
from functools import partial
from typing import Any, SupportsFloat, cast

from accelmetrics.schemas.named_tuple import NamedTuple

EXCHANGE_CAPTURE_MODE = {
    "libcuda.so.1": "cuThreadExchangeStreamCaptureMode",
    "libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
"""By library, what sets how a thread's calls count while graphs are captured."""
RELAXED = 2
"""The mode in which they disturb none."""
_this_thread = threading.local()


def _at_once() -> bool:
    return True


class Deferred(NamedTuple):
    """A number that a device may still be computing.

    Attributes:
        value: Converts it; may wait for the device.
        ready: Returns whether that would not wait, as far as can be told. Waits for nothing.
    """

    value: Callable[[], float]
    ready: Callable[[], bool] = _at_once


def noted(value: object) -> float | Deferred:
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
        return _item(host)
    return Deferred(partial(float, cast("SupportsFloat", value)))  # of TensorFlow and others, whose tensors do not change


def _of_jax(array: Any) -> Deferred:
    """Take the part of an array that this process holds, as an object of its own.

    The program may give the array itself to a computation that reuses its memory. Asking that one whether it is ready ends the
    process (jax 0.10); this one raises.
    """
    _single(array.size)
    if not array.is_fully_replicated:
        raise TypeError("an array that is not replicated")
    own = array.addressable_data(0)
    return Deferred(partial(_item, own), own.is_ready)


def _of_torch(tensor: Any) -> float | Deferred:
    """Copy a tensor on the stream that the program uses; the events of CUDA, ROCm and XPU tell when that is done."""
    _single(tensor.numel())
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor: converting one that is not reduced is a collective
        if not all(placement.is_replicate() for placement in placements):
            raise TypeError("a DTensor that is not replicated: pass tensor.full_tensor()")
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return _item(tensor)
    device: Any = getattr(sys.modules["torch"], tensor.device.type, None)
    if getattr(device, "is_current_stream_capturing", bool)():
        raise TypeError("a tensor of a graph that is being captured: log it where the graph is replayed")
    copy = tensor.clone()
    if not (hasattr(device, "Event") and hasattr(device, "current_stream")):
        return Deferred(partial(_item, copy))
    event = device.Event()
    event.record(device.current_stream(tensor.device))
    return Deferred(partial(_fetched, device, copy), partial(_is_complete, event))


def _is_complete(event: Any) -> bool:
    _let_others_capture()
    return bool(event.query())


def _let_others_capture() -> None:
    """Have calls of this thread not end the capture of a graph in another thread, as an event's query would otherwise do."""
    if not getattr(_this_thread, "relaxed", False):
        _this_thread.relaxed = True
        for library, function in EXCHANGE_CAPTURE_MODE.items():
            with suppress(OSError, AttributeError):
                found = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # only what the framework has loaded
                getattr(found, function)(ctypes.byref(ctypes.c_int(RELAXED)))


def _fetched(device: Any, copy: Any) -> float:
    """Fetch a copy that is complete, on a stream of its own: on the program's it would wait for what is queued there."""
    with device.stream(device.Stream(copy.device)):
        return _item(copy)


def _item(array: Any) -> float:
    return float(array.item())


def _single(elements: int) -> None:
    if elements != 1:
        raise TypeError(f"{elements} elements, and not one number")
