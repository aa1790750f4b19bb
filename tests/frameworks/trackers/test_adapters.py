"""Aim, ClearML, trackio and SwanLab with `examples/adapters`: each shows the numbers of the snapshot, of all vendors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frameworks.adapters import LOST, Adapted, adapted


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """One for all programs."""
    with adapted(tmp_path_factory.mktemp("adapters")) as made:
        yield made


def test_aim(machine: Adapted) -> None:
    """What its resource tracker collects, in its place in the list; the lost GPU has a place and no value. Aim rounds to five digits."""
    program = """
    import psutil
    from aim.ext.resource.stat import Stat
    print(json.dumps(Stat(psutil.Process()).stat_item.to_dict()))
    """
    found = machine.says("aim", program)
    assert "memory_percent" in found["system"]
    for field, metric in (("gpu", "utilization"), ("gpu_memory_percent", "memory_percent"), ("gpu_temp", "temperature")):
        assert [gpu.get(field) for gpu in found["gpus"]] == machine.each(metric), field
    assert [gpu.get("gpu_power_watts") for gpu in found["gpus"]] == machine.each("power_watts")


def test_clearml(machine: Adapted) -> None:
    """What its resource monitor reports of each device, after one is lost too; none is said to be at 100 %, as ClearML has it."""
    program = """
    from clearml import Task
    from clearml.utilities.resource_monitor import ResourceMonitor
    connected = {"detect_repository": False}  # it may hang: see `accelmetrics.exporters.tracker`
    task = Task.init("hw", "adapted", auto_resource_monitoring=False, auto_connect_frameworks=connected, reuse_last_task_id=False)
    stats = ResourceMonitor(task)._get_gpu_stats()
    task.close()
    print(json.dumps(stats))
    """
    found = machine.says("clearml", program, CLEARML_OFFLINE_MODE="1")

    def of_each(name: str) -> list[float | None]:
        return [found.get(f"gpu_{index}_{name}") for index in range(len(machine.devices))]

    assert of_each("utilization") == machine.each("utilization")
    assert of_each("mem_usage") == machine.each("memory_percent")
    assert of_each("mem_used_gb") == machine.each("memory_used_bytes", 1 / 2**30)
    assert of_each("temperature") == machine.each("temperature")
    assert of_each("power_draw") == machine.each("power_watts")


def test_trackio(machine: Adapted) -> None:
    """The system metrics of a run, which trackio logs by itself since it believes that there is a GPU."""
    program = """
    import time, trackio
    from trackio.sqlite_storage import SQLiteStorage
    run = trackio.init(project="hw", name="n1", auto_log_cpu=False, embed=False, gpu_log_interval=0.2)
    run.log({"loss": 1.0})
    while not SQLiteStorage.get_system_logs("hw", "n1"):
        time.sleep(0.1)
    run.finish()
    print(json.dumps(SQLiteStorage.get_system_logs("hw", "n1")[0]))
    """
    found = machine.says("trackio", program, TRACKIO_DIR=".")
    for name, metric, scale in (
        ("utilization", "utilization", 1),
        ("temp", "temperature", 1),
        ("power", "power_watts", 1),
        ("allocated_memory", "memory_used_bytes", 1 / 2**30),
        ("memory_usage", "memory_percent", 1 / 100),
    ):
        values = [found.get(f"gpu/{index}/{name}") for index in range(len(machine.devices))]
        assert values == [value if value is None else pytest.approx(value) for value in machine.each(metric, scale)], name


def test_swanlab(machine: Adapted) -> None:
    """The charts that it draws, and what it puts into them at an interval."""
    program = """
    from swanlab.sdk.internal.probe_python.hardware_vendor.accelerator import ACCELERATOR_REGISTRY
    from swanlab.sdk.internal.probe_python.typings import AcceleratorMonitorConfig, SystemShim
    (cls,) = ACCELERATOR_REGISTRY.values()
    snapshot = cls.get()
    indices = [device.index for device in snapshot.devices]
    shim = SystemShim(slug="linux", accelerators=[AcceleratorMonitorConfig(vendor=snapshot.vendor, device_indices=indices)])
    collector, scalars = cls.new(shim)
    print(json.dumps([[device.name for device in snapshot.devices], [scalar.key for scalar in scalars], dict(collector.collect())]))
    """
    names, charts, values = machine.says("swanlab", program)
    assert names == [device.name for device in machine.devices]
    assert set(values) <= set(charts) and len(charts) == 4 * len(names)
    for key, metric in (("pct", "utilization"), ("mem.pct", "memory_percent"), ("temp", "temperature"), ("power", "power_watts")):
        assert [values.get(f"gpu.{index}.{key}") for index in range(len(names))] == machine.each(metric), key
    assert not [key for key in values if key.startswith(f"gpu.{LOST}.")]
