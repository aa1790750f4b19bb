"""The machinery: units, vendors, and what every table must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accelmetrics.dialects import amd as amd_dialect, nvidia_smi, nvitop, registry, training
from accelmetrics.dialects.contract import Dialect, Point, series
from accelmetrics.dialects.dcgm import BEYOND, DEFAULT
from accelmetrics.dialects.tables import Computed, DialectRow, DialectTable, convert, same
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.catalogue import find
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.metric import BASE_UNITS
from accelmetrics.schemas.record import Record
from tests.dialects import listed, scenes
from tests.dialects.scenes import GPU_0, HOST, amd, nvidia, record, tpu

TABLES = {
    "nvidia-smi": nvidia_smi.TABLE,
    "verl": training.VERL_TABLE,
    "training": training.GAUGES,
    "training-files": training.FILE_FIELDS,
    "dcgm": (*DEFAULT, *BEYOND),
    "nvidia_smi": (*nvidia_smi.QUERIED, *nvidia_smi.BESIDE),
    "nvidia_smi, instances": nvidia_smi.INSTANCE,
    "nvitop": nvitop.DEVICE,
    "amd": amd_dialect.TABLE,
}
OWN = ("wandb", "wandb-docs", "nvidia-smi", "verl", "training", "dcgm", "nvidia_smi", "nvitop", "amd")


@pytest.mark.parametrize("rows", TABLES.values(), ids=TABLES.keys())
def test_every_row_stands_on_the_catalogue(rows: tuple[DialectRow, ...]) -> None:
    """Its keys exist, its unit measures the same thing as theirs, and no name stands twice."""
    for row in rows:
        if isinstance(row.source, Computed):
            assert row.meaning
            units = [row.source.unit]
        else:
            units = [find(key).unit for key in (row.source, *row.otherwise)]
        assert len(set(units)) == 1, row
        assert not row.unit or BASE_UNITS[row.unit].unit == BASE_UNITS[units[0]].unit, row
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("value", "source", "target", "whole", "expected"),
    [
        (575 * 2**20 + 1, "By", "MiBy", True, 575),
        (2**30, "By", "GiBy", False, 1.0),
        (62.5, "%", "1", False, 0.625),
        (1234.567, "J", "mJ", True, 1_234_567),
        (0.1 + 0.2, "%", "%", False, 0.1 + 0.2),
        (7, "1", "1", False, 7),
        (85.9, "%", "%", True, 85),
    ],
)
def test_conversion(value: float, source: str, target: str, whole: bool, expected: float) -> None:
    """Exact where floating point can be, cut off where the dialect has whole numbers, and untouched where the units agree."""
    found = convert(value, source, target, whole)
    assert found == expected
    assert isinstance(found, int) == isinstance(expected, int)


def test_units_of_different_things_do_not_convert() -> None:
    """A slip in a table is an error, not a number."""
    with pytest.raises(AssertionError, match="do not measure"):
        convert(1, "W", "Cel")


def test_the_same_thing_of_another_kind_of_device_follows_from_the_catalogue() -> None:
    """A TPU's memory and its duty cycle are told under the names that were made for GPUs."""
    assert [row.key for row in same("gpu.{i}.memoryAllocatedBytes")] == ["{kind}.{i}.memoryAllocatedBytes", "tpu.{i}.hbmCapacityUsage"]
    device = tpu(4)
    found = record({device: {"dutyCycle": 50.0, "hbmCapacityUsage": 2**30}}).snapshot
    told = {point.name: point.value for point in DialectTable(training.GAUGES).points(found, device)}
    assert told == {"gpu_utilization_percent": 50.0, "gpu_memory_used_mb": 1024.0}
    device = DeviceSlot("dpu.0", 0, None, DeviceIdentity("dpu", "acme", 0))
    found = record({device: {"utilization": 25.0, "memoryAllocatedBytes": 2**30, "powerWatts": 12.5}}).snapshot
    told = {point.name: point.value for point in DialectTable(training.GAUGES).points(found, device)}
    assert told == {"gpu_utilization_percent": 25.0, "gpu_memory_used_mb": 1024.0, "gpu_power_draw_watts": 12.5}


def test_another_vendors_key_stands_in_only_where_the_vendor_has_no_such_key() -> None:
    """AMD calls its graphics clock by one name alone; on an NVIDIA GPU whose graphics clock failed nothing takes its place."""
    table = DialectTable((DialectRow("graphics", "gpu.{i}.graphicsClock", otherwise=("gpu.{i}.smClock",)),))
    card, board = amd(0), nvidia(1)
    found = record({card: {"smClock": 2100}, board: {"smClock": 1980}}).snapshot
    assert [point.value for point in table.points(found, card)] == [2100]
    assert list(table.points(found, board)) == []


def test_labels_are_written_as_promql_reads_them() -> None:
    """Quotes, backslashes and line feeds are escaped."""
    assert series("a", {}) == "a"
    assert series("a", {"b": 'c"d\\e\n'}) == 'a{b="c\\"d\\\\e\\n"}'


@pytest.mark.parametrize("name", OWN)
def test_flat_names_and_points_tell_the_same_numbers(name: str) -> None:
    """Whichever way an exporter asks, as many values and the same ones; nothing is None, empty or infinite."""
    one = record({nvidia(0): GPU_0, nvidia(1): {"gpu": 0, "temp": 35}}, HOST)
    flat = registry.dialect(name).flat(one)
    points = list(registry.dialect(name).points(one))
    assert flat
    assert {float(value) for value in flat.values()} == {float(point.value) for point in points}
    keys = [(point.name, tuple(sorted(point.labels.items()))) for point in points]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", OWN)
def test_nothing_measured_is_nothing_told(name: str) -> None:
    """A machine that says nothing gives no name at all: no zero, no null."""
    empty = record({nvidia(0): {}, tpu(1): {}})
    assert registry.dialect(name).flat(empty) == {}
    assert list(registry.dialect(name).points(empty)) == []


def test_registry() -> None:
    """Every name gives a dialect of that name; one that counts is shared with no other; a wrong name is told what there is."""
    for name in registry.names():
        found = registry.dialect(name)
        assert found.name == name
        assert found.summary
    assert registry.dialect("training") is not registry.dialect("training")
    assert registry.dialect("dcgm") is registry.dialect("dcgm")
    with pytest.raises(UnknownNameError, match=r"'dcgn'\. Did you mean 'dcgm'"):
        registry.dialect("dcgn")


class Watts(Dialect):
    """All that a dialect must write."""

    name = "watts"
    summary = "power alone"

    def points(self, record: Record) -> list[Point]:
        return [Point("watts", record.snapshot.metrics["gpu.0.powerWatts"], {"gpu": "0"})]


def test_a_dialect_of_ones_own_writes_its_points_alone() -> None:
    """Its flat names follow, it has no table; as an object it is given back, as a class it is made."""
    mine = Watts()
    assert registry.dialect(mine) is mine
    one = record({nvidia(0): GPU_0})
    assert mine.flat(one) == {'watts{gpu="0"}': 300.25}
    assert (mine.counting, mine.tabular, mine.rows(one)) == (False, False, ())


def test_what_is_no_dialect_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(InvalidOptionError, match=r"is not a dialect: it has no name, summary, counting, tabular, points, flat, rows"):
        registry.dialect(object())  # type: ignore[arg-type]


BROKEN = {
    "gone": ("accelmetrics_rack:Rack", "ModuleNotFoundError: No module named 'accelmetrics_rack'"),
    "moved": ("accelmetrics.dialects.contract:Rack", "has no attribute 'Rack'"),
    "raising": (f"{__name__}:Raising", "TypeError: made for another release"),
}


class Raising(Watts):
    """A plug-in's that cannot be made."""

    def __init__(self) -> None:
        raise TypeError("made for another release")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package with these entry points."""

    def install(**entries: str) -> None:
        info = tmp_path / "rack-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rack\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(tmp_path)
        plug_ins.registered.cache_clear()

    yield install
    plug_ins.registered.cache_clear()


@pytest.mark.parametrize("name", BROKEN)
def test_a_dialect_that_cannot_be_loaded_says_which_and_why(name: str, installed: Callable[..., None]) -> None:
    """One error that names the entry point, whether its module, its attribute or its class is at fault."""
    target, why = BROKEN[name]
    installed(**{name: target})
    with pytest.raises(InvalidOptionError) as error:
        registry.dialect(name)
    assert f"the dialect {name!r} ({target}) could not be loaded: " in str(error.value)
    assert why in str(error.value)


def test_a_dialect_that_is_not_registered_is_named_by_module_and_attribute() -> None:
    """A word is enough where only words can be written."""
    assert isinstance(registry.dialect(f"{__name__}:Watts"), Watts)
    with pytest.raises(InvalidOptionError, match="the dialect 'accelmetrics_rack:Rack' could not be loaded: ModuleNotFoundError"):
        registry.dialect("accelmetrics_rack:Rack")


def test_another_package_s_dialect_is_found_by_its_entry_point(installed: Callable[..., None]) -> None:
    """A class is made anew for each that asks; a name of ours is not taken over."""
    installed(watts=f"{__name__}:Watts", dcgm=f"{__name__}:Watts")
    assert registry.names() == (*registry.BUILT_IN, "watts")
    found = registry.dialect("watts")
    assert found.name == "watts"
    assert found is not registry.dialect("watts")
    assert registry.dialect("dcgm").name == "dcgm"


def test_the_registry_and_the_packaging_name_the_same_dialects() -> None:
    text = (scenes.PAGE.parents[1] / "pyproject.toml").read_text("utf-8")
    section = text.partition(f'[project.entry-points."{registry.GROUP}"]\n')[2].partition("\n\n")[0]
    named = dict(line.replace('"', "").split(" = ") for line in section.splitlines())
    assert named == registry.BUILT_IN


def test_the_page_lists_every_name() -> None:
    """docs/dialects.md has each field of each table, and each field that is not told."""
    page = scenes.PAGE.read_text(encoding="utf-8")
    for name in registry.names():
        assert f"`{name}`" in page
    for rows in TABLES.values():
        for row in rows:
            # Names that are made of the fields of the tool are described by how they are made.
            assert f"`{row.name}`" in page or row in nvidia_smi.QUERIED, row.name
    others = {**listed.NVITOP_OTHERS, **listed.AMD_OTHERS, **listed.NVIDIA_SMI_OTHERS}
    assert all(f"| `{name}` |" in page for name in others)
    assert all(f"| `{name}` |" in page for name, *_ in (*nvitop.HOST.values(), *nvitop.INSTANCES.values()))
    reasons = {**listed.NVITOP_UNMAPPED, **listed.AMD_UNMAPPED, **listed.NVIDIA_SMI_UNMAPPED, **listed.NVIDIA_SMI_OTHERS}
    for field, why in {**listed.DCGM_UNMAPPED, **listed.DCGM_OLDER, **reasons}.items():
        assert f"| `{field}` | {why} |" in page, field
