"""The runtime's metrics service: the gRPC server that libtpu runs inside the program that holds the TPU.

One program serves one port, ``localhost:8431`` unless ``TPU_RUNTIME_METRICS_PORTS`` says otherwise; several programs on one
machine serve several. All are asked side by side: one that does not answer costs the others nothing. A connection attempt
gets 250 ms, a call 500 ms, and what a port serves is asked first where the runtime can say it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import Clock
from accelmetrics.backends.tpu.messages import MetricMessage, message_classes, metric_request, metric_response, supported_metrics
from accelmetrics.schemas.errors import Reason, Unavailable

HOST = "localhost"
DEFAULT_PORT = 8431
PORTS_VARIABLE = "TPU_RUNTIME_METRICS_PORTS"
MAX_PORTS = 64
SERVICE = "/tpu.monitoring.runtime.RuntimeMetricService"

CONNECT_TIMEOUT = 0.25
CALL_TIMEOUT = 0.5
LIST_TIMEOUT = 0.25
LIST_INTERVAL = 30.0
"""Seconds after which a runtime is asked again what it serves: some metrics begin with the first transfer."""
LONGEST_DETAIL = 200

OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy for the outside world has no part in a talk with ourselves
    ("grpc.use_local_subchannel_pool", 1),  # a port that comes back must not wait for an older channel's back-off
    ("grpc.max_receive_message_length", 1024 * 1024),
)
REASONS: Mapping[str, Reason] = {
    "UNIMPLEMENTED": Reason.NOT_SUPPORTED,
    "NOT_FOUND": Reason.NOT_SUPPORTED,
    "INVALID_ARGUMENT": Reason.NOT_SUPPORTED,
    "DEADLINE_EXCEEDED": Reason.TIMED_OUT,
    "UNAVAILABLE": Reason.DRIVER_UNAVAILABLE,
    "PERMISSION_DENIED": Reason.NO_PERMISSION,
    "UNAUTHENTICATED": Reason.NO_PERMISSION,
}
"""By gRPC status; any other is a ``driver_error``."""

MetricAnswer = list[MetricMessage] | Unavailable
"""A runtime's entries of one metric, or why there are none."""

PortAnswers = tuple[int, Unavailable | None, Mapping[str, MetricAnswer]]
"""The number of a port, why it gave no answers (None when the runtime answered), and its answers by the runtime's names."""


def ports(text: str) -> tuple[int, ...]:
    """List the ports to ask: the usual one, and those that the variable lists. What is no port is passed over."""
    listed = [int(word) for word in text.replace(",", " ").split() if word.isascii() and word.isdecimal() and len(word) <= 5]
    usable = dict.fromkeys((DEFAULT_PORT, *(port for port in listed if 0 < port < 2**16)))
    return tuple(usable)[:MAX_PORTS]


class Runtimes:
    """All ports of this machine.

    Args:
        numbers: The ports.
        clock: What the age of a list of metrics is measured on.

    Raises:
        ImportError: grpcio or protobuf is not installed.
    """

    def __init__(self, numbers: Sequence[int], clock: Clock) -> None:
        import grpc  # the extra; a tenth of a second, and threads of its own from the first channel on

        message_classes()
        self._clock = clock
        self._ports = [_Port(number, grpc) for number in numbers]

    def ask(self, names: Sequence[str], progress: list[Any]) -> list[PortAnswers]:
        """Ask every port for so many metrics, all at once."""
        now = self._clock.monotonic()
        for port in self._ports:
            port.connect(now)
        for port in self._ports:
            port.ask(names, progress)
        return [port.take(progress) for port in self._ports]

    def close(self) -> None:
        """Close all connections."""
        for port in self._ports:
            port.disconnect()


class _Port:
    """One port, the connection to it while there is one, and the calls in progress."""

    def __init__(self, number: int, grpc: Any) -> None:
        self._number = number
        self._address = f"{HOST}:{number}"
        self._grpc = grpc
        self._channel: Any = None
        self._serves: frozenset[str] = frozenset()
        self._list_due = 0.0
        self._list: Any = None
        self._calls: dict[str, Any] = {}
        self._failure: Unavailable | None = None

    def connect(self, now: float) -> None:
        """Have a connection if there is a runtime, and begin to ask what it serves if that is due."""
        self._failure = self._knock() if self._channel is None else None
        if self._failure is not None:
            return
        if self._channel is None:
            self._channel = self._grpc.insecure_channel(self._address, options=OPTIONS)
            self._serves, self._list_due = frozenset(), 0.0
        if now >= self._list_due:
            self._list_due = now + LIST_INTERVAL
            self._list = self._channel.unary_unary(f"{SERVICE}/ListSupportedMetrics").future(b"", timeout=LIST_TIMEOUT)

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _knock(self) -> Unavailable | None:
        """Say why nothing listens on a port, if so. A bare connection says so at once, a gRPC channel only after its own attempts."""
        try:
            socket.create_connection((HOST, self._number), CONNECT_TIMEOUT).close()
        except ConnectionRefusedError:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {self._address}")
        except TimeoutError:
            return Unavailable(Reason.TIMED_OUT, f"{self._address} accepts no connection")
        except OSError as error:
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"{self._address}: {error.strerror or error}")
        return None

    def ask(self, names: Sequence[str], progress: list[Any]) -> None:
        """Begin to ask for every metric that it may serve, once it has said what that is."""
        if self._list is not None:
            answer, self._list = self._result(self._list), None
            progress.append(self._number)
            # An older runtime cannot list; one that does not answer is not asked for more this time.
            if isinstance(answer, bytes):
                self._serves = supported_metrics(answer)
            elif answer.reason == Reason.TIMED_OUT:
                self._failure = answer
        self._calls = {}
        if self._failure is None:
            call = self._channel.unary_unary(f"{SERVICE}/GetRuntimeMetric")
            served = [name for name in names if name in self._serves] or names
            self._calls = {name: call.future(metric_request(name), timeout=CALL_TIMEOUT) for name in served}

    def take(self, progress: list[Any]) -> PortAnswers:
        """Wait for the answers, which end at their deadlines."""
        answers: dict[str, MetricAnswer] = {}
        for name, call in self._calls.items():
            result = self._result(call)
            try:
                answers[name] = result if isinstance(result, Unavailable) else metric_response(result)
            except ValueError as error:
                answers[name] = Unavailable(Reason.PARSE_ERROR, f"{self._address} answered what is not understood: {error}")
            progress.append(name)
        failures = [answer for answer in answers.values() if isinstance(answer, Unavailable)]
        reasons = {failure.reason for failure in failures}
        if failures and len(failures) == len(answers) and len(reasons) == 1:
            if failures[0].reason == Reason.DRIVER_UNAVAILABLE:
                # Nothing came through: the program has ended, or what listens there is no runtime.
                self.disconnect()
                return self._number, self._knock() or failures[0], {}
            if failures[0].reason == Reason.TIMED_OUT:
                self._failure = failures[0]
        return self._number, self._failure, answers

    def _result(self, call: Any) -> bytes | Unavailable:
        try:
            error = call.exception()
        except self._grpc.FutureCancelledError:
            return Unavailable(Reason.DRIVER_ERROR, f"{self._address}: the call was cancelled")
        if error is None:
            return bytes(call.result())
        status = error.code().name
        detail = f"{self._address}: {status}: {error.details() or ''}".rstrip(": ")
        return Unavailable(REASONS.get(status, Reason.DRIVER_ERROR), detail[:LONGEST_DETAIL])
