"""The kubelet's answer: read from a real gRPC server on a socket, and each way in which a plug-in may call a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.schemas.errors import SourceError
from accelmetrics.visibility import pod_resources
from accelmetrics.visibility.attribution import Claim, DeviceRef
from accelmetrics.visibility.pod_resources import ask, device_of, listing, pod_source
from tests.simulators.kubelet import Dynamic, Kubelet, container, pod

FIRST = "GPU-18ef2d05-33ca-4c1f-9f0b-6e1f4a3b2c1d"
INSTANCE = "MIG-6c4fd5a8-6ac3-5a2d-8a39-4a6b3a7f6f41"


def claim(name: str, namespace: str, inside: str, *devices: DeviceRef) -> Claim:
    return ("pod", {"pod": name, "namespace": namespace, "container": inside}, devices)


def test_pods_and_their_devices(tmp_path: Path) -> None:
    """Whole, shared and MIG devices; several containers of a pod; pods without any; other resources are passed over."""
    pods = [
        pod("train-0", "ml", container("main", {"nvidia.com/gpu": [FIRST], "rdma/hca": ["mlx5_0"]}), container("sidecar", {})),
        pod("serve-a", "ml", container("main", {"nvidia.com/gpu.shared": [f"{FIRST}::0", f"{FIRST}::3"]})),
        pod(
            "serve-b",
            "ml",
            container("main", {"nvidia.com/gpu.shared": [f"{FIRST}::1"]}),
            container("two", {"nvidia.com/mig-1g.10gb": [INSTANCE]}),
        ),
        pod("web", "default", container("nginx", {})),
    ]
    with Kubelet(tmp_path / "kubelet.sock", *pods) as kubelet:
        found = pod_source(str(kubelet.socket)).read()
        assert found == (
            (
                claim("train-0", "ml", "main", ("uuid", FIRST)),
                claim("serve-a", "ml", "main", ("uuid", FIRST)),
                claim("serve-b", "ml", "main", ("uuid", FIRST)),
                claim("serve-b", "ml", "two", ("uuid", INSTANCE)),
            ),
            (),
        )
        kubelet.answer = b""
        assert pod_source(str(kubelet.socket)).read() == ((), ())


def test_dynamic_resources_are_named(tmp_path: Path) -> None:
    """Which device `gpu-0` is, ResourceSlices say: it is told what is not known, and devices of plug-ins are still read."""
    dynamic = [Dynamic("claim-1", "ml", "gpu.nvidia.com", "node-7", "gpu-0")]
    with Kubelet(tmp_path / "kubelet.sock", pod("train-0", "ml", container("main", {"nvidia.com/gpu": [FIRST]}, dynamic))) as kubelet:
        found = pod_source(str(kubelet.socket)).read()
    assert found is not None
    assert found[0] == (claim("train-0", "ml", "main", ("uuid", FIRST)),)
    (problem,) = found[1]
    assert problem.startswith("ml/train-0 holds gpu-0 of pool node-7 by the claim ml/claim-1") and "ResourceSlices" in problem


@pytest.mark.parametrize(
    ("resource", "name", "device"),
    [
        ("nvidia.com/gpu", "nvidia3", ("minor", "3")),
        ("nvidia.com/gpu", "nvidia3/vgpu1", ("minor", "3")),
        ("nvidia.com/gpu", "nvidia0/gi7", ("minor", "0.7")),
        ("amd.com/gpu", "0000:C1:00.0", ("pci", "0000:c1:00.0")),
        ("google.com/tpu", "2", ("tpu", "2")),
        ("example.com/widget", "2", None),
        ("nvidia.com/gpu", "nvidiactl", None),
    ],
)
def test_what_plug_ins_call_devices(resource: str, name: str, device: DeviceRef | None) -> None:
    """NVIDIA's, GKE's, AMD's, Google's; nothing is guessed of others."""
    assert device_of(resource, name) == device


def test_no_socket(tmp_path: Path) -> None:
    """A machine without a kubelet; one that was to have one says so."""
    path = str(tmp_path / "kubelet.sock")
    assert pod_source(path).read() is None
    with pytest.raises(SourceError, match=r"kubelet\.sock: UNAVAILABLE"):
        pod_source(path, needed=True).read()


def test_a_kubelet_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question ends at its deadline."""
    monkeypatch.setattr(pod_resources, "DEADLINE", 0.2)
    with Kubelet(tmp_path / "kubelet.sock") as kubelet:
        kubelet.hang()
        with pytest.raises(SourceError, match="DEADLINE_EXCEEDED"):
            ask(str(kubelet.socket))
        kubelet.release()


def test_a_kubelet_that_was_started_anew(tmp_path: Path) -> None:
    """Its new socket is found under the old name."""
    path = tmp_path / "kubelet.sock"
    for name in ("one", "two"):
        with Kubelet(path, pod(name, "ml", container("main", {"nvidia.com/gpu": [FIRST]}))):
            found = pod_source(str(path), needed=True).read()
        assert found is not None and found[0][0][1]["pod"] == name
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", b"\x0a\x05ab"])
def test_what_is_no_answer(answer: bytes) -> None:
    """It is refused as a whole."""
    with pytest.raises(ValueError, match=r"\w"):
        listing(answer)


def test_names_that_are_no_text() -> None:
    """One that is no UTF-8 costs nothing else."""
    raw = pod("x", "ml", container("main", {"nvidia.com/gpu": [FIRST]})).replace(b"\x0a\x01x", b"\x0a\x01\xff")
    assert listing(raw)[0][0][1]["pod"] == "\ufffd"
