"""Containers and their devices, from the socket of this node's kubelet: ``v1.PodResourcesLister/List``.

Several containers may share a device by time slices or MPS. It then has an id for each share: ``<uuid>::<n>``. Devices of dynamic resource
allocation have names that only the cluster's ResourceSlices explain. They are not resolved, and the log names them.
"""

from __future__ import annotations

import re
from pathlib import Path

from accelmetrics.backends.kit.system import PCI_ADDRESS
from accelmetrics.schemas.errors import Reason, SourceError, require
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.protobuf import parse_message
from accelmetrics.visibility.attribution import Claim, ClaimSource, DeviceRef, Listing

METHOD = "/v1.PodResourcesLister/List"
INTERVAL = 10.0
DEADLINE = 5.0
LARGEST_ANSWER = 16 * 1024 * 1024
MOST_PODS = 4096
LONGEST = 128

PACKAGE = "accelmetrics.podresources"
MESSAGES = """\
Answer: repeated Pod pods = 1
Pod: bytes name = 1; bytes namespace = 2; repeated Container containers = 3
Container: bytes name = 1; repeated Devices devices = 2; repeated Dynamic dynamic = 5
Devices: bytes resource = 1; repeated bytes ids = 2
Dynamic: bytes claim = 2; bytes namespace = 3; repeated Allocated allocated = 4
Allocated: bytes driver = 2; bytes pool = 3; bytes device = 4"""
"""The part of the messages of ``podresources/v1`` that is read."""

# GKE's plug-in names a GPU after its device node, with the GPU instance (gi) and the share of a time-sliced GPU (vgpu) behind.
_GKE = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,3}))?(?:/vgpu\d+)?", re.ASCII)
_TPU = "google.com/tpu"


def pod_source(socket: str, needed: bool = False) -> ClaimSource:
    """Return the source of containers' claims.

    Args:
        socket: The path of the kubelet's socket.
        needed: Whether a missing socket is a failure, because this machine is known to be a node of a cluster.
    """

    def read() -> Listing | None:
        return listing(ask(socket)) if needed or Path(socket).exists() else None

    return ClaimSource("kubernetes", INTERVAL, read)


def ask(socket: str) -> bytes:
    """Ask the kubelet once and return its encoded answer.

    Raises:
        SourceError: The kubelet does not answer, or refuses.
        MissingDependencyError: ``grpcio`` or ``protobuf`` is not installed.
    """
    grpc = require("grpc", "kubernetes", "grpcio")
    require("google.protobuf.message_factory", "kubernetes", "protobuf")
    options = (("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.enable_http_proxy", 0))
    # A new connection each time, because a restarted kubelet has another socket at the same path.
    with grpc.insecure_channel(f"unix://{Path(socket).absolute()}", options=options) as channel:
        try:
            return bytes(channel.unary_unary(METHOD)(b"", timeout=DEADLINE))
        except grpc.RpcError as error:
            code, words = error.code().name, str(error.details())[:LONGEST]
            denied = "ermission denied" in words
            reason = Reason.NO_PERMISSION if denied else Reason.DRIVER_UNAVAILABLE
            raise SourceError(reason, f"{socket}: {code}: {words}{' (only root may use the socket)' if denied else ''}") from error


def listing(answer: bytes) -> Listing:
    """Decode an answer of the kubelet.

    Raises:
        ValueError: It is malformed.
    """
    problems: list[str] = []
    pods = parse_message(PACKAGE, MESSAGES, "Answer", answer).pods
    if len(pods) > MOST_PODS:
        problems.append(f"the kubelet lists {len(pods)} pods: only the first {MOST_PODS} are read")
    claims: list[Claim] = []
    for pod in pods[:MOST_PODS]:
        for container in pod.containers:
            labels = {"pod": _text(pod.name), "namespace": _text(pod.namespace), "container": _text(container.name)}
            references = (device_of(_text(one.resource), _text(each)) for one in container.devices for each in one.ids)
            # A network interface, for example, is no device that this package reads, and is left out.
            if devices := dict.fromkeys(device for device in references if device is not None):
                claims.append(("pod", {name: value for name, value in labels.items() if value}, tuple(devices)))
            problems += [
                f"{labels['namespace']}/{labels['pod']} holds {_text(one.device) or 'a device'} of pool {_text(one.pool)} by the claim "
                f"{_text(claim.namespace)}/{_text(claim.claim)}: the device behind that name of {_text(one.driver)} is only in the "
                "cluster's ResourceSlices, which are not read"
                for claim in container.dynamic
                for one in claim.allocated
            ]
    return tuple(claims), tuple(problems)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")[:LONGEST]


def device_of(resource: str, name: str) -> DeviceRef | None:
    """Parse a device plug-in's id: a UUID, a PCI address, GKE's ``nvidia0`` or the number of a TPU. None for any other id.

    Args:
        resource: The resource that the pod asked for.
        name: The id.
    """
    whole = name.partition("::")[0]
    if whole.startswith(("GPU-", "MIG-")):
        return ("uuid", whole)
    if PCI_ADDRESS.fullmatch(address := pci_address(whole)):
        return ("pci", address)
    if found := _GKE.fullmatch(whole):
        return ("minor", found[1] + (f".{found[2]}" if found[2] else ""))
    return ("tpu", whole) if resource == _TPU and whole.isdecimal() else None
