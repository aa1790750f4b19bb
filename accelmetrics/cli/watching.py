"""What the commands that watch over time share: their options, the monitor, and how they are stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from accelmetrics.backends.flag import Flag
from accelmetrics.cli.options import reading

if TYPE_CHECKING:
    from argparse import Namespace

    from accelmetrics.cli.output import Stdout
    from accelmetrics.monitor.named import Monitor
    from accelmetrics.sampling.sampler import Sampler
    from accelmetrics.schemas.record import Exporter

NAMED = 2.0
"""Seconds that the check of device names waits for a driver to open: one that takes longer is believed to have them."""
POLL = 0.2
"""Seconds between two looks at whether a signal has come: waiting for ever would keep Python from handling it on some systems."""


def exporters(options: Namespace, out: Stdout, gone: Callable[[], None] = lambda: None) -> list[Exporter]:
    """The exporters that the options ask for.

    Args:
        options: Of the command.
        out: Standard output, which one may print to.
        gone: Called when whoever read that has gone.

    Raises:
        UnknownNameError: There is none of that name.
        InvalidOptionError: One cannot be made so.
        MissingDependencyError: One needs a package that is not installed.
        WriteError: One writes to a file that cannot be written.
    """
    from accelmetrics.cli.streams import exporter

    chosen = [exporter(wanted, out, gone) for wanted in options.exporter]
    if options.wandb_project or options.wandb_run_name:
        from accelmetrics.exporters.wandb import WandbExporter

        chosen.append(WandbExporter(project=options.wandb_project, name=options.wandb_run_name))
    return chosen


def monitor(options: Namespace, exporters: Sequence[str | Exporter], pid: int | None = None) -> Monitor:
    """The monitor that the options ask for; its messages go to standard error.

    Args:
        options: Of the command.
        exporters: Where records go.
        pid: The process to watch with its descendants, for a command that knows it.

    Raises:
        InvalidOptionError: An option has a value that cannot be used.
        UnknownNameError: There is no such source, exporter or device.
    """
    from accelmetrics.cli.logs import set_up
    from accelmetrics.monitor.named import Monitor

    chosen = reading(options)
    if pid is not None:
        chosen.update(pid=pid, children=True)
    made = Monitor(options.interval, exporters, labels=dict(options.label or ()), **chosen)
    if options.gpus is not None and pid is None:
        _named[made] = _checked(chosen)
    set_up(options.log_format, made.labels)
    return made


_named: WeakKeyDictionary[Monitor, Sampler] = WeakKeyDictionary()
"""What the names of a monitor's devices were checked with, for as long as that is there: it has the drivers open already."""


def _checked(chosen: dict[str, Any]) -> Sampler:
    """Refuse devices that are not there: a monitor could only say so in the background, for as long as it runs."""
    from accelmetrics.sampling.sampler import Sampler

    sampler = Sampler(**{**chosen, "open_timeout": min(NAMED, chosen.get("open_timeout", NAMED))})
    sampler.sample()
    if chosen["isolation"] == "process":
        sampler.close()  # a process that nobody would ask again
    return sampler


def tell_losses(watching: Monitor) -> bool:
    """Say of every exporter that lost something, or ended with an error, what it lost; whether there is one."""
    from accelmetrics.cli.logs import warn

    found = [status for status in watching.status.exporters if status.failed or status.dropped or status.error]
    for status in found:
        said = f"; the last error: {status.error}" if status.error else ""
        warn(f"exporter {status.name}: {status.sent} records sent, {status.failed} failed, {status.dropped} dropped{said}")
    return bool(found)


@contextmanager
def as_given(out: Stdout) -> Iterator[None]:
    """Standard output as this process was given it, for a moment: what is started meanwhile has it."""
    out.__exit__(None, None, None)
    try:
        yield
    finally:
        out.__enter__()


@contextmanager
def until_stopped() -> Iterator[Flag]:
    """A flag that is set by Ctrl-C, by the signal that ends services and by the one of a terminal that goes away.

    The second one of a kind ends the process as ever. One that is ignored, as under ``nohup``, stays so.
    """
    stopped = Flag()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopped.set()
        signal.signal(number, before[number])

    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(stopped: Flag, seconds: float | None = None) -> bool:
    """Wait for the end, at most so many seconds; whether it has come."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stopped.wait(min(POLL, left)):
        pass
    return stopped.is_set()
