"""``amd``: the metrics of AMD's device-metrics-exporter."""

from __future__ import annotations

from accelmetrics.dialects.amd import TABLE
from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Record
from tests.dialects.listed import AMD_OTHERS
from tests.dialects.scenes import Numbers, nvidia, record

SERVED = frozenset(
    """
gpu_nodes_total gpu_package_power gpu_average_package_power gpu_power_usage gpu_energy_consumed gpu_edge_temperature
gpu_junction_temperature gpu_memory_temperature gpu_gfx_activity gpu_gfx_busy_instantaneous gpu_umc_activity gpu_total_vram
gpu_used_vram gpu_free_vram gpu_ecc_correct_total gpu_ecc_uncorrect_total gpu_health pcie_speed pcie_max_speed pcie_replay_count
gpu_clock gpu_max_clock
""".split()  # noqa: SIM905 a column of names reads better
)
"""Of what the exporter serves."""
VALUES: Numbers = {
    "gpu": 93.0,
    "memory": 40,
    "powerWatts": 610.0,
    "energyJoules": 1.5,
    "temp": 51,
    "hotspotTemp": 68,
    "memoryTemp": 60,
    "memoryTotalBytes": 192 * 2**30,
    "memoryAllocatedBytes": 2**30 + 1,
    "memoryFreeBytes": 191 * 2**30,
    "correctedMemoryErrors": 2,
    "uncorrectedMemoryErrors": 0,
    "pcieLinkGen": 4,
    "maxPcieLinkGen": 5,
    "pcieReplays": 3,
    "smClock": 2100,
    "maxSmClock": 2101,
    "memoryClock": 1300,
}


def card(number: int, architecture: str) -> DeviceSlot:
    """A card of AMD's."""
    identity = DeviceIdentity(
        "gpu",
        "amd",
        number,
        "AMD Instinct MI300X",
        f"0x5{number}",
        serial="692251001124",
        architecture=architecture,
        driver_version="6.10.5",
        firmware="113-M3000100-102",
    )
    return DeviceSlot(f"gpu.{number}", number, number, identity)


def told(one: Record, number: int = 0) -> dict[str, Point]:
    """By name, of one device."""
    return {point.name: point for point in dialect("amd").points(one) if point.labels.get("gpu_id", str(number)) == str(number)}


def test_names_are_the_exporter_s() -> None:
    assert {row.name for row in TABLE} | set(AMD_OTHERS) == SERVED


def test_values_are_in_the_exporter_s_units() -> None:
    """MB that are MiB, microjoules, GT/s; every series is a gauge."""
    found = told(record({card(0, "gfx942"): VALUES}))
    values = {name: point.value for name, point in found.items()}
    assert (values["gpu_used_vram"], values["gpu_total_vram"]) == (1024, 192 * 1024)
    assert (values["gpu_energy_consumed"], values["pcie_speed"], values["pcie_max_speed"]) == (1_500_000, 16, 32)
    assert (values["gpu_health"], values["gpu_nodes_total"], values["gpu_junction_temperature"]) == (1, 1, 68)
    assert {point.kind for point in found.values()} == {"gauge"}


def test_labels_are_the_exporter_s() -> None:
    """The product stands for the part number, as in the exporter where a board has none."""
    labels = told(record({card(0, "gfx942"): VALUES}))["gpu_gfx_activity"].labels
    assert labels == {
        "gpu_id": "0",
        "gpu_uuid": "0x50",
        "gpu_partition_id": "0",
        "hostname": "node-1",
        "card_model": "AMD Instinct MI300X",
        "card_series": "AMD Instinct MI300X",
        "card_vendor": "amd",
        "driver_version": "6.10.5",
        "vbios_version": "113-M3000100-102",
        "serial_number": "692251001124",
    }


def test_boards_go_by_their_part_number() -> None:
    """As the exporter's dashboards ask for them; a series of cards goes by the product's name."""
    whole = card(0, "gfx942")
    board = whole._replace(identity=whole.identity._replace(part_number="102-G30211-0C"))
    labels = told(record({board: VALUES}))["gpu_gfx_activity"].labels
    assert (labels["card_model"], labels["card_series"]) == ("102-G30211-0C", "AMD Instinct MI300X")


def test_power_and_temperature_are_told_as_each_generation_has_them() -> None:
    """The power of the package under one name of the two alone, since dashboards add them up; MI300 has no edge sensor."""
    one = record({card(0, "gfx90a"): VALUES, card(1, "gfx942"): VALUES})
    first, second = told(one), told(one, 1)
    assert (first["gpu_average_package_power"].value, second["gpu_package_power"].value) == (610.0, 610.0)
    assert "gpu_package_power" not in first
    assert "gpu_average_package_power" not in second
    assert first["gpu_edge_temperature"].value == 51
    assert "gpu_edge_temperature" not in second


def test_clocks_are_told_apart_by_their_type() -> None:
    points = dialect("amd").points(record({card(0, "gfx942"): VALUES}))
    clocks = {(point.name, point.labels["clock_type"]): point.value for point in points if "clock" in point.name}
    assert clocks == {("gpu_clock", "system"): 2100, ("gpu_max_clock", "system"): 2101, ("gpu_clock", "memory"): 1300}


def test_errors_that_were_not_corrected_make_a_device_unhealthy_and_unknown_ones_say_nothing() -> None:
    one = record({card(0, ""): {"uncorrectedMemoryErrors": 1}, card(1, ""): {"temp": 40}})
    assert told(one)["gpu_health"].value == 0
    assert "gpu_health" not in told(one, 1)


def test_the_job_and_the_pod_are_labels() -> None:
    """Of Slurm's job what the exporter says of it; of the pod what the exporter's function gave for the device."""
    one = record({card(0, ""): VALUES, nvidia(1): {"temp": 40}})
    about = {"slurm.job_id": "77", "slurm.user": "ada", "slurm.nodes": "2"}
    one = one._replace(labels=about, device_labels={"gpu.0": {"pod": "train-0", "namespace": "ml"}})
    first, second = told(one)["gpu_gfx_activity"].labels, told(one, 1)["gpu_edge_temperature"].labels
    assert {name: first.get(name) for name in ("job_id", "job_user", "pod", "namespace")} == {
        "job_id": "77",
        "job_user": "ada",
        "pod": "train-0",
        "namespace": "ml",
    }
    assert (second["job_id"], "pod" in second) == ("77", False)
