"""``dump --keys``: the flat dict under another monitor's names, in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from accelmetrics.cli import dump
from accelmetrics.dialects import registry
from tests.cli.machines import Printed, Rig
from tests.cli.shell import call, document, environment, one_line
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

RIG = ["dump", "--backends", "rig"]


def test_json_is_one_object_of_names(printed: Printed) -> None:
    """Names and numbers, no document around them; --flat says the same once more."""
    found = json.loads(printed("--keys", "verl", "--json"))
    assert found["gpu_1_power_usage_w"] == 101.5
    assert found["gpu_2_memory_total_gb"] == 80.0
    assert set(found) == {f"gpu_{i}_{name}" for i in range(3) for name in ("power_usage_w", "memory_total_gb", "temperature_c")}
    assert json.loads(printed("--keys", "verl", "--flat")) == found


@pytest.mark.parametrize("name", [name for name in registry.names() if name != "wandb"])
def test_every_dialect_prints(name: str, printed: Printed) -> None:
    """One JSON object, and what is missing is absent: nothing is null."""
    found = json.loads(printed("--keys", name, "--json"))
    assert found
    assert all(isinstance(value, int | float) for value in found.values())


def test_wandb_is_what_is_printed_anyway(printed: Printed) -> None:
    """The default by its name: the document, with everything in it."""
    snapshot = document(printed("--keys", "wandb", "--json"))
    assert snapshot.unavailable["gpu.2.fanSpeed"].detail == "passively cooled"


def test_table_is_names_and_values(printed: Printed) -> None:
    """A line each, below whose names they are."""
    lines = printed("--keys", "nvidia-smi", "--format", "table").splitlines()
    assert "nvidia-smi --query-gpu" in lines[2]
    assert lines[3].split() == ["gpu.0.memory.total", "81920"]
    assert {line.split()[0] for line in lines[3:]} >= {"gpu.2.power.draw", "gpu.2.temperature.gpu"}


def test_a_table_with_nothing_in_it_says_so(rig: Rig, printed: Printed) -> None:
    """And is no error."""
    rig.backend.reorder()
    assert "Nothing that verl has a name for." in printed("--keys", "verl", "--format", "table")


def test_csv_has_the_names_as_columns(printed: Printed) -> None:
    """A row a reading, as for our own keys."""
    text = printed("--keys", "verl", "--format", "csv", "--count", "2", "--interval", "0.01")
    header, *rows = csv.reader(io.StringIO(text))
    assert header[:2] == ["timestamp", "hostname"]
    assert [row[header.index("gpu_0_power_usage_w")] for row in rows] == ["100.5", "100.5"]


def test_nvidia_smis_csv_is_a_row_per_gpu(printed: Printed) -> None:
    """Of every reading, below one header: as `nvidia-smi --query-gpu=… --format=csv,nounits -l` prints them."""
    text = printed("--keys", "nvidia-smi", "--format", "csv", "--count", "2", "--interval", "0.01")
    rows = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    assert [row["index"] for row in rows] == ["0", "1", "2"] * 2
    assert [row["memory.total [MiB]"] for row in rows] == ["81920"] * 6
    assert rows[0]["fan.speed [%]"] == "[N/A]"
    assert text.count("utilization.gpu [%]") == 1


def test_a_stream_is_an_object_a_line(printed: Printed) -> None:
    """With --interval or --count."""
    lines = printed("--keys", "dcgm", "--count", "3", "--interval", "0.01").splitlines()
    assert [json.loads(line)['DCGM_FI_DEV_POWER_USAGE{gpu="1"}'] for line in lines] == [101.5] * 3


def test_into_a_file(tmp_path: Path, printed: Printed) -> None:
    """As any other output."""
    assert printed("--keys", "verl", "--output", str(tmp_path / "now.json")) == ""
    assert json.loads((tmp_path / "now.json").read_text())["gpu_0_power_usage_w"] == 100.5


def test_a_name_that_does_not_exist() -> None:
    """One line that suggests the nearest and lists what there is; nothing is sampled."""
    done = call("dump", "--keys", "nvidia-sm", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    said = one_line(done.stderr)
    assert "Did you mean 'nvidia-smi'?" in said
    assert all(name in said for name in registry.names())


def test_a_dialect_that_cannot_be_loaded() -> None:
    """One line that says why, no traceback."""
    done = call("dump", "--keys", "nowhere:RACK", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the dialect 'nowhere:RACK' could not be loaded: ModuleNotFoundError" in one_line(done.stderr)


def test_help_names_all_of_them() -> None:
    """The option's help and the registry agree."""
    assert all(name in str(dump.OPTIONS[""]["--keys"]["help"]) for name in registry.names())


def test_an_unchanged_command_loads_no_dialect() -> None:
    """Other names are not loaded unless they are asked for."""
    code = (
        "import sys; from accelmetrics.cli.main import main; main(['dump', '--json', '--backends', 'host', '--settle', '0']); "
        "print([name for name in sys.modules if '.dialects' in name], file=sys.stderr)"
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=HANG)
    assert done.stderr == "[]\n"


def test_on_simulated_gpus(simulator: NvmlSimulator) -> None:
    """The whole way from the driver to DCGM's names."""
    simulator.gpu[1].set(power_mw=431_000, temperature=57)
    done = call("dump", "--keys", "dcgm", "--json", "--backends", "nvidia", env=environment(**simulator.environment()))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found['DCGM_FI_DEV_POWER_USAGE{gpu="1"}'] == 431.0
    assert found['DCGM_FI_DEV_GPU_TEMP{gpu="1"}'] == 57
    assert 0 <= found['DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"}'] <= 1
