"""A runtime's metrics service: a real gRPC server whose answers a test changes while it runs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from functools import lru_cache
from typing import Any

import grpc

from tests.simulators.tpu.encode import About, Said, asked_for, entry, response, supported

SERVICE = "tpu.monitoring.runtime.RuntimeMetricService"
TOTAL = "tpu.runtime.hbm.memory.total.bytes"
USAGE = "tpu.runtime.hbm.memory.usage.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
IDLE = "tpu.runtime.tensorcore.idle_duration.seconds"
HBM_UTILIZATION = "tpu.runtime.hbm.utilization.percent"
QUEUE = "hlo.queue.size.gauge"


class RefusalError(Exception):
    """What a call is to be refused with."""

    def __init__(self, status: str, details: str = "as the test wants it") -> None:
        super().__init__(status)
        self.status = grpc.StatusCode[status]
        self.details = details


Answer = bytes | RefusalError


@lru_cache(maxsize=1)
def has_ipv6() -> bool:
    """Whether localhost has an address of version 6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class TpuRuntime:
    """The service that one program serves on one port.

    Attributes:
        answers: By metric, the answer; any other is refused as unknown.
        listing: What is answered to the question what there is; None: whatever has an answer.
        delay: Seconds before each answer.
        requests: The metrics asked for, in order.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.listing: Answer | None = None
        self.delay = 0.0
        self.requests: list[str] = []
        self.port = 0
        self._server: Any = None
        self._going = threading.Event()
        self._going.set()
        self.start()

    def start(self) -> None:
        """Listen on both of localhost's addresses, on the same port as before if there was one."""
        while not self._listen():
            assert not self.port, f"port {self.port} was taken by another program"

    def _listen(self) -> bool:
        # One more than there are metrics, so that hung calls leave room for new ones.
        server = grpc.server(futures.ThreadPoolExecutor(48), options=[("grpc.so_reuseport", 0)])
        handlers = {
            "GetRuntimeMetric": grpc.unary_unary_rpc_method_handler(self._get),
            "ListSupportedMetrics": grpc.unary_unary_rpc_method_handler(self._list),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = server.add_insecure_port(f"127.0.0.1:{self.port}")
            if has_ipv6():
                server.add_insecure_port(f"[::1]:{port}")
        except RuntimeError:
            return False
        self.port, self._server = port, server
        server.start()
        return True

    def stop(self) -> None:
        """End, as the program that holds the TPU does: connections are cut."""
        self._going.set()
        if self._server is not None:
            self._server.stop(None).wait(5)
        self._server = None

    def hang(self) -> None:
        """Answer nothing from now on, and keep the connections open."""
        self._going.clear()

    def release(self) -> None:
        """Answer again."""
        self._going.set()

    def gauge(self, name: str, values: Mapping[int, Said], key: str = "device-id", seconds: int = 0) -> None:
        """Set a metric of devices, by the runtime's number."""
        self.answers[name] = response(name, *(entry(About(key, number), said, seconds) for number, said in values.items()))

    def labelled(self, name: str, values: Mapping[str, Said], key: str = "buffer-size") -> None:
        """Set a metric of labelled things, such as transfers by the size of their buffers."""
        self.answers[name] = response(name, *(entry(About(key, ((key, label),)), said) for label, said in values.items()))

    def devices(self, *numbers: int) -> None:
        """Have these devices, with numbers of their own: 16 GiB, of which each uses another GiB more."""
        self.gauge(TOTAL, dict.fromkeys(numbers, 16 * 2**30))
        self.gauge(USAGE, {number: (place + 1) * 2**30 for place, number in enumerate(numbers)})
        self.gauge(DUTY_CYCLE, {number: 10.5 + place for place, number in enumerate(numbers)})
        self.gauge(IDLE, {number: 0.25 + place for place, number in enumerate(numbers)})
        self.gauge(HBM_UTILIZATION, {number: 20.5 + place for place, number in enumerate(numbers)})

    def _get(self, request: bytes, context: Any) -> bytes:
        name = asked_for(request)
        self.requests.append(name)
        return self._answer(self.answers.get(name, RefusalError("NOT_FOUND", f"no metric {name}")), context)

    def _list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        return self._answer(supported(list(self.answers)) if self.listing is None else self.listing, context)

    def _answer(self, answer: Answer, context: Any) -> bytes:
        time.sleep(self.delay)
        self._going.wait(30)
        if isinstance(answer, RefusalError):
            context.abort(answer.status, answer.details)
        assert isinstance(answer, bytes)
        return answer
