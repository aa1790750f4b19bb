"""``watch --plain``: a line for each change, for screen readers, Braille displays and logs; nothing on the screen is ever moved."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime

from accelmetrics.cli.monitoring import Stop
from accelmetrics.cli.output import Stdout, descriptor_of
from accelmetrics.cli.terminal import in_foreground
from accelmetrics.cli.watch_source import WatchSource
from accelmetrics.schemas.finding import Finding
from accelmetrics.schemas.text import GIB, printable
from accelmetrics.views.device_view import DeviceView, duration
from accelmetrics.views.node_view import NodeView, SourceRow

LOOK = 0.1
"""Seconds between two looks."""
CHUNK = 256


def show(source: WatchSource, out: Stdout, stopped: Stop) -> None:
    """Print a line for each change until stopped, and a summary when Enter is pressed; ``q`` and Enter end it."""
    typed = LineInput()
    before: NodeView | None = None
    notice = ""
    while not (stopped.signal or source.ended):
        while not stopped.wait(0) and source.look() and source.view is not None:
            for line in changes(before, source.view):
                out.show(f"{_clock(source.view)} {line}\n")
            before = source.view
        if bool(source.notice) != bool(notice):
            out.show(f"{now()} {source.notice or 'it answers again'}\n")
        notice = source.notice
        for line in typed.lines(LOOK):
            if line.strip().lower() == "q":
                stopped.ask(signal.SIGINT)
            elif source.view is not None:
                out.show("".join(f"{each}\n" for each in overview(source.view)))


class LineInput:
    """The lines that are typed on standard input; none where that is no terminal."""

    def __init__(self) -> None:
        descriptor = descriptor_of(sys.stdin)
        self._descriptor = descriptor if descriptor is not None and os.isatty(descriptor) else None

    def lines(self, seconds: float) -> list[str]:
        """Wait for a line, at most so many seconds, and return those that were typed."""
        if self._descriptor is None or not in_foreground(self._descriptor):
            time.sleep(seconds)
            return []
        try:
            data = os.read(self._descriptor, CHUNK) if select.select([self._descriptor], [], [], seconds)[0] else None
        except OSError:  # the terminal has gone
            data = b""
        if data == b"":  # Ctrl-D says it too: nothing more will come
            self._descriptor = None
        return (data or b"").decode("utf-8", "replace").splitlines()


def changes(before: NodeView | None, view: NodeView) -> Iterator[str]:
    """Yield what is another thing than before, in words: devices and sources lost and back, findings begun and over.

    Args:
        before: The view before; None for the first, of which all that is not as it should be is told.
        view: The view now.
    """
    if before is None:
        yield _head(view)
    yield from _device_changes({} if before is None else {device.key: device for device in before.devices}, view)
    was = {} if before is None else {source.name: source for source in before.silent}
    now = {source.name: source for source in view.silent}
    yield from (_source(source) for name, source in now.items() if name not in was)
    yield from (f"source {name}: answers again" for name in was if name not in now)
    begun = {} if before is None else {(one.rule, one.key): one for one in before.findings}
    lasting = {(one.rule, one.key): one for one in view.findings}
    yield from (
        f"{_finding(one)}{f'; {printable(one.advice)}' if one.advice else ''}" for which, one in lasting.items() if which not in begun
    )
    for which, one in begun.items():
        if which not in lasting:
            yield (
                f"over: {one.severity} {one.rule} {one.key}".rstrip() + f", after {duration(max(0.0, (view.time_ns - one.since_ns) / 1e9))}"
            )


def _device_changes(known: Mapping[str, DeviceView], view: NodeView) -> Iterator[str]:
    for device in view.devices:
        former = known.get(device.key)
        was, now = former.silent if former is not None else None, device.silent
        if now is not None and (was is None or was.reason != now.reason):
            yield f"{device.label}: {'; '.join(filter(None, (now.word, now.detail, now.advice)))}"
        elif was is not None and now is None:
            yield f"{device.label}: back"
    shown = {device.key for device in view.devices}
    yield from (f"{device.label}: no longer listed" for key, device in known.items() if key not in shown)


def overview(view: NodeView) -> Iterator[str]:
    """Yield the node, each device and each finding in a sentence."""
    yield _head(view)
    yield from map(_source, view.silent)
    yield from (f"{device.label} {device.name}: {_device(device)}" for device in view.devices)
    yield from map(_finding, view.findings)


def _head(view: NodeView) -> str:
    totals = view.totals
    number = sum(totals.findings.values())
    parts = [
        ", ".join(f"{count} {kind}" for kind, count in totals.kinds.items()) or "no device",
        "" if totals.utilization is None else f"{totals.utilization:.0f} % busy",
        "" if totals.power_watts is None else f"{totals.power_watts:.0f} W",
        f"cpu {view.host['cpu_percent']:.0f} %" if "cpu_percent" in view.host else "",
        f"memory {view.host['memory_percent']:.0f} %" if "memory_percent" in view.host else "",
        f"{totals.lost} lost" if totals.lost else "",
        "no finding" if not number else f"{number} finding{'' if number == 1 else 's'}",
    ]
    return f"{view.hostname}: {', '.join(filter(None, parts))}"


def _device(device: DeviceView) -> str:
    values = device.values
    used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    limit = values.get("power_limit_watts")
    parts = [
        f"{values['utilization']:.0f} % busy" if "utilization" in values else "",
        "" if used is None else f"memory {used / GIB:.1f}{'' if total is None else f' of {total / GIB:.0f}'} GiB",
        f"{values['power_watts']:.0f}{'' if limit is None else f' of {limit:.0f}'} W" if "power_watts" in values else "",
        f"{values['temperature_celsius']:.0f} °C" if "temperature_celsius" in values else "",
        *device.notes,
    ]
    return ", ".join(filter(None, parts)) or "says nothing"


def _source(source: SourceRow) -> str:
    return f"source {source.name}: {'; '.join(filter(None, (source.status.replace('_', ' '), source.detail, source.advice)))}"


def _finding(one: Finding) -> str:
    return f"{one.severity} {one.rule} {one.key}".rstrip() + f": {printable(one.message)}"


def now() -> str:
    """Return the time of day."""
    return f"{datetime.now().astimezone():%H:%M:%S}"


def _clock(view: NodeView) -> str:
    return f"{datetime.fromtimestamp(view.time_ns / 1e9).astimezone():%H:%M:%S}"
