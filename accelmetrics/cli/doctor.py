"""``accelmetrics doctor``: whether each source works, the evidence, and the remedy if it does not."""

from __future__ import annotations

import json
import platform
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from accelmetrics._version import __version__
from accelmetrics.backends.nvidia.kernel_log import KernelLog
from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.monitor.findings import of_one_reading
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.text import brief, counted, printable, wrapped
from accelmetrics.visibility.doctor import BackendFinding, Diagnosis, diagnose

INDENT = "  "
OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATUSES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
"""Words for the exit statuses of a check. Both follow Nagios' plug-ins."""
STATUS_OF = {"warning": WARNING, "critical": CRITICAL}
CHECK_OPEN_TIMEOUT = 5.0
"""Seconds that a check waits for drivers to open. ``check_nrpe`` gives up after ten."""
EXAMPLES = """\
  accelmetrics doctor
  accelmetrics doctor --backends nvidia --json | jq '.backends[0].advice'
  accelmetrics doctor --strict || echo "a device is there and cannot be read"
  accelmetrics doctor --check
      for Nagios, Icinga and Slurm's HealthCheckProgram

Exit status: 0. With --strict, 1 if a device cannot be read: the driver lists it
without values, or it is on the bus and its driver does not open. With --check,
0 well, 1 warning, 2 critical, 3 unknown: there is no accelerator, or its state
is unknown."""
OPTIONS: arguments.Groups = {
    "": {
        "--json": {"action": "store_true", "help": "print the findings as one JSON object"},
        "--strict": {"action": "store_true", "help": "exit with 1 if a device exists but cannot be read"},
        "--check": {"action": "store_true", "help": "print one line on the devices' health, and exit with Nagios' codes 0 to 3"},
    },
    arguments.READ: arguments.only("--backends", "--amd-source", "--timeout"),
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the findings. Return 1 with ``--strict`` if a device cannot be read, and a Nagios status with ``--check``."""
    if options.check:
        return check(options, out)
    found = diagnose(**arguments.reading(options))
    out.write(json.dumps(facts(found), indent=2) + "\n" if options.json else render(found, out.width))
    return 1 if options.strict and found.unreadable else 0


def check(options: Namespace, out: Stdout) -> int:
    """Print one line on the devices' health and return its Nagios status.

    The line names devices and sources that cannot be read, and findings of the rules that need only one reading.
    """
    # NVML reports no Xid error from before it was asked to, so the errors up to now come from the kernel's log.
    with suppress(OSError), closing(KernelLog()) as log:  # the printed line says why the log cannot be read
        log.count_all()
    try:
        found = diagnose(**{"open_timeout": CHECK_OPEN_TIMEOUT, **arguments.reading(options)})
    except AccelMetricsError as error:
        out.write(f"UNKNOWN: {printable(str(error))}\n")
        return UNKNOWN
    judged = of_one_reading(found.snapshot).current
    problems = [(STATUS_OF[one.severity], f"{one.key}: {one.message}") for one in judged if one.severity in STATUS_OF]
    devices = [device for backend in found.backends for device in backend.devices]
    problems += [(CRITICAL, f"{device.key} cannot be read: {device.problem}") for device in devices if not device.readable]
    for backend in found.backends:
        if not backend.devices and (backend.unreadable or (backend.broken and backend.name != "host")):
            problems.append((CRITICAL if backend.unreadable else WARNING, f"{backend.name}: {backend.problem}"))
    if problems:
        status = max(how for how, _ in problems)
        words = "; ".join(printable(text) for _, text in sorted(problems, key=lambda one: -one[0]))
    else:
        status, words = (OK, f"{counted(len(devices), 'device')} read") if devices else (UNKNOWN, "no accelerator was found")
    unseen = f"; Xid errors before this moment are not seen: {found.kernel_log}" if found.kernel_log else ""
    out.write(f"{STATUSES[status]}: {words}{unseen}\n")
    return status


def facts(found: Diagnosis) -> dict[str, Any]:
    """Return the findings and the system's versions as plain values for ``json``."""
    machine = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return {**machine, **found.to_dict()}


def render(found: Diagnosis, width: int) -> str:
    """Return the findings as text, wrapped to the width in columns."""
    head = f"accelmetrics {__version__} on {found.hostname}: Python {platform.python_version()}, {platform.platform()}"
    parts: list[Iterable[tuple[int, str]]] = [[(0, head)]]  # paragraphs with their depth
    broken = [backend for backend in found.backends if backend.broken]
    sound = [backend for backend in found.backends if not backend.broken]
    present, absent = ([backend for backend in sound if (backend.status == "absent") is gone] for gone in (False, True))
    unread = [[(0, f"{device['name']}: {device['pci_bus_id']} ({device['pci_id']})") for device in found.unread]] if found.unread else []
    kernel_log = (
        (0, f"problem: {found.kernel_log}: Xid errors from before a program's start, and those of NVSwitches, are missing"),
        (1, "what to do: give the daemon CAP_SYSLOG (deploy/systemd/kernel-log.conf does), or set kernel.dmesg_restrict to 0"),
    )
    for heading, group in (
        ("PRESENT, BUT BROKEN", map(_backend, broken)),
        ("WORKS", map(_backend, present)),
        ("ON THE PCI BUS, NOT READ BY THIS RELEASE", unread),
        ("THE KERNEL'S LOG", [kernel_log] if found.kernel_log else []),
        ("SHARED READINGS", map(_shared, found.shared)),
        ("NOT HERE", map(_backend, absent)),
    ):
        listed = list(group)
        parts += [[(0, heading)], *listed] if listed else []
    parts.append([(0, verdict(found))])
    blocks = ([line for depth, text in part for line in wrapped(text, width, INDENT * depth)] for part in parts)
    return "\n\n".join(map("\n".join, blocks)) + "\n"


def verdict(found: Diagnosis) -> str:
    """Return the last line: the number of devices that can and cannot be read."""
    devices = [device for backend in found.backends for device in backend.devices]
    readable = sum(device.readable for device in devices)
    bad = found.unreadable
    other = f" {counted(len(found.unread), 'device')} on the PCI bus cannot be read by this release." if found.unread else ""
    if not devices and not bad:
        return other.strip() or "No device was found."
    return f"{counted(readable, 'device')} can be read{f', {bad} cannot' if bad else ''}.{other}"


def _shared(shared: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs about one file of shared readings, each with its depth."""
    age = "no reading yet" if shared["age_seconds"] is None else f"the newest reading is {brief(shared['age_seconds'])} old"
    yield 0, shared["path"]
    yield 1, f"problem: {shared['problem']}" if shared["problem"] else f"process {shared['pid']} reads, in epoch {shared['epoch']}: {age}"


def _backend(backend: BackendFinding) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs about a backend, each with its depth. An empty text is not printed."""
    words = {"absent": "not present", "ok": "works", "degraded": "works in part", "failed": "does not work", "timed_out": "does not answer"}
    source = f", read from {backend.source}" if backend.source and backend.status != "absent" else ""
    yield 0, f"{backend.name}: {words[backend.status]}{source}"
    yield 1, f"evidence: {backend.evidence}" if backend.evidence else ""
    yield 1, f"problem: {backend.reason}: {backend.problem}" if backend.problem else ""
    yield 1, f"what to do: {backend.advice}" if backend.advice else ""
    if backend.open_seconds is not None:
        reading = "" if backend.read_seconds is None else f", a reading {brief(backend.read_seconds)}"
        yield 1, f"time: opening took {brief(backend.open_seconds)}{reading}"
    for device in backend.devices:
        identity = ", ".join(filter(None, (device.name, device.uuid, device.pci_bus_id, device.fabric)))
        if device.readable:
            yield 1, f"{device.key}: {identity}: {counted(device.metrics, 'metric')} given{', some are not:' if device.gaps else ''}"
            yield from _gaps(device.gaps)
        else:
            yield 1, f"{device.key}: {identity or 'device'}: cannot be read"
            yield 2, f"problem: {device.problem}" if device.problem else ""
            yield 2, f"what to do: {device.advice}" if device.advice else ""
    if backend.metrics or backend.gaps:
        yield 1, f"metrics: {backend.metrics} given{', some are not:' if backend.gaps else ''}"
        yield from _gaps(backend.gaps)


def _gaps(gaps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for gap in gaps:
        detail = f" ({gap['detail']})" if gap["detail"] else ""
        yield 2, f"{gap['reason']}{detail}: {', '.join(gap['names'])}"
        yield 3, f"what to do: {gap['advice']}" if gap["advice"] else ""
