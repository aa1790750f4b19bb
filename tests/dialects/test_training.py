"""``training``: the names of home-grown dashboards, counted over a run."""

from __future__ import annotations

import pytest

from accelmetrics.dialects.contract import Dialect, Point
from accelmetrics.dialects.registry import dialect
from accelmetrics.dialects.training import BUCKETS, gpu_lines, training_lines
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Record
from tests.dialects.scenes import GPU_0, Numbers, amd, instance, nvidia, record, step, tpu

MIB = 2**20
TORCH = {"torch.0.memoryAllocatedBytes": 512 * MIB, "torch.0.memoryReservedBytes": 600 * MIB}
NAMES = {
    "gpu_utilization_percent": "gauge",
    "gpu_memory_used_mb": "gauge",
    "gpu_memory_total_mb": "gauge",
    "gpu_temperature_celsius": "gauge",
    "gpu_power_draw_watts": "gauge",
    "gpu_fan_speed_percent": "gauge",
    "training_loss": "gauge",
    "training_steps_total": "counter",
    "training_epoch": "gauge",
    "learning_rate": "gauge",
    "gradient_norm": "gauge",
    "training_step_duration_seconds": "histogram",
    "memory_allocation_mb": "summary",
}


def told(names: Dialect, one: Record) -> dict[str, Point]:
    """By name, of the first device."""
    return {point.name: point for point in names.points(one) if point.labels.get("gpu_index", "0") == "0"}


def test_exactly_these_names_with_these_types() -> None:
    """All thirteen, in MiB, and no other."""
    logged = step(7, loss=0.25, learning_rate=3e-4, grad_norm=1.5, epoch=1.5, step_seconds=0.3)
    points = told(dialect("training"), record({nvidia(0): GPU_0}, TORCH, (logged,)))
    assert {name: point.kind for name, point in points.items()} == NAMES
    assert points["gpu_memory_used_mb"].value == 20 * 1024 + 0.5
    assert points["gpu_memory_total_mb"].value == 80 * 1024
    assert points["gpu_utilization_percent"].labels == {"gpu_index": "0"}
    assert (points["training_loss"].value, points["training_epoch"].value, points["gradient_norm"].value) == (0.25, 1.5, 1.5)
    assert points["memory_allocation_mb"].value == 512.0
    assert points["training_steps_total"].value == 1


def test_steps_are_counted_by_their_own_numbers() -> None:
    """A program that logs every tenth step counts ten; one that begins anew goes on from where it was; nothing is counted down."""
    names = dialect("training")
    shown = [told(names, record({}, steps=(step(number, loss=1.0),))) for number in (10, 20, 30, 30, 5, 6, None, 8)]
    assert [points["training_steps_total"].value for points in shown] == [1, 11, 21, 21, 22, 23, 24, 26]


def test_durations_fill_the_buckets() -> None:
    """Each step is observed once, those that were not logged with the mean of theirs; bounds are inclusive, as Prometheus' are."""
    names = dialect("training")
    steps = (step(1), step(2, step_seconds=0.1), step(4, step_seconds=0.7), step(5, step_seconds=100.0))
    whole = told(names, record({}, steps=steps))["training_step_duration_seconds"].distribution
    assert whole is not None
    assert whole.observations == 4
    assert whole.total == pytest.approx(0.1 + 2 * 0.7 + 100)
    assert tuple(bound for bound, _ in whole.buckets) == BUCKETS
    assert dict(whole.buckets) == {0.1: 1, 0.25: 1, 0.5: 1, 1.0: 3, 2.5: 3, 5.0: 3, 10.0: 3, 30.0: 3, 60.0: 3}


def test_what_was_logged_stays_until_it_is_logged_anew() -> None:
    """Between two steps the dashboard does not go blank, and each number is the last one of its own."""
    names = dialect("training")
    told(names, record({}, steps=(step(1, loss=2.0, learning_rate=0.1), step(2, loss=1.0))))
    points = told(names, record({nvidia(0): GPU_0}))
    assert (points["training_loss"].value, points["learning_rate"].value) == (1.0, 0.1)
    points = told(names, record({}, steps=(step(3, grad_norm=4.0),)))
    assert (points["training_loss"].value, points["gradient_norm"].value) == (1.0, 4.0)


def test_pytorchs_memory_is_observed_once_a_reading() -> None:
    """The same record again, as after a peer was away, counts nothing twice; nor does asking for it in another form."""
    names = dialect("training")
    first = record({}, TORCH, (step(1), step(2, step_seconds=0.5)))
    for _ in range(3):
        points = told(names, first)
        names.flat(first)
    assert points["training_steps_total"].value == 2
    second = record({}, {"torch.0.memoryAllocatedBytes": 1024 * MIB, "torch.1.memoryAllocatedBytes": 8 * MIB})
    whole = told(names, second)["memory_allocation_mb"].distribution
    assert whole == (2, 512.0 + 1024.0, ())
    assert names.flat(second)['memory_allocation_mb_sum{gpu_index="1"}'] == 8.0


def test_records_that_were_not_scraped_count_all_the_same() -> None:
    """An endpoint shows each record; a scrape then sees what all of them come to."""
    names = dialect("training")
    assert names.counting
    for number in range(1, 6):
        list(names.points(record({}, TORCH, (step(number, step_seconds=0.2),))))
    last = record({}, TORCH, (step(6, step_seconds=0.2),))
    list(names.points(last))
    flat = names.flat(last._replace(steps=()))
    assert flat["training_steps_total"] == 6
    assert flat["training_step_duration_seconds_count"] == 6
    assert flat["training_step_duration_seconds_sum"] == pytest.approx(1.2)
    assert flat['memory_allocation_mb_count{gpu_index="0"}'] == 6


@pytest.mark.parametrize(
    "names", [("lr", "gradient_norm"), ("train/learning_rate", "train/grad_norm"), ("learning_rate", "global_grad_norm")]
)
def test_numbers_are_known_by_the_names_that_programs_give_them(names: tuple[str, str]) -> None:
    """Short, long, and behind what a tracker puts before them."""
    points = told(dialect("training"), record({}, steps=(step(1, **dict(zip(names, (3e-4, 1.5), strict=True))),)))
    assert (points["learning_rate"].value, points["gradient_norm"].value) == (3e-4, 1.5)


def test_two_exporters_count_apart() -> None:
    """Each has a dialect of its own."""
    one, other = dialect("training"), dialect("training")
    told(one, record({}, steps=(step(1), step(2))))
    assert told(other, record({}, steps=(step(1),)))["training_steps_total"].value == 1


def test_flat_names_are_series() -> None:
    """As PromQL writes them, so that they paste into a query."""
    flat = dialect("training").flat(record({nvidia(0): GPU_0, nvidia(1): {"gpu": 0}}))
    assert flat['gpu_power_draw_watts{gpu_index="0"}'] == 300.25
    assert flat['gpu_utilization_percent{gpu_index="1"}'] == 0
    assert 'gpu_power_draw_watts{gpu_index="1"}' not in flat


def test_lines_about_devices() -> None:
    """Exactly these fields in this order; a value that is missing is None, a GPU that says nothing is a line of them."""
    lines = list(gpu_lines(record({nvidia(0): GPU_0, nvidia(1): {}})))
    assert lines[0] == {
        "timestamp": "2026-01-01T00:00:00.123456Z",
        "gpu_index": 0,
        "utilization_percent": 85.5,
        "memory_used_mb": 20480.5,
        "memory_total_mb": 81920.0,
        "memory_percent": 25.0,
        "temperature_celsius": 65,
        "power_draw_watts": 300.25,
        "fan_speed_percent": 30.0,
    }
    assert list(lines[1]) == list(lines[0])
    assert [value for name, value in lines[1].items() if name not in ("timestamp", "gpu_index")] == [None] * 7


def test_lines_about_other_devices() -> None:
    """Another vendor's GPU has a number; a partition and a device of another kind have no number of a GPU."""
    board = nvidia(1)
    devices: dict[DeviceSlot, Numbers] = {
        amd(0): {"gpu": 5},
        board: {},
        instance(board, 2): {"memoryAllocatedBytes": MIB},
        tpu(0): {"hbmMemoryUsage": 3.0},
        tpu(1): {},
    }
    lines = list(gpu_lines(record(devices)))
    assert [line["gpu_index"] for line in lines] == [0, 1, "1.mig.2", "tpu.0"]
    assert (lines[2]["memory_used_mb"], lines[3]["memory_percent"]) == (1.0, 3.0)


def test_lines_about_training() -> None:
    """One per step, exactly these fields; what was not logged is None, and so is PyTorch's memory without PyTorch."""
    logged = step(7, loss=0.25, learning_rate=3e-4, grad_norm=1.5, epoch=1.5, samples_per_second=32.5, other=1.0)
    lines = list(training_lines(record({}, TORCH, (logged, step(8)))))
    assert lines[0] == {
        "timestamp": "2026-01-01T00:00:00.123456Z",
        "step": 7,
        "epoch": 1.5,
        "loss": 0.25,
        "learning_rate": 3e-4,
        "gradient_norm": 1.5,
        "throughput_samples_per_sec": 32.5,
        "memory_allocated_mb": 512.0,
        "memory_reserved_mb": 600.0,
    }
    (bare,) = training_lines(record({}, steps=(step(None, loss=1.0),)))
    assert list(bare) == list(lines[0])
    assert (bare["step"], bare["loss"], bare["epoch"], bare["memory_allocated_mb"], bare["memory_reserved_mb"]) == (
        None,
        1.0,
        None,
        None,
        None,
    )
