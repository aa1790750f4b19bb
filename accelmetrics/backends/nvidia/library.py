"""The driver's library: loaded by ``pynvml``, called through ``ctypes`` where every microsecond counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

from accelmetrics.backends.nvidia.errors import (
    BACKEND,
    DRIVER_NOT_LOADED,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_DEVICE,
    meaning,
)
from accelmetrics.backends.nvidia.machine import kernel_module_version, missing_devices_advice, missing_library_advice
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

NEEDED = ("nvmlInitWithFlags", "nvmlGpmQueryDeviceSupport", "c_nvmlMemory_v2_t", "nvmlMemory_v2")
"""What tells NVIDIA's own binding of the release we need from old packages that install a module of the same name."""
NvmlFunction = Callable[..., int]


class Library:
    """An initialised NVML.

    Attributes:
        nvml: The ``pynvml`` module, for everything that is read once.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._functions: dict[str, NvmlFunction | None] = {}

    def function(self, name: str) -> NvmlFunction | None:
        """One exported function, None where the installed driver does not have it."""
        if name not in self._functions:
            self._functions[name] = self._look_up(name)
        return self._functions[name]

    def _look_up(self, name: str) -> NvmlFunction | None:
        try:
            # By item, not by attribute: an object of our own, whose argument types nobody else has set.
            return cast("NvmlFunction", self.nvml.nvmlLib[name])
        except AttributeError:
            return None

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of the binding; a binding or a driver without it answers as NVML would."""
        function = getattr(self.nvml, name, None)
        if function is None:
            raise self.nvml.NVMLError(self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return function(*arguments)

    def close(self) -> None:
        """Give the library back. NVML counts its users, so another one in this process goes on undisturbed."""
        with suppress(self.nvml.NVMLError):  # a driver that is gone has nothing left to give back
            self.nvml.nvmlShutdown()


def open_library() -> Library:
    """Load and initialise NVML, or say why that is not possible."""
    nvml = _import_binding()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise _refusal(nvml, error.value) from error
    return Library(nvml)


def _import_binding() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise _binding_error("the Python module pynvml is not installed") from error
    if not all(hasattr(pynvml, name) for name in NEEDED):
        raise _binding_error(f"the Python module pynvml at {pynvml.__file__} is not the one of a recent nvidia-ml-py")
    return cast("ModuleType", pynvml)


def _binding_error(message: str) -> SourceError:
    return SourceError(Reason.DRIVER_UNAVAILABLE, message, backend=BACKEND, advice="pip install --upgrade --force-reinstall nvidia-ml-py")


def _refusal(nvml: Any, code: int) -> SourceError:
    """Why ``nvmlInit`` failed: reason, words, advice."""
    found = meaning(code)
    words, advice = f"{found.words} ({found.symbol})", found.advice
    if code in NO_DEVICE:
        return no_device()
    if code == LIBRARY_NOT_FOUND:
        advice = missing_library_advice()
    elif code == DRIVER_NOT_LOADED:
        advice = missing_devices_advice() or advice
    elif code == LIB_RM_VERSION_MISMATCH:
        words, advice = _mismatch(nvml)
    return SourceError(found.reason, words, backend=BACKEND, advice=advice)


def no_device() -> SourceError:
    """The driver works and has nothing to show."""
    advice = (
        "check that the GPU is seated and powered (`lspci -d 10de:`), not bound to another driver, and given to this container or machine"
    )
    return SourceError(Reason.DRIVER_UNAVAILABLE, "the NVIDIA driver is loaded and lists no GPU", backend=BACKEND, advice=advice)


def _mismatch(nvml: Any) -> tuple[str, str]:
    kernel = kernel_module_version() or "of an unknown version"
    words = f"the loaded kernel module is {kernel}, the installed library {_library_version(nvml)} (NVML_ERROR_LIB_RM_VERSION_MISMATCH)"
    return words, "reboot, or stop what uses the GPUs and reload the kernel module; then start this program again"


def _library_version(nvml: Any) -> str:
    """The library's driver version: NVML puts its own major number in front (``12.535.161.07``)."""
    try:
        _, _, version = nvml.nvmlSystemGetNVMLVersion().partition(".")
    except nvml.NVMLError:
        return "of another version"
    return str(version) or "of another version"
