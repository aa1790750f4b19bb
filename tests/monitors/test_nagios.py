"""Nagios' real plug-in judges what is served."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests.exporters.prometheus_server import program
from tests.monitors.machine import ENDPOINT, Machine, configuration
from tests.support.waiting import HANG, wait_for

pytestmark = pytest.mark.servers


def test_a_device_that_does_not_answer_is_critical(machine: Machine) -> None:
    """So is an endpoint that has gone; all is well before."""
    text = configuration("nagios/accelmetrics.cfg", {})
    command = shlex.split(text.partition("\ncommand[check_accelerators]=")[2])
    program(command[0])

    def status(port: str) -> int:
        there = [port if word == ENDPOINT.partition(":")[2] else word for word in command]
        assert there != command
        return subprocess.run(there, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG).returncode

    with machine.served() as base:
        port = base.rpartition(":")[2]
        assert status(port) == 0
        machine.lose()
        wait_for(lambda: status(port) == 2)
        machine.nvidia.recover(0)
        wait_for(lambda: status(port) == 0)
    assert status(port) == 2
