"""``accelmetrics serve --ui``, from outside: what its documents say while devices and drivers fail."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from accelmetrics.views.node_view import NodeSummary
from tests.cli.shell import call, one_line
from tests.cli.test_serve import get, serving
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.waiting import wait_for

NVIDIA = ("--backends", "nvidia", "--interval", "0.1", "--timeout", "0.5")


def document(url: str) -> Any:
    status, text = get(url)
    assert status == 200, text
    return json.loads(text)


def state_with(base: str, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first state of which that is so."""

    def look() -> Any:
        status, text = get(f"{base}/api/state")
        found = json.loads(text) if status == 200 else None
        return found if found is not None and is_so(found) else None

    found: dict[str, Any] = wait_for(look)
    return found


def measures(device: dict[str, Any]) -> bool:
    """Whether it says more than what is known of it anyway."""
    return "power_watts" in device["values"]


def test_a_lost_gpu_is_a_row_that_says_so() -> None:
    """And what it gave last; the other one goes on, and it comes back."""
    with NvmlSimulator(2) as simulator, serving("--ui", *NVIDIA, **simulator.environment()) as (_, base):
        state_with(base, lambda state: len(state["devices"]) == 2)
        simulator.lose(1)
        state = state_with(base, lambda state: state["devices"][1]["silent"])
        first, second = state["devices"]
        assert (second["state"], second["silent"]["word"]) == ("bad", "lost")
        assert "power_watts" not in second["values"]
        assert second["note"].startswith("lost for ") and second["advice"]
        assert second["last"]["power_watts"] > 0
        assert first["values"]["power_watts"] > 0
        assert state["head"]["lost"] == 1
        summary = NodeSummary.from_dict(document(f"{base}/api/summary"))
        assert summary.worst is not None and (summary.worst.key, summary.lost) == ("gpu.1", 1)
        simulator.recover(1)
        state_with(base, lambda state: measures(state["devices"][1]))
        column = document(f"{base}/api/history")["series"]["gpu.1"]["power_watts"]
    assert None in column and column[-1] is not None


def test_a_driver_that_hangs_is_told_with_what_to_do() -> None:
    """For one device it costs that one; the page answers at once meanwhile."""
    with NvmlSimulator(2) as simulator, serving("--ui", *NVIDIA, **simulator.environment()) as (_, base):
        state_with(base, lambda state: len(state["devices"]) == 2)
        simulator.rule("nvmlDeviceGetUtilizationRates", 1, hang=True)
        state = state_with(base, lambda state: state["devices"][1]["silent"])
        (source,) = state["sources"]
        second = state["devices"][1]
        assert second["silent"]["reason"] == "timed_out" and second["silent"]["word"].startswith("timed out")
        assert (source["status"], source["state"]) in (("degraded", "warn"), ("timed_out", "bad")) and source["advice"]
        assert state["devices"][0]["values"]["power_watts"] > 0
        simulator.release("nvmlDeviceGetUtilizationRates")
        state_with(base, lambda state: measures(state["devices"][1]))


def test_a_reload_of_the_driver_is_a_gap() -> None:
    """While it is away its devices say so, each in its place; afterwards they go on."""
    with NvmlSimulator(2) as simulator, serving("--ui", *NVIDIA, **simulator.environment()) as (_, base):
        before = state_with(base, lambda state: len(state["devices"]) == 2)
        simulator.driver_away(Ret.DRIVER_NOT_LOADED)
        away = state_with(base, lambda state: all(device["silent"] for device in state["devices"]))
        assert [device["uuid"] for device in away["devices"]] == [device["uuid"] for device in before["devices"]]
        assert {device["state"] for device in away["devices"]} == {"bad"}
        assert away["sources"][0]["detail"]
        simulator.driver_back()
        state_with(base, lambda state: all(map(measures, state["devices"])))
        assert None in document(f"{base}/api/history")["series"]["gpu.0"]["power_watts"]


def test_processes_are_shown_without_their_command_lines() -> None:
    """Number, user and program; the command line too where it is asked for, which is for the page alone."""
    with NvmlSimulator(1) as simulator:
        simulator.processes(0, [Process(os.getpid(), used=1 << 30)])
        for options, told in (((), False), (("--show-commands",), True)):
            with serving("--ui", "--metrics", "core", *options, *NVIDIA, **simulator.environment()) as (_, base):
                (process,) = state_with(base, lambda state: state["processes"])["processes"]
                others = [get(base + path)[1] for path in ("/api/record", "/api/snapshot", "/api/summary", "/metrics")]
            assert process["pid"] == os.getpid() and process["memory_bytes"] == 1 << 30
            assert process["user"] and process["program"].startswith("python")
            assert ("command" in process) == told
            assert not any("pytest" in text for text in others)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--show-commands",), "--show-commands is for --ui"),
        (("--history", "2h"), "--history is for --ui"),
        (("--ui", "--history", "8d"), "'8d' must be a time from 1m to 7d, such as 90m or 24h"),
        (("--ui", "--history", "day"), "'day' must be a time from 1m to 7d, such as 90m or 24h"),
    ],
    ids=str,
)
def test_options_of_the_page_are_refused_in_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    refused = call("serve", *arguments)
    assert refused.returncode == 2 and words in one_line(refused.stderr)


def test_numbers_rise_over_restarts() -> None:
    """So that a browser which was open meanwhile is given everything anew."""
    with serving("--ui", "--backends", "host", "--interval", "0.1") as (_, base):
        before = state_with(base, lambda _: True)["sequence"]
    with serving("--ui", "--backends", "host", "--interval", "0.1") as (_, base):
        assert state_with(base, lambda _: True)["sequence"] > before
        assert document(f"{base}/api/history?since={before}")["complete"]
