"""``accelmetrics run``: run a command, watch it and its descendants, and print a summary of its use of the devices.

Meanwhile the terminal's last row shows the devices: ``GPU0 (GB10): 93 % │ 45.2/141.0 GiB │ 27 W │ 48 °C``.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import (
    NOTIFY_TEST,
    checked,
    exporters,
    holding_messages,
    monitor,
    notify_test,
    tell,
    tell_losses,
    tell_sources,
)
from accelmetrics.cli.output import SHOWN, Stdout, WriteError, descriptor_of, write_errors, writing_to
from accelmetrics.cli.run_tokens import TokenFile, TokenLines, TokenOutput, TokenSource, token_pattern
from accelmetrics.cli.terminal import LastRow, begin_line
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.record import COMMAND, Exporter, done_by_command, rates
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import MIB, cells, celsius, clipped, fixed, memory, percent, watts
from accelmetrics.schemas.vitals import Vitals, processors, vitals
from accelmetrics.views.summaries import as_json, folded, of_devices, of_process, of_window, readings, work_of_devices, work_text

if TYPE_CHECKING:
    from accelmetrics.integrations.compat.feed import NvmlFeed
    from accelmetrics.monitor.window import Window

STOP_SECONDS = 0.85
"""Seconds for the last reading, and again for the exporters' queues, so that the command's exit status is not delayed for long."""
STATS_VERSION = "1.0"
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that end ``run`` before the command has started."""
BETWEEN, APART = " │ ", "   "
TURN = 3.0
"""Seconds for which the live line shows some of the devices, if not all fit."""
NOT_ATTACHED = (
    "the command saw no devices, because it loaded no Python binding of NVML: compiled programs, programs that call nvidia-smi and "
    "Python with -E or -I are not supported (docs/other-monitors.md)"
)

EXAMPLES = """\
  accelmetrics run -- python train.py --epochs 3
      a live line below its output, a summary at its end
  accelmetrics run --stats stats.json -- ./benchmark
      the summary as JSON too
  accelmetrics run --exporter jsonl:run.jsonl -- make
      every reading in a file
  accelmetrics run --quiet --stats stats.json -- ./job
      no output except the command's
  accelmetrics run --tokens-from 'tokens: ([0-9]+)' -- ./bench
      tokens per second and per joule, from its output
  accelmetrics run --as-nvml -- nvitop
      AMD's and others' devices in a program for NVIDIA's
      (docs/other-monitors.md)

The command inherits the standard streams, the environment and the terminal, and
every signal is passed on to it. The live line needs a terminal as standard
error.

Exit status: the command's; 128 plus the signal's number if a signal ended it,
127 if there is no such command, 126 if it cannot be run; before its start, 1 if
an exporter cannot be made, and 2 for invalid arguments."""
OPTIONS: arguments.Groups = {
    "": {
        "--stats": {
            "type": settings.path.parse,
            "metavar": "FILE",
            "help": "write the summary to this file as JSON when the command has ended",
        },
        "--no-line": {"action": "store_true", "help": "draw no live line"},
        "--no-summary": {"action": "store_true", "help": "print no summary"},
        "--quiet": {"action": "store_true", "help": "print neither"},
        "--tokens-from": {
            "type": token_pattern,
            "metavar": "REGEX",
            "help": "count tokens from the command's output: the first group matches the tokens of a line, or the group "
            "`total` a running total, as in 'seen: (?P<total>[0-9]+)'; tokens per second are averaged over the command's whole "
            "time, here and in `report` of a recording",
        },
        "--tokens-file": {
            "type": settings.path.parse,
            "metavar": "FILE",
            "help": "with --tokens-from: read the lines that are appended to this file, not the output",
        },
        "--as-nvml": {
            "nargs": "?",
            "const": "others",
            "choices": ("others", "all"),
            "metavar": "all",
            "help": "show the devices to a program that knows NVIDIA's Python binding alone, such as nvitop, without a line or a summary; "
            "NVIDIA's devices too with `all`",
        },
        "command": {"nargs": argparse.REMAINDER, "metavar": "-- COMMAND …", "help": "the command and its arguments"},
    },
    "the readings": arguments.watching("run"),
    "where they go": {**arguments.flags(settings.EXPORTING, "run"), **NOTIFY_TEST},
    arguments.READ: arguments.flags(settings.READING, "run"),
}


def run(options: argparse.Namespace, out: Stdout) -> int:
    """Run the command and return its exit status."""
    if options.notify_test:
        return notify_test(options)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    folder = Path(options.stats or ".").absolute().parent
    arguments.refuse(
        (not command, "there is no command: write it after two dashes, as in `accelmetrics run -- python train.py`"),
        (
            options.stats and (Path(options.stats).is_dir() or not folder.is_dir()),
            f"--stats {options.stats} cannot be written: name a file in an existing directory",
        ),
        (options.tokens_file and not options.tokens_from, "--tokens-file needs the pattern of its lines: give it with --tokens-from"),
    )
    # Options that cannot be used are reported before the command starts.
    with Signals() as signals, checked(options), _nvml_feed(options) as feed:
        chosen = exporters(options, out)
        while (early := signals.next()) is not None:
            if early[0] in ENDING:
                return KILLED + early[0]
        if feed is None:
            return _run(options, command, signals, chosen, out, {})
        descriptor = descriptor_of(sys.stderr)  # if it is a terminal, the command may draw on it: messages wait until the end
        with holding_messages() if descriptor is not None and os.isatty(descriptor) else nullcontext():
            status = _run(options, feed.reached(command), signals, [*chosen, feed], out, feed.environment)
        if not feed.attached:
            tell(NOT_ATTACHED, f"accelmetrics run: {NOT_ATTACHED}")
        return status


@contextmanager
def _nvml_feed(options: argparse.Namespace) -> Iterator[NvmlFeed | None]:
    """Yield the readings for a program that knows only NVIDIA's binding, with a first one taken now; None without ``--as-nvml``.

    Raises:
        WriteError: The files with these readings cannot be written.
    """
    if options.as_nvml is None:
        yield None
        return
    from accelmetrics.integrations.compat.feed import NvmlFeed
    from accelmetrics.sampling.sampler import Sampler

    options.quiet = True
    with Sampler(**arguments.reading(options)) as sampler:
        first = sampler.sample()
        if options.isolation == "process":
            sampler.close()  # its child process is not needed any more: the monitor starts its own
        with write_errors("the readings for the command"):
            feed = NvmlFeed(first, options.interval, everything=options.as_nvml == "all")
        if not feed.devices:
            words = "no device was found to show (`accelmetrics doctor` says why)"
            tell(words, f"accelmetrics run: {words}")
        try:
            yield feed
        finally:
            feed.remove()


def _run(
    options: argparse.Namespace,
    command: list[str],
    signals: Signals,
    chosen: list[Exporter],
    out: Stdout,
    more: Mapping[str, str],
) -> int:
    """Start the command, watch it to its end, and print its summary. Return its exit status.

    Args:
        options: The options of ``run``.
        command: The command and its arguments.
        signals: The pending signals.
        chosen: The exporters.
        out: Standard output, which the command inherits.
        more: Variables to add to the command's environment.
    """
    descriptor = descriptor_of(sys.stderr)
    row = LastRow(None if options.quiet or options.no_line else descriptor)
    tokens, lines = TokenSource(), None

    def draw() -> None:
        tokens.look()
        latest = watching.latest
        if latest is not None:
            row.draw(latest, partial(live_line, latest, time.monotonic()))

    try:
        # The row is reserved before the command starts, so that the command sees the smaller terminal from the beginning.
        row.draw(None, lambda columns: "")
        with out.restored():
            if options.tokens_from is not None:
                lines = TokenLines(options.tokens_from, lambda number: watching.log(tokens=number))
                tokens = TokenFile(lines, options.tokens_file) if options.tokens_file else TokenOutput(lines)
            pid, began = start(command, signals, {**row.environment, **more}, tokens.redirected), time.monotonic()
        watching = monitor(options, chosen, pid=pid, children=True)
        whole = watching.window().begin()  # ends after the last reading, so it includes every exported one
        watching.start()
        window = watching.window(COMMAND).begin(began)
        if lines is not None:
            watching.log(tokens=0)  # the time and energy of the first tokens count from here
        tokens.begin()
        status, ended_by, seconds, cpu_seconds = attend(pid, began, signals, draw, row.release)
        tokens.finish(lambda: (signals.next() or (None,))[0] in ENDING)
        window.end()
    finally:
        row.close()
    # The terminal is restored before this, since stopping may take a moment.
    watching.stop(STOP_SECONDS)
    whole.end()
    work = {} if lines is None or not lines.count else {"tokens": _work(lines.count, window.duration, whole)}
    stats = {
        "schema_version": STATS_VERSION,
        "command": command,
        "exit_status": status,
        **({"signal": ended_by} if ended_by else {}),
        "duration_seconds": seconds,
        "labels": dict(watching.labels),
        "interval_seconds": watching.status.interval,
        "readings": readings(window.summary),
        "missed_ticks": watching.status.missed_ticks,
        "devices": of_devices(window, watching.latest),
        "process": {"cpu_seconds": cpu_seconds, **of_process(window)},
        **({"work": work} if work else {}),
        "exporters": [one._asdict() for one in watching.status.exporters],
    }
    if options.stats:
        try:
            with writing_to(options.stats, out) as write:
                write(as_json(stats))
        except (WriteError, BrokenPipeError) as error:
            tell(str(error), f"accelmetrics run: {error}", error=True)
    tell_sources(watching)
    tell_losses(watching)
    if lines is not None and not work:
        words = f"no line matched --tokens-from {options.tokens_from.pattern!r}"
        tell(words, f"accelmetrics run: {words}")
    if not (options.quiet or options.no_summary):
        title = f"{clipped(' '.join(shlex.join(command).split()), SHOWN)}: exit status {status}"
        memory = of_process(window).get("memory_bytes")
        most = "" if memory is None else f", at most {memory['max'] / MIB:.0f} MiB of memory"
        if descriptor is not None:
            begin_line(descriptor)
        devices = of_window(window, watching.latest, title, seconds)
        done = [line for name, one in work.items() for line in folded(work_text(name, one))]
        tell("summary", "\n".join((devices.rstrip("\n"), *done, f"{cpu_seconds:.1f} s of CPU time{most}")), data=stats)
    return status


def _work(count: float, seconds: float, read: Window) -> dict[str, Any]:
    """Return a command's work over its whole time: in total, per second, and per joule or the reason why that is unknown.

    Args:
        count: The amount of work, such as the number of tokens.
        seconds: The duration of the command.
        read: The window of all readings. A recording has the same readings, so `report` comes to the same numbers.
    """
    powers = [used.joules / used.seconds for used in read.energy_joules.values() if used.seconds > 0]
    done = done_by_command(count, seconds, sum(powers))
    found = work_of_devices(rates({("tokens", (None, "")): done})["tokens"], len(powers))
    return {"total": count, **{name: value for name, value in found.items() if value is not None}}


def live_line(snapshot: Snapshot, now: float, columns: int) -> str:
    """Return a reading as one line: its devices, or the host if there are none.

    Devices that do not fit are shown without their names, and if they still do not fit, some at a time.

    Args:
        snapshot: The reading.
        now: Seconds on a clock, which choose the devices to show.
        columns: Maximum width of the line.
    """
    devices = [one for one in vitals(snapshot) if one.whole]
    texts = [_device(one, f"{one.label} ({one.short_name})") for one in devices]
    if not devices:
        load, memory = processors(snapshot.metrics), snapshot.metrics.get("memory_percent")
        measures = (("CPU", load, "%"), ("memory", memory, "%"), ("command", snapshot.metrics.get("proc.memory.rssMB"), " MiB"))
        texts = [BETWEEN.join(f"{label} {fixed(value)}{unit}" for label, value, unit in measures if value is not None)]
    pages = _pages(texts, columns)
    if len(pages) > 1:
        pages = _pages([_device(one, one.label) for one in devices], columns)
    return clipped(pages[int(now / TURN) % len(pages)], columns)


def _pages(texts: Sequence[str], columns: int) -> list[str]:
    pages = [texts[0]]
    for text in texts[1:]:
        if cells(pages[-1]) + len(APART) + cells(text) <= columns:
            pages[-1] += APART + text
        else:
            pages.append(text)
    return pages


def _device(one: Vitals, title: str) -> str:
    held = None if one.memory_percent is None else f"memory {percent(one.memory_percent)}"
    if one.memory_used is not None:
        held = memory(one.memory_used, one.memory_total)
    parts = [
        None if one.utilization is None else percent(one.utilization),
        held,
        None if one.power is None else watts(one.power),
        None if one.temperature is None else celsius(one.temperature),
    ]
    return f"{title}: {BETWEEN.join(part for part in parts if part is not None) or one.why or '-'}"


# The command is started, waited for, and sent every signal that this process receives. It stays in this process's group, so that it
# has the terminal as if it had been started alone. Signals from the terminal (Ctrl-C, Ctrl-Z, a new size) reach it directly, and are not
# sent to it a second time. ``subprocess`` is not used: it cannot wait for a command that is stopped and continued, and does not know the
# sender of a signal.

NOT_EXECUTABLE, NOT_FOUND, KILLED = 126, 127, 128
"""Exit statuses as in shells. The last one is added to the number of a signal."""
SHORTEST_LOOK, LONGEST_LOOK, GROWTH = 0.002, 0.05, 1.3
"""Seconds between two checks for the end of the command, and their growth. The first pause is short, for short commands."""
PASSED_ON = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1),
        *(signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT),
    }
)
FROM_TERMINAL = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP})
"""Signals that a terminal sends to every process of its foreground group."""
FROM_HANG_UP = frozenset({signal.SIGHUP, signal.SIGCONT})
"""Signals that the system sends only to the session leader when a terminal is closed."""
IGNORED_BY_PYTHON = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name))
JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
SHELL, BEGINNING = "/bin/sh", 128
"""Interpreter of scripts without a ``#!`` line, and the number of bytes at a file's beginning that are searched for NUL.

A file with a NUL byte there is no script.
"""


class CommandError(AccelMetricsError):
    """The command could not be started. ``status`` is the exit status of a shell in this case."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        if missing and "/" in command and Path(command).exists():
            words = f"cannot run {command}: the interpreter that its first line names does not exist"
        else:
            words = f"command not found: {command or repr('')}" if missing else f"cannot run {command}: {error.strerror or error}"
        super().__init__(words)
        self.status = NOT_FOUND if missing else NOT_EXECUTABLE


class Signals:
    """Queue of the signals to pass on to a command. During the block they are blocked, and have no effect on this process.

    The command already has a signal that the terminal sent. Linux reports the sender. Elsewhere a signal counts as sent by
    the terminal if the terminal could have sent it.

    Args:
        reported: Whether the system reports the sender. Only tests set it.

    Attributes:
        before: The signals that were blocked before the block.
        defaults: The signals for which the command gets the default action.
    """

    def __init__(self, reported: bool = hasattr(signal, "sigtimedwait")) -> None:
        self.before: frozenset[int] = frozenset()
        self.defaults: tuple[int, ...] = IGNORED_BY_PYTHON
        self._reported = reported
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.before = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON))
        if not self._reported and signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL:
            # Some systems drop a blocked signal if its default is to be ignored. With a handler they keep it.
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda number, frame: None)
        if signal.getsignal(signal.SIGTTOU) == signal.SIG_DFL:
            # Else drawing the live line stops this process if the command has put another job into the foreground.
            self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            self.defaults = (*IGNORED_BY_PYTHON, signal.SIGTTOU)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # While SIGCHLD is ignored, the system discards exit statuses, and wait4 fails.
            self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self.next():
            pass
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def next(self) -> tuple[int, bool] | None:
        """Return the next pending signal, without waiting, and whether the terminal sent it to the command too."""
        if self._reported:
            # Only with a timeout of 0: with a longer one, Python returns uninitialised memory if a stop of the process outlasts it.
            found = signal.sigtimedwait(PASSED_ON, 0)
            if found is None or found.si_signo not in PASSED_ON:
                return None
            number, by_system = found.si_signo, found.si_code > 0
        else:
            pending = signal.sigpending() & PASSED_ON
            if not pending:
                return None
            number = signal.sigwait(pending)
            by_system = number in FROM_TERMINAL and terminal_group() == os.getpgrp()
        leads = number in FROM_HANG_UP and os.getsid(0) == os.getpid()  # a hang-up reaches only the session leader, not the command
        return number, by_system and not leads


def terminal_group() -> int | None:
    """Return the foreground process group of this process's terminal; None without a terminal, -1 if the terminal is closed."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(descriptor)
    except OSError:  # the terminal is closed
        return -1
    finally:
        os.close(descriptor)


def start(command: Sequence[str], signals: Signals, environment: Mapping[str, str], redirected: Mapping[int, int]) -> int:
    """Start a command with this process's standard streams and return its process id.

    Args:
        command: The program, looked up on ``PATH`` if it has no slash, and its arguments.
        signals: The signals' state before the block, which the command gets.
        environment: Variables to add to the command's environment.
        redirected: Descriptors of this process for the command to use instead, by the command's descriptor.

    Raises:
        CommandError: The command cannot be started.
    """
    if not command[0]:
        raise CommandError("", FileNotFoundError())
    variables = {**os.environ, **environment}
    attributes: dict[str, Any] = {"setsigmask": signals.before, "setsigdef": signals.defaults}
    attributes["file_actions"] = [(os.POSIX_SPAWN_DUP2, ours, number) for number, ours in redirected.items()]
    try:
        try:
            return os.posix_spawnp(command[0], list(command), variables, **attributes)
        except OSError as error:
            # Shells, env and timeout run an executable text file without a ``#!`` line with the system's shell.
            path = shutil.which(command[0]) if error.errno == errno.ENOEXEC else None
            if path is None:
                raise
            with Path(path).open("rb") as file:
                if b"\0" in file.read(BEGINNING):
                    raise
            return os.posix_spawn(SHELL, [SHELL, path, *command[1:]], variables, **attributes)
    except OSError as error:
        raise CommandError(command[0], error) from error


def attend(
    pid: int, began: float, signals: Signals, on_look: Callable[[], None], on_stop: Callable[[], None]
) -> tuple[int, str, float, float]:
    """Wait for the end of a command, and pass signals on to it meanwhile.

    Args:
        pid: The command's process id.
        began: Its start on the monotonic clock.
        signals: The signals to pass on.
        on_look: Called a few times a second.
        on_stop: Called before this process stops because Ctrl-Z stopped the command.

    Returns:
        The exit status, or 128 plus the number of the signal that ended the command; the name of this signal, empty for
        none; the duration in seconds; and the CPU time in seconds of the command and of the descendants that it waited for.
    """

    def send(number: int) -> None:
        with suppress(OSError):  # a command that runs as another user, such as sudo, cannot be sent signals
            os.kill(pid, number)

    pause = SHORTEST_LOOK
    while True:
        changed, state, used = os.wait4(pid, os.WNOHANG | os.WUNTRACED)
        if changed and not os.WIFSTOPPED(state):
            break
        if changed and os.WSTOPSIG(state) in JOB_CONTROL and terminal_group() is not None:
            # Stop this process too, so that the shell gets its terminal back. Both continue together.
            on_stop()
            os.kill(os.getpid(), signal.SIGSTOP)
            send(signal.SIGCONT)
        on_look()
        arrived = signals.next()
        if arrived is None:
            time.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_LOOK)
        elif not arrived[1]:
            send(arrived[0])
    seconds = time.monotonic() - began
    status, name = os.waitstatus_to_exitcode(state), ""
    if status < 0:
        status, name = KILLED - status, f"signal {-status}"
        with suppress(ValueError):  # a real-time signal has no name
            name = signal.Signals(os.WTERMSIG(state)).name
    return status, name, seconds, used.ru_utime + used.ru_stime
