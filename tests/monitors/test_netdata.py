"""A real Netdata takes what `accelmetrics serve` sends to its statsd."""

from __future__ import annotations

import getpass
import json
import socket
from typing import Any

import pytest

from tests.exporters.prometheus_server import fetch, program
from tests.monitors.machine import LEFT, LOST, POWER, Machine, configuration
from tests.support.network import free_port
from tests.support.waiting import wait_for

MAIN = """\
[global]
    run as user = {user}
[directories]
    config = {folder}
    stock config = {folder}
    cache = {folder}/cache
    lib = {folder}/lib
    log = {folder}/log
    plugins = {folder}/plugins
[db]
    mode = ram
[plugins]
    {off}
    statsd = yes
[web]
    bind to = 127.0.0.1:{port}
[health]
    enabled = no
"""
OFF = ("apps", "cgroups", "checks", "diskspace", "idlejitter", "nfacct", "perf", "proc", "slabinfo", "tc", "timex")
"""What a Netdata reads beside: not what this is about."""
GAP_SECONDS = 3

pytestmark = pytest.mark.servers


def test_every_device_has_its_chart_and_a_lost_one_has_a_gap(machine: Machine) -> None:
    """Its chart ends, where Netdata would else repeat the last value; the others' go on."""
    netdata, folder = program("netdata"), machine.folder
    for name in ("cache", "lib", "log", "plugins"):
        (folder / name).mkdir()
    (folder / ".opt-out-from-anonymous-statistics").touch()
    port, statsd = free_port(), free_port(socket.SOCK_DGRAM)
    own = configuration("netdata/netdata.conf", {"[statsd]\n": f"[statsd]\n    bind to = udp:127.0.0.1:{statsd}\n"})
    off = "\n    ".join(f"{name} = no" for name in OFF)
    main, log = folder / "netdata.conf", folder / "output"
    main.write_text(MAIN.format(user=getpass.getuser(), folder=folder, off=off, port=port) + own)
    with machine.running(netdata, "-D", "-P", folder / "pid", "-c", main, log=log) as process:

        def said() -> str:
            assert process.poll() is None, log.read_text()
            return log.read_text()

        with machine.served("--exporter", f"statsd:127.0.0.1:{statsd}?metrics=core"):
            wait_for(lambda: {key: chart["dimensions"]["gauge"]["value"] for key, chart in charts(port).items()} == POWER, what=said)
            machine.lose()

            def behind() -> bool:
                told = {key: chart["last_updated"] for key, chart in charts(port).items()}
                return all(told[key] - told[LOST] >= GAP_SECONDS for key in LEFT)

            wait_for(behind, what=said)


def charts(port: int) -> dict[str, Any]:
    """The charts of power, by device; none before there are any."""
    try:
        found = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/allmetrics?format=json"))
    except OSError:
        return {}
    names = {key: f"statsd_accelmetrics.{key}.powerwatts_gauge" for key in POWER}
    return {key: found[name] for key, name in names.items() if name in found}
