from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind, DeviceProcess, DeviceSlot
from accelmetrics.schemas.snapshot import NO_LIST, Device, DeviceInfo, Snapshot, own_processes, rfc3339
from accelmetrics.schemas.vitals import EXPECTED_NAMES
from tests.records import machine
from tests.schemas.samples import AMD, NVIDIA, complete, snapshots


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_a_document_reads_back_to_an_equal_snapshot(snapshot: Snapshot) -> None:
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert Snapshot.from_json(snapshot.to_json(indent=2).encode()) == snapshot
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


@given(snapshots())
@settings(max_examples=50, deadline=None)
def test_a_document_keeps_the_types_of_numbers(snapshot: Snapshot) -> None:
    again = Snapshot.from_json(snapshot.to_json())
    assert {key: type(value) for key, value in again.metrics.items()} == {key: type(value) for key, value in snapshot.metrics.items()}
    assert list(again.metrics) == list(snapshot.metrics)


@given(st.integers(0, 253_402_300_799_999_999_999))
def test_the_timestamp_is_rfc_3339_in_utc_with_microseconds(time_ns: int) -> None:
    seconds, rest = divmod(time_ns, 10**9)
    moment = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
    text = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert rfc3339(time_ns) == text


def test_processes_are_counted_on_one_device_each() -> None:
    """Of a whole with partitions, either its own list or theirs; a device without a list has its reason, the source's or ours."""
    whole, part = NVIDIA.identity, NVIDIA.identity._replace(uuid="MIG-1", parent=NVIDIA.identity.uuid)
    slots = [NVIDIA, NVIDIA._replace(key="gpu.0.mig.0", identity=part), NVIDIA._replace(key="gpu.0.mig.1", identity=part), AMD]
    one, why = (DeviceProcess(7),), Unavailable(Reason.NO_PERMISSION, "another user's")
    assert whole.anchor == part.parent
    of_parts = complete(identities=slots, processes={"gpu.0": one, "gpu.0.mig.0": one}, unlisted={"gpu.0.mig.1": why})
    assert own_processes(of_parts) == {"gpu.0.mig.0": one, "gpu.0.mig.1": why, AMD.key: NO_LIST}
    assert own_processes(complete(identities=slots, processes={"gpu.0": one}, unlisted={})) == {"gpu.0": one, AMD.key: NO_LIST}
    chosen = complete(identities=slots[1:2], processes={}, unlisted={"gpu.0.mig.0": why})
    assert own_processes(chosen) == {"gpu.0.mig.0": why}, "a partition that was chosen without its device"


def test_the_document_has_the_agreed_fields() -> None:
    document = complete().to_dict()
    assert list(document) == [
        "schema_version", "timestamp", "hostname", "metrics", "devices", "unavailable", "backends", "processes", "unlisted"
    ]  # fmt: skip
    assert document["unlisted"] == {"gpu.2": {"reason": "not_supported", "detail": "NVML_ERROR_NOT_SUPPORTED"}}
    assert document["schema_version"] == "1.0" == Snapshot.schema_version
    assert document["timestamp"] == "2026-09-21T14:13:20.123456Z"
    told = {"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": 0, "vendor_index": 0, "visible_index": 1, "cores": 16896}
    told |= {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1", "pci_bus_id": "00000000:C1:00.0"}
    told |= {"memory_total_bytes": 85_520_809_984, "numa_node": 1, "cpu_affinity": "32-63,96-127", "unified": False}
    texts = "serial architecture driver_version runtime_version firmware parent fabric part_number compute_capability chassis_serial"
    numbers = "gpu_instance_id minor_number chassis_slot tray_index host_id module_id"
    assert document["devices"][0] == {**told, **dict.fromkeys(texts.split(), ""), **dict.fromkeys(numbers.split())}
    assert document["unavailable"] == {"gpu.0.fanSpeed": {"reason": "not_supported", "detail": "NVML_ERROR_NOT_SUPPORTED"}}
    fields = ["name", "status", "detail", "source", "duration_seconds", "read_at", "age_seconds", "sequence", "devices", "reason"]
    assert list(document["backends"][0]) == fields
    process = {"pid": 4711, "type": "compute", "memory_bytes": 1_000_000, "utilization": 12.5, "memory_utilization": None}
    assert document["processes"]["gpu.0"][0] == process
    assert json.loads(json.dumps(document)) == document


def test_a_document_is_one_line_of_plain_characters_unless_indented() -> None:
    snapshot = complete(hostname="Müller\n")
    assert "\n" not in snapshot.to_json()
    assert snapshot.to_json().isascii()
    assert snapshot.to_json(indent=2).startswith('{\n  "schema_version"')


def test_what_is_given_out_is_new() -> None:
    snapshot = complete()
    snapshot.to_dict()["metrics"].clear()
    snapshot.flat().clear()
    assert snapshot == complete()
    assert snapshot.flat() == snapshot.metrics


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_cannot_hold_is_not_written(value: float) -> None:
    with pytest.raises(DocumentError, match="cannot be written"):
        complete(metrics={"cpu": value}).to_json()


# Equality, pickling, looks


@pytest.mark.parametrize(
    "change",
    [
        {"time_ns": 1},
        {"hostname": "other"},
        {"metrics": {}},
        {"identities": (NVIDIA,)},
        {"unavailable": {}},
        {"backends": ()},
        {"processes": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_snapshots_that_differ_anywhere_are_not_equal(change: dict[str, Any]) -> None:
    assert complete(**change) != complete()
    assert complete() == complete()
    assert complete() != "a snapshot"


def test_a_snapshot_cannot_be_a_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(complete())


def test_shared_mappings_pickle() -> None:
    shared = MappingProxyType({"gpu.0.fanSpeed": Unavailable(Reason.NOT_SUPPORTED)})
    snapshot = complete(unavailable=shared, processes=MappingProxyType({}))
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_a_snapshot_pickles_after_it_was_looked_at() -> None:
    snapshot = complete()
    assert snapshot.devices[0].metrics.power_watts
    assert snapshot.host.cpu
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_it_says_what_it_holds() -> None:
    snapshot = complete()
    held = f"node-1: 2 devices, {len(snapshot.metrics)} metrics, 1 unavailable"
    assert repr(snapshot) == f"<Snapshot 2026-09-21T14:13:20.123456Z {held}>"
    assert repr(snapshot.devices[1]).startswith("<Device gpu.1 amd 'AMD Instinct MI300X': 37 metrics, 0 unavailable>")


# Metrics


def test_a_missing_key_says_why() -> None:
    with pytest.raises(KeyError, match=r"gpu\.0\.fanSpeed is not available: not_supported \(NVML_ERROR_NOT_SUPPORTED\)"):
        complete().metrics["gpu.0.fanSpeed"]


@pytest.mark.parametrize(
    ("key", "near"),
    [("gpu.0.fanspeed", "gpu.0.fanSpeed"), ("gpu.1.powerWats", "gpu.1.powerWatts"), ("gpu.7.powerWatts", "gpu.0.powerWatts")],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, near: str) -> None:
    """Those that are missing among them."""
    with pytest.raises(KeyError, match=f"no metric '{key}'; the nearest: .*{near}"):
        complete().metrics[key]
    with pytest.raises(KeyError, match=r"no metric 'zzz'\"$"):
        complete().metrics["zzz"]


def test_the_metrics_are_a_dict_in_every_other_way() -> None:
    """Equal to one, written and pickled as one, copied to one; only square brackets differ, and those of a sampler's too."""
    snapshot = complete()
    metrics, plain = snapshot.metrics, dict(snapshot.metrics)
    assert metrics == plain
    assert (metrics.get("gpu.0.fanSpeed"), metrics.get("x", 3), "gpu.0.fanSpeed" in metrics) == (None, 3, False)
    assert json.dumps(metrics) == json.dumps(plain)
    for other in (metrics.copy(), copy.copy(metrics), copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics)), snapshot.flat()):
        assert type(other) is dict
        assert other == plain
    again = pickle.loads(pickle.dumps(Snapshot(0, "h", {}, unavailable=MappingProxyType({"a": Unavailable("stale")}))))
    with pytest.raises(KeyError, match="a is not available: stale"):
        again.metrics["a"]
    with Sampler([machine(2)]) as sampler, pytest.raises(KeyError, match="NVML_ERROR_NOT_SUPPORTED"):
        sampler.sample().metrics["gpu.1.fanSpeed"]


# Devices


def test_a_device_tells_who_it_is() -> None:
    first, second = complete().devices
    for name in set(DeviceIdentity._fields) - {"parent"}:
        assert getattr(first, name) == getattr(NVIDIA.identity, name)
    assert (first.key, first.index, first.visible_index, first.identity) == ("gpu.0", 0, 1, NVIDIA.identity)
    assert (second.key, second.index, second.visible_index) == ("gpu.1", 1, None)


def test_the_types_of_a_devices_attributes_can_be_looked_up() -> None:
    """As tools do that document or check classes."""
    assert get_type_hints(Device) == get_type_hints(DeviceInfo) == get_type_hints(DeviceIdentity) | {"parent": str | None}


def test_a_partition_names_the_device_that_it_is_a_part_of() -> None:
    """By its key, and by its UUID where only the partition is reported, under a number of the program's own; whole devices name none."""
    whole = DeviceSlot("gpu.3", 3, None, DeviceIdentity("gpu", "acme", 3, uuid="GPU-3"))
    part = DeviceSlot("gpu.3.mig.1", 1, None, DeviceIdentity("gpu", "acme", 1, parent="GPU-3"))
    alone = part._replace(key="gpu.0", index=0)
    assert [device.parent for device in complete(identities=(whole, part)).devices] == [None, "gpu.3"]
    assert [device.parent for device in complete(identities=(part,)).devices] == ["gpu.3"]
    assert [device.parent for device in complete(identities=(alone,)).devices] == ["GPU-3"]


def test_devices_are_made_once() -> None:
    snapshot = complete()
    assert snapshot.devices is snapshot.devices
    assert snapshot.devices[0].metrics is snapshot.devices[0].metrics
    assert snapshot.devices[0].process_metrics is snapshot.devices[0].process_metrics
    assert snapshot.host is snapshot.host


def test_a_snapshot_is_freed_without_the_collector() -> None:
    """With its devices and their views; and a device outlives it with all that it tells."""
    gc.collect()
    gc.disable()
    try:
        snapshot = complete()
        device, power = snapshot.devices[0], snapshot.metrics["gpu.0.powerWatts"]
        assert snapshot.device("gpu.1").metrics is not None
        reference = weakref.ref(snapshot.devices[1].metrics)
        del snapshot
        assert reference() is None
        assert device.metrics.power_watts == power
    finally:
        gc.enable()


def test_a_device_is_found_by_key_or_uuid() -> None:
    snapshot = complete()
    assert snapshot.device("gpu.1") is snapshot.devices[1]
    assert snapshot.device(NVIDIA.identity.uuid) is snapshot.devices[0]
    assert snapshot.device(1) is snapshot.devices[1]
    with pytest.raises(UnknownNameError, match=r"unknown device 'gpu\.7'"):
        snapshot.device(7)


@pytest.mark.parametrize("name", ["gpu.7", "", "GPU-18ef14e9"])
def test_an_unknown_device_is_an_error_that_lists_the_known(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown device .* Known: gpu\.0, GPU-18ef14e9-dec6.*, gpu\.1, 0x18ef14e9dec61d7e"):
        complete().device(name)


def test_a_device_without_a_uuid_is_not_found_by_nothing() -> None:
    bare = DeviceSlot("gpu.0", 0, None, DeviceIdentity("gpu", "acme", 0))
    with pytest.raises(UnknownNameError):
        complete(identities=(bare,)).device("")


def test_a_device_has_its_own_values_reasons_and_processes() -> None:
    snapshot = complete()
    first, second = snapshot.devices
    assert first.values["powerWatts"] == snapshot.metrics["gpu.0.powerWatts"]
    assert first.values["throttle.gpuIdle"] == snapshot.metrics["gpu.0.throttle.gpuIdle"]
    assert {f"gpu.0.{name}" for name in first.values} == {key for key in snapshot.metrics if key.startswith("gpu.0.")}
    assert {f"gpu.1.{name}" for name in second.values} == {key for key in snapshot.metrics if key.startswith("gpu.1.")}
    assert first.unavailable == {"fanSpeed": Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED")}
    assert second.unavailable == {}
    assert first.processes == snapshot.processes["gpu.0"]
    assert second.processes == ()
    assert complete(processes={}).devices[0].processes is None


def test_tenth_and_first_device_are_told_apart() -> None:
    many = tuple(DeviceSlot(f"gpu.{i}", i, i, DeviceIdentity("gpu", "acme", i)) for i in range(12))
    snapshot = complete(identities=many, metrics={"gpu.1.temp": 1, "gpu.11.temp": 11, "gpu.process.11.temp": 12}, unavailable={})
    assert [dict(device.values) for device in snapshot.devices if device.values] == [{"temp": 1}, {"temp": 11}]
    process = snapshot.devices[11].process_metrics
    assert process is not None
    assert process.temp == 12


def test_a_partition_keeps_its_values_from_its_parent() -> None:
    part = DeviceSlot("gpu.0.mig.1", 1, None, DeviceIdentity("gpu", "acme", 1))
    whole = DeviceSlot("gpu.0", 0, None, DeviceIdentity("gpu", "acme", 0))
    snapshot = complete(identities=(whole, part), metrics={"gpu.0.temp": 1, "gpu.0.mig.1.temp": 2, "gpu.0.mig.2.temp": 3}, unavailable={})
    assert snapshot.devices[0].values == {"temp": 1, "mig.2.temp": 3}
    assert snapshot.devices[1].values == {"temp": 2}


# Typed views


def test_a_device_is_typed() -> None:
    snapshot = complete()
    metrics = snapshot.devices[0].metrics
    assert metrics.power_watts == snapshot.metrics["gpu.0.powerWatts"]
    assert metrics.temp_limit_slowdown == snapshot.metrics["gpu.0.tempLimit.slowdown"]
    assert metrics.fan_speed is None
    assert isinstance(metrics.sm_clock, int)


@pytest.mark.parametrize(
    ("kind", "values", "seen"),
    [
        (
            "gpu",
            {"gpu": 37, "memoryAllocatedBytes": 5, "powerWatts": 294.0, "enforcedPowerLimitWatts": 700, "temp": 41},
            (37, 5, 294, 700, 41),
        ),
        ("npu", {"utilization": 37, "memoryAllocatedBytes": 5, "powerWatts": 294.0, "temp": 41}, (37, 5, 294, None, 41)),
        ("tpu", {"dutyCycle": 37, "hbmCapacityUsage": 5}, (37, 5, None, None, None)),
        ("ipu", {"ipu utilisation (%)": 37, "ipu power (W)": 294.0, "average die temp (C)": 41}, (37, None, 294, None, 41)),
        ("trn", {"neuroncore_utilization": 37}, (37, None, None, None, None)),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_every_kind_of_device_has_the_names_that_one_expects(
    kind: DeviceKind, values: dict[str, int | float], seen: tuple[float | None, ...]
) -> None:
    """And its own; what is dumped are its own."""
    metrics: dict[str, int | float] = {f"{kind}.0.{name}": value for name, value in values.items()}
    slot = DeviceSlot(f"{kind}.0", 0, None, DeviceIdentity(kind, "acme", 0))
    view = Snapshot(0, "host", metrics, [slot]).devices[0].metrics
    assert (view.utilization, view.memory_used_bytes, view.power_watts, view.power_limit_watts, view.temperature) == seen
    dumped = view.model_dump(exclude_none=True)
    assert not dumped.keys() & {"memory_used_bytes", "power_limit_watts", "temperature", "memory_percent"}
    assert set(EXPECTED_NAMES) <= set(type(view).model_fields)


def test_the_watched_process_is_typed_while_it_uses_the_device() -> None:
    snapshot = complete()
    first, second = (device.process_metrics for device in snapshot.devices)
    assert first is not None
    assert first.memory_allocated_bytes == snapshot.metrics["gpu.process.0.memoryAllocatedBytes"]
    assert second is None


def test_the_host_is_typed_with_its_disks_and_cpus() -> None:
    snapshot = complete()
    host = snapshot.host
    assert host.proc_memory_rss_mb == snapshot.metrics["proc.memory.rssMB"]
    assert host.filesystems["/"].usage_percent == snapshot.metrics["disk./.usagePercent"]
    assert host.filesystems["/mnt/a.b"].usage_gb == snapshot.metrics["disk./mnt/a.b.usageGB"]
    assert host.disks["nvme0n1"].in_ == snapshot.metrics["disk.nvme0n1.in"]
    assert host.disks["nvme0n1"].out is None
    assert host.cpus[0].cpu_percent == snapshot.metrics["cpu.0.cpu_percent"]


def test_a_look_at_an_impossible_number_shows_it() -> None:
    """Refusing it is the business of validation; a look must not raise."""
    metrics = {"gpu.0.gpu": 4000.0, "gpu.0.smClock": 1.5, "gpu.0.temp": 40, "cpu": -1.0, "disk./.usagePercent": 101.0}
    snapshot = complete(metrics=metrics, unavailable={})
    view = snapshot.devices[0].metrics
    assert (view.gpu, view.sm_clock, view.temp, view.power_watts) == (4000.0, 1.5, 40, None)
    assert snapshot.host.cpu == -1.0
    assert snapshot.host.filesystems["/"].usage_percent == 101.0


def test_a_kind_without_rows_of_its_own_is_seen_through_the_common_names() -> None:
    place = DeviceSlot("npu.0", 0, None, DeviceIdentity("npu", "acme", 0))
    snapshot = complete(identities=(place,), metrics={"npu.0.powerWatts": 75.0, "npu.0.own": 1}, unavailable={})
    assert snapshot.devices[0].metrics.power_watts == 75.0
    assert snapshot.devices[0].values == {"powerWatts": 75.0, "own": 1}


def test_views_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        complete().devices[0].metrics.power_watts = 1.0
    assert AMD.identity.vendor == "amd"


def test_what_is_no_text_is_written_as_escapes_and_the_document_reads_back() -> None:
    place = NVIDIA._replace(identity=NVIDIA.identity._replace(name="GPU \udcff"))
    base = complete()
    names = {f"disk./{name}.usageGB": number for number, name in enumerate(("\udcff", "\udcfe", "\\n", "\U0001f680"))}
    unavailable = {**base.unavailable, "disk./\ud83d.usagePercent": Unavailable(Reason.DRIVER_ERROR, "\ude80 \\ \U0001f680")}
    snapshot = complete(identities=(place, AMD), metrics={**base.metrics, **names}, unavailable=unavailable, hostname="h\udc80")
    for indent in (None, 2):
        again = Snapshot.from_json(snapshot.to_json(indent))
        assert (again.hostname, again.devices[0].name) == ("h\\udc80", "GPU \\udcff")
        assert {key: value for key, value in again.metrics.items() if key not in base.metrics} == {
            "disk./\\udcff.usageGB": 0,
            "disk./\\udcfe.usageGB": 1,
            "disk./\\n.usageGB": 2,
            "disk./\U0001f680.usageGB": 3,
        }
        assert again.unavailable["disk./\\ud83d.usagePercent"].detail == "\\ude80 \\ \U0001f680"
