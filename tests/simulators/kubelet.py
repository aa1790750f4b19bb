"""A kubelet's pod-resources socket: a real gRPC server, whose answer a test changes while it runs.

Messages are put together by the numbers of ``k8s.io/kubelet/pkg/apis/podresources/v1``, with the fields that accelmetrics does not read; it
shares nothing with the package's reader.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from tests.simulators.tpu.encode import block, string, whole

SERVICE = "v1.PodResourcesLister"


class Dynamic(NamedTuple):
    """What dynamic resource allocation gave a container."""

    claim: str
    namespace: str
    driver: str
    pool: str
    device: str


def container(name: str, devices: Mapping[str, Sequence[str]], dynamic: Sequence[Dynamic] = ()) -> bytes:
    """A ``ContainerResources``: by resource, the ids of its devices."""
    given = [
        # topology: the NUMA node, which is not read.
        block(2, string(1, resource), *(string(2, one) for one in ids), block(3, block(1, whole(1, 0))))
        for resource, ids in devices.items()
    ]
    claims = [
        block(
            5,
            string(2, one.claim),
            string(3, one.namespace),
            block(
                4,
                block(1, string(1, f"k8s.{one.driver}/claim={one.device}")),
                string(2, one.driver),
                string(3, one.pool),
                string(4, one.device),
            ),
        )
        for one in dynamic
    ]
    return block(3, string(1, name), *given, block(3, whole(1, 0), whole(1, 1)), block(4, string(1, "memory"), whole(2, 1 << 30)), *claims)


def pod(name: str, namespace: str, *containers: bytes) -> bytes:
    """A ``PodResources`` of a ``ListPodResourcesResponse``."""
    return block(1, string(1, name), string(2, namespace), *containers)


class Kubelet:
    """Serves on a socket while the block runs.

    Attributes:
        answer: What ``List`` answers.
        asked: How often it was asked.
    """

    def __init__(self, socket: Path, *pods: bytes) -> None:
        self.socket = socket
        self.answer = b"".join(pods)
        self.asked = 0
        self._going = threading.Event()
        self._going.set()

    def _list(self, request: bytes, _: Any) -> bytes:
        assert request == b"", "ListPodResourcesRequest has no fields"
        self.asked += 1
        self._going.wait()
        return self.answer

    def hang(self) -> None:
        """Answer nothing from now on."""
        self._going.clear()

    def release(self) -> None:
        """Answer again."""
        self._going.set()

    def __enter__(self) -> Kubelet:
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        handlers = {"List": grpc.unary_unary_rpc_method_handler(self._list)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._going.set()
        self._server.stop(None).wait(5)
