"""Our own Prometheus names: the catalogue's, in base units, with two labels that say which device, and health beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.health import NO_HISTORY, health
from accelmetrics.dialects.prometheus import PROMETHEUS, SHARED, process_points
from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import BASE_UNITS, Metric, split_series
from accelmetrics.schemas.record import ExporterStatus, MonitorStatus, Record, Step
from accelmetrics.visibility.job import job_labels
from tests.records import machine, record

UUID = "GPU-5cf1a7ed-0000-4000-8000-000000000000"
_BASE = {"%": "1", "MiBy": "By", "GiBy": "By", "MHz": "Hz", "us": "s", "Mbit/s": "By/s", "GT/s": "1"}
_LARGE = {"%": 0.01, "MiBy": 2**20, "GiBy": 2**30, "MHz": 1e6, "us": 1e-6, "Mbit/s": 125_000, "GT/s": 1e9}


def points(what: Record) -> dict[tuple[str, tuple[tuple[str, str], ...]], Point]:
    """Every point by its series; fails where two are the same."""
    found = list(PROMETHEUS.points(what))
    by_series = {(point.name, tuple(sorted(point.labels.items()))): point for point in found}
    assert len(by_series) == len(found)
    return by_series


def of(what: Record, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Labels and values of a metric."""
    return [(point.labels, point.value) for point in PROMETHEUS.points(what) if point.name == name]


def taken(metrics: dict[str, int | float], *places: DeviceSlot, unavailable: dict[str, Unavailable] | None = None) -> Record:
    """A record of a snapshot made by hand."""
    return Record(Snapshot(10**18, "node-1", metrics, places, unavailable))


def place(key: str, **identity: str) -> DeviceSlot:
    """A device's place, of the kind that its key says."""
    about = DeviceIdentity(kind="gpu", vendor="nvidia", vendor_index=0, **identity)  # type: ignore[arg-type]  # texts alone
    return DeviceSlot(key, int(key.split(".")[1]), None, about)


# The catalogue


def _families() -> Mapping[str, list[Metric]]:
    found = defaultdict(list)
    for row in CATALOGUE:
        if row.prometheus:
            found[split_series(row.prometheus)[0]].append(row)
    return found


def _times(row: Metric) -> float:
    return BASE_UNITS[row.unit].times / BASE_UNITS[row.unit].over


def test_each_metric_has_one_type_and_one_unit() -> None:
    """Rows that share a metric agree on what it counts, and factors lead to the base unit that the name says."""
    for name, rows in _families().items():
        assert len({row.kind for row in rows}) == 1, name
        assert len({_BASE.get(row.unit, row.unit) for row in rows}) == 1, name
        assert all(_times(row) == pytest.approx(_LARGE.get(row.unit, 1)) for row in rows), name
        assert name.endswith("_total") == (rows[0].kind == "counter"), name


def test_each_metric_has_one_help_text() -> None:
    """What several rows share is described once, and nothing else is."""
    shared = {name for name, rows in _families().items() if len({row.meaning for row in rows}) > 1}
    assert shared == set(SHARED)
    helps = defaultdict(set)
    for point in PROMETHEUS.points(record()):
        helps[point.name].add((point.meaning, point.kind))
    assert all(len(found) == 1 for found in helps.values())


# Devices


def test_every_series_of_a_device_carries_exactly_its_two_labels() -> None:
    """``accelerator`` is the key and ``uuid`` the UUID; what else there is tells series of one metric apart."""
    found = points(record())
    power = found["accel_power_watts", (("accelerator", "gpu.0"), ("uuid", UUID))]
    assert (power.value, power.kind, power.unit) == (300.0, "gauge", "W")
    temperature = [labels for labels, _ in of(record(), "accel_temperature_celsius")]
    assert temperature[0] == {"accelerator": "gpu.0", "uuid": UUID, "sensor": "core"}


def test_values_are_in_base_units() -> None:
    """Percent become ratios without a rounding error, megahertz hertz, mebibytes bytes."""
    what = taken(
        {"gpu.0.gpu": 70, "gpu.0.fanSpeed": 29.0, "gpu.0.smClock": 1980, "proc.memory.rssMB": 1.5, "tpu.grpcTcpMinRtt.p50Us": 250.0}
    )
    flat = PROMETHEUS.flat(what)
    assert flat['accel_utilization_ratio{accelerator="gpu.0",uuid="gpu.0",engine="compute"}'] == 0.7
    assert flat['accel_fan_ratio{accelerator="gpu.0",uuid="gpu.0"}'] == 0.29
    assert flat['accel_clock_hertz{accelerator="gpu.0",uuid="gpu.0",domain="sm"}'] == 1.98e9
    assert flat["accel_host_process_memory_bytes"] == 1.5 * 2**20
    assert flat['accel_network_round_trip_seconds{statistic="p50"}'] == 0.00025


def test_the_uuid_is_never_empty() -> None:
    """Without a UUID it is the PCI address, without that the key."""
    what = taken({}, place("gpu.0", uuid="GPU-1", pci_bus_id="0000:41:00.0"), place("gpu.1", pci_bus_id="0000:42:00.0"), place("gpu.2"))
    assert [labels["uuid"] for labels, _ in of(what, "accel_up")] == ["GPU-1", "0000:42:00.0", "gpu.2"]


def test_partitions_links_and_the_host_have_the_labels_they_need() -> None:
    """A partition is a device of its own, a link is a label, and what the host says has no device."""
    metrics = {"gpu.0.mig.1.smActive": 50.0, "gpu.0.nvlink.7.txBytesTotal": 9, "cpu.3.cpu_percent": 25.0, "disk./data.usageGB": 1.0}
    what = taken(metrics, place("gpu.0", uuid="GPU-1"), place("gpu.0.mig.1", uuid="MIG-1", parent="GPU-1"))
    assert of(what, "accel_sm_active_ratio") == [({"accelerator": "gpu.0.mig.1", "uuid": "MIG-1"}, 0.5)]
    link = {"accelerator": "gpu.0", "uuid": "GPU-1", "link_type": "nvlink", "direction": "tx", "link": "7"}
    assert of(what, "accel_link_port_bytes_total") == [(link, 9)]
    assert of(what, "accel_host_cpu_ratio") == [({"cpu": "3"}, 0.25)]
    assert of(what, "accel_host_filesystem_used_bytes") == [({"path": "/data"}, float(2**30))]
    info = dict(of(what, "accel_info")[1][0])
    assert (info["parent_uuid"], info["partition"]) == ("GPU-1", "1")


def test_what_pytorch_holds_belongs_to_its_gpu() -> None:
    """``torch.{i}`` is the memory of ``gpu.{i}``, under the same two labels."""
    what = taken({"torch.1.memoryAllocatedBytes": 7}, place("gpu.0"), place("gpu.1", uuid="GPU-1"))
    assert of(what, "accel_torch_memory_allocated_bytes") == [({"accelerator": "gpu.1", "uuid": "GPU-1"}, 7)]


def test_what_is_missing_has_no_series() -> None:
    """A fan that is not supported is absent, and an idle GPU's 0 is there."""
    fans = [labels["accelerator"] for labels, _ in of(record(), "accel_fan_ratio")]
    assert fans == ["gpu.0"]
    assert [value for labels, value in of(record(), "accel_utilization_ratio") if labels["accelerator"] == "gpu.1"] == [0.0]


def test_one_value_is_one_series() -> None:
    """Keys that W&B spells in two ways do not count twice, and unknown keys are passed over."""
    what = taken({"_gpu.0.memoryTotal": 5, "gpu.0.memoryTotalBytes": 5, "gpu.0.somethingOfAPlugIn": 1})
    assert len([point for point in PROMETHEUS.points(what) if point.name.startswith("accel_memory")]) == 1


def test_info_says_everything_else() -> None:
    """Model, vendor and PCI address stand on one info metric; what is unknown is left out."""
    (labels, value), _ = of(record(), "accel_info")
    assert value == 1
    assert labels["model"] == "Scripted GPU"
    assert labels["pci_bus_id"] == "00000000:41:00.0"
    assert "serial" not in labels
    assert all(labels.values())


# Up and down


@pytest.mark.parametrize(
    ("reason", "up"),
    [
        (Reason.DEVICE_LOST, 0),
        (Reason.TIMED_OUT, 0),
        (Reason.DRIVER_UNAVAILABLE, 0),
        (Reason.RESET_REQUIRED, 0),
        ("of_a_newer_release", 0),
        (Reason.SUSPENDED, 1),
        (Reason.NOT_IN_USE, 1),
        (Reason.NO_PERMISSION, 1),
    ],
)
def test_a_device_that_says_nothing_is_down_unless_that_is_in_order(reason: str, up: int) -> None:
    """Lost, hung and broken devices are down; one that sleeps, or that no program holds or that we may not read, is not."""
    why = {"gpu.0.powerWatts": Unavailable(reason), "gpu.0.fanSpeed": Unavailable(Reason.NOT_SUPPORTED)}
    if reason == Reason.NOT_IN_USE:
        why["gpu.0.temp"] = Unavailable(Reason.SUSPENDED)
    assert of(taken({}, place("gpu.0"), unavailable=why), "accel_up") == [({"accelerator": "gpu.0", "uuid": "gpu.0"}, up)]


def test_a_lost_gpu_keeps_its_labels() -> None:
    """It is down under the UUID that it had; the others are up."""
    gpus = machine(2)
    with Sampler([gpus]) as sampler:
        before = Record(sampler.sample())
        gpus.device(0).lose()
        after = Record(sampler.sample())
    assert [labels for labels, _ in of(before, "accel_up")] == [labels for labels, _ in of(after, "accel_up")]
    assert [value for _, value in of(after, "accel_up")] == [0, 1]
    assert not [labels for labels, _ in of(after, "accel_power_watts") if labels["accelerator"] == "gpu.0"]


def test_a_vanished_device_is_still_expected() -> None:
    """What an earlier record listed is down, not forgotten. A partition is no device: it is never expected."""
    earlier = taken({"gpu.0.temp": 30, "gpu.1.temp": 30}, place("gpu.0"), place("gpu.1", uuid="GPU-1"), place("gpu.0.mig.0", parent="x"))
    now = taken({"gpu.0.temp": 30}, place("gpu.0"))
    found = {(point.name, point.labels.get("uuid")): point.value for point in health(now, NO_HISTORY.after(earlier))}
    assert found["accel_up", "GPU-1"] == 0
    assert found["accel_up", "gpu.0"] == 1
    assert found["accelmetrics_devices_expected", None] == 2
    assert [point.value for point in health(earlier) if point.name == "accelmetrics_devices_expected"] == [2]


def test_what_the_bus_shows_is_expected_of_a_driver_that_never_opened() -> None:
    """Of one that has listed its devices, those are; the rest of the machine is counted as ever."""
    sources = (BackendStatus("amd", "failed", devices=4), BackendStatus("nvidia", "ok", devices=1), BackendStatus("tpu", "absent"))
    broken = Record(Snapshot(10**18, "node-1", {"gpu.0.temp": 30}, (place("gpu.0"),), backends=sources))
    found = {(point.name, *point.labels.values()): point.value for point in health(broken)}
    assert found["accelmetrics_devices_expected",] == 5
    assert found["accelmetrics_collect_success", "amd"] == 0


def test_old_news_leave_nothing_up() -> None:
    """Of a record that is not fresh there are left the devices that should be there, all down, and the counters as they stood."""
    what = record()
    found = {(point.name, *point.labels.values()): point.value for point in health(what, fresh=False)}
    assert found["accelmetrics_up",] == 0
    assert found["accel_up", "gpu.0", UUID] == 0
    assert found["accelmetrics_collect_success", "nvidia"] == 0
    assert found["accelmetrics_ticks_total",] == 10
    assert not [name for name, *_ in found if name == "accelmetrics_source_state"]
    assert [point.value for point in health(None) if point.name == "accelmetrics_up"] == [0]


# Sources, the monitor and its exporters


def test_sources_say_how_they_fare() -> None:
    """A source that failed keeps the time of its last success; one that is absent has neither succeeded nor failed."""
    good = BackendStatus("nvidia", "ok", duration_seconds=0.25, age_seconds=2.0)
    metrics: dict[str, int | float] = {"cpu": 1.0}
    earlier = Record(Snapshot(10**18, "node-1", metrics, backends=(good,)))
    statuses = (BackendStatus("nvidia", "timed_out"), BackendStatus("amd", "absent"))
    now = Record(Snapshot(2 * 10**18, "node-1", metrics, backends=statuses))
    found = {(point.name, *point.labels.values()): point.value for point in health(now, NO_HISTORY.after(earlier))}
    assert found["accelmetrics_collect_success", "nvidia"] == 0
    assert found["accelmetrics_collect_last_success_timestamp_seconds", "nvidia"] == 10**9 - 2
    assert found["accelmetrics_source_state", "nvidia", "timed_out"] == 1
    assert found["accelmetrics_source_state", "nvidia", "ok"] == 0
    assert found["accelmetrics_source_state", "amd", "absent"] == 1
    assert ("accelmetrics_collect_success", "amd") not in found


def counted(*records: Record) -> dict[tuple[str, ...], Point]:
    """What is counted over records, by name and labels."""
    history = NO_HISTORY
    for one in records:
        history = history.after(one)
    found = {(point.name, *point.labels.values()): point for point in health(records[-1], history)}
    names = ("accelmetrics_collect_errors_total", "accelmetrics_collect_timeouts_total", "accel_throttle_seconds_total")
    return {series: point for series, point in found.items() if series[0] in names}


def reading(second: float, *statuses: BackendStatus, lost: str = "", throttled: int | None = None) -> Record:
    """A reading of two GPUs by a monitor with an interval of 1 s."""
    metrics = {} if throttled is None else {"gpu.1.throttle.swPowerCap": throttled, "gpu.1.throttle.syncBoost": 0}
    why = {f"{lost}.temp": Unavailable(Reason.DEVICE_LOST), f"{lost}.fanSpeed": Unavailable(Reason.NOT_SUPPORTED)} if lost else {}
    places = (place("gpu.0", uuid="GPU-0"), place("gpu.1", uuid="GPU-1"))
    snapshot = Snapshot(10**18 + int(second * 1e9), "node-1", dict(metrics), places, why, statuses)
    return Record(snapshot, monitor=MonitorStatus(1.0))


def test_readings_that_fail_are_counted_by_source_and_error() -> None:
    """By the reasons that speak against its devices, else by how it fared; a reading that is served again counts once."""
    good, lost = BackendStatus("nvidia", "ok", sequence=1), BackendStatus("nvidia", "degraded", sequence=2)
    failed, absent = BackendStatus("host", "failed"), BackendStatus("amd", "absent")
    records = [reading(0, good, absent), reading(1, lost, failed, lost="gpu.1"), reading(2, lost, failed, lost="gpu.1")]
    values = {series[1:]: point.value for series, point in counted(*records).items() if series[0] == "accelmetrics_collect_errors_total"}
    assert values == {("nvidia", "device_lost"): 1, ("host", "failed"): 2}
    assert not counted(reading(0, good)).keys() - {("accelmetrics_collect_timeouts_total", "nvidia")}


def test_readings_without_an_answer_are_counted() -> None:
    """Each one while a call goes on, though it is the same call; a source that always answered stands at 0, one that is absent nowhere."""
    late, good = BackendStatus("nvidia", "timed_out", sequence=7), BackendStatus("host", "ok", sequence=7)
    found = counted(*(reading(second, late, good, BackendStatus("amd", "absent")) for second in range(3)))
    assert {series[1:]: (point.value, point.kind) for series, point in found.items()} == {
        ("nvidia", "timed_out"): (3, "counter"),
        ("nvidia",): (3, "counter"),
        ("host",): (0, "counter"),
    }


def test_throttling_is_counted_in_seconds() -> None:
    """A reading stands for the time before it; a long silence, a clock that was set back and a start stand for none."""
    times = {0: 1, 1: 1, 2.5: 1, 3.5: 0, 4.5: 1, 60: 1, 61: 1, 30: 1, 31: 1}
    found = counted(*(reading(second, throttled=value) for second, value in times.items()))
    values = {series[1:]: point.value for series, point in found.items()}
    assert values == {("gpu.1", "GPU-1", "sw_power_cap"): pytest.approx(1 + 1.5 + 1 + 1 + 1), ("gpu.1", "GPU-1", "sync_boost"): 0}
    kept = counted(*(reading(second, throttled=value) for second, value in times.items()), reading(32))
    assert {series[1:]: point.value for series, point in kept.items()} == values


def test_a_state_is_no_throttling() -> None:
    """An idle GPU, and one whose clocks were set, is held down by nothing: no alert on the seconds fires."""
    states = {f"gpu.1.throttle.{name}": 1 for name in ("gpuIdle", "applicationsClocksSetting", "displayClockSetting")}
    records = [reading(second, throttled=1) for second in range(3)]
    for one in records:
        dict.update(one.snapshot.metrics, states)
    assert {series[-1] for series in counted(*records) if series[0] == "accel_throttle_seconds_total"} == {"sw_power_cap", "sync_boost"}
    assert ({"accelerator": "gpu.1", "uuid": "GPU-1", "reason": "gpu_idle"}, 1) in of(records[-1], "accel_throttle_active")


def test_one_record_alone_counts_nothing() -> None:
    """The names of a record that is handed over by itself have no counter over records."""
    found = {point.name for point in PROMETHEUS.points(reading(0, BackendStatus("nvidia", "timed_out"), throttled=1))}
    assert "accel_throttle_active" in found
    assert not found & {"accelmetrics_collect_errors_total", "accelmetrics_collect_timeouts_total", "accel_throttle_seconds_total"}


def test_processes_are_counted_where_they_are_listed() -> None:
    """None is 0 and not listed is no series."""
    processes = {"gpu.0": (DeviceProcess(1), DeviceProcess(2)), "gpu.1": ()}
    places = [place(f"gpu.{number}", uuid=f"GPU-{number}") for number in range(3)]
    what = Record(Snapshot(10**18, "node-1", {}, places, processes=processes))
    assert [(labels["uuid"], value) for labels, value in of(what, "accel_processes")] == [("GPU-0", 2), ("GPU-1", 0)]


def test_the_processes_that_hold_most_memory() -> None:
    """So many of all devices together and no more, each on one device; what the driver does not say has no series."""
    whole, part = place("gpu.0", uuid="GPU-0"), place("gpu.0.mig.1", uuid="MIG-1", parent="GPU-0")
    large, busy, small = DeviceProcess(7, "compute", 900, 50.0, 25.0), DeviceProcess(8, "", None, 100), DeviceProcess(9, "graphics", 3)
    processes = {"gpu.0": (large,), "gpu.0.mig.1": (large,), "gpu.1": (busy, small)}
    snapshot = Snapshot(10**18, "node-1", {}, [whole, part, place("gpu.1"), place("gpu.2")], processes=processes)
    series = [(point.name.removeprefix("accel_process_"), dict(point.labels), point.value) for point in process_points(snapshot, 2)]
    first, second = {"accelerator": "gpu.0.mig.1", "uuid": "MIG-1", "pid": "7"}, {"accelerator": "gpu.1", "uuid": "gpu.1", "pid": "9"}
    assert series == [
        ("info", {**first, "type": "compute"}, 1),
        ("memory_bytes", first, 900),
        ("utilization_ratio", first, 0.5),
        ("memory_bandwidth_ratio", first, 0.25),
        ("info", {**second, "type": "graphics"}, 1),
        ("memory_bytes", second, 3),
    ]
    assert [dict(point.labels)["pid"] for point in process_points(snapshot, 9) if point.name == "accel_process_info"] == ["7", "9", "8"]
    assert list(process_points(snapshot, 0)) == []


def test_the_monitor_and_its_exporters_are_counted() -> None:
    """Ticks, and what became of the records of each exporter, are counters; what waits is a gauge."""
    status = MonitorStatus(1.0, 10, 1, 2, (ExporterStatus("jsonl", 9, 4, 1, 3),))
    found = points(Record(record().snapshot, monitor=status))
    by_name = {name: point for (name, _), point in found.items()}
    values = {name: point.value for name, point in by_name.items() if name.startswith(("accelmetrics_export", "accelmetrics_ticks"))}
    assert values == {
        "accelmetrics_ticks_total": 10,
        "accelmetrics_export_sent_total": 9,
        "accelmetrics_export_failed_total": 4,
        "accelmetrics_export_dropped_total": 1,
        "accelmetrics_export_queue_length": 3,
    }
    assert by_name["accelmetrics_export_sent_total"].kind == "counter"
    assert by_name["accelmetrics_missed_ticks_total"].value == 1
    assert by_name["accelmetrics_timed_out_ticks_total"].value == 2


# Labels of the run


def test_a_schedulers_job_is_joined_to_every_device() -> None:
    """There is one info series a device and scheduler, with the labels that exist; without a job there is none."""
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "h100", "SLURM_PROCID": "3"}
    labels = {**job_labels(slurm), "k8s.pod.name": "train-0", "k8s.namespace": "ml", "slurm.empty": ""}
    found = of(Record(record().snapshot, labels), "accel_job_info")
    identity = {"accelerator": "gpu.0", "uuid": UUID}
    assert (identity | {"scheduler": "slurm", "job_id": "4711", "step_id": "0", "user": "ada", "partition": "h100"}, 1) in found
    assert (identity | {"scheduler": "kubernetes", "pod": "train-0", "namespace": "ml"}, 1) in found
    assert len(found) == 4
    assert of(record(), "accel_job_info") == []


def test_labels_that_mean_something_else_get_another_name() -> None:
    """``instance`` and ``job`` are Prometheus's own; a label name holds letters, digits and underscores."""
    labels = {"instance": "a", "job": "b", "my-team": "c", "1st": "d", "__name__": "e"}
    (found, _), *rest = of(Record(record().snapshot, labels), "accelmetrics_run_info")
    assert found == {"label_instance": "a", "label_job": "b", "my_team": "c", "label_1st": "d", "name__": "e"}
    assert not rest


# What the program logged


def test_what_the_program_logged_is_there() -> None:
    """The last value of each name counts."""
    steps = (Step(1, 7, {"loss": 2.0, "eval/acc": 0.5}), Step(2, 8, {"loss": 1.5}))
    flat = PROMETHEUS.flat(Record(record().snapshot, steps=steps))
    assert (flat["training_loss"], flat["training_eval_acc"], flat["training_step"]) == (1.5, 0.5, 8)


def test_a_number_has_one_name_however_the_program_spells_it() -> None:
    """The later spelling replaces the earlier; two different numbers of one step keep both names."""
    spelled = (
        Step(1, 7, {"grad_norm": 2.0, "lr": 0.1}),
        Step(2, 8, {"gradient_norm": 3.0, "throughput": 64.0, "loss": 1.0, "train_loss": 2.0}),
    )
    flat = PROMETHEUS.flat(Record(record().snapshot, steps=spelled))
    assert {name: value for name, value in flat.items() if name.startswith("training_")} == {
        **{"training_grad_norm": 3.0, "training_learning_rate": 0.1, "training_samples_per_second": 64.0},
        **{"training_loss": 1.0, "training_train_loss": 2.0, "training_step": 8},
    }
