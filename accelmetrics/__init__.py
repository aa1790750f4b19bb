"""Read every accelerator on a machine, of any vendor, in one format.

>>> import accelmetrics
>>> snapshot = accelmetrics.sample()
>>> snapshot.metrics["gpu.0.powerWatts"]        # doctest: +SKIP
300.0

Importing this package loads only this file and the version. A public name loads its module on first use.
"""

from __future__ import annotations

from accelmetrics._version import __version__, version_info

TYPE_CHECKING = False  # type checkers treat it as true; importing it from typing would be most of the cost of this import

if TYPE_CHECKING:
    from accelmetrics.backends.visible import Visibility, visibility
    from accelmetrics.integrations.training import TrainingRun, training
    from accelmetrics.monitor.monitor import Monitor
    from accelmetrics.monitor.rules import Rule
    from accelmetrics.monitor.window import Window
    from accelmetrics.sampling.sampler import Sampler, asample, devices, sample, topology
    from accelmetrics.schemas.errors import (
        AccelMetricsError,
        DocumentError,
        DriverGoneError,
        InvalidOptionError,
        MissingDependencyError,
        PartitionRemovedError,
        Reason,
        SourceError,
        Unavailable,
        UnknownNameError,
    )
    from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess
    from accelmetrics.schemas.record import CannotTell, Exporter, Finding, Findings, MonitorStatus, Record, Step
    from accelmetrics.schemas.recording import recordings
    from accelmetrics.schemas.selection import MetricSelection
    from accelmetrics.schemas.snapshot import Device, DeviceInfo, Snapshot
    from accelmetrics.schemas.statistics import Energy, Summary
    from accelmetrics.schemas.topology import Connection, SupportedClocks, Topology
    from accelmetrics.visibility.allocation import Allocation, AllocationFinding, Worker, allocation, visible_devices
    from accelmetrics.visibility.doctor import diagnose
    from accelmetrics.visibility.processes import ProcessInfo, ProcessListing, process_labels, processes

__all__ = [
    "AccelMetricsError",
    "Allocation",
    "AllocationFinding",
    "BackendStatus",
    "CannotTell",
    "Connection",
    "Device",
    "DeviceIdentity",
    "DeviceInfo",
    "DeviceProcess",
    "DocumentError",
    "DriverGoneError",
    "Energy",
    "Exporter",
    "Finding",
    "Findings",
    "InvalidOptionError",
    "MetricSelection",
    "MissingDependencyError",
    "Monitor",
    "MonitorStatus",
    "PartitionRemovedError",
    "ProcessInfo",
    "ProcessListing",
    "Reason",
    "Record",
    "Rule",
    "Sampler",
    "Snapshot",
    "SourceError",
    "Step",
    "Summary",
    "SupportedClocks",
    "Topology",
    "TrainingRun",
    "Unavailable",
    "UnknownNameError",
    "Visibility",
    "Window",
    "Worker",
    "__version__",
    "allocation",
    "asample",
    "devices",
    "diagnose",
    "process_labels",
    "processes",
    "recordings",
    "sample",
    "topology",
    "training",
    "version_info",
    "visibility",
    "visible_devices",
]

_HOMES = {
    "AccelMetricsError": "schemas.errors",
    "Allocation": "visibility.allocation",
    "AllocationFinding": "visibility.allocation",
    "BackendStatus": "schemas.identity",
    "CannotTell": "schemas.record",
    "Connection": "schemas.topology",
    "Device": "schemas.snapshot",
    "DeviceIdentity": "schemas.identity",
    "DeviceInfo": "schemas.snapshot",
    "DeviceProcess": "schemas.identity",
    "DocumentError": "schemas.errors",
    "DriverGoneError": "schemas.errors",
    "Energy": "schemas.statistics",
    "Exporter": "schemas.record",
    "Finding": "schemas.record",
    "Findings": "schemas.record",
    "InvalidOptionError": "schemas.errors",
    "MetricSelection": "schemas.selection",
    "MissingDependencyError": "schemas.errors",
    "Monitor": "monitor.monitor",
    "MonitorStatus": "schemas.record",
    "PartitionRemovedError": "schemas.errors",
    "ProcessInfo": "visibility.processes",
    "ProcessListing": "visibility.processes",
    "Reason": "schemas.errors",
    "Record": "schemas.record",
    "Rule": "monitor.rules",
    "Sampler": "sampling.sampler",
    "Snapshot": "schemas.snapshot",
    "SourceError": "schemas.errors",
    "Step": "schemas.record",
    "Summary": "schemas.statistics",
    "SupportedClocks": "schemas.topology",
    "Topology": "schemas.topology",
    "TrainingRun": "integrations.training",
    "Unavailable": "schemas.errors",
    "UnknownNameError": "schemas.errors",
    "Visibility": "backends.visible",
    "Window": "monitor.window",
    "Worker": "visibility.allocation",
    "allocation": "visibility.allocation",
    "asample": "sampling.sampler",
    "devices": "sampling.sampler",
    "diagnose": "visibility.doctor",
    "process_labels": "visibility.processes",
    "processes": "visibility.processes",
    "recordings": "schemas.recording",
    "sample": "sampling.sampler",
    "topology": "sampling.sampler",
    "training": "integrations.training",
    "visibility": "backends.visible",
    "visible_devices": "visibility.allocation",
}


def __getattr__(name: str) -> object:
    """Load a public name's module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether they are loaded or not."""
    return sorted(__all__)
