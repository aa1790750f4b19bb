"""``list``, ``metrics``, ``schema`` and ``completion``."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from accelmetrics.cli.main import main
from accelmetrics.cli.metrics import limits
from accelmetrics.dialects import registry as dialects
from accelmetrics.exporters import registry as exporters
from accelmetrics.schemas.catalogue import CATALOGUE, expected_names
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import MetricSelection
from tests.cli.machines import Printed, Rig
from tests.cli.shell import REPOSITORY, call, device_entries, environment, on_path, one_line
from tests.simulators.nvml import NvmlSimulator

SINK = "Where acme keeps its records."
DIALECT = "    counting = tabular = points = flat = rows = None\n"


def test_list_of_real_looking_devices(simulator: NvmlSimulator) -> None:
    """Who they are, on a line each and for programs."""
    env = environment(**simulator.environment(), COLUMNS="200")
    shown = call("list", env=env)
    assert (shown.returncode, shown.stderr) == (0, "")
    head, *lines = shown.stdout.splitlines()
    assert head.split() == ["KEY", "VENDOR", "NAME", "UUID", "PCI", "MEMORY", "DRIVER"]
    entries = device_entries(call("list", "--json", env=env).stdout)
    assert [entry["key"] for entry in entries] == ["gpu.0", "gpu.1"]
    for line, entry in zip(lines, entries, strict=True):
        assert all(entry[field] in line for field in ("key", "vendor", "name", "uuid", "pci_bus_id", "driver_version"))
        assert entry["uuid"].startswith("GPU-")
        assert "GiB" in line


def test_list_of_some(simulator: NvmlSimulator) -> None:
    """Chosen as everywhere; one that is not there is refused, and so is a source of AMD's that is none."""
    env = environment(**simulator.environment())
    assert [entry["key"] for entry in device_entries(call("list", "--json", "--gpus", "1", env=env).stdout)] == ["gpu.1"]
    refused = call("list", "--gpus", "7", env=env)
    assert (refused.returncode, "unknown device 'gpu.7'" in refused.stderr) == (2, True)
    for command in ("list", "ps"):
        refused = call(command, "--amd-source", "rocm", env=env)
        assert (refused.returncode, "'rocm'" in refused.stderr, "rocm-smi" in refused.stderr) == (2, True, True)


def test_list_of_nothing(rig: Rig, capsys: pytest.CaptureFixture[str], output: Printed) -> None:
    """Said in words, with a pointer; to programs an empty array."""
    rig.empty()
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "No devices were found" in printed.err
    assert "`accelmetrics doctor`" in printed.err
    assert json.loads(output("list", "--json")) == []


def test_list_says_which_source_failed(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """A short list has its reason beside it."""
    rig.backend.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "the driver is not loaded"))
    assert main(["list", "--backends", "rig", "--timeout", "1"]) == 0
    assert "rig: the driver is not loaded" in capsys.readouterr().err


def test_list_marks_shared_memory_and_unknown_facts(rig: Rig, output: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """No made-up sizes."""
    for number, unified in enumerate((True, False, False)):
        device = rig.backend.device(number)
        device.identity = device.identity._replace(unified=unified, memory_total_bytes=1 << 34 if number == 1 else None)
    monkeypatch.setenv("COLUMNS", "200")
    shared, sized, unknown = output("list").splitlines()[1:]
    assert "shared with the host" in shared
    assert "16.0 GiB" in sized
    assert unknown.split()[-2:] == ["-", "-"]


def test_metrics_for_programs(output: Printed) -> None:
    """Every row of the catalogue, in its order, with all that is known."""
    rows = json.loads(output("metrics", "--json"))
    assert {row["key"] for row in rows} == {row.key for row in CATALOGUE}
    (power,) = [row for row in rows if row["key"] == "{kind}.{i}.memoryTotalBytes"]
    assert {"nvidia", "amd"} <= set(power["partitions"]) < power["sources"].keys()
    assert power["presets"] == ["core", "standard", "all"]
    assert rows[0].keys() == {*Metric._fields, "presets", "sources", "partitions"} - {"preset"}


def test_metrics_for_people(output: Printed) -> None:
    """Key, unit and meaning of each."""
    text = output("metrics")
    assert all(f"  {row.key} " in text for row in CATALOGUE)
    assert "Device: Power" in text


def test_one_metric(output: Printed) -> None:
    """Any spelling, any device: its unit, sources and other names."""
    text = output("metrics", "gpu.7.unCorrectedMemoryErrors")
    assert "uncorrectedMemoryErrors" in text
    assert "from nvidia" in text
    assert "0 and above" in text


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("throttl", "{kind}.{i}.throttle.swPowerCap"),  # in its meaning or its key
        ("POWERWATTS", "{kind}.{i}.powerWatts"),
        ("accel_fan_ratio", "{kind}.{i}.fanSpeed"),
        ("hw.temperature", "{kind}.{i}.temp"),
        ("unCorrectedMemory", "{kind}.{i}.uncorrectedMemoryErrors"),
        ("sm active", "gpu.{i}.smActive"),
    ],
)
def test_metrics_with_a_word(word: str, key: str, output: Printed) -> None:
    """In the key, another name or the meaning; those without it are not shown."""
    text = output("metrics", word)
    assert key in text
    assert "network.sent" not in text
    rows = json.loads(output("metrics", word, "--json"))
    assert key in {row["key"] for row in rows}
    assert len(rows) < len(CATALOGUE) / 4


def test_exporters_and_what_they_need(output: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each where there is room; every extra that is named is one."""
    monkeypatch.setenv("COLUMNS", "200")
    head, *lines = output("exporters").splitlines()
    assert head.split() == ["NAME", "WHERE", "RECORDS", "GO", "NEEDS"]
    assert [line.split()[0] for line in lines] == list(exporters.BUILT_IN)
    extras = set(re.findall(r"accelmetrics\[([\w-]+)\]", "\n".join(lines)))
    assert extras <= set(metadata("accelmetrics").get_all("Provides-Extra") or ())
    needing = {name for name in exporters.BUILT_IN if "require(" in inspect.getsource(inspect.getmodule(exporters.load(name)) or exporters)}
    assert needing <= {line.split()[0] for line in lines if "accelmetrics[" in line}


def test_dialects(output: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each where there is room, with whose names they are."""
    monkeypatch.setenv("COLUMNS", "200")
    head, *lines = output("dialects").splitlines()
    assert head.split() == ["NAME", "WHOSE", "NAMES", "NEEDS"]
    assert [line.split()[0] for line in lines] == list(dialects.BUILT_IN)
    assert "dcgm-exporter" in next(line for line in lines if line.startswith("dcgm "))


@pytest.mark.parametrize("group", ["exporters", "dialects"])
def test_those_of_other_packages_are_listed_with_these(group: str, tmp_path: Path) -> None:
    """Also one that cannot be loaded, with the reason."""
    for name, source in (
        ("acme", f'class Sink:\n    """{SINK}"""\n    name = summary = "{SINK}"\n{DIALECT}'),
        ("cracked", "import nothing_here"),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[accelmetrics.{group}]\n{name} = {name}_plug:Sink\n")
        (tmp_path / f"{name}_plug.py").write_text(source)
    done = call(group, env={**on_path(tmp_path), "COLUMNS": "250"})
    assert (done.returncode, done.stderr) == (0, "")
    acme, cracked = done.stdout.splitlines()[-2:]
    assert re.fullmatch(rf"acme +{SINK} +package acme", acme)
    assert "No module named 'nothing_here'" in cracked
    assert cracked.endswith("package cracked")


def test_metrics_of_a_preset(output: Printed) -> None:
    """Those that a selection of that name wants."""
    keys = [
        row["key"].replace("{kind}", "gpu").replace("{i}", "0")
        for row in json.loads(output("metrics", "--preset", "core", "--backend", "nvidia", "--json"))
    ]
    core = MetricSelection("core")
    assert set(keys) == {key for name in expected_names("nvidia") if core.wants(key := f"gpu.0.{name}")}


def test_metrics_of_one_source(output: Printed) -> None:
    """Only what it gives."""
    rows = json.loads(output("metrics", "--backend", "host", "--json"))
    assert rows
    assert all("host" in row["sources"] for row in rows)


def test_metrics_of_a_plug_in(rig: Rig, monkeypatch: pytest.MonkeyPatch, output: Printed) -> None:
    """What only it knows is listed too, and found by its key."""
    from accelmetrics.backends import built_in, registry

    rig.backend.metrics.append(Metric("gpu.{i}.wafers", "1", "gauge", "Wafers in the pile."))
    monkeypatch.setattr(registry, "names", lambda: ("rig", "host"))
    monkeypatch.setattr(registry, "load", lambda name: rig.backend)
    monkeypatch.setattr(built_in, "BUILT_IN", {"host": built_in.BUILT_IN["host"]})
    assert "Plug-in: rig" in output("metrics")
    assert "Wafers in the pile." in output("metrics", "gpu.3.wafers")
    (row,) = json.loads(output("metrics", "--backend", "rig", "--json"))
    assert (row["key"], row["sources"]) == ("gpu.{i}.wafers", {"rig": "scripted"})


@pytest.mark.parametrize(
    ("minimum", "maximum", "words"), [(0.0, None, "0 and above"), (0.0, 100.0, "0 to 100"), (None, 5.0, "up to 5"), (None, None, "")]
)
def test_limits(minimum: float | None, maximum: float | None, words: str) -> None:
    """Bounds in words."""
    assert limits(Metric("x", "1", "gauge", "", minimum=minimum, maximum=maximum)) == words


@pytest.mark.parametrize(
    ("options", "name"), [([], "schema.json"), (["--lines"], "lines-schema.json"), (["--topology"], "topology-schema.json")]
)
def test_schema_is_the_published_one(options: list[str], name: str, output: Printed) -> None:
    """To the byte."""
    assert output("schema", *options) == (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, tmp_path: Path, output: Printed) -> None:
    """A script that knows the commands and their options, and that the shell takes where it is installed."""
    pytest.importorskip("shtab")
    script = output("completion", shell)
    assert "isolation" in script
    assert "doctor" in script
    if shell == "bash":
        target = tmp_path / "completion"
        target.write_text(script)
        subprocess.run(["bash", "-n", str(target)], check=True)


def test_completion_without_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that installs it, and exit status 1."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    line = one_line(capsys.readouterr().err)
    assert line == "accelmetrics completion: the package 'shtab' is not installed: pip install 'accelmetrics[completion]'"
