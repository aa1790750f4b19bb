"""What programs use of DRM devices, from ``/proc``: trees of processes, and all that the kernel may say of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.contract import Processes, Value
from accelmetrics.backends.kit import processes as holders
from accelmetrics.backends.kit.processes import (
    AGAIN,
    DESCRIPTORS,
    FIRST_PASS,
    LATER_PASS,
    MOST,
    UNSEEN,
    Client,
    DrmClients,
    DrmKeys,
    NodeHolders,
    is_drm,
    parse_fdinfo,
)
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric import NOTHING
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Tree, client
from tests.simulators.drm import DrmTree, fdinfo

CARD, OTHER = "0000:03:00.0", "0000:c4:00.0"
RENDER, NULL = "/dev/dri/renderD128", "/dev/null"
MIB = 1024
AMDGPU = DrmKeys({"compute": ("compute",), "graphics": ("gfx",)}, (("vram",),))


class Watcher:
    """A table on a fake clock.

    Args:
        pools: As for the table.
        each: Seconds that looking through one process takes.
        keys: As for the table.
    """

    def __init__(self, pools: Mapping[str, Sequence[str]] = NOTHING, each: float = 0.0, keys: DrmKeys = AMDGPU) -> None:
        self.clock = FakeClock()
        ticks = count()
        self.table = DrmClients(keys, pools, NodeHolders(is_drm, lambda: next(ticks) * each), self.clock)
        self.progress: list[Any] = []

    def look(self, device: str = CARD, later: float = 1.0) -> tuple[DeviceProcess, ...] | Unavailable:
        self.clock.advance(later)
        self.progress = []
        return self.table.on(device, self.progress)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrmTree:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    tree = DrmTree(tmp_path)
    tree.whole_machine()
    return tree


@pytest.fixture
def tree(system: DrmTree) -> Tree:
    return system


def found(watcher: Watcher, later: float = 1.0, device: str = CARD) -> tuple[DeviceProcess, ...]:
    """What is found at the next look, where there is something."""
    processes = watcher.look(device, later)
    assert not isinstance(processes, Unavailable)
    return processes


def pids(processes: Processes) -> list[int] | None:
    """The numbers of processes; None where they are not known."""
    return None if processes is None or isinstance(processes, Unavailable) else [process.pid for process in processes]


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the processes are another user's."""
    mine = os.geteuid()
    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.geteuid", lambda: mine + 4711)


def test_memory_engines_and_kind_of_each_process(tree: Tree) -> None:
    tree.process(41, {3: (NULL, "pos: 0"), 7: (RENDER, client(CARD, 1, 512 * MIB, 9, compute=10**9))})
    tree.process(42, {5: (RENDER, client(CARD, 2, 64 * MIB, 9, gfx=10**9, compute=10**9))})
    tree.process(43, {5: (RENDER, client(OTHER, 3, 8 * MIB))})
    watcher = Watcher()
    assert watcher.look() == (
        DeviceProcess(41, "compute", 512 * 2**20, None),
        DeviceProcess(42, "compute+graphics", 64 * 2**20, None),
    )
    assert watcher.look(OTHER, 0) == (DeviceProcess(43, "", 8 * 2**20, None),)


def test_engine_time_becomes_a_share_of_the_time_between_two_looks(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=10**9, gfx=5))})
    watcher = Watcher()
    assert [process.utilization for process in found(watcher)] == [None]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=10**9 + 300_000_000, gfx=5 + 200_000_000))})
    assert [process.utilization for process in found(watcher, later=2.0)] == [pytest.approx(25)]
    assert [process.utilization for process in found(watcher)] == [0]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=9 * 10**9))})
    assert [process.utilization for process in found(watcher)] == [100]
    tree.process(41, {7: (RENDER, client(CARD, 1, 1, compute=1))})
    assert [process.utilization for process in found(watcher)] == [None]


def test_an_answer_is_kept_for_a_second(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 1))})
    watcher = Watcher()
    first = watcher.look()
    tree.process(41, {7: (RENDER, client(CARD, 1, 2))})
    assert watcher.look(later=0.5) is first
    assert watcher.progress == []
    assert watcher.look(later=0.5) != first


def test_a_client_with_several_descriptors_is_counted_once(tree: Tree) -> None:
    same = client(CARD, 1, 100)
    tree.process(41, {7: (RENDER, same), 8: (RENDER, same), 9: ("/dev/dri/card0", client(CARD, 2, 50))})
    assert [process.memory_bytes for process in found(Watcher())] == [150 * 1024]


def test_a_client_that_was_handed_on_is_counted_with_the_first_process(tree: Tree) -> None:
    for pid in (41, 42):
        tree.process(pid, {7: (RENDER, client(CARD, 1, 100))})
    assert [(process.pid, process.memory_bytes) for process in found(Watcher())] == [(41, 100 * 1024)]


def test_an_apus_memory_is_with_the_gtt(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100, 900))})
    assert [process.memory_bytes for process in found(Watcher({CARD: ("vram", "gtt")}))] == [1000 * 1024]
    assert [process.memory_bytes for process in found(Watcher())] == [100 * 1024]


def test_a_process_that_ends_or_closes_the_device_is_no_longer_listed(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    assert len(found(watcher)) == 1
    (tree.root / "proc/41/fdinfo/7").unlink()
    assert watcher.look() == ()


def test_others_processes_are_not_looked_through_and_may_be_users(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    another_user(monkeypatch)
    assert Watcher().look() is UNSEEN


def test_known_users_are_listed_beside_others_that_are_not_known(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    tree.process(42, {7: (RENDER, client(OTHER, 2, 100))})
    listing = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/proc/42/fd"):
            raise PermissionError(path)
        return listing(path)

    monkeypatch.setattr("accelmetrics.backends.kit.processes.os.listdir", refuse)
    watcher = Watcher()
    assert [process.pid for process in found(watcher)] == [41]
    assert watcher.look(OTHER) is UNSEEN


@pytest.mark.parametrize("namespace", ["pid:[4026532209]", ""])
def test_a_container_does_not_know_that_a_card_is_unused(tree: Tree, namespace: str) -> None:
    """Its ``/proc`` has its own processes alone; and where ``hidepid`` hides the first one, it hides others."""
    assert Watcher().look() == ()
    if namespace:
        tree.link("/proc/1/ns/pid", namespace)
    else:
        (tree.root / "proc/1/ns/pid").unlink()
    assert Watcher().look() is UNSEEN


def test_a_descriptor_of_something_else_is_not_read(tree: Tree) -> None:
    tree.process(41, {3: (NULL, client(CARD, 1, 100)), 4: ("socket:[12]", client(CARD, 2, 100))})
    assert Watcher().look() == ()


def test_one_look_is_enough_on_a_server_with_many_processes(tree: Tree) -> None:
    """Kernel threads and others' processes come first by their numbers, and use up nothing."""
    for pid in (*range(2, 1500), 50001):
        (tree.root / f"proc/{pid}").mkdir()
    tree.process(50000, {7: (RENDER, client(CARD, 1, 100))})
    assert [process.pid for process in found(Watcher())] == [50000]
    assert Watcher().look(OTHER) == ()


def test_the_first_pass_has_a_time_bound_and_until_all_were_looked_at_none_is_no_answer(tree: Tree) -> None:
    for pid in range(1000, 1100):
        tree.process(pid, {})
    tree.process(999, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher(each=FIRST_PASS / 50)
    table = watcher.table
    looks = [watcher.look() for _ in range(60)]
    assert looks[0] is UNSEEN
    first = next(number for number, processes in enumerate(looks) if processes is not UNSEEN)
    assert all(processes is UNSEEN for processes in looks[:first])
    assert pids(looks[first]) == [999]
    assert table.on(OTHER, []) == ()
    assert LATER_PASS < FIRST_PASS


def test_a_later_pass_over_newcomers_is_shorter(tree: Tree) -> None:
    watcher = Watcher(each=LATER_PASS / 4.5)
    for pid in range(1000, 1050):
        tree.process(pid, {})
    watcher.look()
    newcomers = [pid for pid in watcher.progress if pid >= 1000]
    assert newcomers[0] == 1049  # the youngest first
    assert len(newcomers) == 5


def test_those_seen_before_are_looked_through_again_in_turn_at_a_bounded_cost(tree: Tree) -> None:
    for pid in range(1000, 1020):
        tree.process(pid, dict.fromkeys(range(AGAIN // 4 - 1), (NULL, "")))
    watcher = Watcher()
    assert watcher.look() == ()
    tree.process(1003, {7: (RENDER, client(CARD, 1, 100))})
    looks = 1
    while not watcher.look():
        assert len(watcher.progress) <= 5
        looks += 1
        assert looks <= 7
    assert [process.pid for process in found(watcher)] == [1003]


def test_a_process_with_many_descriptors_is_looked_through_up_to_a_bound(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "DESCRIPTORS", 2)
    tree.process(41, {3: (NULL, ""), 4: (NULL, ""), 5: (RENDER, client(CARD, 1, 100))})
    assert DESCRIPTORS > 2
    assert Watcher().look() is UNSEEN


def test_while_one_lane_looks_another_gets_the_last_answer(tree: Tree) -> None:
    tree.process(41, {7: (RENDER, client(CARD, 1, 100))})
    watcher = Watcher()
    first = watcher.look()
    with watcher.table._looking:
        assert watcher.look(later=5.0) is first
        assert watcher.progress == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drm-memory-vram:\t7 KiB", 7 * 1024),
        ("drm-memory-vram:\t7 MiB", 7 * 2**20),
        ("drm-memory-vram:\t7", 7),
        ("drm-resident-vram:\t9 KiB", 9 * 1024),
        ("drm-memory-vram:\t7 KiB\ndrm-resident-vram:\t9 KiB", 7 * 1024),
        ("drm-memory-vram:\t7 furlongs", None),
        ("drm-memory-vram:\t-7 KiB", None),
        ("drm-memory-vram:\t18446744073709551615", None),
        ("", None),
    ],
)
def test_memory_is_read_in_the_unit_that_stands_beside_it(text: str, expected: int | None) -> None:
    found = parse_fdinfo(f"drm-pdev:\t{CARD}\ndrm-client-id:\t5\n{text}")
    assert found is not None
    assert found.memory([("vram",)]) == expected


@pytest.mark.parametrize(
    "text", ["", "pos:\t0\nflags:\t02\n", "drm-pdev:\t0000:03:00.0", "drm-pdev: x\ndrm-client-id: 5", "drm-client-id: 5"]
)
def test_what_is_no_gpus_is_none(text: str) -> None:
    assert parse_fdinfo(text) is None


@given(
    st.text()
    | st.lists(st.sampled_from(["drm-pdev:\t0000:03:00.0", "drm-client-id: 5", "drm-memory-vram:", "9", "KiB", "\n", "ns"])).map("".join)
)
def test_any_text_can_be_parsed(text: str) -> None:
    found = parse_fdinfo(text)
    assert found is None or 0 <= (found.memory([("vram",)]) or 0) <= MOST


# Other drivers: their names for engines and memory, devices that are on no PCI bus, and what all programs use together

XE = DrmKeys({"compute": ("ccs",), "graphics": ("rcs",), "video": ("vcs", "vecs")}, (("vram0",), ("system", "gtt")))
I915 = DrmKeys({"compute": ("compute",), "graphics": ("render",), "video": ("video", "video-enhance")}, (("local0",), ("system0",)))
V3D = DrmKeys({"compute": ("csd",), "graphics": ("bin", "render")}, (("memory",),))
PANFROST = DrmKeys({"graphics": ("fragment", "vertex-tiler")}, (("memory",),))
MSM = DrmKeys({"either": ("gpu",)}, (("memory",),))
XDNA = DrmKeys({"compute": ("npu-amdxdna", "amdxdna_accel_driver")}, (("memory",),))
BOARD = "1002000000.v3d"


def xe(number: int, busy: int, at: int) -> str:
    """A client of xe that computes: cycles of a timestamp of 19.2 MHz, as its engines count them."""
    memory = {"total_vram0": "900 KiB", "resident_vram0": "512 KiB", "resident_gtt": "64 KiB"}
    return fdinfo("xe", number, CARD, **memory, cycles_ccs=busy, total_cycles_ccs=at, engine_capacity_ccs=2)


def totals(watcher: Watcher, *words: str, device: str = CARD) -> list[Value]:
    watcher.clock.advance(1.0)
    return [watcher.table.total(device, word, watcher.progress) for word in words]


def test_cycles_are_held_against_all_cycles(tree: Tree) -> None:
    """And divided by the number of engines of that name; memory is what is there, not what was asked for."""
    tree.process(41, {7: (RENDER, xe(1, 5_000, 19_200_000))})
    watcher = Watcher(keys=XE)
    assert found(watcher) == (DeviceProcess(41, "compute", 512 * 1024, None),)
    tree.process(41, {7: (RENDER, xe(1, 5_000 + 9_600_000, 2 * 19_200_000))})
    assert found(watcher) == (DeviceProcess(41, "compute", 512 * 1024, 25.0),)
    assert watcher.table.total(CARD, "compute", []) == 25


@pytest.mark.parametrize(
    ("keys", "name", "node", "said", "risen", "process"),
    [
        (
            I915,
            CARD,
            RENDER,
            {"resident_system0": "8 MiB", "engine_render": "1000 ns", "engine_video": "7 ns"},
            {"engine_render": "300001000 ns"},
            DeviceProcess(41, "graphics", 8 * 2**20, 30.0),
        ),
        (V3D, BOARD, "/dev/dri/card0", {"engine_csd": "0 ns", "total_memory": "4 KiB"}, {"engine_csd": "100000000 ns"}, None),
        (PANFROST, "fb000000.gpu", RENDER, {"engine_fragment": "9 ns", "engine_vertex_tiler": "9 ns"}, {}, None),
        (
            MSM,
            "3d00000.gpu",
            RENDER,
            {"engine_gpu": "5 ns", "cycles_gpu": "9", "resident_memory": "1 MiB"},
            {"engine_gpu": "200000005 ns"},
            DeviceProcess(41, "", 2**20, 20.0),
        ),
        (XDNA, "0000:c5:00.1", "/dev/accel/accel0", {"engine_npu_amdxdna": "5 ns", "total_memory": "12 KiB"}, {}, None),
        (XDNA, "0000:c5:00.1", "/dev/accel/accel0", {"engine-amdxdna_accel_driver": "5 ns"}, {}, None),
    ],
    ids=["i915", "v3d", "panfrost", "msm", "xdna", "xdna upstream"],
)
def test_each_driver_by_its_own_names(
    system: DrmTree, keys: DrmKeys, name: str, node: str, said: dict[str, str], risen: dict[str, str], process: DeviceProcess | None
) -> None:
    """Devices of boards are known by the node that a program has open."""
    on_bus = ":" in name
    system.add(name, "driver", {}, node="accel/accel" if "accel" in node else "drm/card")
    system.process(41, {7: (node, fdinfo("driver", 1, name if on_bus else "", **said))})
    watcher = Watcher(keys=keys)
    (first,) = found(watcher, device=name)
    assert (first.pid, first.utilization) == (41, None)
    system.process(41, {7: (node, fdinfo("driver", 1, name if on_bus else "", **said | risen))})
    (second,) = found(watcher, device=name)
    assert second.utilization is not None
    assert process is None or second == process
    if "total_memory" in said:
        assert second.memory_bytes == int(said["total_memory"].split()[0]) * 1024


def test_what_all_programs_use_together(tree: Tree) -> None:
    """Of several engines for one word the busiest; shares are there from the second look on."""
    watcher = Watcher(keys=I915)
    engines = {"engine_video": "0 ns", "engine_video_enhance": "0 ns", "engine_render": "0 ns"}
    for pid in (41, 42):
        tree.process(pid, {7: (RENDER, fdinfo("i915", pid, CARD, resident_local0="2 MiB", resident_system0="9 MiB", **engines))})
    first = totals(watcher, "memory", "video", "compute")
    assert first[0] == 4 * 2**20
    assert [reason.reason for reason in first[1:] if isinstance(reason, Unavailable)] == [Reason.NEEDS_INTERVAL, Reason.NOT_SUPPORTED]
    more = {"engine_video": "100000000 ns", "engine_video_enhance": "400000000 ns", "engine_render": "900000000 ns"}
    for pid in (41, 42):
        tree.process(pid, {7: (RENDER, fdinfo("i915", pid, CARD, resident_local0="2 MiB", **more))})
    assert totals(watcher, "video", "graphics") == [pytest.approx(80), 100]


def test_a_program_that_is_new_counts_from_then_on(tree: Tree) -> None:
    """What it did before is no part of the interval."""
    watcher = Watcher(keys=I915)
    totals(watcher, "graphics")
    assert totals(watcher, "graphics", "memory") == [0, 0]
    tree.process(41, {7: (RENDER, fdinfo("i915", 1, CARD, engine_render="90000000000 ns"))})
    seen = totals(watcher, "graphics", "memory")
    assert [each.reason for each in seen if isinstance(each, Unavailable)] == [Reason.NEEDS_INTERVAL, Reason.NOT_SUPPORTED]
    tree.process(41, {7: (RENDER, fdinfo("i915", 1, CARD, engine_render="90500000000 ns"))})
    assert totals(watcher, "graphics") == [pytest.approx(50)]


def test_totals_are_of_all_programs_or_not_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(41, {7: (RENDER, fdinfo("i915", 1, CARD, resident_local0="2 MiB", engine_render="0 ns"))})
    another_user(monkeypatch)
    assert totals(Watcher(keys=I915), "memory", "graphics") == [UNSEEN, UNSEEN]


@given(st.dictionaries(st.sampled_from(["engine-ccs", "cycles-ccs", "total-cycles-ccs", "engine-capacity-ccs"]), st.integers(0, 10**19)))
def test_any_counts_give_a_share_or_none(counts: dict[str, int]) -> None:
    now, before = Client(CARD, 1, counts), Client(CARD, 1, dict.fromkeys(counts, 5))
    share = now.busy(before, 1.0, "ccs")
    assert share is None or 0 <= share < math.inf
