"""A site for dashboards and rules: a node with simulated accelerators of three vendors and a training, scraped by a real Prometheus.

The node is a real ``accelmetrics serve`` with three H100s: one that a pod uses, one idle in the hands of a job, hot, slowed down and with
memory errors, and one that is lost; a Radeon, two TPUs, two cores of Trainium and a port of InfiniBand. The training is a program with a
plain ``Monitor`` beside it, on a GPU of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cli.shell import COMMAND, environment, start
from tests.exporters.prometheus_server import PrometheusServer, fetch
from tests.simulators.kubelet import Kubelet, container, pod
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, report, runtime
from tests.simulators.nvml import NvmlSimulator, Process, Ramp
from tests.simulators.nvml._profiles import settings
from tests.simulators.rocm_smi import RocmSmiStandIn, cards
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, TpuMachine, TpuRuntime
from tests.support.network import free_port
from tests.support.programs import Program
from tests.support.waiting import HANG, wait_for

NODE, TRAINING = "accelmetrics", "training"
"""The jobs of Prometheus."""
XID = 79
LOST = 2
"""The GPU that is lost."""
DEVICES = 8
"""Of the node."""
THROTTLED = 0x8 | 0x40
"""NVML's bits for a slowdown by the hardware, and for one by heat."""

PROGRAM = """
    import sys, threading
    import accelmetrics

    pause = threading.Event()
    with accelmetrics.Monitor(interval=0.2, backends=["nvidia"], exporters=[f"prometheus:{sys.argv[1]}"]) as monitor:
        step = 0
        while True:
            step += 1
            monitor.log(step, loss=1.0 / step, learning_rate=3e-4, grad_norm=1.5, tokens=4096)
            pause.wait(0.05)
"""


class Site(NamedTuple):
    """What tests look at and change.

    Attributes:
        prometheus: Scrapes both every second.
        gpus: The node's H100s.
        node: Where the node answers.
        program: What answers there.
    """

    prometheus: PrometheusServer
    gpus: NvmlSimulator
    node: str
    program: subprocess.Popen[str]


@contextmanager
def site(folder: Path, rules: Sequence[Path] = (), alertmanager: str | None = None) -> Iterator[Site]:
    """Run it until the block ends.

    Args:
        folder: An empty one.
        rules: Prometheus' files of rules.
        alertmanager: Where Prometheus sends alerts, as HOST:PORT.
    """
    with ExitStack() as stack:
        gpus = stack.enter_context(NvmlSimulator(gpus=3, profile="h100"))
        base, program = stack.enter_context(_node(folder, gpus))
        trained = stack.enter_context(NvmlSimulator(gpus=1, profile="h100"))
        address = f"127.0.0.1:{free_port()}"
        stack.enter_context(Program(PROGRAM, address, env=environment(**trained.environment(), RANK="0", WORLD_SIZE="1")))
        jobs: list[dict[str, object]] = [
            {"job_name": NODE, "honor_labels": True, "static_configs": [{"targets": [base]}]},
            {"job_name": TRAINING, "static_configs": [{"targets": [address]}]},
        ]
        server = stack.enter_context(PrometheusServer(folder, jobs, rules, alertmanager))
        yield Site(server, gpus, base, program)


@contextmanager
def _node(folder: Path, gpus: NvmlSimulator) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the node's ``serve``; gives its address and the program."""
    root = folder / "root"
    TpuMachine.two_v5e(root)
    _infiniband(root)
    gpus.gpu[0].set(gpu_util=97, power_mw=612_000, energy_mj=Ramp(1_000_000, rate=612_000), temperature=71)
    gpus.processes(0, [Process(os.getpid(), used=44 << 30, sm=93, mem=40)])
    gpus.gpu[1].set(
        gpu_util=0, temperature=88, temp_margin=-1, clocks_event_reasons=THROTTLED, memory_used=45 << 30, ecc_uncorrected_volatile=2
    )
    chip = SysfsTree(root)
    chip.add_chip(0)
    chip.add_node()
    neuron = NeuronMonitorStandIn(folder)
    neuron.tell(report=report([runtime(12)]))
    rocm = RocmSmiStandIn(folder)
    rocm.behave(json.dumps(cards("radeon_6_2")))
    tpu = TpuRuntime()
    tpu.devices(8, 9)
    tpu.gauge(DUTY_CYCLE, {8: 99.5, 9: 12.25})
    tpu.gauge(TOTAL, {8: 16 << 30, 9: 16 << 30})
    tpu.gauge(USAGE, {8: 4 << 30, 9: 2 << 30})
    jobs = folder / "jobs"
    jobs.mkdir()
    variables = environment(
        **gpus.environment(), PATH=f"{neuron.path}:{rocm.path}", ACCELMETRICS_SYSROOT=str(root), TPU_RUNTIME_METRICS_PORTS=str(tpu.port)
    )
    begin = environment(**gpus.environment(), SLURM_JOB_ID="4711", SLURM_JOB_USER="ada", SLURM_JOB_PARTITION="gpu", SLURM_JOB_GPUS="1")
    subprocess.run([*COMMAND, "job", "begin", "--jobs", str(jobs)], env=begin, check=True, timeout=HANG)
    gpu_uuid = str(settings("h100", 0)["uuid"])
    given = pod("train-0", "ml", container("main", {"nvidia.com/gpu": [gpu_uuid]}))
    with Kubelet(folder / "kubelet.sock", given) as kubelet:
        program = start(
            *("serve", "--listen", "127.0.0.1:0", "--backends", "nvidia,amd,tpu,neuron,host", "--interval", "0.5", "--per-link"),
            *("--jobs", str(jobs), "--kubelet", str(kubelet.socket), "--processes", "5", "--process-labels", "user"),
            env=variables,
        )
        try:
            assert program.stderr is not None
            line = program.stderr.readline()
            assert line.startswith("accelmetrics serve: http://"), line
            address = line.split("/")[2]
            wait_for(lambda: "accel_info" in fetch(f"http://{address}/metrics"))
            gpus.wait_for("nvmlDeviceRegisterEvents", 1)
            gpus.xid(1, XID)
            gpus.lose(LOST, enumerable=True)
            yield address, program
        finally:
            program.kill()
            program.communicate(timeout=HANG)
            tpu.stop()


def _infiniband(root: Path) -> None:
    port = root / "sys" / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    files = {
        "state": "4: ACTIVE",
        "rate": "200 Gb/sec (4X HDR)",
        "counters/port_rcv_data": "250",
        "counters/port_xmit_data": "1000",
        "counters/symbol_error": "0",
    }
    for name, text in files.items():
        (port / name).write_text(f"{text}\n")
