"""Shared parts of the commands that run over time: the monitor, its exporters, their messages, and stopping by signal."""

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
from typing import TYPE_CHECKING, Any

from accelmetrics.cli.options import PROGRAM, FlagArguments, UsageError, absent_process, reading
from accelmetrics.cli.output import NO_SPACE, Stdout, duplicate_stream, say, special, stream_number, write_errors
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
"""Seconds that a driver may take to open when device names are checked. A slower driver is assumed to have the devices."""
DATA = "accelmetrics_data"
"""Attribute of a log record with a message's data for programs."""

KEPT_MESSAGES = 100
"""Maximum number of messages that are held until the terminal is free. The oldest are dropped."""
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
"""Signals by which a user or a service manager ends a command. Windows has SIGBREAK instead of SIGHUP."""
SIGPIPE: int = getattr(signal, "SIGPIPE", 13)
"""Number that :class:`Stop` has if the reader of the output has gone. Windows has no SIGPIPE, so its number is given here."""


# The monitor


@contextmanager
def checked(options: Namespace, stopped: Stop | None = None, patience: float = math.inf) -> Iterator[None]:
    """Refuse sources and devices that cannot be read, and warn if the process to watch does not exist.

    Drivers that were opened for the check stay open during the block.

    Args:
        options: The command's options.
        stopped: A request to end, which also ends the wait for the drivers.
        patience: Seconds to wait for the drivers before the block begins. If a device turns out to be missing later,
            ``stopped`` is asked to end the block, and the error is raised after it.

    Raises:
        InvalidOptionError: An option has a value that cannot be used.
        UnknownNameError: There is no source or device of this name.
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
    # A driver may block this reading without end, so it is taken on a thread.
    sampler, ending = Sampler(**chosen), stopped or Stop()
    errors: list[AccelMetricsError] = []
    over = threading.Event()

    def look() -> None:
        try:
            sampler.sample()
        except AccelMetricsError as error:
            errors.append(error)
            ending.ask(signal.SIGINT)
        if over.is_set() or options.isolation == "process":  # the monitor starts its own child process and cannot use this one
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
        if not thread.is_alive():  # else the thread closes it after the driver has answered
            sampler.close()
    if errors:
        raise errors[0]


def monitor(options: Namespace, exporters: Sequence[str | Exporter], **watched: Any) -> Monitor:
    """Return the monitor for the options.

    Args:
        options: The command's options, after :func:`checked`.
        exporters: The exporters, or their string forms.
        watched: Further arguments of the monitor, which override the options.

    Raises:
        UnknownNameError: There is no exporter of this name.
    """
    from accelmetrics.monitor.monitor import Monitor

    notify = getattr(options, "notify", [])
    return Monitor(
        options.interval, exporters, labels=options.labels, rules=options.rules, notify=notify, **{**reading(options), **watched}
    )


NOTIFY_TEST: FlagArguments = {
    "--notify-test": {"action": "store_true", "help": "send a message to each --notify, print the result, and exit"}
}


def notify_test(options: Namespace) -> int:
    """Send a test message to each address of ``--notify``. Return the exit status: 1 if one was not accepted.

    Raises:
        UsageError: There is no ``--notify``.
        InvalidOptionError: An address cannot be used.
        MissingDependencyError: An address needs a package that is not installed.
    """
    from accelmetrics.exporters.notify import NotifyExporter

    if not options.notify:
        raise UsageError("--notify-test needs an address for the message: give it with --notify")
    failed = 0
    for sender in [NotifyExporter(url) for url in options.notify]:
        try:
            say(f"notify: {sender.test()} has accepted a message")
        except ConnectionError as error:
            failed = 1
            say(f"notify: {error}")
    return failed


def claim_sources(options: Namespace, follow: Callable[[Sequence[Job]], object] | None = None) -> list[ClaimSource]:
    """Return the sources that know which job or pod holds each device.

    Args:
        options: The command's options.
        follow: Called with the jobs after each look-up.

    Raises:
        UsageError: ``--dcgm-jobs`` is given with ``--attribution none``.
    """
    from accelmetrics.visibility.pod_resources import pod_source
    from accelmetrics.visibility.slurm_jobs import dcgm_source, job_source

    if options.attribution == "none":
        if options.dcgm_jobs:
            raise UsageError("--dcgm-jobs excludes --attribution none, which looks up no jobs: give one of them")
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

    Attributes:
        signal: The number of the first signal that made the request, or a number chosen by another caller; 0 until then.
    """

    # Polled instead of a threading.Event: a handler runs between two instructions of the main thread, so it must not take a
    # lock. And the handler of a signal that arrives just before a wait begins runs only when that wait ends.
    STEP = 0.05
    """Seconds between two checks."""

    def __init__(self) -> None:
        self.signal = 0

    def ask(self, number: int) -> None:
        """Make the request. A later one does not change the signal's number."""
        self.signal = self.signal or number

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait for the request, at most this number of seconds. Return whether it was made."""
        end = time.monotonic() + seconds
        while not self.signal and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.STEP))
        return self.signal > 0


@contextmanager
def handling(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Handle signals during the block. An ignored signal, such as SIGHUP under ``nohup``, stays ignored."""
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def until_stopped(*fatal: int, then: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Yield a request to end, which SIGINT, SIGTERM and SIGHUP make. A second signal of the same kind has its default effect.

    Args:
        fatal: Further signals that make the request, and then end the process after the block.
        then: Called in the signal handler, after the request.

    Raises:
        BrokenPipeError: The request was made with SIGPIPE: the reader of the output has gone.
    """
    stopped = Stop()

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.ask(number)
        # So that a second Ctrl-C ends a command that still waits, for example for an exporter.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        then()

    with handling(stop, *STOPPING, *fatal):
        yield stopped
    if stopped.signal in fatal:
        os.kill(os.getpid(), stopped.signal)
    if stopped.signal == SIGPIPE:
        raise BrokenPipeError


# Exporters


def stream_lines(made: Any, descriptor: int) -> Exporter:
    """Return an exporter that writes the lines of a file's exporter to an inherited stream.

    Args:
        made: The exporter that makes the lines, with ``lines`` and ``wrote`` of a ``FileExporter``.
        descriptor: The file descriptor of the stream.
    """
    head, rest = b"", memoryview(b"")
    begun: Record | None = None

    def export(record: Record) -> None:
        nonlocal head, rest, begun
        if record is not begun:  # after a failed write the same record comes again, and continues where it stopped
            text = made.lines(record, head, False) if head else None
            if text is None:  # the first record, or a record that needs another header
                text = made.lines(record, b"", True) or b""
                head = text[: text.find(b"\n") + 1]
            begun, rest = record, memoryview(text)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        made.wrote()

    return exporting(made.name, export, metrics=getattr(made, "metrics", None))


def until_reader_gone(exporter: Exporter, stopped: Stop) -> Exporter:
    """Return an exporter that asks the command to end when the reader of standard output has gone, instead of failing.

    Args:
        exporter: The exporter to standard output.
        stopped: The request to end, made with SIGPIPE: a closed pipe ends any command of a pipeline.
    """

    def export(record: Record) -> None:
        try:
            exporter.export(record)
        except BrokenPipeError:
            stopped.ask(SIGPIPE)

    return exporting(exporter.name, export, exporter)


def console(out: Stdout, stopped: Stop) -> Exporter:
    """Return an exporter that prints one line per reading, until the reader of standard output has gone."""
    from accelmetrics.exporters.console import line

    return until_reader_gone(exporting("console", lambda record: out.show(line(record.snapshot) + "\n")), stopped)


def exporters(options: Namespace, out: Stdout, stopped: Stop | None = None) -> list[Exporter]:
    """Return the exporters for the options.

    Args:
        options: The command's options.
        out: Standard output, to which an exporter may print.
        stopped: The request to end, made when the reader of standard output has gone. None if the command then goes on.

    Raises:
        UnknownNameError: There is no exporter of this name.
        InvalidOptionError: An exporter's target or option cannot be used.
        MissingDependencyError: An exporter needs a package that is not installed.
        WriteError: A file or a stream cannot be written.
    """
    chosen = [_exporter(wanted, out, stopped or Stop()) for wanted in options.exporters]
    if getattr(options, "wandb_project", None) or getattr(options, "wandb_run_name", None):
        chosen.append(load("wandb")(project=options.wandb_project, name=options.wandb_run_name))
    return chosen


def _exporter(wanted: str, out: Stdout, stopped: Stop) -> Exporter:
    """Return an exporter from its string form. Its target may be an inherited stream."""
    head, mark, options = wanted.partition("?")
    name, _, target = head.partition(":")
    if target and (number := stream_number(target)) is not None:
        made = create(f"{name}:{os.devnull}{mark}{options}")
        if _writes_lines(made):
            lines = stream_lines(made, duplicate_stream(target, number, out))
            return until_reader_gone(lines, stopped) if number == 1 else lines
    made = create(wanted)
    if name == "console" and not getattr(made, "stderr", False) and out.descriptor is not None:
        stream = open(os.dup(out.descriptor), "w", encoding="utf-8", errors="replace")  # noqa: PTH123, SIM115 - kept until the end
        made.stream = stream  # type: ignore[attr-defined]
        return until_reader_gone(made, stopped)
    # A file that cannot be opened is refused before the command begins. A pipe is not opened here: that waits for its reader.
    path = getattr(made, "path", None) if _writes_lines(made) else None
    if path is not None and not special(str(path)):
        with write_errors(str(path), NO_SPACE), closing(made):
            made.open()
    return made


def _writes_lines(made: Exporter) -> bool:
    """Return whether an exporter's lines can also be written to a stream. One of another package may have only a ``lines`` of its own."""
    return hasattr(made, "lines") and hasattr(made, "wrote")


def tell_sources(watching: Monitor) -> None:
    """Warn of every source that the latest reading lacks, in whole or in part, unless the monitor has already warned."""
    for status in () if watching.latest is None else watching.latest.backends:
        if status.status in ("failed", "timed_out", "degraded") and not status.silent:
            log.warning(f"source {status.name}: {status.detail}")


def tell_losses(watching: Monitor) -> bool:
    """Warn of every exporter that lost records or ended with an error. Return whether there is one."""
    found = [status for status in watching.status.exporters if status.failed or status.dropped or status.error]
    for status in found:
        error = f"; the last error: {status.error}" if status.error else ""
        log.warning(f"exporter {status.name}: {status.sent} records sent, {status.failed} failed, {status.dropped} dropped{error}")
    return bool(found)


# Messages: lines for people, or JSON objects with the records' labels for programs


class JsonFormatter(logging.Formatter):
    """Formatter of messages as JSON, one object per line: ``timestamp``, ``level``, ``message``, ``logger``, ``labels``.

    ``exception`` and ``data`` are present if a message has them.

    Args:
        labels: The labels that the monitor's records carry too.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = dict(labels)

    def format(self, record: logging.LogRecord) -> str:
        """Return one message as a JSON object."""
        document = {
            "timestamp": rfc3339(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            "labels": self._labels,
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        if data := getattr(record, DATA, None):
            document["data"] = data
        return json.dumps(document)


class TextFormatter(logging.Formatter):
    """Formatter of messages for people: the program, the level and the message.

    Args:
        journal: Whether the line begins with the level in the form that systemd's journal reads, such as ``<4>``.
    """

    PRIORITIES: Mapping[int, str] = {logging.DEBUG: "<7>", logging.INFO: "<6>", logging.WARNING: "<4>", logging.ERROR: "<3>"}

    def __init__(self, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a message. ``logging`` adds a traceback below."""
        first = self.PRIORITIES.get(record.levelno, "<2>") if self._journal else ""
        return f"{first}{PROGRAM}: {record.levelname.lower()}: {record.message}"


def begin(options: Namespace, command: str = "") -> None:
    """Set up the messages of a command, before anything else of it runs, and add ``run_id`` to the options' labels.

    Args:
        options: The command's options.
        command: Its name. The default level of ``serve`` is ``info``.
    """
    import uuid

    from accelmetrics.sampling.engine import hostname
    from accelmetrics.visibility.job import job_labels

    service = command == "serve"
    # The run's id is made here and not by the monitor, so that messages before it exists, or in its absence, carry the same id.
    options.labels = {"run_id": uuid.uuid4().hex[:12], **options.labels}
    set_up(options.log_format, {"hostname": hostname(), **job_labels(), **options.labels}, options.log_level or ("info" if service else ""))
    if service:  # it logs findings itself, at the level of their severity
        log.handlers[0].addFilter(lambda record: record.name != "accelmetrics.findings")
    if config := options.config or os.environ.get(CONFIG, ""):
        warn_if_loose(config, "the configuration", options.secret_config)


def set_up(form: str, labels: Mapping[str, str], level: str = "") -> None:
    """Write this package's messages to standard error.

    Args:
        form: ``text``, ``json`` or ``journal``.
        labels: The labels of every record.
        level: The lowest level that is written. The default is ``info`` with JSON, else ``warning``.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(labels) if form == "json" else TextFormatter(form == "journal"))
    log.handlers[:] = [handler]
    log.setLevel((level or ("info" if form == "json" else "warning")).upper())
    log.propagate = False


@contextmanager
def holding_messages(show: Callable[[str], object] = lambda words: None) -> Iterator[None]:
    """Hold messages back from standard error during the block, and write the last of them afterwards.

    Args:
        show: Called with each message at once.
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
        while held:  # not a loop over `held`: another thread may still add a message
            handler.handle(held.popleft())


def tell(meaning: str, line: str = "", *, error: bool = False, data: Mapping[str, Any] | None = None) -> None:
    """Write a message of the command itself, at any log level: a JSON message, or a line on standard error.

    Args:
        meaning: The message of the JSON object.
        line: The line for people; empty for none.
        error: Whether the JSON message has the level ``error`` instead of ``info``.
        data: The data of the JSON object.
    """
    if any(isinstance(handler.formatter, JsonFormatter) for handler in log.handlers):
        level = logging.ERROR if error else logging.INFO
        log.handle(log.makeRecord(log.name, level, "", 0, meaning, (), None, extra={DATA: data}))
    elif line:
        say(line)
