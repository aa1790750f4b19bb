"""Who uses a core: the programs of a report, whoever is watched."""

from __future__ import annotations

from accelmetrics.backends.neuron.numbers import percent, total
from accelmetrics.backends.neuron.report import COUNTERS, MEMORY, Report, Runtime
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Unavailable

UTILIZATION = "neuroncore_utilization"


def users(report: Report, core: int) -> tuple[DeviceProcess, ...] | None:
    """The processes on a core, each with its memory there and its share of the core's time.

    Returns:
        None where the report does not say it of every program: one without a process id is on the core, or one has neither
        section by core and may be.
    """
    on_core = [runtime for runtime in report.runtimes if _uses(runtime, core)]
    if any(runtime.pid < 1 for runtime in on_core) or any(not runtime.cores for runtime in report.runtimes):
        return None
    return tuple(DeviceProcess(runtime.pid, "compute", _memory(runtime, core), _utilization(runtime, core)) for runtime in on_core)


def _uses(runtime: Runtime, core: int) -> bool:
    """Whether the program runs on a core, or has any memory there: a row of zeros is no use."""
    return core in runtime.cores.get(COUNTERS, ()) or any(runtime.cores.get(MEMORY, {}).get(core, {}).values())


def _memory(runtime: Runtime, core: int) -> int | None:
    parts = runtime.cores.get(MEMORY, {}).get(core, {}).values()
    held = total(parts)
    return int(held) if parts and not isinstance(held, Unavailable) else None


def _utilization(runtime: Runtime, core: int) -> float | None:
    found = runtime.cores.get(COUNTERS, {}).get(core, {}).get(UTILIZATION)
    share = None if found is None else percent(found)
    return None if share is None or isinstance(share, Unavailable) else float(share)
