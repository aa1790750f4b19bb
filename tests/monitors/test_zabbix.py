"""Zabbix' real agents give what the template takes apart."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.exporters.prometheus_server import program
from tests.monitors.machine import CONFIGURATIONS, ENDPOINT, INSTALLED, LEFT, POWER, Machine, configuration, installed
from tests.support.waiting import HANG, wait_for

AGENTS = ("zabbix_agentd", "zabbix_agent2")
MAIN = """\
LogType=console
Server=127.0.0.1
Hostname=node
Timeout=30
{more}
"""
JSON_PATH = re.compile(r"\$\.metrics\['\{#KEY\}\.(\w+)'\]")

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("agent", AGENTS)
def test_the_template_finds_every_device_and_no_values_of_a_lost_one(agent: str, machine: Machine) -> None:
    """Of the text that the agent gives for the template's one item that it reads, by the template's own expressions."""
    template = the_template()
    (item,) = template["items"]
    (rule,) = template["discovery_rules"]
    assert rule["master_item"]["key"] == item["key"]
    with machine.served() as base:
        host, _, port = ENDPOINT.partition(":")
        key = item["key"].replace(port, base.rpartition(":")[2])
        assert key.startswith(f"web.page.get[{host},/api/snapshot,") and key != item["key"]

        def power() -> dict[str, float]:
            text = asked(agent, key, machine, "")
            (step,) = item["preprocessing"]
            expression, output = step["parameters"]
            found = re.search(expression, text)
            assert found is not None, text
            document = json.loads(found.expand(output))
            return values(rule, document, "powerWatts")

        assert power() == POWER
        machine.lose()
        wait_for(lambda: power() == LEFT)


@pytest.mark.parametrize("agent", AGENTS)
def test_where_nothing_serves_the_agent_runs_the_command(agent: str, machine: Machine) -> None:
    """The user's parameter gives the same document: all devices, and of a lost one no values."""
    own = configuration("zabbix/accelmetrics.conf", {INSTALLED: str(installed(machine.folder))})
    (rule,) = the_template()["discovery_rules"]
    for lost, expected in ((False, POWER), (True, LEFT)):
        if lost:
            machine.lose()
        document = json.loads(asked(agent, "accelmetrics.snapshot", machine, own))
        assert values(rule, document, "powerWatts") == expected


def the_template() -> dict[str, Any]:
    """The template of the file that users import."""
    text = (CONFIGURATIONS / "zabbix/template.yaml").read_text()
    (template,) = yaml.safe_load(text)["zabbix_export"]["templates"]
    return dict(template)


def asked(agent: str, key: str, machine: Machine, more: str) -> str:
    """What an agent gives for a key."""
    main = machine.folder / f"{agent}.conf"
    main.write_text(MAIN.format(more=more))
    command = [program(agent), "-c", str(main), "-t", key]
    done = subprocess.run(command, env=machine.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * HANG)
    found = re.fullmatch(r"(?s).*?\[[st]\|(.*)\]\s*", done.stdout.removeprefix(key))
    assert found is not None, done.stdout + done.stderr
    return found[1]


def values(rule: dict[str, Any], document: dict[str, Any], name: str) -> dict[str, float]:
    """By device, the values of the item of a metric: what discovery, its macros and the item's path come to. No value: no entry."""
    assert rule["preprocessing"] == [{"type": "JSONPATH", "parameters": ["$.devices"]}]
    assert {"lld_macro": "{#KEY}", "path": "$.key"} in rule["lld_macro_paths"]
    (steps,) = [one["preprocessing"] for one in rule["item_prototypes"] if one["key"] == f"accelmetrics[{{#KEY}},{name}]"]
    ((path,),) = [step["parameters"] for step in steps]
    metric = JSON_PATH.fullmatch(path)
    assert metric is not None and steps[0]["error_handler"] == "DISCARD_VALUE"
    keys = [device["key"] for device in document["devices"]]
    assert keys == list(POWER)
    found = {key: document["metrics"].get(f"{key}.{metric[1]}") for key in keys}
    return {key: value for key, value in found.items() if value is not None}
