"""``accelmetrics serve --ui``, from outside: what its documents say while devices and drivers fail, and those of other nodes."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelmetrics.exporters.http.node_poller import FleetNode, Page
from accelmetrics.views.node_summary import NodeSummary
from accelmetrics.views.page.fleet import fleet_document
from tests.backends.test_openmetrics import Endpoint
from tests.cli.shell import call, one_line
from tests.cli.test_fleet import silent
from tests.cli.test_serve import get, ready, serving
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.waiting import HANG, wait_for

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
        assert (second["state"], second["silent"]["word"]) == ("bad", "LOST")
        assert "power_watts" not in second["values"]
        assert second["note"].startswith("LOST for ") and second["advice"]
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
    refused = call("serve", "--show-commands")
    assert refused.returncode == 2 and "--show-commands is for --ui" in one_line(refused.stderr)


def test_numbers_rise_over_restarts() -> None:
    """So that a browser which was open meanwhile is given everything anew."""
    with serving("--ui", "--backends", "host", "--interval", "0.1") as (_, base):
        before = state_with(base, lambda _: True)["sequence"]
    with serving("--ui", "--backends", "host", "--interval", "0.1") as (_, base):
        assert state_with(base, lambda _: True)["sequence"] > before
        assert document(f"{base}/api/history?since={before}")["complete"]


def test_the_nodes_of_a_fleet_and_those_that_have_nothing_to_say(tmp_path: Path) -> None:
    """Each is one entry: with its summary, or with why there is none. They need no page of their own."""
    hosts = tmp_path / "hosts"
    with Endpoint() as gone:
        pass
    with NvmlSimulator(2) as simulator, silent() as hanging, Endpoint("<html>") as strange, ExitStack() as stack:
        _, node = stack.enter_context(serving(*NVIDIA, **simulator.environment()))
        ready(node)
        good, odd, away = (
            base.removeprefix("http://") for base in (node, strange.url.removesuffix("/metrics"), gone.url.removesuffix("/metrics"))
        )
        hosts.write_text(f"{good} rack=a\n{odd}\n{away}\n{hanging}\n")
        with serving("--ui", "--backends", "host", "--fleet", str(hosts)) as (_, base):
            assert state_with(base, lambda _: True)["fleet"] is True
            nodes = document(f"{base}/api/fleet")["nodes"]
    assert [one["name"] for one in nodes] == [good, odd, away, hanging]
    assert (nodes[0]["url"], nodes[0]["labels"], nodes[0]["error"]) == (f"http://{good}/", {"rack": "a"}, "")
    assert NodeSummary.from_dict(nodes[0]["summary"]).kinds == {"gpu": 2}
    assert nodes[0]["words"][0] == "2 gpu"
    for one, said in zip(nodes[1:], ("", "", "no answer within 5 s"), strict=True):
        assert (one["summary"], one["state"], one["words"]) == (None, "bad", [one["error"]])
        assert one["error"] and said in one["error"]


def test_all_browsers_share_a_poll_of_the_fleet(tmp_path: Path) -> None:
    """A node is asked once for all of them."""
    hosts = tmp_path / "hosts"
    release = threading.Event()
    with Endpoint("{}") as node:
        node.before = lambda: release.wait(HANG)
        hosts.write_text(node.url.removeprefix("http://").removesuffix("/metrics"))
        with serving("--ui", "--backends", "host", "--fleet", str(hosts)) as (_, base), ExitStack() as stack:
            host, _, port = base.removeprefix("http://").partition(":")
            browsers = [stack.enter_context(socket.create_connection((host, int(port)), timeout=HANG)) for _ in range(6)]
            for browser in browsers:
                browser.sendall(b"GET /api/fleet HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            wait_for(lambda: node.asked)
            release.set()
            said = [browser.makefile("rb").read() for browser in browsers]
    assert len(node.asked) == 1
    assert said[0].startswith(b"HTTP/1.1 200") and b"this is no summary of a node" in said[0]
    assert all(one == said[0] for one in said)


def test_a_node_that_hangs_holds_up_no_page(tmp_path: Path) -> None:
    """While it is asked again, browsers are given what it said shortly before."""
    hosts = tmp_path / "hosts"
    release = threading.Event()
    with Endpoint(json.dumps(NodeSummary("n1", 1).to_dict())) as node:
        hosts.write_text(node.url.removeprefix("http://").removesuffix("/metrics"))
        with serving("--ui", "--backends", "host", "--fleet", str(hosts)) as (_, base):
            first = document(f"{base}/api/fleet")
            node.before = lambda: release.wait(HANG)
            wait_for(lambda: document(f"{base}/api/fleet") == first and len(node.asked) > 1)
            hanging = document(f"{base}/api/fleet")
            release.set()
    assert hanging == first
    assert first["nodes"][0]["summary"]["hostname"] == "n1"


def test_whatever_a_node_answers_costs_that_node_alone() -> None:
    """Garbage of any kind, documents of other programs, and numbers that JSON has not."""
    node = FleetNode("n\x1b[31m1", "http://n1:22235/metrics", {})
    good = NodeSummary("n2", 1, kinds={"gpu": 8}, utilization=91.4, power_watts=4100.0, power_limit_watts=5600.0, findings={"warning": 2})
    texts = [
        "",
        "null",
        "[]",
        '{"hostname": 1}',
        "[" * 100_000,
        '{"hostname":"a","time_ns":1,"utilization":NaN}',
        "\x00",
        '{"hostname":"a"}',
    ]
    pages = [Page(node, text) for text in texts]
    last = Page(FleetNode("n2", "https://n2/below/metrics", {}), json.dumps(good.to_dict()))
    *wrong, right = fleet_document([*pages, Page(node, failure="no\nanswer\x07"), last])["nodes"]
    assert all(one["summary"] is None and one["error"] and "\n" not in one["error"] for one in wrong)
    assert right["words"] == ["8 gpu", "91 % used", "4.1 of 5.6 kW", "2 findings"]
    assert (right["state"], right["url"]) == ("ok", "https://n2/")


def test_an_older_node_says_that_it_has_no_summary(tmp_path: Path) -> None:
    """Its answer is quoted."""
    hosts = tmp_path / "hosts"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hosts.write_text(f"127.0.0.1:{listening.getsockname()[1]}")
        with serving("--ui", "--backends", "host", "--fleet", str(hosts)) as (_, base):

            def answer() -> None:
                client, _ = listening.accept()
                client.recv(65536)
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nno: /\n")
                client.close()

            thread = threading.Thread(target=answer)
            thread.start()
            (node,) = document(f"{base}/api/fleet")["nodes"]
            thread.join()
    assert node["error"] == "HTTP 404: Not Found: no: /"
