"""The systemd unit: as it stands, and running beside a simulated driver in a container that boots systemd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.frameworks.deploy.tools import DEPLOY, ROOT, run, tool
from tests.simulators.nvml import NvmlSimulator
from tests.support.missing import MissingHere
from tests.support.waiting import HANG

UNIT = DEPLOY / "systemd" / "accelmetrics.service"
TASK_PROLOG = DEPLOY / "slurm" / "taskprolog.sh"
CAP_SYSLOG = 34
KERNEL_LOG = DEPLOY / "systemd" / "kernel-log.conf"
GROUPS = DEPLOY / "systemd" / "accelmetrics.conf"
MOST_EXPOSED = 3.0

PROGRAM = """\
#!{python}
import sys
sys.path[:0] = ["/opt/accelmetrics/checkout", "/opt/accelmetrics/packages"]
from accelmetrics.cli import program
sys.exit(program())
"""
# Installed packages are the machine's own here, and so is the driver; a real machine needs none of this.
HERE = """\
[Service]
Environment=LD_LIBRARY_PATH=/opt/python/lib:/opt/driver
Environment=NVMLSIM_STATE=/opt/state/{state}
ReadWritePaths=/opt/state
"""
PROBE = """\
[Unit]
After=accelmetrics.service
Wants=accelmetrics.service
[Service]
Type=oneshot
ExecStart={python} /opt/probe/probe.py
ExecStopPost=/bin/systemctl poweroff --force
"""
PROBING = """
import json, pathlib, subprocess, time, urllib.error, urllib.request

def metrics():
    try:
        return urllib.request.urlopen("http://127.0.0.1:22235/metrics", timeout=5).read().decode()
    except (urllib.error.URLError, OSError):
        return ""

def state(*names):
    said = subprocess.run(["systemctl", "show", "accelmetrics", *("-p" + name for name in names)], capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in said.splitlines())

until = time.monotonic() + LIMIT
while "accel_power_watts{" not in (text := metrics()) and time.monotonic() < until:
    time.sleep(0.1)
pid = state("MainPID")["MainPID"]

def task(*groups):
    command = ["setpriv", "--reuid=4711", "--regid=4711", *groups, "sh", "/opt/probe/taskprolog.sh"]
    return subprocess.run(command, capture_output=True, text=True).stdout

found = {
    "state": state("ActiveState", "NRestarts", "User"),
    "uid": pathlib.Path("/proc", pid).stat().st_uid if pid != "0" else None,
    "capabilities": [line for line in pathlib.Path("/proc", pid, "status").read_text().splitlines() if line.startswith("CapEff")],
    "metrics": text,
    "readers": [task("--groups=users"), task("--clear-groups")],
    "journal": subprocess.run(["journalctl", "-u", "accelmetrics", "-o", "cat"], capture_output=True, text=True).stdout,
    "stopped": subprocess.run(["systemctl", "stop", "accelmetrics"]).returncode,
    "after": state("ActiveState", "Result"),
}
kept = pathlib.Path("/var/lib/accelmetrics/state.json")
found["kept"] = [oct(kept.stat().st_mode), oct(kept.parent.stat().st_mode), kept.stat().st_uid == found["uid"]]
pathlib.Path("/opt/probe/found.json").write_text(json.dumps(found))
"""


def test_systemd_knows_every_line(tmp_path: Path) -> None:
    """A word on its error output is an unknown key or a bad value, which it passes over otherwise."""
    unit, dropped_in = tmp_path / UNIT.name, tmp_path / f"{UNIT.name}.d"
    dropped_in.mkdir()
    (dropped_in / KERNEL_LOG.name).write_text(KERNEL_LOG.read_text())
    unit.write_text(UNIT.read_text().replace("/opt/accelmetrics/bin/accelmetrics", "/bin/true"))
    done = run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectHome", "ProtectHme"))
    (dropped_in / KERNEL_LOG.name).write_text(KERNEL_LOG.read_text().replace("CapabilityB", "CapablityB"))
    told = run("systemd-analyze", "verify", "--man=no", unit).stderr
    assert "ProtectHme" in told
    assert "CapablityB" in told


def test_little_is_exposed() -> None:
    """Of ten points, where ten is a unit without any limit."""
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED * 10:.0f}", UNIT)
    assert done.returncode == 0, done.stdout


@contextmanager
def root_directory(folder: Path) -> Iterator[Path]:
    """This machine's own file system at another place, since a container cannot boot from the root itself."""
    folder.mkdir()
    if os.geteuid() or run("mount", "--bind", "/", folder).returncode:
        raise MissingHere("platform: only root may mount and boot a container here")
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder)


@pytest.mark.timeout(4 * HANG)
@pytest.mark.parametrize("granted", [False, True])
def test_it_serves_a_driver_as_a_user_without_rights(tmp_path: Path, granted: bool) -> None:
    """Booted: systemd itself makes the user, the groups and the limits, and stops it cleanly. The drop-in grants the kernel's log alone."""
    python, packages = Path("/opt/python/bin", Path(sys.executable).resolve().name), sysconfig.get_paths()["platlib"]
    probe = tmp_path / "probe"
    probe.mkdir()
    (probe / "probe.py").write_text(f"LIMIT = {HANG}\n{PROBING}")
    (probe / "taskprolog.sh").write_text(TASK_PROLOG.read_text())
    (tmp_path / "accelmetrics").write_text(PROGRAM.format(python=python))
    (tmp_path / "accelmetrics").chmod(0o755)
    (tmp_path / "probe.service").write_text(PROBE.format(python=python))
    with NvmlSimulator(gpus=2) as simulator, root_directory(tmp_path / "root") as root:
        (tmp_path / "here.conf").write_text(HERE.format(state=simulator.state.name))
        simulator.state.chmod(0o666)  # a driver's nodes are anyone's to open
        simulator.state.parent.chmod(0o755)
        binds = {probe: "/opt/probe", simulator.state.parent: "/opt/state"}
        read_only = {
            UNIT: "/etc/systemd/system/accelmetrics.service",
            GROUPS: "/usr/lib/sysusers.d/accelmetrics.conf",
            tmp_path / "here.conf": "/etc/systemd/system/accelmetrics.service.d/here.conf",
            **({KERNEL_LOG: "/etc/systemd/system/accelmetrics.service.d/kernel-log.conf"} if granted else {}),
            tmp_path / "probe.service": "/etc/systemd/system/probe.service",
            tmp_path / "accelmetrics": "/opt/accelmetrics/bin/accelmetrics",
            ROOT: "/opt/accelmetrics/checkout",
            Path(packages): "/opt/accelmetrics/packages",
            Path(sys.base_prefix): "/opt/python",
            simulator.library.parent: "/opt/driver",
        }
        options = [f"--bind={place}:{there}" for place, there in binds.items()]
        options += [f"--bind-ro={place}:{there}" for place, there in read_only.items()]
        command = [
            tool("systemd-nspawn"),
            "-D",
            str(root),
            "--volatile=overlay",
            "--register=no",
            "--keep-unit",
            "--capability=CAP_SYSLOG",
            *options,
        ]
        boot = [*command, "--boot", "systemd.unit=probe.service"]
        done = subprocess.run(boot, capture_output=True, text=True, timeout=3 * HANG, stdin=subprocess.DEVNULL)
    assert (probe / "found.json").exists(), done.stdout[-3000:] + done.stderr
    found = json.loads((probe / "found.json").read_text())
    assert found["state"] == {"ActiveState": "active", "NRestarts": "0", "User": "accelmetrics"}, found["journal"]
    assert 0 < found["uid"] < 1000, "a user of the system's"
    assert found["capabilities"] == [f"CapEff:\t{granted << CAP_SYSLOG:016x}"]
    assert found["kept"] == ["0o100600", "0o40700", True]
    assert found["readers"] == ["export ACCELMETRICS_SHARE_DIRECTORY=/run/accelmetrics\n", ""], "a task in the group users, and another one"
    assert 'accel_power_watts{accelerator="gpu.1"' in found["metrics"], found["journal"]
    assert (found["stopped"], found["after"]) == (0, {"ActiveState": "inactive", "Result": "success"}), found["journal"]
