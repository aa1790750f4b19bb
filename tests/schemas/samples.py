"""Snapshots to test with: a complete one by hand, and hypothesis strategies for any."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from accelmetrics.schemas.catalogue import CATALOGUE, coverage_of, expected_keys, expected_names, match
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import Metric, fill
from accelmetrics.schemas.snapshot import Snapshot

Number = int | float

NVIDIA = DeviceSlot(
    "gpu.0",
    0,
    1,
    DeviceIdentity(
        "gpu",
        "nvidia",
        0,
        "NVIDIA H100 80GB HBM3",
        "GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1",
        "00000000:C1:00.0",
        cores=16896,
        memory_total_bytes=85_520_809_984,
        numa_node=1,
        cpu_affinity="32-63,96-127",
    ),
)
AMD = DeviceSlot("gpu.1", 1, None, DeviceIdentity("gpu", "amd", 0, "AMD Instinct MI300X", "0x18ef14e9dec61d7e", "0000:05:00.0"))


def some_value(row: Metric) -> Number:
    """A value that the row allows."""
    value = 7 if row.maximum is None or row.maximum > 7 else int(row.maximum)
    return value if row.integer else value + 0.25


def complete_metrics() -> dict[str, Number]:
    """Every key that two devices and the host owe, and some that they may give."""
    keys = [f"{place.key}.{name}" for place in (NVIDIA, AMD) for name in expected_names(place.identity.vendor)]
    keys += expected_keys("host")
    keys += [f"gpu.0.{fill(name, '5')}" for name in coverage_of("nvidia")["optional"]]
    keys += [f"gpu.process.0.{name}" for name in coverage_of("nvidia")["processes"]]
    keys += ["disk./.usagePercent", "disk./mnt/a.b.usageGB", "disk.nvme0n1.in", "disk.nvme0n1.readBps", "cpu.0.cpu_percent"]
    return {key: some_value(row) for key in keys if (row := match(key))}


def complete(**changes: Any) -> Snapshot:
    """A snapshot that breaks no rule, with some of its parts replaced."""
    metrics = complete_metrics()
    del metrics["gpu.0.fanSpeed"]
    parts: dict[str, Any] = {
        "time_ns": 1_790_000_000_123_456_789,
        "hostname": "node-1",
        "metrics": metrics,
        "identities": (NVIDIA, AMD),
        "unavailable": {"gpu.0.fanSpeed": Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED")},
        "backends": (
            BackendStatus("nvidia", "ok", "1 device", "nvml", 0.0004, "2026-09-21T13:33:20.123456Z", 0.0, 3),
            BackendStatus("host", "ok"),
            BackendStatus("apple", "absent", "not macOS"),
        ),
        "processes": {"gpu.0": (DeviceProcess(4711, "compute", 1_000_000, 12.5, None), DeviceProcess(4712)), "gpu.1": ()},
        "unlisted": {"gpu.2": Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED")},
    }
    return Snapshot(**{**parts, **changes})


def values_of(row: Metric) -> st.SearchStrategy[Number]:
    """Any value that the row allows."""
    low = -1e9 if row.minimum is None else row.minimum
    high = 2.0**53 if row.maximum is None else row.maximum
    if row.integer:
        return st.integers(math.ceil(low), math.floor(high))
    return st.floats(low, high, allow_nan=False) | st.integers(math.ceil(low), math.floor(high))


def keys_of(row: Metric) -> st.SearchStrategy[str]:
    """Any concrete key of the row."""
    instances = st.sampled_from(["/", "/mnt/a.b", "sda", "nvme0n1", "dm-0"])
    numbers = st.sampled_from(["0", "3", *(["1.mig.2"] if row.device_part and not row.of_process else [])])
    return (
        st.tuples(instances, numbers)
        .map(
            lambda pair: row.key.replace("{i}", pair[1]).replace("{path}", pair[0]).replace("{device}", pair[0]).replace("{label}", "64mb")
        )
        .map(lambda key: fill(key, "17").replace("{kind}", "gpu"))
    )


def catalogued() -> st.SearchStrategy[tuple[str, Number]]:
    """A key of the catalogue and a value that it allows."""
    return st.sampled_from(CATALOGUE).flatmap(lambda row: st.tuples(keys_of(row), values_of(row)))


_SHARES = st.none() | st.floats(0, 100)
_WORDS = st.text(min_size=1, max_size=12)
_NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_REASONS = st.builds(Unavailable, st.sampled_from(list(Reason)) | _WORDS, st.text(max_size=12))


@st.composite
def places(draw: st.DrawFn) -> tuple[DeviceSlot, ...]:
    """Up to four devices with any names."""
    count = draw(st.integers(0, 4))
    identity = st.builds(
        DeviceIdentity,
        kind=st.just("gpu"),
        vendor=st.sampled_from(["nvidia", "amd", "acme"]),
        vendor_index=st.integers(0, 63),
        name=st.text(max_size=12),
        uuid=st.text(max_size=12),
        pci_bus_id=st.text(max_size=12),
        cores=st.none() | st.integers(0, 2**40),
        memory_total_bytes=st.none() | st.integers(0, 2**63),
        numa_node=st.none() | st.integers(-1, 8),
        gpu_instance_id=st.none() | st.integers(0, 14),
        minor_number=st.none() | st.integers(0, 255),
        part_number=st.text(max_size=12),
        chassis_serial=st.text(max_size=12),
        chassis_slot=st.none() | st.integers(0, 254),
        cpu_affinity=st.text(max_size=12),
        unified=st.booleans(),
    )
    return tuple(DeviceSlot(f"gpu.{i}", i, draw(st.none() | st.integers(0, 8)), draw(identity)) for i in range(count))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any snapshot that can be written as a document."""
    unknown = _WORDS.filter(lambda key: match(key) is None)
    metrics = dict(draw(st.lists(catalogued() | st.tuples(unknown, _NUMBERS), max_size=20)))
    unavailable = draw(st.dictionaries(_WORDS, _REASONS, max_size=5))
    status = st.builds(
        BackendStatus,
        name=_WORDS,
        status=st.sampled_from(["ok", "absent", "degraded", "failed", "timed_out"]),
        detail=st.text(max_size=12),
        source=st.text(max_size=12),
        duration_seconds=st.none() | st.floats(0, 1e6),
        read_at=st.just("") | st.just("2026-09-21T13:33:20.123456Z"),
        age_seconds=st.none() | st.floats(0, 1e6),
        sequence=st.integers(0, 2**40),
        devices=st.integers(0, 4096),
    )
    process = st.builds(DeviceProcess, st.integers(0, 2**31), _WORDS, st.none() | st.integers(0, 2**63), _SHARES, _SHARES)
    found = draw(places())
    return Snapshot(
        draw(st.integers(0, 253_402_300_799_999_999_999)),
        draw(st.text(max_size=20)),
        metrics,
        found,
        {key: why for key, why in unavailable.items() if key not in metrics},
        tuple(draw(st.lists(status, max_size=3))),
        {place.key: tuple(draw(st.lists(process, max_size=2))) for place in found},
        draw(st.dictionaries(st.just("gpu.9"), st.just(Unavailable(Reason.NO_PERMISSION, "x")))),
    )
