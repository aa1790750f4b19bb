"""The runtime's metrics service: the gRPC server that libtpu runs inside the program that holds the TPU.

One program serves one port, ``localhost:8431`` unless ``TPU_RUNTIME_METRICS_PORTS`` says otherwise; several programs on one
machine serve several. All are asked side by side: one that does not answer costs the others nothing. A connection attempt
gets 250 ms, a call 500 ms, and what a port serves is asked first where the runtime can say it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.tpu.messages import GET_METRIC, LIST_METRICS, Entry, metric_request, metric_response, supported_metrics
from accelmetrics.backends.tpu.wire import WireError
from accelmetrics.schemas.reasons import Reason, Unavailable

HOST = "localhost"
DEFAULT_PORT = 8431
PORTS_VARIABLE = "TPU_RUNTIME_METRICS_PORTS"
MAX_PORTS = 64

CONNECT_TIMEOUT = 0.25
CALL_TIMEOUT = 0.5
LIST_TIMEOUT = 0.25
LIST_INTERVAL = 30.0
"""Seconds after which a runtime is asked again what it serves: some metrics begin with the first transfer."""
MAX_ANSWER = 4 * 1024 * 1024
LONGEST_DETAIL = 200

OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy for the outside world has no part in a talk with ourselves
    ("grpc.use_local_subchannel_pool", 1),  # a port that comes back must not wait for an older channel's back-off
    ("grpc.max_receive_message_length", MAX_ANSWER),
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

Answer = list[Entry] | Unavailable
"""What a runtime says of one metric, or why it says nothing."""


class PortAnswers(NamedTuple):
    """What came of asking one port.

    Attributes:
        port: The port.
        failure: Why nothing came of it; None when the runtime answered.
        metrics: By the runtime's name, what it says.
    """

    port: int
    failure: Unavailable | None
    metrics: Mapping[str, Answer]


def ports(text: str) -> tuple[int, ...]:
    """The ports to ask: the usual one, and those that the variable lists. What is no port is passed over."""
    listed = [int(word) for word in text.replace(",", " ").split() if word.isascii() and word.isdecimal() and len(word) <= 5]
    usable = dict.fromkeys((DEFAULT_PORT, *(port for port in listed if 0 < port < 2**16)))
    return tuple(usable)[:MAX_PORTS]


class Runtimes:
    """All ports of this machine.

    Args:
        numbers: The ports.
        clock: What the age of a list of metrics is measured on.

    Raises:
        ImportError: grpcio is not installed.
    """

    def __init__(self, numbers: Sequence[int], clock: Clock) -> None:
        import grpc  # the extra; a tenth of a second, and threads of its own from the first channel on

        self._clock = clock
        self._endpoints = [_Endpoint(port, grpc) for port in numbers]

    def ask(self, names: Sequence[str], progress: list[Any]) -> list[PortAnswers]:
        """Ask every port for so many metrics, all at once."""
        now = self._clock.monotonic()
        failures = {endpoint.port: endpoint.reach() for endpoint in self._endpoints}
        reached = [endpoint for endpoint in self._endpoints if failures[endpoint.port] is None]
        lists = [(endpoint, endpoint.ask_for_list()) for endpoint in reached if endpoint.list_is_due(now)]
        for endpoint, call in lists:
            failures[endpoint.port] = endpoint.take_list(call, now)
            progress.append(endpoint.port)
        reached = [endpoint for endpoint in reached if failures[endpoint.port] is None]
        calls = {endpoint.port: endpoint.ask(names) for endpoint in reached}
        taken = {endpoint.port: endpoint.take(calls[endpoint.port], progress) for endpoint in reached}
        return [taken.get(endpoint.port) or PortAnswers(endpoint.port, failures[endpoint.port], {}) for endpoint in self._endpoints]

    def close(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints:
            endpoint.disconnect()


class _Endpoint:
    """One port, and the connection to it while there is one."""

    def __init__(self, port: int, grpc: Any) -> None:
        self.port = port
        self._grpc = grpc
        self._channel: Any = None
        self._supported: frozenset[str] = frozenset()
        self._list_due = 0.0

    def reach(self) -> Unavailable | None:
        """Have a connection, or say why there is none."""
        if self._channel is not None:
            return None
        failure = self._knock()
        if failure is None:
            self._channel = self._grpc.insecure_channel(f"{HOST}:{self.port}", options=OPTIONS)
            self._supported, self._list_due = frozenset(), 0.0
        return failure

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _knock(self) -> Unavailable | None:
        """Whether anybody listens. A bare connection says so at once, a gRPC channel only after its own attempts."""
        try:
            socket.create_connection((HOST, self.port), CONNECT_TIMEOUT).close()
        except ConnectionRefusedError:
            return Unavailable(Reason.NOT_IN_USE, f"no runtime on {HOST}:{self.port}")
        except TimeoutError:
            return Unavailable(Reason.TIMED_OUT, f"{HOST}:{self.port} accepts no connection")
        except OSError as error:
            return Unavailable(Reason.DRIVER_UNAVAILABLE, f"{HOST}:{self.port}: {error.strerror or error}")
        return None

    def list_is_due(self, now: float) -> bool:
        """Whether to ask again what it serves."""
        return now >= self._list_due

    def ask_for_list(self) -> Any:
        """Begin to ask what it serves."""
        return self._channel.unary_unary(LIST_METRICS).future(b"", timeout=LIST_TIMEOUT)

    def take_list(self, call: Any, now: float) -> Unavailable | None:
        """Note what it serves. An older runtime cannot say; one that does not answer is not asked for more this time."""
        self._list_due = now + LIST_INTERVAL
        answer = self._result(call)
        if isinstance(answer, bytes):
            try:
                self._supported = supported_metrics(answer)
            except WireError:
                self._supported = frozenset()
            return None
        return answer if answer.reason == Reason.TIMED_OUT else None

    def ask(self, names: Sequence[str]) -> dict[str, Any]:
        """Begin to ask for every metric that it may serve."""
        serves = self._supported
        served = [name for name in names if name in serves] or names
        call = self._channel.unary_unary(GET_METRIC)
        return {name: call.future(metric_request(name), timeout=CALL_TIMEOUT) for name in served}

    def take(self, calls: Mapping[str, Any], progress: list[Any]) -> PortAnswers:
        """Wait for the answers, which end at their deadlines."""
        answers: dict[str, Answer] = {}
        for name, call in calls.items():
            answers[name] = self._answer(self._result(call))
            progress.append(name)
        reasons = {answer.reason if isinstance(answer, Unavailable) else "" for answer in answers.values()}
        told = next((answer for answer in answers.values() if isinstance(answer, Unavailable)), None)
        if told is not None and reasons == {Reason.DRIVER_UNAVAILABLE}:
            return PortAnswers(self.port, self._gone(told), {})
        return PortAnswers(self.port, told if reasons == {Reason.TIMED_OUT} else None, answers)

    def _gone(self, said: Unavailable) -> Unavailable:
        """Nothing came through: the program has ended, or what listens there is no runtime."""
        self.disconnect()
        return self._knock() or said

    def _answer(self, result: bytes | Unavailable) -> Answer:
        if isinstance(result, Unavailable):
            return result
        try:
            return metric_response(result)
        except WireError as error:
            return Unavailable(Reason.PARSE_ERROR, f"{HOST}:{self.port} answered what is not understood: {error}")

    def _result(self, call: Any) -> bytes | Unavailable:
        try:
            error = call.exception()
        except self._grpc.FutureCancelledError:
            return Unavailable(Reason.DRIVER_ERROR, f"{HOST}:{self.port}: the call was cancelled")
        if error is None:
            return bytes(call.result())
        status = error.code().name
        detail = f"{HOST}:{self.port}: {status}: {error.details() or ''}".rstrip(": ")
        return Unavailable(REASONS.get(status, Reason.DRIVER_ERROR), detail[:LONGEST_DETAIL])
