"""Details of a GPU that NVML reports on request: the peers of its NVLinks, its supported clocks, its distance to other GPUs."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from typing import Any

from accelmetrics.backends.kit.system import upstream
from accelmetrics.backends.nvidia.driver import Listed
from accelmetrics.backends.nvidia.links import MOST_LINKS
from accelmetrics.backends.nvidia.nvml import (
    GONE,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    LOST,
    NOT_SUPPORTED,
    Handle,
    Library,
    Queries,
    unavailable,
)
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.topology import SWITCH, Details, Link, SupportedClocks

REMOTE_GPU, REMOTE_SWITCH = 0, 2
"""``NVML_NVLINK_DEVICE_TYPE_…``"""
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""``NVML_TOPOLOGY_…``: same board, at most one switch, several switches, same host bridge, same NUMA node, whole machine."""
# Entries of a list of clocks: the first attempt's room, and the most that is plausible.
USUAL_CLOCKS, MOST_CLOCKS = 256, 4096
NO_LINKS = Unavailable(Reason.NOT_SUPPORTED, "its library is not known to tell where links between devices lead")
OF_INSTANCE = Unavailable(Reason.NOT_SUPPORTED, "a MIG instance has none of its own: those of its GPU hold")


def details_of(library: Library, listed: Listed, others: Iterable[Listed], now: float, progress: list[Any]) -> Details:
    """Ask for all details, on the thread that reads the GPU.

    Args:
        library: The open library.
        listed: The GPU, or a MIG instance.
        others: All devices that the driver lists.
        now: The time on the driver's clock.
        progress: Grows with every call.

    Raises:
        SourceError: The GPU is suspended, or lost.
    """
    listed.let_sleep()
    listed.find(now, progress)
    if listed.device is None:
        raise listed.failure()
    if listed.identity.parent:
        return Details(OF_INSTANCE, OF_INSTANCE)
    handle, queries = listed.device.handle, Queries(library, progress, LOST)
    paths = {}
    if not upstream(pci_address(listed.identity.pci_bus_id)):  # the kernel's tree is preferred: this call needs two GPUs to answer
        pairs = Queries(library, progress, GONE)
        for other in others:
            if other is not listed and other.device is not None and not other.identity.parent:
                level = pairs.number("nvmlDeviceGetTopologyCommonAncestor", handle, other.device.handle)
                if level in LEVELS:
                    paths[pci_address(other.identity.pci_bus_id)] = LEVELS[level]
    maker = library.maker
    # Other vendors number the peers of links differently, so links are counted only if the maker's row covers NVML's links.
    links = _links(queries, handle) if maker.covers("nvlink.0.state") else NO_LINKS
    clocks = _clocks(queries, handle)
    return Details(
        maker.reason(links) if isinstance(links, Unavailable) else links,
        maker.reason(clocks) if isinstance(clocks, Unavailable) else clocks,
        paths,
    )


def _links(queries: Queries, handle: Handle) -> tuple[Link, ...] | Unavailable:
    """Count the NVLinks that are up, by peer."""
    found: Counter[str] = Counter()
    for link in range(MOST_LINKS):
        up = queries.number("nvmlDeviceGetNvLinkState", handle, link)
        if queries.status == INVALID_ARGUMENT:  # there are no more links
            break
        if up is None and queries.status != NOT_SUPPORTED:
            return unavailable(queries.status)
        if up:
            kind = queries.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            address = queries.remote_pci(handle, link) if kind == REMOTE_GPU else ""
            found[SWITCH if kind == REMOTE_SWITCH else pci_address(address) if address else ""] += 1
    return tuple(Link("nvlink", to, count, 2 if to == SWITCH else 1) for to, count in found.items())


def _clocks(queries: Queries, handle: Handle) -> SupportedClocks | Unavailable:
    memory = _numbers(queries, "nvmlDeviceGetSupportedMemoryClocks", handle)
    if isinstance(memory, Unavailable):
        return memory
    by_memory = {}
    for clock in memory:
        graphics = _numbers(queries, "nvmlDeviceGetSupportedGraphicsClocks", handle, clock)
        if isinstance(graphics, Unavailable):
            return graphics
        by_memory[clock] = graphics
    every = sorted({clock for clocks in by_memory.values() for clock in clocks}, reverse=True)
    return SupportedClocks(memory, tuple(every), by_memory)


def _numbers(queries: Queries, name: str, *arguments: Any) -> tuple[int, ...] | Unavailable:
    """Ask for a list of numbers, sorted from the largest. If the room is too small, ask again with the size that the driver reports."""
    room = USUAL_CLOCKS
    while True:
        count, answer = ctypes.c_uint(room), (ctypes.c_uint * room)()
        if queries.call(name, *arguments, ctypes.byref(count), answer):
            return tuple(sorted({*answer[: min(count.value, room)]} - {0}, reverse=True))
        if queries.status != INSUFFICIENT_SIZE or not room < count.value <= MOST_CLOCKS:
            return unavailable(queries.status)
        room = count.value
