"""Signals to processes on devices: sent to the very process that was asked about, or not at all.

A driver's number of a process is that of the machine, and in a container another process may have it. So a process is signalled only where
this ``/proc`` shows that it holds a node of the device open, and through a descriptor of the process (``pidfd_open``), which no other
process ever takes over.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterable, Mapping
from types import TracebackType

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.identity import DeviceIdentity

CHOICES = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGKILL")
    if hasattr(signal, name)
)
"""What may be sent, the first unless another one is chosen."""
NODES: Mapping[str, str] = {
    "nvidia": r"/dev/nvidia\d+",
    "amd": r"/dev/(kfd|dri/(card|renderD)\d+)",
    "tpu": r"/dev/(accel|vfio/)\d+",
    "neuron": r"/dev/neuron\d+",
}
"""By backend, the device nodes that its processes hold open; those of others stand in their registrations."""


class SignalError(AccelMetricsError):
    """A process is not signalled; the message says why."""


class ProcessHandle:
    """One process, however its number is used later. A context manager.

    Args:
        pid: Its number, as the driver gives it.
        devices: The devices that it is said to be on.

    Raises:
        SignalError: It may not be signalled.
    """

    def __init__(self, pid: int, devices: Iterable[DeviceIdentity]) -> None:
        if pid == os.getpid():
            raise SignalError(f"process {pid} is this program: q ends it")
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            raise SignalError("signals are sent on Linux alone")
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise SignalError(f"process {pid} has ended, or is in another container: it cannot be seen from here") from error
        except OSError as error:
            raise SignalError(f"process {pid} cannot be signalled: {error.strerror or error}") from error
        self.pid = pid
        try:
            self._check(pid, devices)
        except SignalError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def send(self, number: int) -> None:
        """Send a signal.

        Raises:
            SignalError: It has ended, or this user may not.
        """
        name = signal.Signals(number).name
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError as error:
            raise SignalError(f"process {self.pid} has ended: {name} was not sent") from error
        except PermissionError as error:
            raise SignalError(f"process {self.pid} belongs to another user: {name} was not sent") from error

    def _check(self, pid: int, devices: Iterable[DeviceIdentity]) -> None:
        """Make sure that the process holds one of the devices.

        Raises:
            SignalError: It does not, or that cannot be seen.
        """
        patterns = [pattern for device in devices if (pattern := node_pattern(device))]
        if not patterns:
            raise SignalError(f"which process holds this device cannot be verified: process {pid} is not signalled")
        try:
            held = [descriptor_target(pid, name) for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208  names alone are wanted
        except PermissionError as error:
            raise SignalError(f"process {pid} belongs to another user: whether it holds the device cannot be seen") from error
        except FileNotFoundError:
            held = []
        if self.ended:
            raise SignalError(f"process {pid} has ended")
        if not any(re.fullmatch(pattern, target) for pattern in patterns for target in held):
            raise SignalError(f"process {pid} here does not hold the device: the driver may mean a process outside this container")


def descriptor_target(pid: int, name: str) -> str:
    """Return what a descriptor of a process leads to; empty for one that was closed since."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115  the link's text is wanted
    except FileNotFoundError:
        return ""


def node_pattern(device: DeviceIdentity) -> str:
    """Return a regular expression of the nodes that a process on a device holds open; empty where that is not known."""
    if device.backend == "nvidia" and device.minor_number is not None and not device.parent:
        return NODES["nvidia"].replace(r"\d+", str(device.minor_number))
    if device.backend in NODES:
        return NODES[device.backend]
    registered = BUILT_IN.get(device.backend)
    return "|".join(re.escape(node).replace(r"\*", r"\d+") for node in registered.nodes) if registered is not None else ""
