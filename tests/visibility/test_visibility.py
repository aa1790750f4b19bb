"""Which devices a program sees: every vendor's rule, and what samplers make of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

import accelmetrics
from accelmetrics import AccelMetricsError, InvalidOptionError, Sampler, UnknownNameError, visible_devices
from accelmetrics.backends import visible as rules
from accelmetrics.backends.visible import VisibleSet, visibility
from accelmetrics.sampling import devices as sampling_devices
from accelmetrics.sampling.devices import environment_of, parse_environment
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind
from accelmetrics.testing import FakeBackend, FakeClock
from tests.simulators.nvml import NvmlSimulator

UUIDS = [
    "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1",
    "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
    "GPU-e429a63e-c61c-4795-b757-5132caeb8e70",
    "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98",
]
NVIDIA = [
    DeviceIdentity("gpu", "nvidia", n, name="NVIDIA H100 80GB HBM3", uuid=uuid, pci_bus_id=f"00000000:{0x18 + 8 * n:02X}:00.0")
    for n, uuid in enumerate(UUIDS)
]
MIXED = [NVIDIA[0]._replace(name="Tesla T4"), *NVIDIA[1:]]
INSTANCES = [
    DeviceIdentity(
        "gpu", "nvidia", n, name="NVIDIA H100 MIG 3g.40gb", uuid=f"MIG-{n}9c850dc-1f41-57ac-b1a6-f7b6fbf7a1c{n}", parent=UUIDS[1]
    )
    for n in range(2)
]
AMD = [
    DeviceIdentity("gpu", "amd", n, name="AMD Instinct MI300X", uuid=uuid, pci_bus_id=f"0000:{n + 3:02x}:00.0")
    for n, uuid in enumerate(["0x5c88007d1d4c92fa", "0x5c88007d1d4c0000", "0xabc", ""])
]


def of(kind: DeviceKind, vendor: str, count: int, **rest: str) -> list[DeviceIdentity]:
    return [DeviceIdentity(kind, vendor, n, pci_bus_id=f"0000:{n + 3:02x}:00.0", **rest) for n in range(count)]  # type: ignore[arg-type]


def cuda(value: str | None, devices: Sequence[DeviceIdentity] = NVIDIA, **rest: str) -> VisibleSet:
    return rules.see_cuda({**rest, **({} if value is None else {"CUDA_VISIBLE_DEVICES": value})}, devices)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2,0", (2, 0)),
        (" 2 ,\t0", (2, 0)),
        ("0,2,-1,1", (0, 2)),
        ("1,5,0", (1,)),
        ("1,,0", (1,)),
        ("0,1,2,1", ()),
        ("2,+3,-0,5", (2, 3, 0)),
        ("1gpu2,2ampere", (1, 2)),
        ("one,2", ()),
        ("3,2,one,0", (3, 2)),
        ("0x1", (0,)),
        ("9" * 5000, ()),
        (UUIDS[2], (2,)),
        (f"{UUIDS[2]},{UUIDS[0]}", (2, 0)),
        ("GPU-9e8d35e3,GPU-e4,GPU-99", (1, 2, 0)),
        ("GPU-9e8d35e3,GPU-123,GPU-99", (1,)),
        ("GPU-9e8d35e3,GPU-e,GPU-99", (1,)),
        ("GPU-9e8d35e3,GPU-99,GPU-9e8", ()),
        ("GPU-99,2", (0,)),
        ("2,GPU-99", (2,)),
        ("GPU-E429A63E", ()),
    ],
)
def test_cuda_lists(value: str | None, seen: tuple[int, ...]) -> None:
    """As NVIDIA documents it, and where it does not, as PyTorch found it out."""
    assert cuda(value).devices == seen


def test_what_cut_a_cuda_list_short_is_said() -> None:
    """The entry is named; the customary -1 needs no words, and NVIDIA_VISIBLE_DEVICES is not CUDA's."""
    assert cuda("0,7,1").caveats == ("CUDA_VISIBLE_DEVICES ends at '7', which names no device here",)
    assert "twice" in cuda("0,0").caveats[0]
    assert cuda("0,-1").caveats == ()
    assert cuda(None, NVIDIA_VISIBLE_DEVICES="2") == cuda(None)


def test_cuda_numbers_are_those_of_pci_addresses() -> None:
    """Not of the order in which a driver happens to list, nor of the addresses' spelling."""
    turned = [NVIDIA[2], NVIDIA[0], NVIDIA[1]._replace(pci_bus_id="0000:20:00.0")]
    assert cuda("0,1,2", turned).devices == (1, 2, 0)
    nowhere = [device._replace(pci_bus_id="") for device in turned]
    assert cuda("0,1,2", nowhere).devices == (1, 2, 0)


def test_numbers_on_several_models_are_not_guessed() -> None:
    """Fastest first is CUDA's secret: only PCI order, UUIDs, or a list that does not choose among them, give an answer."""
    unknown = cuda("0,2", MIXED)
    assert unknown.devices is None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in unknown.caveats[-1]
    assert cuda("0,2", MIXED, CUDA_DEVICE_ORDER="FASTEST_FIRST").devices is None
    assert cuda("0,2", MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == cuda("0,2")
    assert cuda("GPU-e4,GPU-99", MIXED) == cuda("GPU-e4,GPU-99")
    assert cuda("", MIXED).devices == ()
    everything = cuda(None, MIXED)
    assert (everything.devices, everything.ordered) == ((0, 1, 2, 3), False)
    listed = cuda("3,2,1,0", MIXED)
    assert (listed.devices, listed.ordered) == ((0, 1, 2, 3), False)
    positions = visibility({}, MIXED)
    assert positions.visible == (True,) * 4
    assert positions.positions == (None,) * 4


def test_mig_instances() -> None:
    """By UUID, in the old form, through their GPU: one instance, and nothing beside it."""
    split = [*NVIDIA, *INSTANCES]
    assert cuda(INSTANCES[1].uuid, split).devices == (5,)
    assert cuda("MIG-19c8", split).devices == (5,)
    several = cuda(f"{INSTANCES[1].uuid},{INSTANCES[0].uuid}", split)
    assert several.devices == (5,)
    assert "one MIG instance" in several.caveats[0]
    assert cuda("1", split).devices == (4,)
    assert cuda(UUIDS[1], split).devices == (4,)
    assert cuda("0,2", split).devices == (0, 2)
    assert cuda(None, split).devices == (4,)
    legacy = f"MIG-{UUIDS[1]}/1/0"
    old = [*NVIDIA, INSTANCES[0]._replace(uuid=legacy)]
    assert cuda(legacy, old).devices == (4,)
    assert cuda(legacy, split).devices is None
    assert "cannot be identified" in cuda(legacy, split).caveats[0]
    assert cuda(f"MIG-{UUIDS[0]}/1/0", split).devices == ()
    assert cuda("MIG-89c850dc", NVIDIA).devices is None


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"HIP_VISIBLE_DEVICES": ""}, (0, 1, 2, 3)),
        ({"CUDA_VISIBLE_DEVICES": ""}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "2, 0x1 ,00"}, (2, 1, 0)),
        ({"ROCR_VISIBLE_DEVICES": "2,9,0"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "2,1x,0"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "2,0,2,1"}, (2, 0)),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "gpu-5c88007d1d4c92fa,GPU-0000000000000ABC"}, (0, 2)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-5c88,0"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "GPU-,0"}, ()),
        ({"HIP_VISIBLE_DEVICES": "3,1,3"}, (3, 1)),
        ({"HIP_VISIBLE_DEVICES": "3, 1"}, (3,)),
        ({"HIP_VISIBLE_DEVICES": "3,01,0"}, (3,)),
        ({"HIP_VISIBLE_DEVICES": "3,"}, (3,)),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ()),
        ({"HIP_VISIBLE_DEVICES": "GPU-5c88007d1d4c0000,0"}, (1, 0)),
        ({"HIP_VISIBLE_DEVICES": "GPU-ffff,0"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2,1"}, (2, 1)),
        ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0"}, (0,)),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, (1,)),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, ()),
        ({"GPU_DEVICE_ORDINAL": "1,0"}, (1, 0)),
        ({"GPU_DEVICE_ORDINAL": "1", "HIP_VISIBLE_DEVICES": "2"}, (2,)),
        ({"GPU_DEVICE_ORDINAL": "3", "ROCR_VISIBLE_DEVICES": "3"}, (3,)),
    ],
)
def test_rocm_lists(environ: dict[str, str], seen: tuple[int, ...]) -> None:
    """ROCr's list first, then HIP's among what is left; each with its own way to be wrong."""
    assert rules.see_rocm(environ, AMD).devices == seen


def test_partitions_stand_in_the_place_of_their_card() -> None:
    """Numbers count them, the card itself is not visible; their common id names none of them."""
    split = [AMD[1]._replace(vendor_index=n, uuid=f"{AMD[1].uuid}/xcp{n}", parent=AMD[1].uuid) for n in range(2)]
    devices = [*AMD, *split]
    assert rules.see_rocm({}, devices).devices == (0, 4, 5, 2, 3)
    assert rules.see_rocm({"ROCR_VISIBLE_DEVICES": "2,1"}, devices).devices == (5, 4)
    assert rules.see_rocm({"ROCR_VISIBLE_DEVICES": "GPU-5c88007d1d4c0000"}, devices).devices == ()


def test_what_is_doubtful_about_rocm_lists_is_said() -> None:
    """The variable on which documentation and code differ, and what ended a list."""
    assert "OpenCL" in rules.see_rocm({"GPU_DEVICE_ORDINAL": "1"}, AMD).caveats[0]
    assert "'9'" in rules.see_rocm({"ROCR_VISIBLE_DEVICES": "0,9"}, AMD).caveats[0]
    assert "second time" in rules.see_rocm({"ROCR_VISIBLE_DEVICES": "0,0"}, AMD).caveats[0]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, (1, 2, 0)),
        ({"ZE_AFFINITY_MASK": ""}, (1, 2, 0)),
        ({"ZE_AFFINITY_MASK": "default"}, (1, 2, 0)),
        ({"ZE_AFFINITY_MASK": "1,0"}, (1, 2)),
        ({"ZE_AFFINITY_MASK": "2,7"}, (0,)),
        ({"ZE_AFFINITY_MASK": "7"}, ()),
        ({"ZE_AFFINITY_MASK": "0.1,2"}, (0,)),
        ({"ZE_AFFINITY_MASK": "0.1,2", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, (1, 0)),
        ({"ZE_AFFINITY_MASK": "0", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}, (0,)),
    ],
)
def test_level_zero_masks(environ: dict[str, str], seen: tuple[int, ...]) -> None:
    """A mask hides and does not order; discrete GPUs come before the processor's own."""
    intel = of("gpu", "intel", 3, name="Intel Arc B580")
    devices = [intel[0]._replace(unified=True), *intel[1:]]
    assert rules.see_level_zero(environ, devices).devices == seen


def test_level_zero_tiles_are_not_guessed() -> None:
    """A card of two tiles counts as two unless the hierarchy says otherwise."""
    cards = of("gpu", "intel", 2, name="Intel Data Center GPU Max 1550")
    assert rules.see_level_zero({"ZE_AFFINITY_MASK": "1"}, cards).devices is None
    assert rules.see_level_zero({"ZE_AFFINITY_MASK": "1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, cards).devices == (1,)
    assert "no number" in rules.see_level_zero({"ZE_AFFINITY_MASK": "x"}, of("gpu", "intel", 1)).caveats[0]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, (0, 1, 2, 3)),
        ({"TPU_VISIBLE_CHIPS": "3,1"}, (1, 3)),
        ({"TPU_VISIBLE_DEVICES": "0"}, (0,)),
        ({"TPU_VISIBLE_CHIPS": "2", "TPU_VISIBLE_DEVICES": "0"}, (2,)),
        ({"TPU_VISIBLE_CHIPS": "4"}, None),
        ({"TPU_VISIBLE_CHIPS": ""}, None),
        ({"TPU_VISIBLE_CHIPS": "0-1"}, None),
    ],
)
def test_tpu_lists(environ: dict[str, str], seen: tuple[int, ...] | None) -> None:
    """Numbers of this host's chips, whatever their ids in the slice are."""
    chips = [device._replace(vendor_index=device.vendor_index + 8) for device in of("tpu", "google", 4, name="TPU v5e")]
    assert rules.see_tpu(environ, chips).devices == seen
    if seen and environ:
        assert rules.see_tpu(environ, of("tpu", "google", 4, name="TPU v3")).devices is None


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, (0, 1, 2, 3)),
        ({"NEURON_RT_VISIBLE_CORES": "1-2"}, (1, 2)),
        ({"NEURON_RT_VISIBLE_CORES": "3,0-1"}, (0, 1, 3)),
        ({"NEURON_RT_VISIBLE_CORES": "2", "NEURON_RT_NUM_CORES": "1"}, (2,)),
        ({"NEURON_RT_VISIBLE_CORES": "3-4"}, None),
        ({"NEURON_RT_VISIBLE_CORES": "2-1"}, None),
        ({"NEURON_RT_VISIBLE_CORES": "0-999999"}, None),
        ({"NEURON_RT_NUM_CORES": "2"}, None),
        ({"NEURON_RT_NUM_CORES": "4"}, (0, 1, 2, 3)),
        ({"NEURON_RT_NUM_CORES": "0"}, (0, 1, 2, 3)),
    ],
)
def test_neuron_lists(environ: dict[str, str], seen: tuple[int, ...] | None) -> None:
    """Cores and ranges; a mere number of cores says not which."""
    seen_set = rules.see_neuron(environ, of("trn", "aws", 4))
    assert seen_set.devices == seen
    assert bool(seen_set.caveats) == (seen is None)


@pytest.mark.parametrize(
    ("value", "seen"), [("1", (1,)), ("1,2,3", (1, 2, 3)), ("1, 2,3", (1,)), ("1,3,8", (1, 3)), ("x", ()), ("2,1", None), ("", None)]
)
def test_ascend_lists(value: str, seen: tuple[int, ...] | None) -> None:
    """Any other character ends the list, as Huawei documents with these examples; falling order is not documented."""
    assert rules.see_ascend({"ASCEND_RT_VISIBLE_DEVICES": value}, of("npu", "huawei", 4)).devices == seen
    assert rules.see_ascend({}, of("npu", "huawei", 4)).devices == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ACME_DEVICES": "2, 0"}, (2, 0)),
        ({"ACME_DEVICES": "4"}, None),
        ({"ACME_DEVICES": "1,1"}, None),
        ({"ACME_DEVICES": ""}, None),
        ({"ACME_DEVICES": "x"}, None),
    ],
)
def test_a_vendor_of_another_package_declares_a_plain_list(
    environ: dict[str, str], seen: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers in the program's order; what its runtime makes of anything else is not known here."""
    monkeypatch.setattr(rules, "VENDORS", dict(rules.VENDORS))
    rules.declare_list("acme", "ACME_DEVICES")
    rules.declare_list("nvidia", "ACME_DEVICES")
    found = visibility(environ, of("npu", "acme", 4))
    assert found.order == seen
    assert bool(found.caveats) == (seen is None)
    assert rules.VENDORS["nvidia"][0] == "CUDA_VISIBLE_DEVICES", "a rule that is known stands"


@pytest.mark.parametrize(
    ("vendor", "environ", "order"),
    [
        *((vendor, {}, (0, 1, 2)) for vendor in ("cambricon", "furiosa", "habana", "kunlunxin", "metax", "moorethreads", "qualcomm")),
        *((vendor, {}, (0, 1, 2)) for vendor in ("hygon", "rebellions")),
        ("biren", {"SUPA_VISIBLE_DEVICES": "1,0"}, (1, 0)),
        ("cambricon", {"MLU_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("cambricon", {"MLU_VISIBLE_DEVICES": "0,nine"}, None),
        ("cambricon", {"MLU_VISIBLE_DEVICES": "3"}, None),
        ("furiosa", {"FURIOSA_DEVICES": "npu:2,npu:0"}, (2, 0)),
        ("furiosa", {"FURIOSA_DEVICES": "npu:1:0-3, npu:1:4-7"}, (1,)),
        ("furiosa", {"FURIOSA_DEVICES": "npu0pe0-1"}, (0,)),
        ("furiosa", {"FURIOSA_DEVICES": "2"}, (2,)),
        ("furiosa", {"FURIOSA_DEVICES": "npu:3"}, None),
        ("furiosa", {"FURIOSA_DEVICES": "rngd(2)*1"}, None),
        ("furiosa", {"FURIOSA_DEVICES": ""}, None),
        ("habana", {"HABANA_VISIBLE_MODULES": "5, 7"}, (2, 0)),
        ("habana", {"HABANA_VISIBLE_MODULES": "7,6", "HLS_MODULE_ID": "6"}, (1,)),
        ("habana", {"HABANA_VISIBLE_DEVICES": "0"}, (0, 1, 2)),
        ("habana", {"HABANA_VISIBLE_MODULES": "0"}, None),
        ("habana", {"HABANA_VISIBLE_MODULES": "7,7"}, None),
        ("habana", {"HABANA_VISIBLE_MODULES": ""}, None),
        ("huawei", {"ASCEND_VISIBLE_DEVICES": "0"}, (0, 1, 2)),  # it is the container runtime's
        ("hygon", {"HIP_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("hygon", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, (2,)),
        ("kunlunxin", {"XPU_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("kunlunxin", {"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ("kunlunxin", {"CUDA_VISIBLE_DEVICES": "1", "XPU_VISIBLE_DEVICES": "2"}, (2,)),
        ("kunlunxin", {"XPULINK_VISIBLE_DEVICES": "0", "XPU_VISIBLE_DEVICES": "2"}, (0,)),
        ("kunlunxin", {"XPU_VISIBLE_DEVICES": " "}, ()),
        ("kunlunxin", {"XPU_VISIBLE_DEVICES": "GPU-1"}, None),
        ("metax", {"MACA_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("metax", {"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ("metax", {"MACA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ("metax", {"MACA_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, None),
        ("metax", {"MACA_VISIBLE_DEVICES": "7"}, None),
        ("metax", {"MACA_VISIBLE_DEVICES": ""}, None),
        ("moorethreads", {"MUSA_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("moorethreads", {"MUSA_VISIBLE_DEVICES": "7"}, None),
        ("moorethreads", {"MUSA_VISIBLE_DEVICES": "GPU-1"}, None),
        ("qualcomm", {"QAIC_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("qualcomm", {"QAIC_VISIBLE_DEVICES": ""}, None),
        ("qualcomm", {"QAIC_VISIBLE_DEVICES": "0,0"}, None),
        ("rebellions", {"RBLN_DEVICES": "2,0"}, (2, 0)),
        ("rebellions", {"RBLN_DEVICES": "0,nine"}, None),
        ("rebellions", {"RBLN_DEVICES": "0", "RBLN_VISIBLE_DEVICES": "1"}, (1,)),
        ("rebellions", {"RBLN_DEVICES": "0", "RBLN_VISIBLE_DEVICES": ""}, (0,)),
        ("rebellions", {"RBLN_DEVICES": ""}, (0, 1, 2)),
        ("vastai", {"VASTAI_VISIBLE_DEVICES": "1"}, (1,)),
    ],
)
def test_lists_of_other_vendors(vendor: str, environ: dict[str, str], order: tuple[int, ...] | None) -> None:
    """Each is found also where nothing has imported its vendor's file; Gaudi's numbers are those of modules."""
    seen = visibility(environ, [device._replace(module_id=7 - number) for number, device in enumerate(of("npu", vendor, 3))])
    assert seen.order == order
    assert bool(seen.caveats) == (order is None)


def test_every_vendor_has_its_own_numbers() -> None:
    """One environment, two vendors, and one that hides nothing."""
    apple = [DeviceIdentity("gpu", "apple", 0)]
    seen = visibility({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "3,0"}, [*NVIDIA, *AMD, *apple])
    assert seen.positions == (None, 0, None, None, 1, None, None, 0, 0)
    assert seen.visible == (False, True, False, False, True, False, False, True, True)
    assert {listed.variable for listed in seen.lists} == {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


ENTRIES = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from([*UUIDS, "GPU-9", "MIG-1", "", " 1", "x"]),
    st.text(max_size=6).filter(lambda t: "," not in t),
)
LISTS = st.one_of(st.lists(ENTRIES, max_size=6).map(",".join), st.text(max_size=20))
FLEETS = [
    NVIDIA,
    MIXED,
    [*NVIDIA, *INSTANCES],
    AMD,
    of("gpu", "intel", 3),
    of("tpu", "google", 4),
    of("trn", "aws", 4),
    of("npu", "huawei", 4),
]
VARIABLES = [
    "CUDA_VISIBLE_DEVICES",
    rules.ROCR,
    "HIP_VISIBLE_DEVICES",
    rules.ORDINAL,
    rules.LEVEL_ZERO,
    *rules.TPU,
    rules.CORES,
    rules.CORE_COUNT,
    rules.ASCEND,
]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(VARIABLES), LISTS, max_size=3), st.sampled_from(FLEETS))
@example({"CUDA_VISIBLE_DEVICES": "²"}, NVIDIA)
@example({"ASCEND_RT_VISIBLE_DEVICES": "²"}, FLEETS[-1])
@example({"HIP_VISIBLE_DEVICES": "٣"}, AMD)
def test_any_text_gives_an_answer_that_holds_together(environ: dict[str, str], devices: list[DeviceIdentity]) -> None:
    """Positions are 0, 1, 2 … of visible devices, nothing is seen twice, and what is not known has its words."""
    seen = visibility(environ, devices)
    numbers = sorted(position for position in seen.positions if position is not None)
    assert numbers == list(range(len(numbers)))
    assert all(visible for visible, position in zip(seen.visible, seen.positions, strict=True) if position is not None)
    assert None not in seen.visible or seen.caveats


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(0, 4))
def test_a_sound_list_of_numbers_is_what_it_says(order: list[int], count: int) -> None:
    """Any choice in any order, by number or by UUID."""
    chosen = order[:count]
    assert cuda(",".join(map(str, chosen))).devices == tuple(chosen)
    assert cuda(",".join(UUIDS[number] for number in chosen)).devices == tuple(chosen)


def test_an_environment_block() -> None:
    """The first of a name counts; what is no assignment, or no text, costs nothing."""
    assert parse_environment(b"A=1\0A=2\0B=x=y\0C=\0junk\0=z\0D=\xff\0") == {"A": "1", "B": "x=y", "C": "", "D": "\udcff"}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Four GPUs that go by NVIDIA's rule, and a clean environment."""
    for name in [*VARIABLES, "CUDA_DEVICE_ORDER"]:
        monkeypatch.delenv(name, raising=False)
    # A backend that poses as a vendor's gives one of the many keys that the schema wants of that vendor.
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    backend = FakeBackend(devices=4, vendor="nvidia")
    for number in range(4):
        backend.device(number).set(powerWatts=100 + number)
    return backend


def test_every_snapshot_says_how_the_program_numbers_its_devices(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are reported; the hidden ones have no number."""
    with Sampler([rig]) as sampler:
        assert [device.visible_index for device in sampler.sample().devices] == [0, 1, 2, 3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with Sampler([rig]) as sampler:
        assert [device.visible_index for device in sampler.sample().devices] == [None, 1, None, 0]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert [device.visible_index for device in sampler.sample().devices] == [None, 1, None, 0], (
            "what it is changes with a list read later"
        )


def test_only_the_visible_devices_are_read_and_reported(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys stay what they are everywhere else; hidden devices are not even asked."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with Sampler([rig], visible=True) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics == {"gpu.1.powerWatts": 101, "gpu.3.powerWatts": 103}
    assert [(device.key, device.visible_index) for device in snapshot.devices] == [("gpu.1", 1), ("gpu.3", 0)]
    assert [rig.device(number).reads for number in range(4)] == [0, 1, 0, 1]


def test_renumbered_as_the_program_counts(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device 0 is gpu.0, and stays it when the driver comes back in another order."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with Sampler([rig], visible="renumber") as sampler:
        snapshot = sampler.sample()
        assert snapshot.metrics == {"gpu.0.powerWatts": 103, "gpu.1.powerWatts": 101}
        assert [(device.key, device.index, device.visible_index, device.vendor_index) for device in snapshot.devices] == [
            ("gpu.0", 0, 0, 3),
            ("gpu.1", 1, 1, 1),
        ]
        rig.device(3).lose()
        snapshot = sampler.sample()
        assert snapshot.unavailable["gpu.0.powerWatts"].reason == "device_lost"
        assert snapshot.metrics == {"gpu.1.powerWatts": 101}


def test_devices_that_turn_up_later(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are reported where they are visible; those that were there keep their keys, and none is given twice."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(rig.device(number).identity.uuid for number in (3, 2, 0)))
    clock = FakeClock()
    for visible, first, later in (
        (True, {"gpu.0": 2, "gpu.1": 3}, {"gpu.0": 2, "gpu.1": 3, "gpu.2": 0}),
        ("renumber", {"gpu.0": 3, "gpu.1": 2}, {"gpu.0": 3, "gpu.1": 2, "gpu.2": 0}),
    ):
        backend = FakeBackend(devices=4, vendor="nvidia")
        for device in backend.all_devices():
            device.set(powerWatts=device.identity.vendor_index)
        everything = backend.all_devices()
        backend.reorder(2, 3)
        backend.detection = backend.detection._replace(devices=4)
        with Sampler([backend], visible=visible, clock=clock) as sampler:  # type: ignore[arg-type]
            assert {key.removesuffix(".powerWatts"): value for key, value in sampler.sample().metrics.items()} == first
            backend.go_away()
            sampler.sample()
            backend.come_back()
            backend._devices = everything[2:] + everything[:1]
            clock.advance(2.0)
            assert {key.removesuffix(".powerWatts"): value for key, value in sampler.sample().metrics.items()} == later


def test_renumbering_two_vendors_never_meets_under_one_key(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second vendor's first device begins where that vendor's numbers begin."""
    other = FakeBackend("rival", devices=2, vendor="amd")
    for number in range(2):
        other.device(number).set(powerWatts=200 + number)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    with Sampler([rig, other], visible="renumber") as sampler:
        assert sampler.sample().metrics == {"gpu.0.powerWatts": 102, "gpu.4.powerWatts": 201, "gpu.5.powerWatts": 200}


def test_more_partitions_than_devices_keep_their_numbers(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are not as many numbers: the reason is said, and no two devices meet."""
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,1,0")
    whole = rig.device(0)
    whole.identity = whole.identity._replace(vendor="amd")
    for number in range(1, 4):
        part = rig.device(number)
        part.identity = part.identity._replace(vendor="amd", vendor_index=number - 1, parent=whole.identity.anchor)
    with Sampler([rig], visible="renumber") as sampler:
        snapshot = sampler.sample()
    assert [device.visible_index for device in snapshot.devices] == [0, 1, 2][::-1]
    assert len(snapshot.metrics) == 3
    assert all(key.startswith("gpu.0.") for key in snapshot.metrics)
    assert "more partitions than there are whole devices" in snapshot.backends[0].detail


def test_gpus_chooses_among_the_visible_ones(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the keys that are reported; a hidden device is refused, and the visible ones are listed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with Sampler([rig], visible="renumber", gpus=[0]) as sampler:
        assert sampler.sample().metrics == {"gpu.0.powerWatts": 103}
    with Sampler([rig], visible=True, gpus=[0]) as sampler, pytest.raises(UnknownNameError, match=r"gpu\.1 .*gpu\.3"):
        sampler.sample()


def test_what_cannot_be_told_is_reported_and_said(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is hidden on a guess, nothing renumbered; the backend's line has the reason."""
    rig.device(0).identity = rig.device(0).identity._replace(name="Tesla T4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for visible in (True, "renumber"):
        with Sampler([rig], visible=visible) as sampler:
            snapshot = sampler.sample()
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
        assert "PCI_BUS_ID" in snapshot.backends[0].detail
    with pytest.raises(AccelMetricsError, match="PCI_BUS_ID"):
        visible_devices(backends=[rig])


def test_an_option_that_is_neither(rig: FakeBackend) -> None:
    """Is refused with what is allowed."""
    with pytest.raises(InvalidOptionError, match="True, False or 'renumber'"):
        Sampler([rig], visible="yes")  # type: ignore[arg-type]


def test_visible_devices_in_the_programs_order(rig: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the list as it is at the call, and a reading of each."""
    assert [device.key for device in visible_devices(backends=[rig])] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    found = visible_devices(backends=[rig])
    assert [(device.key, device.visible_index, device.values["powerWatts"]) for device in found] == [("gpu.3", 0, 103), ("gpu.1", 1, 101)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices(backends=[rig]) == ()


linux = pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")


@pytest.fixture
def other(rig: FakeBackend) -> Generator[subprocess.Popen[bytes], None, None]:
    """Another program, which was given two devices."""
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "2,0"}
    program = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    yield program
    program.kill()
    program.communicate()


@linux
def test_the_watched_process_counts(rig: FakeBackend, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment, out of /proc, and not ours."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with Sampler([rig], pid=other.pid, visible=True) as sampler:
        assert [(device.key, device.visible_index) for device in sampler.sample().devices] == [("gpu.0", 1), ("gpu.2", 0)]
    assert [device.key for device in visible_devices(other.pid, backends=[rig])] == ["gpu.2", "gpu.0"]


@linux
def test_an_environment_that_may_not_be_read(rig: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process: said, never guessed."""
    (tmp_path / "proc/4711/environ").mkdir(parents=True)  # what cannot be read, also by root
    (tmp_path / "proc/4711/status").write_text("PPid:\t1\nNSpid:\t4711\n")
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    with Sampler([rig], pid=4711, visible=True) as sampler:
        snapshot = sampler.sample()
    assert [device.visible_index for device in snapshot.devices] == [None] * 4
    assert "the environment of process 4711 cannot be read" in snapshot.backends[0].detail
    with pytest.raises(AccelMetricsError, match="4711 cannot be read"):
        visible_devices(4711, backends=[rig])


def test_a_process_that_is_not_there(rig: FakeBackend) -> None:
    """Sees nothing that could be told."""
    with pytest.raises(AccelMetricsError, match="there is no process 4194305"):
        visible_devices(4194305, backends=[rig])


@linux
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_real_program_on_simulated_gpus(isolation: str) -> None:
    """A child that has the variable set before anything is imported: NVML lists four, it sees two, and loads no torch."""
    simulator = NvmlSimulator(gpus=4)
    program = (
        "import os, sys\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '3,1'\n"
        "import accelmetrics\n"
        f"with accelmetrics.Sampler(['nvidia'], visible='renumber', isolation={isolation!r}) as sampler:\n"
        "    snapshot = sampler.sample()\n"
        "print([(device.key, device.vendor_index) for device in snapshot.devices])\n"
        "print(len([key for key in snapshot.metrics if key.endswith('powerWatts') and key.count('.') == 2]))\n"
        "print('torch' in sys.modules)\n"
    )
    with simulator:
        env = {**os.environ, **simulator.environment(), "PYTHONPATH": str(Path(accelmetrics.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=50)
    assert done.stderr == ""
    assert done.stdout == "[('gpu.0', 3), ('gpu.1', 1)]\n2\nFalse\n"


@linux
def test_an_environment_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses it, and that is what is said; ours stays readable."""

    def refuse(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(sampling_devices, "read_once", refuse)
    found = environment_of(os.getppid())
    assert found.values is None
    assert found.why == f"the environment of process {os.getppid()} may not be read: it belongs to another user"
    assert not found.gone
    assert environment_of(os.getpid()).values == dict(os.environ)


@linux
def test_an_ended_process_that_was_not_waited_for() -> None:
    """Has an empty environment, which is not one without variables."""
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert ended.stdout is not None
    ended.stdout.read()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert environment_of(ended.pid).gone
    ended.communicate()
