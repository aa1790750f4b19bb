"""What a restart of ``accelmetrics serve`` does not lose: running jobs, findings, Xid errors; and those of the kernel's log."""

from __future__ import annotations

import json
import re
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Tree, call, environment, start
from tests.cli.test_serve import get, ready
from tests.simulators.nvml import NvmlSimulator, Ramp, Ret
from tests.support.network import free_port
from tests.support.waiting import HANG, idle, wait_for

WATTS = 300.0
XID = "NVRM: Xid (PCI:{}): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Node:
    """A machine with two simulated GPUs whose daemon is started again and again, and the files that stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state.json"
        self.simulator = NvmlSimulator(2)
        self.tree = Tree(folder / "root").write("/proc/sys/kernel/random/boot_id", "first\n")

    @contextmanager
    def daemon(self, *options: str) -> Iterator[str]:
        """The daemon's address; it ends as it does under systemd, and ``told`` is what it logged."""
        places = ("--jobs", str(self.folder / "jobs"), "--summaries", str(self.folder / "summaries"), "--state", str(self.state))
        usual = ("--listen", "127.0.0.1:0", "--backends", "nvidia", "--interval", "0.1", "--kubelet", str(self.folder / "none"), *places)
        self.program = program = start("serve", *usual, *options, env=self.tree.environment(**self.simulator.environment()))
        self.told = ""
        try:
            while not self.told.endswith("/metrics\n"):
                self.told += program.stderr.readline()
                assert program.poll() is None, self.told
            base = self.told.split()[-1].removesuffix("/metrics")
            ready(base)
            self.uuid = re.findall(r'accel_info\{accelerator="gpu\.0",.*?uuid="([^"]+)"', get(f"{base}/metrics")[1])[0]
            yield base
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)
                assert program.wait(HANG) == 0
        finally:
            program.kill()
            self.told += program.communicate(timeout=HANG)[1]

    def job(self, action: str, *options: str) -> Any:
        variables = {"SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": self.uuid}
        more = ("--summaries", str(self.folder / "summaries")) if action == "end" else ()
        return call("job", action, "--jobs", str(self.folder / "jobs"), *more, *options, env=environment(**variables))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    with made.simulator:
        yield made


def ticks(base: str) -> None:
    """Wait for five readings."""

    def taken() -> int:
        return int(re.search(r"accelmetrics_ticks_total (\d+)", get(f"{base}/metrics")[1])[1])  # type: ignore[index]

    before = taken()
    wait_for(lambda: taken() > before + 5)


def series(base: str, name: str) -> dict[str, float]:
    """The values of a metric of the first GPU, by code."""
    found = re.findall(rf'^{name}\{{accelerator="gpu\.0"(?:,code="(\d+)")?.*\}} (\S+)$', get(f"{base}/metrics")[1], re.MULTILINE)
    return {code: float(value) for code, value in found}


def xids(base: str) -> dict[str, float]:
    return series(base, "accel_xid_code_errors_total")


def lasting(base: str, rule: str) -> str:
    """Since when a finding lasts; empty for none."""
    found = json.loads(get(f"{base}/api/record")[1])["findings"]["current"]
    return next((str(one["since"]) for one in found if one["rule"] == rule), "")


@pytest.mark.parametrize("counter", [True, False])
def test_a_job_goes_on_over_a_restart(node: Node, counter: bool) -> None:
    """With the energy of the time between by the device's counter; without one, it is said for how long nothing is known."""
    node.simulator.gpu[0].set(energy_mj=Ramp(5e9, rate=1000 * WATTS), power_mw=int(1000 * WATTS))
    if not counter:
        node.simulator.gpu[0].set(energy_mj=Ret.NOT_SUPPORTED)
    summary_file = node.folder / "summaries" / "42.json"
    with node.daemon() as base:
        node.job("begin")
        wait_for(summary_file.exists)
        ticks(base)
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o600
    idle(1.0)
    with node.daemon() as base:
        wait_for(lambda: json.loads(summary_file.read_text())["interruptions"] == 1)
        ticks(base)
        summary = json.loads(node.job("end", "--json", "--wait", "60").stdout)
    (device,) = summary["devices"]
    between, seconds = summary["interrupted_seconds"], summary["ended"] - summary["noticed"]
    assert (summary["interruptions"], between >= 1.0) == (1, True)
    assert summary["unmeasured_hours"] * 3600 >= between
    assert 0.0 < device["measured_seconds"] <= seconds - between + 0.5
    assert device["energy_joules"] == pytest.approx(WATTS * (seconds if counter else device["measured_seconds"]), abs=0.5 * WATTS)
    if counter:
        assert (device["energy_source"], device["energy_reason"]) == ("counter", None)
    else:
        assert re.fullmatch(r"not known for \d+ s around a restart of the daemon", device["energy_reason"])


def test_a_job_survives_a_daemon_that_is_killed(node: Node) -> None:
    """It is in the file as soon as it is found, with what the device's counter said then. Until its last reading the daemon ran."""

    def written() -> float:
        return float(json.loads(node.state.read_text())["jobs"]["42"]["written"])

    node.simulator.gpu[0].set(energy_mj=Ramp(5e9, rate=1000 * WATTS), power_mw=int(1000 * WATTS))
    with node.daemon():
        node.job("begin")
        wait_for(lambda: "42" in json.loads(node.state.read_text())["jobs"])
        wait_for(lambda: node.state.stat().st_mtime > written() + 1.0)  # it is touched at each reading
        before, alive = written(), node.state.stat().st_mtime - written()
        node.program.kill()
        node.program.wait(HANG)
    with node.daemon() as base:
        wait_for(lambda: json.loads((node.folder / "summaries" / "42.json").read_text())["interruptions"] == 1)
        ticks(base)
        summary = json.loads(node.job("end", "--json", "--wait", "60").stdout)
    (device,) = summary["devices"]
    assert summary["interrupted_seconds"] < summary["ended"] - before - alive
    assert device["energy_joules"] == pytest.approx(WATTS * (summary["ended"] - summary["noticed"]), abs=0.5 * WATTS)
    assert (device["energy_source"], device["energy_reason"]) == ("counter", None)


@pytest.mark.parametrize("kept", [True, False])
def test_a_job_that_ends_while_no_daemon_runs(node: Node, kept: bool) -> None:
    """Its summary says so: it ended at the last reading or later, with what was measured until then, if that was kept."""
    summary_file = node.folder / "summaries" / "42.json"
    with node.daemon():
        node.job("begin")
        wait_for(lambda: "42" in json.loads(node.state.read_text())["jobs"])
        wait_for(lambda: node.state.stat().st_mtime > json.loads(node.state.read_text())["jobs"]["42"]["written"] + 1.0)
        node.program.kill()
        node.program.wait(HANG)
    running = json.loads(summary_file.read_text())
    assert (running["state"], running["ended"], running["ended_reason"]) == ("running", None, None)
    alive = node.state.stat().st_mtime
    if not kept:
        node.state.unlink()
        alive = summary_file.stat().st_mtime
    node.job("end", "--wait", "0")
    for _ in range(2):  # once it has ended, it stays so
        with node.daemon():
            wait_for(lambda: json.loads(summary_file.read_text())["state"] == "ended")
        ended = json.loads(summary_file.read_text())
        assert ended["ended"] == pytest.approx(alive, abs=1e-3)
        assert "while no daemon ran" in ended["ended_reason"]
        assert (ended["job_id"], ended["hostname"], ended["devices_held"]) == ("42", running["hostname"], 1)
        assert ended["held_hours"] == pytest.approx((alive - ended["began"]) / 3600)
        assert ended["devices"][0]["held_seconds"] == pytest.approx(alive - ended["began"])


def test_findings_and_xids_survive_a_restart_and_end_with_the_machine(node: Node) -> None:
    """The count goes on, the finding keeps its beginning, and nothing is logged as new."""
    with node.daemon() as base:
        node.simulator.xid(0, 79)
        wait_for(lambda: xids(base) == {"79": 1} and lasting(base, "xid_hardware"))
        since = lasting(base, "xid_hardware")
    with node.daemon() as base:
        assert (xids(base), series(base, "accel_xid_last_code")) == ({"79": 1}, {"": 79})
        assert wait_for(lambda: lasting(base, "xid_hardware")) == since
        node.simulator.xid(0, 79)
        wait_for(lambda: xids(base) == {"79": 2})
    assert "info: still: critical xid_hardware: gpu.0: Xid 79" in node.told
    assert "error: critical xid_hardware" not in node.told
    node.tree.write("/proc/sys/kernel/random/boot_id", "second\n")
    with node.daemon() as base:
        assert xids(base) == {}
        assert not lasting(base, "xid_hardware")


def test_a_configuration_that_is_read_again_loses_no_count(node: Node) -> None:
    """What was counted stands, and goes on; so do jobs, without an interruption."""
    config = node.folder / "accelmetrics.toml"
    config.write_text("timeout = 2\n")
    with node.daemon() as base:
        node.simulator.xid(0, 79)
        wait_for(lambda: xids(base) == {"79": 1})
    with node.daemon("--config", str(config), "--listen", f"127.0.0.1:{free_port()}") as base:
        node.simulator.xid(0, 79)
        wait_for(lambda: xids(base) == {"79": 2})
        node.job("begin")
        wait_for((node.folder / "summaries" / "42.json").exists)
        ticks(base)
        config.write_text("timeout = 3\n")
        node.program.send_signal(signal.SIGHUP)
        wait_for(lambda: "timeout changed" in node.program.stderr.readline())
        wait_for(lambda: node.program.stderr.readline().startswith("accelmetrics serve: http"))
        ready(base)
        assert xids(base) == {"79": 2}
        node.simulator.xid(0, 79)
        wait_for(lambda: xids(base) == {"79": 3})
        summary = json.loads(node.job("end", "--json", "--wait", "60").stdout)
    assert (summary["interruptions"], summary["interrupted_seconds"]) == (0, 0.0)
    assert summary["devices"][0]["measured_seconds"] > 0.5  # five readings before the hang-up


def test_the_kernels_log_is_joined_with_what_nvml_reports(node: Node) -> None:
    """From before the start too, each error once; those of switches and of GPUs that are not listed are logged."""
    log = node.tree.root / "dev" / "kmsg"
    node.tree.write("/dev/kmsg")

    def printed(sequence: int, words: str, priority: int = 4) -> None:
        with log.open("a") as file:
            file.write(f"{priority},{sequence},{int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)},-;{words}\n SUBSYSTEM=pci\n")

    printed(7, "pci 0000:10:00.0: enabling device")
    printed(8, XID.format("0000:10:00", 79))
    printed(9, XID.format("0000:10:00", 48), priority=12)  # written there by a program
    printed(10, XID.format("0000:ff:00", 79))
    printed(11, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)")
    printed(12, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 0")
    with node.daemon() as base:
        assert xids(base) == {"79": 1}
        wait_for(lambda: lasting(base, "xid_hardware"))
        printed(13, XID.format("0000:10:00", 79))
        node.simulator.xid(0, 79)
        node.simulator.xid(0, 31)  # reported after it, and not printed
        wait_for(lambda: xids(base).get("31"))
        assert xids(base) == {"79": 2, "31": 1}
    assert re.search(r"warning: NVSwitch 0000:05:00\.0: SXid 12028: Non-fatal, Link 32 egress .*, at 20\S+Z$", node.told, re.MULTILINE)
    assert re.search(r"warning: GPU 0000:ff:00\.0, which is not listed: Xid 79: pid=", node.told)
    printed(14, XID.format("0000:10:00", 79))
    with node.daemon() as base:
        assert xids(base) == {"79": 3, "31": 1}
    assert "SXid" not in node.told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not used, and will be replaced: it is not a state file of this release"),
        ('{"version": 2}', "is not used, and will be replaced"),
        ("[" * 100_000, "is not used, and will be replaced"),
        (None, "is not used, and no state survives a restart"),
    ],
)
def test_a_state_that_cannot_be_used_is_a_line(node: Node, text: str | None, words: str) -> None:
    """And the service runs: one that is damaged is replaced, and another user's file, or a link, is left alone."""
    if text is None:
        elsewhere = node.folder / "elsewhere"
        elsewhere.write_text("{}")
        node.state.symlink_to(elsewhere)
    else:
        node.state.write_text(text)
    with node.daemon():
        pass
    assert [line for line in node.told.splitlines() if "state.json" in line and words in line]
    if text is None:
        assert elsewhere.read_text() == "{}" and node.state.is_symlink()
    else:
        assert json.loads(node.state.read_text())["version"] == 1


def test_a_folder_that_cannot_be_written_to_is_a_line(node: Node) -> None:
    """The service runs without."""
    node.state = node.folder / "none" / "state.json"
    with node.daemon():
        pass
    assert node.told.count("the state cannot be written, and a restart will lose it: ") == 1
