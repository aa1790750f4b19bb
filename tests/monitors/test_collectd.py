"""A real collectd reads `accelmetrics serve` with its `curl_json` plug-in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.exporters.prometheus_server import program
from tests.monitors.machine import ENDPOINT, LEFT, POWER, Machine, configuration
from tests.support.waiting import wait_for

PLUG_IN = Path("/usr/lib/collectd/curl_json.so")
MAIN = """\
Hostname "node"
Interval 1
WriteThreads 1
BaseDir "{folder}"
PIDFile "{folder}/pid"
TypesDB "/usr/share/collectd/types.db"
Include "{included}"
LoadPlugin csv
<Plugin csv>
  DataDir "stderr"
</Plugin>
"""
VALUE = re.compile(
    r"^PUTVAL node/curl_json-accelmetrics/gauge-metrics-(gpu\.\d+)\.powerWatts interval=1\.000 [\d.]+:([\d.]+)$", re.MULTILINE
)

pytestmark = pytest.mark.servers


def test_every_device_has_its_values_and_a_lost_one_has_none(machine: Machine) -> None:
    """What collectd prints is each device's power; of a lost one it prints nothing more, and goes on with the others."""
    collectd = program("collectd")
    if not PLUG_IN.exists():
        pytest.skip(f"server: {PLUG_IN} is not installed")
    included, main, log = machine.folder / "accelmetrics.conf", machine.folder / "collectd.conf", machine.folder / "log"
    main.write_text(MAIN.format(folder=machine.folder, included=included))
    with machine.served() as base:
        included.write_text(configuration("collectd/accelmetrics.conf", {ENDPOINT: base.removeprefix("http://")}))
        with machine.running(collectd, "-C", main, "-f", log=log):
            wait_for(lambda: POWER in reads(log), what=log.read_text)
            machine.lose()
            wait_for(lambda: reads(log)[-1:] == [LEFT], what=log.read_text)
            before = len(reads(log))
            wait_for(lambda: len(reads(log)) > before, what=log.read_text)
            assert all(read == LEFT for read in reads(log)[before:])


def reads(log: Path) -> list[dict[str, float]]:
    """Each device's power, of each read that is whole: the last device ends one."""
    found: list[dict[str, float]] = [{}]
    for key, watts in VALUE.findall(log.read_text()):
        found[-1][key] = float(watts)
        if key == max(POWER):
            found.append({})
    return found[:-1]
