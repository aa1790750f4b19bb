"""``nvidia-smi``: the fields of its query."""

from __future__ import annotations

import csv
import io

from accelmetrics.dialects import nvidia_smi
from accelmetrics.dialects.registry import dialect
from tests.cli.shell import environment, run
from tests.dialects.scenes import GPU_0, amd, instance, nvidia, record, tpu
from tests.simulators.nvml import NvmlSimulator

KNOWN = frozenset(
    """
timestamp driver_version count name gpu_name serial uuid gpu_uuid pci.bus_id index vbios_version fan.speed pstate pcie.link.gen.current
pcie.link.gen.gpucurrent pcie.link.gen.max pcie.link.gen.gpumax pcie.link.width.current pcie.link.width.max persistence_mode
gpu_recovery_action clocks_event_reasons.supported clocks_event_reasons.active clocks_event_reasons.gpu_idle
clocks_event_reasons.applications_clocks_setting clocks_event_reasons.sw_power_cap clocks_event_reasons.hw_slowdown
clocks_event_reasons.hw_thermal_slowdown clocks_event_reasons.hw_power_brake_slowdown clocks_event_reasons.sw_thermal_slowdown
clocks_event_reasons.sync_boost clocks_throttle_reasons.gpu_idle clocks_throttle_reasons.applications_clocks_setting
clocks_throttle_reasons.sw_power_cap clocks_throttle_reasons.hw_slowdown clocks_throttle_reasons.hw_thermal_slowdown
clocks_throttle_reasons.hw_power_brake_slowdown clocks_throttle_reasons.sw_thermal_slowdown clocks_throttle_reasons.sync_boost
memory.total memory.reserved memory.used memory.free compute_mode utilization.gpu utilization.memory utilization.encoder
utilization.decoder utilization.jpeg utilization.ofa ecc.errors.corrected.volatile.device_memory ecc.errors.corrected.volatile.dram
ecc.errors.corrected.volatile.total ecc.errors.corrected.aggregate.device_memory ecc.errors.corrected.aggregate.total
ecc.errors.uncorrected.volatile.device_memory ecc.errors.uncorrected.volatile.total ecc.errors.uncorrected.aggregate.device_memory
ecc.errors.uncorrected.aggregate.total retired_pages.sbe retired_pages.dbe remapped_rows.correctable remapped_rows.uncorrectable
remapped_rows.pending remapped_rows.failure temperature.gpu temperature.gpu.tlimit temperature.memory power.draw power.draw.average
power.draw.instant power.limit enforced.power.limit power.default_limit clocks.current.graphics clocks.gr clocks.current.sm clocks.sm
clocks.current.memory clocks.mem clocks.current.video clocks.video clocks.max.graphics clocks.max.gr clocks.max.sm clocks.max.memory
clocks.max.mem mig.mode.current fabric.state
""".split()  # noqa: SIM905 a column of names reads better
)
"""Of ``nvidia-smi --help-query-gpu``, drivers 470 to 590."""


def test_every_name_is_one_that_the_tool_knows() -> None:
    """Long names and short ones alike."""
    names = {entry.name for entry in nvidia_smi.TABLE}
    assert set(nvidia_smi.SHORT_FOR) <= names
    names.update(*nvidia_smi.SHORT_FOR.values())
    assert names <= KNOWN, sorted(names - KNOWN)


def test_a_gpu_as_the_tool_prints_it() -> None:
    """Memory in whole MiB, states as numbers, power with its fraction; both names of a clock."""
    found = dialect("nvidia-smi").flat(record({nvidia(0): GPU_0}))
    fields = {key.removeprefix("gpu.0."): value for key, value in found.items()}
    assert {name: fields[name] for name in ("memory.used", "memory.total", "memory.free", "memory.reserved", "utilization.gpu")} == {
        "memory.used": 20 * 1024,
        "memory.total": 80 * 1024,
        "memory.free": 59 * 1024,
        "memory.reserved": 1023,
        "utilization.gpu": 85,
    }
    assert fields["power.draw"] == 300.25
    assert fields["power.limit"] == fields["enforced.power.limit"] == 700
    assert fields["clocks.sm"] == fields["clocks.current.sm"] == 1980
    assert fields["clocks_event_reasons.sw_power_cap"] == fields["clocks_throttle_reasons.sw_power_cap"] == 1
    assert "remapped_rows.correctable" not in fields


def test_what_the_driver_reserves_is_told_only_where_it_is_known() -> None:
    """Where free memory is reckoned from used memory, nothing is known about a reserve: no 0 is made up."""
    card = {"memoryTotalBytes": 100, "memoryAllocatedBytes": 40, "memoryFreeBytes": 60}
    assert "gpu.0.memory.reserved" not in dialect("nvidia-smi").flat(record({amd(0): dict(card)}))
    board = nvidia(0)
    unified = board._replace(identity=board.identity._replace(unified=True))
    assert "gpu.0.memory.reserved" not in dialect("nvidia-smi").flat(record({unified: {**card, "memoryFreeBytes": 10}}))


def test_gpus_of_another_vendor_and_other_devices() -> None:
    """AMD's GPU has the fields that it can say; partitions are no rows of the tool's query."""
    board = nvidia(1)
    found = dialect("nvidia-smi").flat(record({amd(0): {"smClock": 2100, "temp": 40.5}, board: {}, instance(board, 0): {"gpu": 5}}))
    assert found == {
        "gpu.0.temperature.gpu": 40,
        "gpu.0.clocks.current.graphics": 2100,
        "gpu.0.clocks.gr": 2100,
        "gpu.0.clocks.current.sm": 2100,
        "gpu.0.clocks.sm": 2100,
    }


def test_rows_are_the_tools_table() -> None:
    """One per GPU, each with the same columns; what is missing is what the tool prints for it, a device without values among it."""
    found = dialect("nvidia-smi")
    assert found.tabular
    assert found.rows(record({})) == []
    rows = found.rows(record({nvidia(0): GPU_0, nvidia(1): {}, tpu(0): {"hbmCapacityUsage": 2**30}, tpu(1): {}}))
    assert [row["index"] for row in rows] == ["0", "1", "tpu.0"]
    assert len({tuple(row) for row in rows}) == 1
    first, second, third = rows
    assert first["timestamp"] == "2026/01/01 00:00:00.123"
    assert (first["memory.used [MiB]"], first["pstate"], first["power.draw [W]"]) == ("20480", "P0", "300.25")
    assert (first["clocks_event_reasons.sw_power_cap"], first["clocks_event_reasons.gpu_idle"]) == ("Active", "Not Active")
    assert (first["temperature.gpu"], first["enforced.power.limit [W]"], first["clocks.current.sm [MHz]"]) == ("65", "700.00", "1980")
    assert {value for header, value in second.items() if header not in ("timestamp", "index", "name", "uuid", "pci.bus_id")} == {
        "[N/A]",
        "570.124.06",
    }
    assert third["memory.used [MiB]"] == "1024"
    (row,) = found.rows(record({nvidia(0): {"rowRemapPending": 1, "rowRemapFailure": 0, "correctedEccErrors": 4}}))
    assert (row["remapped_rows.pending"], row["remapped_rows.failure"], row["ecc.errors.corrected.volatile.total"]) == ("Yes", "No", "4")


def test_points_carry_the_device() -> None:
    """Each field once, under its long name."""
    points = list(dialect("nvidia-smi").points(record({nvidia(0): GPU_0})))
    names = [point.name for point in points]
    assert len(set(names)) == len(names)
    assert "clocks.sm" not in names
    assert points[0].labels == {"index": "0", "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-18ef0d6a-0000-0000-0000-000000000000"}


def test_a_simulated_gpu_through_the_command(simulator: NvmlSimulator) -> None:
    """What the driver says is what the table says, read as a script reads the tool's CSV."""
    simulator.gpu[1].set(power_mw=431_125, temperature=57, gpu_util=93)
    done = run("dump", "--backends", "nvidia", "--keys", "nvidia-smi", "--format", "csv", env=environment(**simulator.environment()))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout), skipinitialspace=True))
    assert [row["index"] for row in rows] == ["0", "1"]
    assert (rows[1]["power.draw [W]"], rows[1]["temperature.gpu"], rows[1]["utilization.gpu [%]"]) == ("431.12", "57", "93")
    used, free, reserved = (int(rows[0][f"memory.{part} [MiB]"]) for part in ("used", "free", "reserved"))
    assert abs(int(rows[0]["memory.total [MiB]"]) - used - free - reserved) <= 2
