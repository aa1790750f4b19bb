"""MLflow, codecarbon, glances, gpustat and Zeus with `examples/adapters`: each shows the numbers of the snapshot, of all vendors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.adapters import LOST, Adapted, adapted

MIB = 2**20


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """One for all programs."""
    with adapted(tmp_path_factory.mktemp("adapters")) as made:
        yield made


def test_mlflow(machine: Adapted) -> None:
    """The metrics of a run, rounded as MLflow rounds; nothing of the lost GPU, and all of the others."""
    program = """
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    monitor = SystemMetricsMonitor("run")
    monitor.collect_metrics()
    print(json.dumps({name: value for name, value in monitor.aggregate_metrics().items() if name.startswith(("gpu_", "npu_"))}))
    """
    found = machine.says("mlflow", program, MLFLOW_TRACKING_URI="file:mlruns")

    def of_each(name: str) -> list[float | None]:
        return [found.get(f"{device.kind}_{device.index}_{name}") for device in machine.devices]

    for name, metric, scale in (
        ("utilization_percentage", "utilization", 1.0),
        ("memory_usage_percentage", "memory_percent", 1.0),
        ("memory_usage_megabytes", "memory_used_bytes", 1e-6),
        ("power_usage_watts", "power_watts", 1.0),
    ):
        assert of_each(name) == [None if value is None else round(value, 1) for value in machine.each(metric, scale)], name


def test_glances(machine: Adapted) -> None:
    """Its plug-in's list."""
    program = """
    import glances
    sys.argv = ["glances", "--stdout-json", "gpu", "--stop-after", "2", "--time", "1", "--disable-check-update"]
    glances.main()
    """
    gpus = machine.says("glances", program)["gpu"]
    assert [gpu["gpu_id"] for gpu in gpus] == ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "amd4", "amd5", "tenstorrent6"]
    assert [gpu["name"] for gpu in gpus] == [device.name for device in machine.devices]
    for field, metric in (("proc", "utilization"), ("mem", "memory_percent"), ("temperature", "temperature")):
        assert [gpu[field] for gpu in gpus] == machine.each(metric), field


def test_gpustat(machine: Adapted) -> None:
    """Its JSON, and that its table can be printed."""
    program = """
    import io
    from gpustat import core
    found = core.GPUStatCollection.new_query()
    found.print_formatted(io.StringIO(), no_color=True, show_power=True, show_user=True)
    print(json.dumps(found.jsonify()["gpus"]))
    """
    gpus = machine.says("gpustat", program)
    assert [gpu["index"] for gpu in gpus] == [0, 1, 2, 3, 4, 5, 6]
    assert [gpu.get("temperature.gpu") for gpu in gpus] == machine.each("temperature")
    assert [gpu.get("utilization.gpu") for gpu in gpus] == machine.each("utilization")
    assert [gpu.get("power.draw") for gpu in gpus] == [None if value is None else int(value) for value in machine.each("power_watts")]
    assert [gpu.get("memory.used") for gpu in gpus] == [
        None if value is None else value // MIB for value in machine.each("memory_used_bytes")
    ]


def test_codecarbon(machine: Adapted) -> None:
    """What it knows of devices; those with a counter of energy give theirs, of the others it adds up the power.

    A tracker's mean utilisation is of the devices that have one.
    """
    program = """
    import logging, time
    logging.disable(logging.CRITICAL)
    from codecarbon.core import gpu
    from codecarbon.core.units import Time
    devices = gpu.AllGPUDevices()
    devices.start()
    used = [one["delta_energy_consumption"].kWh for one in devices.get_delta(Time.from_seconds(3600))]
    from codecarbon import OfflineEmissionsTracker
    with OfflineEmissionsTracker(country_iso_code="DEU", measure_power_secs=1, save_to_file=False, gpu_ids=list(range(7))) as tracker:
        while not tracker._gpu_utilization_history:
            time.sleep(0.1)
    mean = tracker.final_emissions_data.gpu_utilization_percent
    print(json.dumps([gpu.is_nvidia_system(), devices.get_gpu_details(), used, mean]))
    """
    there, gpus, used, mean = machine.says("codecarbon", program)
    assert there
    known = [value for value in machine.each("utilization") if value is not None]
    assert 0 < len(known) < len(gpus)
    assert mean == pytest.approx(sum(known) / len(known))
    for field, metric, scale in (
        ("power_usage", "power_watts", 1),
        ("temperature", "temperature", 1),
        ("used_memory", "memory_used_bytes", 1),
        ("total_energy_consumption", "energy_joules", 1000),
        ("power_limit", "enforced_power_limit_watts", 1),
    ):
        assert [gpu[field] for gpu in gpus] == machine.each(metric, scale), field
    assert used[LOST] == 0
    assert used[4:] == [pytest.approx(value / 1000) for value in machine.each("power_watts")[4:] if value is not None]


def test_zeus(machine: Adapted) -> None:
    """Power, energy and limits by its own manager; what a device does not give is not supported."""
    program = """
    from zeus.device import get_gpus
    from zeus.device.gpu import ZeusGPUNotSupportedError
    gpus = get_gpus()
    def known(call, index):
        try:
            return call(index)
        except ZeusGPUNotSupportedError:
            return None
    names = "get_instant_power_usage", "get_power_management_limit", "get_gpu_temperature", "get_total_energy_consumption"
    found = {name: [known(getattr(gpus, name), index) for index in range(len(gpus))] for name in names}
    found["refused"] = []
    for name in ("get_average_power_usage", "get_average_memory_power_usage", "reset_gpu_locked_clocks"):
        try:
            getattr(gpus, name)(0)
        except ZeusGPUNotSupportedError:
            found["refused"].append(name)
    print(json.dumps(found))
    """
    found: dict[str, Any] = machine.says("zeus", program)
    assert found["get_instant_power_usage"] == machine.each("power_watts", 1000)
    assert found["get_power_management_limit"] == machine.each("enforced_power_limit_watts", 1000)
    assert found["get_gpu_temperature"] == [None if value is None else round(value) for value in machine.each("temperature")]
    assert found["get_total_energy_consumption"] == machine.each("energy_joules", 1000)
    # What is not read is refused: Zeus polls each kind of power that answers, in a process of its own.
    assert found["refused"] == ["get_average_power_usage", "get_average_memory_power_usage", "reset_gpu_locked_clocks"]
