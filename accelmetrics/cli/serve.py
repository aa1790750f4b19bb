"""``accelmetrics serve``: the readings over HTTP, for Prometheus and other clients."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import (
    NOTIFY_TEST,
    Stop,
    begin,
    checked,
    claim_sources,
    exporters,
    handling,
    monitor,
    notify_test,
    tell,
    tell_losses,
    until_stopped,
)
from accelmetrics.cli.node_log import NodeLog
from accelmetrics.cli.output import Stdout, folder_for
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import AccelMetricsError, without_passwords
from accelmetrics.schemas.log import log
from accelmetrics.visibility.attribution import Attribution

if TYPE_CHECKING:
    from accelmetrics.exporters.prometheus import PrometheusExporter
    from accelmetrics.monitor.monitor import Monitor
    from accelmetrics.monitor.node_state import NodeState
    from accelmetrics.schemas.record import Record
    from accelmetrics.views.page.documents import NodeDocuments

PAGE_CONNECTIONS = 1024
"""Maximum number of open connections with ``--ui``, if the process may open four times as many files.

Half of them may come from one address, such as a proxy's.
"""
PATIENCE = 30.0
"""Seconds, in addition to three intervals, that may pass between two readings. Drivers may take this long to open."""
HANG_UP = tuple(getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name))
LOGGING = frozenset({"log_format", "log_level"})
"""Options that take effect on a reload without a restart of the monitor."""
EXAMPLES = """\
  accelmetrics serve
      http://127.0.0.1:22235/metrics
  accelmetrics serve --listen 0.0.0.0:22235 --tls-cert server.pem --auth users
  accelmetrics serve --ui
      a page for people at http://127.0.0.1:22235/ (docs/page.md)
  accelmetrics serve --keys dcgm
      for dashboards that were made for DCGM
  accelmetrics serve --share --share-group users
      jobs with share="node" read nothing themselves (docs/sharing.md)
  accelmetrics serve --make-password prometheus >> users
      a line of the file that --auth takes

paths:
  /metrics        for Prometheus (text or OpenMetrics); the command itself is
                  accelmetrics_process_*
  /               the page, with --ui; it reads /api/state, /api/history and
                  /api/updates (docs/page.md)
  /api/snapshot   the latest reading, as `accelmetrics dump --json` prints it
  /api/record     the same with findings, holders and labels
  /api/summary    the node in a few numbers
  /-/healthy      200 while it answers, without a password
  /-/ready        200 after the first reading, 503 before, without a password

Metrics of a watched process, such as `cpu`, need --pid.

SIGHUP reads the configuration file, certificates and passwords again. If they
are invalid, nothing changes.

It runs until Ctrl-C or SIGTERM. Exit status: 0; 1 if it cannot listen, or an
exporter lost records (a line says how many); 2 for invalid arguments."""
OPTIONS: arguments.Groups = {
    "the endpoint": {
        **arguments.flags(settings.ENDPOINT),
        "--make-password": {"metavar": "USER", "help": "ask for a password and print the line for the --auth file, then exit"},
    },
    "the page": arguments.flags(settings.PAGE),
    "who holds the devices": arguments.flags(settings.HOLDERS),
    "the readings": arguments.watching("serve"),
    "where else they go": {**arguments.flags(settings.EXPORTING, "serve"), **NOTIFY_TEST},
    arguments.READ: arguments.READING,
}


def run(options: Namespace, out: Stdout) -> int:
    """Serve until stopped. SIGHUP reloads the configuration, and restarts the monitor if an option has changed.

    Returns:
        1 if an exporter lost records, else 0.
    """
    if options.notify_test:
        return notify_test(options)
    if options.make_password is not None:
        out.write(_password_line(options.make_password))
        return 0
    hung_up, manager = Stop(), ServiceManager()
    before: Namespace | None = None  # the options to return to if the new ones cannot be used
    state: NodeState | None = None  # the state from before the last reload
    node_log = NodeLog()
    lost = False
    with until_stopped() as stopped, handling(lambda number, _: hung_up.ask(number), *HANG_UP):
        while True:
            try:
                with _serving(options, out, stopped, node_log, state) as (watching, endpoint, state):
                    before = None
                    manager.tell("READY=1", f"STATUS=serving {endpoint.address}")
                    changed = _wait(options, stopped, hung_up, watching, endpoint, manager)
            except (AccelMetricsError, arguments.UsageError) as error:
                if before is None:
                    raise
                log.error("the configuration cannot be used, the former one stays in use: %s", without_passwords(str(error)))
                options, before = before, None  # an error with the former options ends the command
                continue
            lost = tell_losses(watching) or lost
            if changed is None:
                return int(lost)
            options, before = changed, options


def _wait(
    options: Namespace, stopped: Stop, hung_up: Stop, watching: Monitor, endpoint: PrometheusExporter, manager: ServiceManager
) -> Namespace | None:
    """Wait until stopped, or until a reload finds changed options. Return these options; None if stopped."""
    ticks = 0
    while not stopped.wait(Stop.STEP):
        manager.beat(watching.status.ticks, bool(watching.error), options.interval)
        if options.ui and watching.status.ticks != ticks:  # the page shows the steps that programs log
            ticks = watching.status.ticks
            watching.collect_program_steps()
        if not hung_up.signal:
            continue
        hung_up.signal = 0
        # The protocol of sd_notify(3) for a reload: this with the time, and READY=1 when it is done.
        manager.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        files = endpoint.reload()
        try:
            again = _read_again(options)
        except (AccelMetricsError, arguments.UsageError) as error:
            log.error("the configuration cannot be used, the former one stays in use: %s", without_passwords(" ".join(str(error).split())))
            again = options
        else:
            changed = sorted(name for name, value in again.chosen.items() if options.chosen[name] != value)
            words = ", ".join([*changed, *files])
            log.info("configuration reloaded: %s", f"{words} changed" if words else "nothing has changed")
            if not LOGGING.issuperset(changed):
                return again
            begin(again, "serve")
            options = again
        manager.tell("READY=1")
    manager.tell("STOPPING=1")
    return None


def _read_again(options: Namespace) -> Namespace:
    """Return the options of this command line with the current configuration file. The run keeps its id.

    Raises:
        InvalidOptionError: A value in the file cannot be used.
        UnknownNameError: The file has an unknown key.
    """
    parser = arguments.Parser.for_command("serve", "serve", EXAMPLES)
    parser.add_options(OPTIONS)
    again = parser.parse_strictly(options.arguments)
    arguments.configure("serve", again, OPTIONS)
    again.arguments = options.arguments
    again.labels = {"run_id": options.labels["run_id"], **again.labels}
    return again


@contextmanager
def _serving(
    options: Namespace, out: Stdout, stopped: Stop, node_log: NodeLog, before: NodeState | None
) -> Iterator[tuple[Monitor, PrometheusExporter, NodeState]]:
    """Read and serve during the block. Yield the monitor, the endpoint and the state.

    Args:
        options: The command's options.
        out: Standard output, for exporters.
        stopped: The request to end.
        node_log: The log of events, which continues over reloads.
        before: The state before a reload, to continue from; None at the start.

    Raises:
        AccelMetricsError: The endpoint cannot listen, or an option cannot be used.
    """
    from accelmetrics.exporters.registry import exporting, load
    from accelmetrics.monitor.job_summaries import JobSummaries
    from accelmetrics.monitor.node_state import NodeState
    from accelmetrics.schemas.catalogue.host import PROCESS
    from accelmetrics.visibility.processes import process_labels

    endpoint = cast(
        "PrometheusExporter",
        load("prometheus")(
            options.listen,
            dialect=options.keys,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            tls_client_ca=options.tls_client_ca,
            tls_client_names=options.tls_client_names,
            auth_file=options.auth,
            bearer_token_file=options.bearer_token_file,
            allowed_hosts=",".join(options.allowed_hosts),
            per_link=options.per_link,
            processes=options.processes,
            process_labels=process_labels(map(str.strip, options.process_labels.split(","))) if options.process_labels else None,
            max_age=options.max_age,
            max_series=options.max_series,
            own_process=True,
        ),
    )
    arguments.refuse(
        (options.show_commands and not options.ui, "--show-commands is for --ui"),
        ("--history" in options.flags_given and not options.ui, "--history is for --ui"),
        (bool(options.state) and sys.platform == "win32", "--state needs a POSIX system, where files have owners"),
    )
    documents = _documents(options, endpoint)
    # Keys about the watched process. By default that is this command, which the endpoint describes under accelmetrics_process_*, so these
    # keys are left out below. A row without a Prometheus name repeats another row in another unit.
    own = {row.key for row in PROCESS if not row.prometheus or row.prometheus.startswith("accel_host_process_")}

    state = NodeState(options.state, before)
    if options.isolation != "process":  # a child process takes the readings, and does not see this process's counts
        state.follow_kernel_log()

    def serve(record: Record) -> None:
        node_log.take(record)
        node_log.of_kernel(state.take(record))
        if not options.pid:  # the watched process is this command
            taken = record.snapshot
            metrics = {key: value for key, value in taken.metrics.items() if key not in own}
            reasons = {key: why for key, why in taken.unavailable.items() if key not in own}
            record = record._replace(snapshot=taken.with_values(metrics, reasons))
        documents.take(record)
        endpoint.export(record)

    # Only a folder that the user names is made: the default one need not exist.
    if options.attribution in {"auto", "slurm"} and options.summaries != settings.SUMMARIES:
        folder_for(options.summaries)
    with closing(endpoint), checked(options, stopped):
        attribution = Attribution()
        endpoint_sink = exporting("prometheus", serve, processes=options.processes or int(options.ui))
        watching = monitor(options, [endpoint_sink, *exporters(options, out)], attribution=attribution, **_sharing(options))
        watching.restore_findings(state.findings)
        summaries = JobSummaries(watching, options.summaries, earlier=state.jobs)
        state.keep(summaries)
        attribution.sources += claim_sources(options, summaries)
        # The endpoint opens before the monitor starts, so that a port in use ends the command, with one message.
        try:
            endpoint.open()
        except OSError as error:
            raise AccelMetricsError(f"cannot listen on {endpoint.address}: {error.strerror or error}") from error
        with watching, closing(summaries), closing(state), attribution:
            base = f"{'https' if options.tls_cert else 'http'}://{endpoint.address}"
            tell(f"serving {base}/metrics", f"accelmetrics serve: {base}/metrics", data={"address": f"{base}/metrics"})
            if options.ui:
                tell(f"the page is {base}/", f"the page: {base}/", data={"page": f"{base}/"})
            yield watching, endpoint, state


def _documents(options: Namespace, endpoint: PrometheusExporter) -> NodeDocuments:
    """Return the node's documents, after adding their paths to the endpoint, and the page's with ``--ui``."""
    from accelmetrics.views.page.documents import NodeDocuments, file_routes

    documents = NodeDocuments(
        options.interval, page=options.ui, commands=options.show_commands, max_age=options.max_age, kept=options.page_history
    )
    endpoint.routes += documents.routes
    if options.ui:
        endpoint.routes = [route for route in endpoint.routes if route[0] != "/"] + [*file_routes()]
        endpoint.limits = replace(endpoint.limits, connections=PAGE_CONNECTIONS)
        # Raise the limit of open files. The usual soft limit is 1024 only for programs that use ``select``.
        with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            number = 4 * PAGE_CONNECTIONS if hard == resource.RLIM_INFINITY else min(4 * PAGE_CONNECTIONS, hard)
            if soft != resource.RLIM_INFINITY and soft < number:
                resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    return documents


def _sharing(options: Namespace) -> dict[str, Any]:
    """Return the monitor's argument ``share``, by which it reads for other processes; empty without ``--share``.

    Raises:
        AccelMetricsError: The directory cannot be used.
        InvalidOptionError: There is no group of this name.
        UsageError: ``--share-group`` is given without ``--share``.
    """
    if not options.share_directory:
        if "--share-group" in options.flags_given:
            raise arguments.UsageError("--share-group is for --share")
        return {}
    from accelmetrics.sampling.node import daemon_place

    place = daemon_place(options.share_directory, options.share_group or "", arguments.reading(options))
    tell(f"reading for others in {options.share_directory}", data={"share": options.share_directory})
    return {"share": place}


def _password_line(user: str) -> str:
    from accelmetrics.exporters.http.access import password_line

    if sys.stdin is None:
        raise arguments.UsageError("standard input is closed: the password is read from it")
    password = ""
    try:
        if sys.stdin.isatty():
            import getpass

            with suppress(EOFError):
                password = getpass.getpass(f"password of {user}: ", sys.stderr)
        else:
            password = sys.stdin.buffer.readline().removesuffix(b"\n").decode()
        line = password_line(user, password) + "\n"
    except UnicodeError:
        raise arguments.UsageError("the password is not UTF-8: clients cannot send it") from None
    except (OSError, ValueError) as error:
        raise arguments.UsageError(f"cannot make a password line for {user!r}: {error}") from None
    if not password:
        raise arguments.UsageError("the password is empty: write it as a line to standard input")
    return line


class ServiceManager:
    """Client of the service manager at ``NOTIFY_SOCKET``. Without this variable it sends nothing.

    The protocol is that of ``sd_notify(3)``: datagrams of ``NAME=value`` lines.
    """

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        period = os.environ.get("WATCHDOG_USEC", "")
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # WATCHDOG_PID tells a child process, which inherits the variables, that the watchdog is not for it. With three beats in
        # a period, one that comes late does no harm.
        self._period = int(period) / 1e6 / 3 if period.isdecimal() and mine else 0.0
        self._count, self._counted, self._beaten = -1, 0.0, float("-inf")

    def tell(self, *lines: str) -> None:
        """Send lines in one datagram. An error is ignored: systemd acts on the datagrams that it receives."""
        if not self._address.startswith(("/", "@")):
            return
        # A leading @ marks an abstract socket, whose address begins with a zero byte.
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), where)

    def beat(self, readings: int, failing: bool, interval: float) -> None:
        """Report that the service is alive, three times per watchdog period, unless readings have stopped.

        Args:
            readings: Number of readings up to now.
            failing: Whether the monitor reports an error, which explains missing readings.
            interval: Seconds between readings.
        """
        if not self._period:
            return
        now = time.monotonic()
        if readings != self._count or failing:
            self._count, self._counted = readings, now
        if now - self._beaten >= self._period and now - self._counted <= 3 * interval + PATIENCE:
            self._beaten = now
            self.tell("WATCHDOG=1")
