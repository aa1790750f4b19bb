"""What the commands that watch over time share: the monitor, its exporters, their messages, and how they are stopped."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from accelmetrics.cli.options import PROGRAM, FlagArguments, UsageError, absent_process, reading
from accelmetrics.cli.output import NO_SPACE, Stdout, duplicate_stream, say, special, stream_number, telling
from accelmetrics.exporters.registry import create, exporting, load
from accelmetrics.monitor.settings import CONFIG
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.log import log
from accelmetrics.schemas.permissions import warn_if_loose
from accelmetrics.schemas.snapshot import rfc3339

if TYPE_CHECKING:
    from accelmetrics.monitor.monitor import Monitor
    from accelmetrics.schemas.record import Exporter, Record
    from accelmetrics.visibility.attribution import ClaimSource
    from accelmetrics.visibility.slurm_jobs import Job

DEVICE_CHECK_SECONDS = 2.0
"""For a driver to open when the names of devices are checked: one that takes longer is believed to have them."""
DATA = "accelmetrics_data"
"""The attribute of a log record that holds what programs find beside a message."""

KEPT_MESSAGES = 100
"""Messages that wait until the terminal is free again; the oldest go."""
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
"""What a user or a service manager ends a command with. Windows has the last in place of SIGHUP."""
SIGPIPE: int = getattr(signal, "SIGPIPE", 13)
"""Stands for a reader that has gone, also on Windows, which has no such signal."""


# The monitor


@contextmanager
def checked(options: Namespace, stopped: Stop | None = None, patience: float = math.inf) -> Iterator[None]:
    """Refuse what cannot be read, and warn where the process to watch is not there.

    Drivers that were opened to look for the devices stay open during the block.

    Args:
        options: Of the command.
        stopped: Ends the look at the devices before a driver answers.
        patience: Seconds after which the block begins although no driver has answered yet; one that then says that a device is not
            there asks ``stopped`` to end the block, and the error is raised behind it.

    Raises:
        InvalidOptionError: An option has a value that cannot be used.
        UnknownNameError: There is no such source or device.
    """
    from accelmetrics.sampling.sampler import Sampler

    if absent := absent_process(options):
        log.warning(absent)
    chosen = reading(options)
    chosen["open_timeout"] = min(DEVICE_CHECK_SECONDS, chosen.get("open_timeout", DEVICE_CHECK_SECONDS))
    if options.gpus is None:
        with Sampler(**chosen):
            yield
        return
    # A driver may hold this reading up for as long as it likes, so it is taken on a thread.
    sampler, ending = Sampler(**chosen), stopped or Stop()
    errors: list[AccelMetricsError] = []
    over = threading.Event()

    def look() -> None:
        try:
            sampler.sample()
        except AccelMetricsError as error:
            errors.append(error)
            ending.ask(signal.SIGINT)
        if over.is_set() or options.isolation == "process":  # a process of its own is of no use to others afterwards
            sampler.close()

    thread = threading.Thread(target=look, name="accelmetrics-device-look", daemon=True)
    thread.start()
    end = time.monotonic() + patience
    while thread.is_alive() and not ending.signal and time.monotonic() < end:
        thread.join(Stop.STEP)
    try:
        if not errors:
            yield
    finally:
        over.set()
        if not thread.is_alive():  # else the thread does it when the driver has answered
            sampler.close()
    if errors:
        raise errors[0]


def monitor(options: Namespace, exporters: Sequence[str | Exporter], **watched: Any) -> Monitor:
    """Make the monitor that the options ask for.

    Args:
        options: Of the command, which were checked.
        exporters: Where records go.
        watched: The process to watch, for a command that knows it.

    Raises:
        UnknownNameError: There is no such exporter.
    """
    from accelmetrics.monitor.monitor import Monitor

    notify = getattr(options, "notify", [])
    return Monitor(
        options.interval, exporters, labels=options.labels, rules=options.rules, notify=notify, **{**reading(options), **watched}
    )


NOTIFY_TEST: FlagArguments = {
    "--notify-test": {"action": "store_true", "help": "send a message to each --notify, say whether it was taken, and exit"}
}


def notify_test(options: Namespace) -> int:
    """Send a message to each address of ``--notify``; return the exit status: 1 if one was not taken.

    Raises:
        UsageError: There is no address.
        InvalidOptionError: One is no address.
        MissingDependencyError: One needs a package that is not installed.
    """
    from accelmetrics.exporters.notify import NotifyExporter

    if not options.notify:
        raise UsageError("--notify-test sends a message to each --notify: give one")
    failed = 0
    for sender in [NotifyExporter(url) for url in options.notify]:
        try:
            say(f"notify: {sender.test()} has taken a message")
        except ConnectionError as error:
            failed = 1
            say(f"notify: {error}")
    return failed


def claim_sources(options: Namespace, follow: Callable[[Sequence[Job]], object] | None = None) -> list[ClaimSource]:
    """Return where it is looked up who holds the devices.

    Args:
        options: Of the command.
        follow: Called with the jobs at each look.

    Raises:
        UsageError: A place is named, and nothing is to be looked up.
    """
    from accelmetrics.visibility.pod_resources import pod_source
    from accelmetrics.visibility.slurm_jobs import dcgm_source, job_source

    if options.attribution == "none":
        if options.dcgm_jobs:
            raise UsageError("--dcgm-jobs says who holds the devices, which --attribution none does not look up: leave one of them out")
        return []
    sources: list[ClaimSource] = []
    if options.attribution in {"auto", "slurm"}:
        sources.append(job_source(options.jobs, follow))
    if options.dcgm_jobs:
        sources.append(dcgm_source(options.dcgm_jobs))
    if options.attribution in {"auto", "kubernetes"}:
        sources.append(pod_source(options.kubelet, needed=options.attribution == "kubernetes"))
    return sources


class Stop:
    """A request to end, which a signal handler may make.

    It is polled: a handler runs between two instructions of the main thread, so it may take no lock, and one whose signal arrives
    just before a wait begins runs when that ends.

    Attributes:
        signal: The number of the signal that asked for it first, or of one that stands for what else did; 0 until then.
    """

    STEP = 0.05
    """Seconds between two looks."""

    def __init__(self) -> None:
        self.signal = 0

    def ask(self, number: int) -> None:
        """Make the request, unless it was made."""
        self.signal = self.signal or number

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until it is asked for, at most so many seconds; return whether it was."""
        end = time.monotonic() + seconds
        while not self.signal and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.STEP))
        return self.signal > 0


@contextmanager
def handling(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Handle signals while the block runs. One that is ignored, as SIGHUP under ``nohup``, stays so."""
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def until_stopped(*fatal: int, then: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Yield a request to end, which SIGINT, SIGTERM and SIGHUP make; the second one of a kind ends the process as ever.

    Args:
        fatal: Signals that make it too, and by which the process ends after the block.
        then: Called when it is made, between two instructions of the main thread.

    Raises:
        BrokenPipeError: It was made with SIGPIPE: the reader of the output has gone.
    """
    stopped = Stop()

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.ask(number)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        then()

    with handling(stop, *STOPPING, *fatal):
        yield stopped
    if stopped.signal in fatal:
        os.kill(os.getpid(), stopped.signal)
    if stopped.signal == SIGPIPE:
        raise BrokenPipeError


# Exporters


@runtime_checkable
class LineExporter(Protocol):
    """An exporter that makes lines, which can be written to a stream too: JSON lines, CSV, InfluxDB's."""

    name: str

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        """Return a record as whole lines for a file with this first line; None where they need a new file."""
        ...

    def wrote(self) -> None:
        """Note that these lines are written."""
        ...


def stream_lines(lines: LineExporter, descriptor: int) -> Exporter:
    """Return an exporter that writes to a stream that this process was given what one to a file would write.

    Args:
        lines: The exporter to a file, which makes the lines.
        descriptor: Of the stream.
    """
    head, rest = b"", memoryview(b"")
    begun: Record | None = None

    def export(record: Record) -> None:
        nonlocal head, rest, begun
        if record is not begun:  # one that is offered again goes on where it was cut
            text = lines.lines(record, head, False) if head else None
            if text is None:  # the first, or one that needs another header
                text = lines.lines(record, b"", True) or b""
                head = text[: text.find(b"\n") + 1]
            begun, rest = record, memoryview(text)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        lines.wrote()

    return exporting(lines.name, export, metrics=getattr(lines, "metrics", None))


def until_reader_gone(exporter: Exporter, stopped: Stop) -> Exporter:
    """Return an exporter to standard output that loses nothing when the reader of that has gone: nothing is read any more.

    Args:
        exporter: The exporter.
        stopped: Set then, as that ends any command of a pipeline.
    """

    def export(record: Record) -> None:
        try:
            exporter.export(record)
        except BrokenPipeError:
            stopped.ask(SIGPIPE)

    return exporting(exporter.name, export, exporter)


def console(out: Stdout, stopped: Stop) -> Exporter:
    """Return an exporter that prints a line a reading, until the reader of that has gone."""
    from accelmetrics.exporters.console import line

    return until_reader_gone(exporting("console", lambda record: out.show(line(record.snapshot) + "\n")), stopped)


def exporters(options: Namespace, out: Stdout, stopped: Stop | None = None) -> list[Exporter]:
    """Make the exporters that the options ask for.

    Args:
        options: Of the command.
        out: Standard output, which one may print to.
        stopped: Set when the reader of that has gone; None where the command goes on.

    Raises:
        UnknownNameError: There is none of that name.
        InvalidOptionError: One cannot be made so.
        MissingDependencyError: One needs a package that is not installed.
        WriteError: One writes to a file or a stream that cannot be written.
    """
    chosen = [_exporter(wanted, out, stopped or Stop()) for wanted in options.exporters]
    if getattr(options, "wandb_project", None) or getattr(options, "wandb_run_name", None):
        chosen.append(load("wandb")(project=options.wandb_project, name=options.wandb_run_name))
    return chosen


def _exporter(wanted: str, out: Stdout, stopped: Stop) -> Exporter:
    """Make an exporter from its string form; its target may be a stream that this process was given."""
    head, mark, options = wanted.partition("?")
    name, _, target = head.partition(":")
    if target and (number := stream_number(target)) is not None:
        made = create(f"{name}:{os.devnull}{mark}{options}")
        if isinstance(made, LineExporter):
            lines = stream_lines(made, duplicate_stream(target, number, out))
            return until_reader_gone(lines, stopped) if number == 1 else lines
    made = create(wanted)
    if name == "console" and not getattr(made, "stderr", False) and out.descriptor is not None:
        stream = open(os.dup(out.descriptor), "w", encoding="utf-8", errors="replace")  # noqa: PTH123, SIM115 - kept until the end
        made.stream = stream  # type: ignore[attr-defined]
        return until_reader_gone(made, stopped)
    # A file that cannot be opened is refused before anything begins; not a pipe, which waits for its reader.
    path = getattr(made, "path", None) if isinstance(made, LineExporter) else None
    if path is not None and not special(str(path)):
        with telling(str(path), NO_SPACE), closing(made):
            made.open()
    return made


def tell_sources(watching: Monitor) -> None:
    """Warn of every source that could not be read, or not in full, at the latest reading, unless the monitor has."""
    for status in () if watching.latest is None else watching.latest.backends:
        if status.status in ("failed", "timed_out", "degraded") and not status.silent:
            log.warning(f"source {status.name}: {status.detail}")


def tell_losses(watching: Monitor) -> bool:
    """Warn of every exporter that lost something, or ended with an error; return whether there is one."""
    found = [status for status in watching.status.exporters if status.failed or status.dropped or status.error]
    for status in found:
        said = f"; the last error: {status.error}" if status.error else ""
        log.warning(f"exporter {status.name}: {status.sent} records sent, {status.failed} failed, {status.dropped} dropped{said}")
    return bool(found)


# Messages: lines for people, or JSON with the labels of every record for programs


class JsonFormatter(logging.Formatter):
    """An object a line: ``timestamp``, ``level``, ``message``, ``logger``, and the labels.

    ``exception`` and ``data`` are there where a message has them.

    Args:
        labels: What every record of the monitor carries too.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = dict(labels)

    def format(self, record: logging.LogRecord) -> str:
        """Format one message."""
        said = {
            "timestamp": rfc3339(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            "labels": self._labels,
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        if data := getattr(record, DATA, None):
            said["data"] = data
        return json.dumps(said)


class TextFormatter(logging.Formatter):
    """A line for people: the program, the level and the message.

    Args:
        journal: Whether the level stands in front as well, as systemd's journal reads it.
    """

    PRIORITIES: Mapping[int, str] = {logging.DEBUG: "<7>", logging.INFO: "<6>", logging.WARNING: "<4>", logging.ERROR: "<3>"}

    def __init__(self, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the message alone; a traceback follows it."""
        first = self.PRIORITIES.get(record.levelno, "<2>") if self._journal else ""
        return f"{first}{PROGRAM}: {record.levelname.lower()}: {record.message}"


def begin(options: Namespace, command: str = "") -> None:
    """Have messages written as the options ask for, before anything else of the command runs.

    The run's id is made here and put among the options' labels, so that messages before there is a monitor, or because there is
    none, have the same one.

    Args:
        options: Of the command.
        command: Its name. ``serve`` is a service, whose messages are from ``info`` up; it logs findings itself, with their levels.
    """
    import uuid

    from accelmetrics.sampling.engine import hostname
    from accelmetrics.visibility.job import job_labels

    service = command == "serve"
    options.labels = {"run_id": uuid.uuid4().hex[:12], **options.labels}
    set_up(options.log_format, {"hostname": hostname(), **job_labels(), **options.labels}, options.log_level or ("info" if service else ""))
    if service:
        log.handlers[0].addFilter(lambda record: record.name != "accelmetrics.findings")
    if config := options.config or os.environ.get(CONFIG, ""):
        warn_if_loose(config, "the configuration", options.secret_config)


def set_up(form: str, labels: Mapping[str, str], level: str = "") -> None:
    """Have messages of this package written to standard error.

    Args:
        form: ``text``, ``json`` or ``journal``.
        labels: Those of every record.
        level: The least level; if left out, warnings and up, and with JSON those too that tell how it goes.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(labels) if form == "json" else TextFormatter(form == "journal"))
    log.handlers[:] = [handler]
    log.setLevel((level or ("info" if form == "json" else "warning")).upper())
    log.propagate = False


@contextmanager
def holding_messages(show: Callable[[str], object] = lambda words: None) -> Iterator[None]:
    """Keep messages from standard error while the block runs, and write them there afterwards; the oldest go.

    Args:
        show: Is given each one at once.
    """
    (handler,) = log.handlers
    held: deque[logging.LogRecord] = deque(maxlen=KEPT_MESSAGES)

    def hold(record: logging.LogRecord) -> bool:
        held.append(record)
        show(record.getMessage())
        return False

    handler.addFilter(hold)
    try:
        yield
    finally:
        handler.removeFilter(hold)
        while held:  # another thread may be adding its last one
            handler.handle(held.popleft())


def tell(meaning: str, line: str = "", *, error: bool = False, data: Mapping[str, Any] | None = None) -> None:
    """Write a message of the command's own, which no log level hides: a JSON message, or a line on standard error.

    Args:
        meaning: What programs are told.
        line: What people are told; empty for nothing.
        error: Whether the JSON message is of that level.
        data: What programs find beside its words.
    """
    if any(isinstance(handler.formatter, JsonFormatter) for handler in log.handlers):
        level = logging.ERROR if error else logging.INFO
        log.handle(log.makeRecord(log.name, level, "", 0, meaning, (), None, extra={DATA: data}))
    elif line:
        say(line)
