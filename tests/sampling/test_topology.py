"""How devices are connected: what drivers tell of links, what the kernel shows of PCIe, and that no device that hangs holds it up."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Connection, Sampler, Snapshot, Topology, devices, sample, topology
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.sampling import sampler
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.sampling.topology import NO_DETAILS
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.topology import Details, Link, SupportedClocks
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeDriver
from tests.simulators.amdgpu import Tree
from tests.simulators.amdgpu.machines import mi210_pair
from tests.simulators.nvml import NvmlSimulator, Ret
from tests.support.pci import plug, rdma_card

PRODUCT = "a100"
QUERIES = ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetSupportedMemoryClocks")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system without hardware in ``/sys``, whose devices no test before has numbered."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.setattr(sampler, "SHARED", SourceRegistry())
    sampler._shared.cache_clear()
    return tmp_path


@pytest.fixture
def machine() -> Iterator[Any]:
    """Makes machines of NVIDIA's GPUs that this process sees."""
    with ExitStack() as stack:

        def make(gpus: int, profile: str) -> NvmlSimulator:
            made = stack.enter_context(NvmlSimulator(gpus=gpus, profile=profile))
            made.load()
            return made

        yield make


def words(found: Topology, count: int) -> list[list[str]]:
    """The matrix of a number of GPUs: links where there are some, else the path."""

    def word(one: int, other: int) -> str:
        connection = found.between(f"gpu.{one}", f"gpu.{other}")
        return "X" if connection is None else f"{connection.link}{connection.links}" if connection.link else connection.path or "?"

    return [[word(one, other) for other in range(count)] for one in range(count)]


def test_eight_gpus_behind_switches(machine: Any) -> None:
    """Each reaches each other one over all of its links."""
    machine(8, "h100")
    with Sampler(backends="nvidia") as reading:
        found = reading.topology()
    assert len(found.connections) == 28
    assert {connection[2:6] for connection in found.connections} == {("nvlink", 18, 2, True)}
    assert [connection.path for connection in found.connections[:4]] == ["NODE", "NODE", "NODE", "SYS"]  # beside it, what PCIe has


def test_a_link_that_is_down_counts_for_no_pair(machine: Any) -> None:
    """Through switches a pair has as many as the one with fewer of them."""
    machine(3, "h100").gpu[1].set(nvlink_state={4: 0})
    with Sampler(backends="nvidia") as reading:
        assert words(reading.topology(), 3) == [["X", "nvlink17", "nvlink18"], ["nvlink17", "X", "nvlink17"], ["nvlink18", "nvlink17", "X"]]


def test_four_gpus_without_links_on_two_nodes(machine: Any) -> None:
    """What lies between them is what NVML says where the kernel shows no bus."""
    simulator = machine(4, "t4")
    for number, (switch, port, bridge, node) in enumerate(((0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0), (2, 2, 1, 1))):
        simulator.gpu[number].set(pci_switch=switch, pci_root_port=port, pci_host_bridge=bridge, numa_node=node)
    with Sampler(backends="nvidia") as reading:
        found = reading.topology()
    assert words(found, 4) == [
        ["X", "PIX", "PXB", "SYS"],
        ["PIX", "X", "PXB", "SYS"],
        ["PXB", "PXB", "X", "SYS"],
        ["SYS", "SYS", "SYS", "X"],
    ]
    assert all((connection.link, connection.links, connection.unavailable) == ("", 0, {}) for connection in found.connections)


def bridged(simulator: NvmlSimulator, links: int = 4) -> None:
    """Join the first GPU with the second one, and the third with the fourth; links behind those are down."""
    for number, gpu in enumerate(simulator.gpu):
        gpu.set(nvlink_remote_type=dict.fromkeys(range(12), 0), nvlink_remote_gpu=dict.fromkeys(range(links), number ^ 1))
        gpu.set(nvlink_state={link: int(link < links) for link in range(12)})


def test_pairs_with_a_bridge_each(machine: Any) -> None:
    """A bridge's links lead to one GPU alone; the others are as far as PCIe has them."""
    bridged(machine(4, PRODUCT))
    with Sampler(backends="nvidia") as reading:
        found = reading.topology()
    four, far = "nvlink4", "NODE"
    assert words(found, 4) == [["X", four, far, far], [four, "X", far, far], [far, far, "X", four], [far, far, four, "X"]]
    pair = found.between("gpu.1", "gpu.0")
    assert pair == Connection(("gpu.0", "gpu.1"), "NODE", "nvlink", 4, 1)


def test_links_that_lead_nobody_knows_where(machine: Any) -> None:
    """In a virtual machine the driver may not say it: then it is unknown which devices they join."""
    for gpu in machine(2, PRODUCT).gpu:
        gpu.set(nvlink_remote_type=dict.fromkeys(range(12), 255))
    with Sampler(backends="nvidia") as reading:
        (pair,) = reading.topology().connections
    assert (pair.link, pair.links, pair.path) == ("", None, "NODE")
    assert "where they lead" in pair.unavailable["links"].detail


def test_a_lost_gpu_has_a_reason_and_the_others_are_told(machine: Any) -> None:
    """What a neighbour tells of a bridge to it is known; what only both could tell is not."""
    simulator = machine(4, PRODUCT)
    bridged(simulator)
    with Sampler(backends="nvidia") as reading:
        reading.sample()
        simulator.lose(1, enumerable=True)
        found = reading.topology()
        bridge = found.between("gpu.0", "gpu.1")
        assert bridge is not None and (bridge.link, bridge.links) == ("nvlink", 4)
        lost = found.between("gpu.1", "gpu.2")
        assert lost is not None and (lost.links, lost.unavailable["links"].reason) == (None, Reason.DEVICE_LOST)
        assert found.between("gpu.2", "gpu.3") == Connection(("gpu.2", "gpu.3"), "NODE", "nvlink", 4, 1)
        simulator.recover(1)
        again = reading.topology().between("gpu.1", "gpu.2")
    assert again is not None and (again.links, again.path) == (0, "NODE")  # only what is known is kept


def test_a_gpu_that_was_lost_before_it_was_known(machine: Any) -> None:
    """It has no address: all of its connections have the reason for that."""
    machine(2, "h100").lose(0, enumerable=True)
    with Sampler(backends="nvidia") as reading:
        (pair,) = reading.topology().connections
    assert {name: why.reason for name, why in pair.unavailable.items()} == dict.fromkeys(("path", "links"), Reason.DEVICE_LOST)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_hung_gpu_costs_the_others_nothing(isolation: Any, machine: Any) -> None:
    """Its own connections are timed out, while the call has not returned."""
    simulator = machine(3, "h100")
    with Sampler(backends="nvidia", timeout=2.0, isolation=isolation) as reading:
        reading.devices()
        simulator.rule("nvmlDeviceGetNvLinkState", 1, hang=True)
        found = reading.topology()
        hung = found.between("gpu.0", "gpu.1")
        assert hung is not None and hung.unavailable["links"].reason == Reason.TIMED_OUT
        assert words(found, 3)[0][2] == "nvlink18"
        simulator.release("nvmlDeviceGetNvLinkState", 1)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_was_told_is_kept(isolation: Any, machine: Any) -> None:
    """Later calls ask a driver that stays open nothing, and readings go on beside them."""
    simulator = machine(2, "h100")
    with Sampler(backends="nvidia", isolation=isolation) as reading:
        first = reading.topology()
        asked = [simulator.count(name) for name in QUERIES]
        assert all(asked)
        assert reading.topology() == first
        assert reading.sample(topology=True).topology == first
        assert reading.devices(clocks=True)[0].clocks
        assert [simulator.count(name) for name in QUERIES] == asked
        assert reading.sample().topology is None


def test_a_reading_asks_for_nothing_of_it(machine: Any) -> None:
    """It costs nothing where it is not wanted."""
    simulator = machine(1, "h100")
    with Sampler(backends="nvidia") as reading:
        reading.sample()
    assert simulator.count("nvmlDeviceGetSupportedMemoryClocks") == simulator.count("nvmlDeviceGetNvLinkRemoteDeviceType") == 0


def test_instances_are_their_gpu(machine: Any) -> None:
    """A MIG instance has no connections beside its GPU's, and no clocks of its own."""
    simulator = machine(2, "h100")
    simulator.partition(0, ["3g.40gb", "3g.40gb"])
    with Sampler(backends="nvidia") as reading:
        assert [connection.between for connection in reading.topology().connections] == [("gpu.0", "gpu.1")]
        listed = {device.key: device.clocks for device in reading.devices(clocks=True)}
    whole, instance = listed["gpu.0"], listed["gpu.0.mig.0"]
    assert isinstance(whole, SupportedClocks) and isinstance(instance, Unavailable) and "its GPU" in instance.detail


def test_the_snapshot_has_it_on_request(machine: Any) -> None:
    """It reads back from a document, survives pickling, and is carried by what is made of the snapshot."""
    machine(2, "h100")
    taken = sample("nvidia", topology=True)
    assert taken.topology is not None and taken.topology.connections[0].links == 18
    assert Snapshot.from_json(taken.to_json()) == pickle.loads(pickle.dumps(taken)) == taken
    assert Snapshot.from_json(taken.to_json()).topology == taken.topology
    assert taken.with_metrics({"x": 1}).topology is taken.topology
    assert "topology" not in sample("nvidia").to_dict()
    assert topology("nvidia") == taken.topology


def test_clocks_of_nvidia(machine: Any) -> None:
    """Those of the memory, and the graphics clocks that go with each, more of them than is asked for at first."""
    simulator = machine(2, "h100")
    simulator.gpu[0].set(supported_graphics_high=[5985, 990], supported_graphics_low=210)
    simulator.gpu[1].set(supported_memory=[Ret.NO_PERMISSION])
    many, refused = (device.clocks for device in devices("nvidia", clocks=True))
    assert isinstance(many, SupportedClocks)
    assert (many.memory_mhz, list(many.graphics_by_memory)) == ((2619, 1309), [2619, 1309])
    assert many.graphics_mhz == many.graphics_by_memory[2619] == tuple(range(5985, 209, -15))
    assert many.graphics_by_memory[1309][:2] == (990, 975)
    assert isinstance(refused, Unavailable) and refused.reason == Reason.NO_PERMISSION
    assert devices("nvidia")[0].clocks is None


def test_vendors_of_one_machine_and_its_network_cards(machine: Any, root: Path) -> None:
    """The kernel tells the way between devices of any vendor: links are of one vendor alone."""
    machine(1, "t4")
    mi210_pair(Tree(root))
    plug(root, "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:10:00.0", node=0, cpus="0-31")
    plug(root, "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:43:00.0", node=0, cpus="0-31")
    plug(root, "pci0000:80", "0000:80:01.0", "0000:83:00.0", node=1, cpus="32-63")
    rdma_card(root, "mlx5_0", "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:02.0", "0000:44:00.0", node=0)
    found = topology("nvidia,amd")
    assert words(found, 3) == [["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert [found.between(f"gpu.{number}", "mlx5_0").path for number in range(3)] == ["PIX", "PIX", "SYS"]  # type: ignore[union-attr]
    assert (found.nics[0].pci_bus_id, found.nics[0].numa_node) == ("0000:44:00.0", 0)
    assert [connection.links for connection in found.connections[:2]] == [0, 0]


class TellingDriver(FakeDriver):
    """A driver that tells of links of its own kind."""

    def details(self, unit: int, progress: list[Any]) -> Details:
        """Join the first two devices; the third one gives no proper answer."""
        if unit == 2:
            return "no details"  # type: ignore[return-value]
        other = self.devices[1 - unit].pci_bus_id.removeprefix("0000").lower()
        return Details((Link("icilink", other, 2),), SupportedClocks((), (940, 500)))

    def reader(self, options: ReadOptions) -> FakeDriver:
        """As any scripted one."""
        return super().reader(options)


class TellingBackend(FakeBackend):
    """Its backend."""

    def open(self) -> FakeDriver:
        """Open such a driver."""
        super().open()
        return TellingDriver(self)


def test_a_backend_from_elsewhere_tells_of_its_links() -> None:
    """By one optional method; what is not of the contract costs its own device."""
    with Sampler(backends=[TellingBackend(devices=3)]) as reading:
        found = reading.topology()
        clocks = [device.clocks for device in reading.devices(clocks=True)]
    joined, wrong, _ = found.connections
    assert (joined.link, joined.links) == ("icilink", 2)
    assert wrong.unavailable["links"].reason == Reason.DRIVER_ERROR and "no Details" in wrong.unavailable["links"].detail
    assert clocks[0] == SupportedClocks((), (940, 500)) and isinstance(clocks[2], Unavailable)


def test_a_backend_that_tells_nothing(root: Path) -> None:
    """Its devices are as far apart as the kernel says, and what is unknown has its reason."""
    plug(root, "pci0000:40", "0000:40:01.0", "0000:41:00.0", node=0)
    plug(root, "pci0000:40", "0000:40:02.0", "0000:42:00.0", node=0)
    with Sampler(backends=[FakeBackend(devices=2)]) as reading:
        assert reading.topology().connections == (Connection(("gpu.0", "gpu.1"), "PHB", links=None, unavailable={"links": NO_DETAILS}),)
        assert reading.devices(clocks=True)[0].clocks is NO_DETAILS


def test_a_driver_that_went_away_has_its_reason(machine: Any) -> None:
    """All its devices stay listed, each connection with the reason."""
    simulator = machine(2, "h100")
    with Sampler(backends="nvidia") as reading:
        reading.sample()
        simulator.driver_away()
        reading.sample()
        (pair,) = reading.topology().connections
    assert pair.unavailable["links"].reason == Reason.DRIVER_UNAVAILABLE
