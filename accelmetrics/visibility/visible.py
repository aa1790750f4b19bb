"""``accelmetrics.visible_devices()``: the devices that a program sees, in its order."""

from __future__ import annotations

import os
from collections.abc import Sequence

from accelmetrics.backends.contract import Backend
from accelmetrics.backends.kit.processes import environment_of
from accelmetrics.backends.visible import visibility
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.snapshot import Device


def visible_devices(
    pid: int | None = None,
    *,
    backends: Sequence[str | Backend] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
) -> tuple[Device, ...]:
    """List the devices that a program sees by its ``*_VISIBLE_DEVICES``, in its order, each with a fresh reading.

    No framework is imported and no runtime started. The drivers are opened, unless a sampler of this process has them open.

    Args:
        pid: The program: what it was started with counts. When left out, this one, with the environment it has now.
        backends: Names, or backend objects, to look at; all that are registered when left out.
        timeout: Seconds within which the devices are read.
        open_timeout: Seconds to wait for drivers that are still opening.

    Returns:
        The devices of one vendor after those of the other, each vendor's in the order of their ``visible_index``. Where only
        the numbers cannot be told (GPUs of several models without ``CUDA_DEVICE_ORDER=PCI_BUS_ID``), that is None.

    Raises:
        AccelMetricsError: It cannot be told which devices the program sees; the message says why.
    """
    found = environment_of(os.getpid() if pid is None else pid)
    if found.values is None:
        raise AccelMetricsError(f"the devices that process {pid} sees cannot be told: {found.why}")
    with Sampler(backends, timeout=timeout, open_timeout=open_timeout, pid=pid) as sampler:
        snapshot = sampler.sample()
    seen = visibility(found.values, [slot.identity for slot in snapshot.identities])
    if seen.order is None:
        raise AccelMetricsError(f"the devices that the program sees cannot be told: {'; '.join(seen.caveats)}")
    slots = [slot._replace(visible_index=index) for slot, index in zip(snapshot.identities, seen.positions, strict=True)]
    return tuple(Device(snapshot, slots[number]) for number in seen.order)
