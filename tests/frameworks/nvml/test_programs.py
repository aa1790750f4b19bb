"""Programs written for NVIDIA's binding, as they are released, on simulated AMD devices: they show the numbers of the snapshot."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import COMMAND, environment
from tests.cli.terminals import Terminal
from tests.simulators.amdgpu import Tree
from tests.support.as_nvml import AS_NVML, through, told, two_mi210, uses
from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for

BIN = Path(sys.executable).parent
MIB = 2**20
pytestmark = pytest.mark.timeout(300)


class Machine:
    """Two accelerators, of which this process uses the first, and what accelmetrics reads of them."""

    def __init__(self, root: Path) -> None:
        self.pid = os.getpid()
        self.tree: Tree = two_mi210(root, self.pid)
        done = subprocess.run(
            [*COMMAND, "dump", "--json", "--backends", "amd"],
            env=environment(ACCELMETRICS_SYSROOT=str(root)),
            capture_output=True,
            text=True,
            timeout=HANG,
            check=True,
        )
        self.metrics = Snapshot.from_json(done.stdout).metrics

    def both(self, name: str) -> list[float]:
        """A metric of each device."""
        return [self.metrics[f"gpu.{index}.{name}"] for index in (0, 1)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A simulated machine."""
    return Machine(tmp_path / "root")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for the programs' own files."""
    made = tmp_path / "home"
    made.mkdir()
    return made


def shown(machine: Machine, home: Path, *command: str) -> str:
    """What a program of this environment prints."""
    done = through(str(BIN / command[0]), *command[1:], tree=machine.tree, folder=home, HOME=str(home), COLUMNS="120")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gpustat(machine: Machine, home: Path) -> None:
    """Its JSON has each number that is known, null for the rest; its line has the same."""
    document = json.loads(shown(machine, home, "gpustat", "--json"))
    assert document["driver_version"] == "6.8.5"
    gpus = document["gpus"]
    assert [gpu["name"] for gpu in gpus] == ["AMD Instinct MI210"] * 2
    assert [gpu["utilization.gpu"] for gpu in gpus] == machine.both("gpu")
    assert [gpu["temperature.gpu"] for gpu in gpus] == machine.both("temp")
    assert [gpu["power.draw"] for gpu in gpus] == machine.both("powerWatts")
    assert [gpu["enforced.power.limit"] for gpu in gpus] == machine.both("enforcedPowerLimitWatts")
    assert [gpu["memory.used"] * MIB for gpu in gpus] == machine.both("memoryAllocatedBytes")
    assert [gpu["memory.total"] * MIB for gpu in gpus] == machine.both("memoryTotalBytes")
    assert [[(one["pid"], one["gpu_memory_usage"]) for one in gpu["processes"]] for gpu in gpus] == [[(machine.pid, 16000)], []]
    assert {gpu[name] for gpu in gpus for name in ("fan.speed", "utilization.enc", "utilization.dec")} == {None}
    assert "[0] AMD Instinct MI210 | 47°C,  83 % | 16380 / 65520 MB |" in shown(machine, home, "gpustat", "--no-color")


def test_nvitop_once(machine: Machine, home: Path) -> None:
    """Its table."""
    screen = shown(machine, home, "nvitop", "--once", "--no-unicode")
    rows = [" ".join(line.split()) for line in screen.splitlines()]
    assert any("47C N/A 212W / 300W | 16380MiB / 63.98GiB | 83% Default" in row for row in rows), screen
    assert any("31C N/A 43W / 300W | 12.00MiB / 63.98GiB | 7% Default" in row for row in rows), screen
    assert any(re.search(rf"\b0 {machine.pid} C .*16000MiB", row) for row in rows), screen


def test_nvitop_full_screen(machine: Machine, home: Path) -> None:
    """In a terminal, following what changes; the terminal is left as it was."""
    env = environment(ACCELMETRICS_SYSROOT=str(machine.tree.root), HOME=str(home))
    command = [*AS_NVML, str(BIN / "nvitop"), "--monitor", "full", "--no-unicode"]
    with Terminal(command, env, rows=50, columns=120) as terminal:
        terminal.until(r"47C .* 212W / 300W")
        terminal.until(r"\b83%")
        card = machine.tree.root / "sys/bus/pci/devices/0000:43:00.0"
        (card / "gpu_busy_percent").write_text("64\n")
        terminal.until(r"\b64%")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.attributes == terminal.before
    assert b"accelmetrics" not in terminal.raw


def test_nvitop_collector(machine: Machine, home: Path) -> None:
    """Its metrics for training runs."""
    program = """
    import json
    from nvitop import ResourceMetricCollector
    collector = ResourceMetricCollector()
    with collector("run"):
        found = collector.collect()
    print(json.dumps({key: value for key, value in found.items() if "/gpu:" in key and key.endswith("/last")}))
    """
    found = told(program, tree=machine.tree, folder=home)

    def of_both(metric: str) -> list[float]:
        return [value for key, value in found.items() if f"/{metric} " in key]

    assert of_both("gpu_utilization") == machine.both("gpu"), found
    assert [round(value * MIB) for value in of_both("memory_used")] == machine.both("memoryAllocatedBytes")
    assert of_both("power_usage") == machine.both("powerWatts")


def test_glances(machine: Machine, home: Path) -> None:
    """Its plug-in of GPUs."""
    options = ["--stdout-json", "gpu", "--stop-after", "2", "--time", "1", "--disable-check-update"]
    *_, last = shown(machine, home, "glances", *options).splitlines()
    gpus = json.loads(last)["gpu"]
    assert [gpu["gpu_id"] for gpu in gpus] == ["nvidia0", "nvidia1"]
    assert [gpu["proc"] for gpu in gpus] == machine.both("gpu")
    assert [gpu["temperature"] for gpu in gpus] == machine.both("temp")
    assert [gpu["mem"] for gpu in gpus] == machine.both("memoryAllocated")
    assert [gpu["fan_speed"] for gpu in gpus] == [None, None]


CODECARBON = """
import json, logging, sys
logging.disable(logging.WARNING)
from codecarbon.core.gpu import AllGPUDevices
from codecarbon.core.units import Time
devices = AllGPUDevices()
devices.start()
found = [devices.get_gpu_static_info(), devices.get_gpu_details()]
waited = sys.stdin.readline()
used = [gpu["delta_energy_consumption"].kWh for gpu in devices.get_delta(Time(1))]
print(json.dumps([*found, used]))
"""


def test_codecarbon(machine: Machine, home: Path) -> None:
    """What it knows of devices, and the energy between two looks, by the power of devices that count none."""
    recorded = home / "run.jsonl"
    start = [*AS_NVML[:-1], "--interval", "0.1", "--exporter", f"jsonl:{recorded}", "--"]
    env = environment(ACCELMETRICS_SYSROOT=str(machine.tree.root), HOME=str(home))
    command = [*start, sys.executable, "-c", CODECARBON]
    given: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, cwd=home, **given) as process:
        wait_for(lambda: recorded.exists() and recorded.read_text().count('"metrics"') > 20)
        out, errors = process.communicate("\n", timeout=2 * HANG)
    assert process.returncode == 0, errors
    static, details, used = json.loads(out.splitlines()[-1])
    assert [gpu["total_memory"] for gpu in static] == machine.both("memoryTotalBytes")
    assert [gpu["power_limit"] for gpu in static] == machine.both("enforcedPowerLimitWatts")
    assert [gpu["power_usage"] for gpu in details] == machine.both("powerWatts")
    assert [gpu["gpu_utilization"] for gpu in details] == machine.both("gpu")
    assert [gpu["temperature"] for gpu in details] == machine.both("temp")
    assert [[one["pid"] for one in gpu["compute_processes"]] for gpu in details] == [[machine.pid], []]
    assert used[0] > 0
    assert used[0] / used[1] == pytest.approx(212 / 43, rel=1e-3)


def test_comet(machine: Machine, home: Path) -> None:
    """What it reads for its system metrics, by a copy of the binding that is its own."""
    program = """
    import json
    from comet_ml.system.gpu.gpu_logging import get_recurrent_gpu_metric
    print(json.dumps(get_recurrent_gpu_metric()))
    """
    gpus = told(program, tree=machine.tree, folder=home, HOME=str(home))
    assert [gpu["gpu_utilization"] for gpu in gpus] == machine.both("gpu")
    assert [gpu["power_usage"] / 1000 for gpu in gpus] == machine.both("powerWatts")
    assert [gpu["used_memory"] for gpu in gpus] == machine.both("memoryAllocatedBytes")
    assert [gpu["memory_utilization"] for gpu in gpus] == machine.both("memory")


def test_zeus(machine: Machine, home: Path) -> None:
    """Its devices, and a window's energy."""
    program = """
    import json, logging, sys, time, warnings
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from zeus.device import get_gpus
    from zeus.monitor import ZeusMonitor
    gpus = get_gpus()
    found = [[gpus.get_name(i), gpus.get_gpu_temperature(i), gpus.get_instant_power_usage(i)] for i in range(len(gpus))]
    monitor = ZeusMonitor(gpu_indices=[0, 1])
    before = [gpus.get_total_energy_consumption(i) for i in (0, 1)]
    monitor.begin_window("w", sync_execution=False)
    while gpus.get_total_energy_consumption(0) < before[0] + 100_000:
        time.sleep(0.01)
    measured = monitor.end_window("w", sync_execution=False)
    print(json.dumps([found, measured.gpu_energy]))
    """
    start = [*AS_NVML[:-1], "--interval", "0.1", "--"]
    found, energy = told(program, tree=machine.tree, folder=home, start=start)
    assert [one[0] for one in found] == ["AMD Instinct MI210"] * 2
    assert [one[1] for one in found] == machine.both("temp")
    assert [one[2] / 1000 for one in found] == machine.both("powerWatts")
    assert energy["0"] >= 100
    assert energy["0"] / energy["1"] == pytest.approx(212 / 43, rel=0.05)


def test_dask(machine: Machine, home: Path) -> None:
    """The metrics that its workers send, which are processes that it spawned."""
    script = home / "script.py"
    script.write_text(
        """
import json, time
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        def workers():
            return client.scheduler_info(n_workers=-1)["workers"].values()
        names = ("gpu_utilization", "gpu_memory_used", "gpu-memory-total")
        while not all(name in worker["metrics"] for worker in workers() for name in names):
            time.sleep(0.05)
        print(json.dumps([[worker["metrics"][name] for name in names] for worker in workers()]))
"""
    )
    done = through(sys.executable, "-W", "ignore", str(script), tree=machine.tree, folder=home, HOME=str(home))
    assert done.returncode == 0, done.stderr
    known = [machine.metrics[f"gpu.0.{name}"] for name in ("gpu", "memoryAllocatedBytes", "memoryTotalBytes")]
    assert json.loads(done.stdout) == [known, known]  # a worker without devices of its own tells of the first


def test_mlflow(machine: Machine, home: Path) -> None:
    """Its system metrics."""
    program = """
    import json
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    monitor = GPUMonitor()
    monitor.collect_metrics()
    print(json.dumps(monitor.aggregate_metrics()))
    """
    found = told(program, tree=machine.tree, folder=home, HOME=str(home))
    assert [found[f"gpu_{index}_utilization_percentage"] for index in (0, 1)] == machine.both("gpu")
    assert [found[f"gpu_{index}_power_usage_watts"] for index in (0, 1)] == machine.both("powerWatts")
    assert [found[f"gpu_{index}_memory_usage_percentage"] for index in (0, 1)] == pytest.approx(machine.both("memoryAllocated"), abs=0.05)


def test_py3nvml(machine: Machine, home: Path) -> None:
    """Its copy of nvidia-smi."""
    rows = [" ".join(line.split()) for line in shown(machine, home, "py3smi").splitlines()]
    assert "| N/A N/A% 47C N/A 212W / 300W | 16380MiB / 65520MiB | 83% Default |" in rows
    assert "| N/A N/A% 31C N/A 43W / 300W | 12MiB / 65520MiB | 7% Default |" in rows
    assert any(str(machine.pid) in row and "16000MiB" in row for row in rows)


PANELS = ("gpu_utilization", "gpu_usage", "gpu_resource")


@pytest.fixture
def jupyter(machine: Machine, home: Path) -> Iterator[int]:
    """A Jupyter server with the panels' extension: its port."""
    port = free_port()
    options = [
        f"--port={port}",
        "--ip=127.0.0.1",
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={home}",
    ]
    command = [*AS_NVML, sys.executable, "-m", "jupyter_server", *options, "--ServerApp.jpserver_extensions=jupyterlab_nvdashboard=True"]
    env = environment(ACCELMETRICS_SYSROOT=str(machine.tree.root), HOME=str(home))
    process = subprocess.Popen(
        command, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        wait_for(lambda: any("is running at" in line for line in said) or process.poll() is not None, what=lambda: "".join(said))
        yield port
    finally:
        process.terminate()
        process.wait(HANG)
        reader.join(HANG)
        process.stderr.close()


def test_panels_of_jupyter(machine: Machine, jupyter: int) -> None:
    """What the extension sends to its panels, from a server as users start it."""
    from tornado.websocket import websocket_connect

    async def first(panel: str) -> Any:
        connection: Any = await websocket_connect(f"ws://127.0.0.1:{jupyter}/nvdashboard/{panel}", connect_timeout=HANG)
        await connection.write_message(json.dumps({"updateFrequency": 50, "isPaused": False}))
        while True:
            found = json.loads(await asyncio.wait_for(connection.read_message(), HANG) or "{}")
            if found and found.get("status") != "connected":
                connection.close()
                return found

    utilization, usage, resource = (asyncio.run(first(panel)) for panel in PANELS)
    assert utilization == {"gpu_utilization": machine.both("gpu")}
    assert usage == {"memory_usage": machine.both("memoryAllocatedBytes"), "total_memory": machine.both("memoryTotalBytes")}
    assert resource["gpu_utilization_individual"] == machine.both("gpu")
    assert resource["gpu_memory_individual"] == machine.both("memoryAllocatedBytes")


def test_what_counts_twice_is_warned_of(machine: Machine, home: Path) -> None:
    """codecarbon, where AMD's own module works: here a stand-in of that."""
    (home / "amdsmi.py").write_text("class AmdSmiException(Exception): pass\ndef amdsmi_init(): pass\n")
    program = "from codecarbon.core import gpu_amd; print(gpu_amd.AMDSMI_AVAILABLE); import pynvml"
    path = f"{home}:{environment()['PYTHONPATH']}"
    done = through(sys.executable, "-c", program, tree=machine.tree, folder=home, HOME=str(home), PYTHONPATH=path)
    assert done.stdout == "True\n", done.stderr
    assert "codecarbon reads AMD's devices itself and would count each of them twice" in done.stderr


def test_shares_of_processes(machine: Machine, home: Path) -> None:
    """Are shown once two readings tell them."""
    program = """
    import json, sys, time, pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    while True:
        try:
            (sample,) = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
            break
        except pynvml.NVMLError as error:
            assert error.value == pynvml.NVML_ERROR_NOT_SUPPORTED
            open("asked", "w").close()
            time.sleep(0.02)
    print(json.dumps([sample.pid, sample.smUtil]))
    """
    stopped = threading.Event()

    def work() -> None:
        wait_for((home / "asked").exists)
        spent = 10**9
        while not stopped.wait(0.1):
            spent += 10**10  # more than there is: all of the time
            uses(machine.tree, machine.pid, compute=spent)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert told(program, tree=machine.tree, folder=home) == [machine.pid, 100]
    finally:
        stopped.set()
        worker.join(HANG)
