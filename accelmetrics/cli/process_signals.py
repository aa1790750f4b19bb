"""Signals to processes on devices: sent to the very process that was asked about, or not at all.

A driver's number of a process is that of the machine, and in a container another process may have it. So a process is signalled only where
it certainly is the one that the driver means (`DriverNumbers`) and ``/proc`` shows that it holds a node of the device open, and through a
descriptor of the process (``pidfd_open``), which no other process ever takes over.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection
from types import TracebackType

from accelmetrics.backends.kit.processes import DriverNumbers, holds, node_pattern
from accelmetrics.backends.kit.system import sysroot
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.identity import DeviceIdentity

CHOICES = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGKILL")
    if hasattr(signal, name)
)
"""What may be sent, the first unless another one is chosen."""


class SignalError(AccelMetricsError):
    """A process is not signalled; the message says why."""


class ProcessHandle:
    """One process, however its number is used later. A context manager.

    Args:
        pid: Its number, as the driver gives it.
        devices: The devices that it is said to be on.
        listed: All numbers that the driver gives.

    Raises:
        SignalError: It may not be signalled.
    """

    def __init__(self, pid: int, devices: Collection[DeviceIdentity], listed: Collection[int]) -> None:
        if pid == os.getpid():
            raise SignalError(f"process {pid} is this program: q ends it")
        if sysroot():
            raise SignalError(f"process {pid} is looked up below {sysroot()}: its number may be another one here")
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            raise SignalError("signals are sent on Linux alone")
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError as error:
            here = DriverNumbers(listed).shared
            raise SignalError(f"process {pid} {'has ended' if here else 'is not in this PID namespace, or has ended'}") from error
        except OSError as error:
            raise SignalError(f"process {pid} cannot be signalled: {error.strerror or error}") from error
        self.pid = pid
        try:
            self._check(pid, devices, listed)
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

    def _check(self, pid: int, devices: Collection[DeviceIdentity], listed: Collection[int]) -> None:
        """Make sure that the process is the one that the driver means, and holds one of the devices.

        Raises:
            SignalError: It does not, or that cannot be seen.
        """
        nodes = "|".join(pattern for device in devices if (pattern := node_pattern(device)))
        if not nodes:
            raise SignalError(f"which process holds this device cannot be verified: process {pid} is not signalled")
        held = holds(pid, nodes)
        if held is None:
            raise SignalError(f"process {pid} belongs to another user: whether it holds the device cannot be seen")
        if self.ended:
            raise SignalError(f"process {pid} has ended")
        if not held:
            raise SignalError(f"process {pid} here does not hold the device: the driver may mean a process outside this container")
        found = DriverNumbers(listed, next(iter(devices)).backend).find(pid, nodes)
        if found != pid:
            raise SignalError(found if isinstance(found, str) else f"process {pid} of the driver has the number {found} here")
