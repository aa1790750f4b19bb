"""Messages about findings, sent to a server of the test."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import accelmetrics
from accelmetrics.exporters.notify import MOST, NotifyExporter
from accelmetrics.schemas.record import Finding, Findings, Record
from tests.cli.shell import call
from tests.dialects.scenes import record
from tests.exporters.receivers import http_server
from tests.monitor.watching import gpus
from tests.support.waiting import wait_for

SECRET = "s3cret-token"


class Server(NamedTuple):
    """A place that takes messages.

    Attributes:
        url: Where, with a secret in its path.
        taken: The headers and the object of each message.
        status: What it answers, to be changed.
    """

    url: str
    taken: list[tuple[dict[str, str], dict[str, Any]]]
    status: list[int]


@pytest.fixture
def server() -> Iterator[Server]:
    """The server, until the test ends."""
    taken: list[tuple[dict[str, str], dict[str, Any]]] = []
    status = [200]

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        taken.append(({name.lower(): value for name, value in headers.items()}, json.loads(body)))
        return status[-1], "text/plain", b""

    with http_server(answer) as base:
        yield Server(f"{base.rstrip('/')}/{SECRET}", taken, status)


SINCE = 4 * 10**18
"""After any exporter here is made."""


def hot(number: int = 0, until: int | None = None, since: int = SINCE) -> Finding:
    return Finding("hot", "warning", f"gpu.{number}", "core at 91 °C, above 80 °C for 300 s", 91.0, 80.0, since, until, "Look at the fans.")


def found(*current: Finding, ended: tuple[Finding, ...] = ()) -> Record:
    return record({})._replace(findings=Findings(current, ended, ()), labels={"hostname": "node-7", "team": "vision"})


def test_what_goes_on_over_a_restart_is_not_sent_again(server: Server) -> None:
    """A finding of before that is in the first record was sent then; its end is sent."""
    exporter = NotifyExporter(server.url, pause=0.0)
    exporter.export(found(hot(0, since=10**18)))
    assert server.taken == []
    exporter.export(found(hot(0, since=10**18), hot(1)))
    exporter.export(found(hot(1), ended=(hot(0, until=SINCE, since=10**18),)))
    assert [message["title"] for _, message in server.taken] == ["accelmetrics node-7: 1 finding (warning)", "accelmetrics node-7: 1 over"]
    exporter.close()


def test_what_begins_is_told_at_once_and_the_rest_together(server: Server) -> None:
    """Nothing without findings; then one message a minute, with begin and end; what waits at the end is sent then."""
    now = [100.0]
    exporter = NotifyExporter(server.url, clock=lambda: now[0])
    exporter.open()
    exporter.export(found())
    assert server.taken == []
    for _ in range(3):
        exporter.export(found(hot(0)))
    (headers, first), *others = server.taken
    assert others == [] and headers["content-type"] == "application/json"
    assert first["title"] == "accelmetrics node-7: 1 finding (warning)"
    assert first["message"] == "warning: hot gpu.0: core at 91 °C, above 80 °C for 300 s (Look at the fans.)"
    assert (first["hostname"], first["labels"]["team"], first["severity"], first["left_out"]) == ("node-7", "vision", "warning", 0)
    assert [(one["event"], one["rule"], one["key"], one["until"]) for one in first["findings"]] == [("begin", "hot", "gpu.0", None)]
    now[0] += 59
    exporter.export(found(*map(hot, range(1, 31)), ended=(hot(0, 2 * 10**18),)))
    assert len(server.taken) == 1
    now[0] += 1
    exporter.export(found(*map(hot, range(1, 31)), ended=(hot(0, 2 * 10**18),)))
    second = server.taken[1][1]
    assert second["title"] == "accelmetrics node-7: 30 findings, 1 over (warning)"
    lines = second["message"].splitlines()
    assert lines[0].startswith("over: hot gpu.0: ") and (len(lines), lines[-1]) == (MOST + 1, "and 11 more")
    exporter.export(found(ended=(hot(0, 2 * 10**18), hot(1, 2 * 10**18))))
    exporter.close()
    assert server.taken[2][1]["title"] == "accelmetrics node-7: 1 over"


def test_a_message_that_was_not_taken_is_sent_again(server: Server) -> None:
    """Once, with the same findings; the error says where to without the secret."""
    exporter = NotifyExporter(server.url.replace("://", f"://ada:{SECRET}@"))
    server.status.append(503)
    for _ in range(2):
        with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:\d+/… answered 503") as raised:
            exporter.export(found(hot()))
        assert SECRET not in str(raised.value)
    server.status.append(200)
    exporter.export(found(hot()))
    exporter.export(found(hot()))
    assert [len(message["findings"]) for _, message in server.taken] == [1, 1, 1]
    assert server.taken[0][0]["authorization"].startswith("Basic ")


def test_a_monitor_sends_what_its_rules_find(server: Server) -> None:
    """From outside: a device that is hot."""
    rules: Any = {"hot": {"above": 50, "seconds": 0}}
    with accelmetrics.Monitor(0.05, backends=[gpus(1, temp=91)], rules=rules, notify=server.url):
        wait_for(lambda: server.taken)
    assert [(one["rule"], one["key"]) for one in server.taken[0][1]["findings"]] == [("hot", "gpu.0")]


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # apprise imports it
def test_apprise_sends_to_its_services(server: Server) -> None:
    """By one that posts JSON, to the same server."""
    exporter = NotifyExporter(server.url.replace("http://", "json://"))
    exporter.export(found(hot()))
    assert server.taken[0][1]["title"] == "accelmetrics node-7: 1 finding (warning)"
    server.status.append(500)
    with pytest.raises(ConnectionError, match=r"json://…: the message was not accepted"):
        exporter.test()
    with pytest.raises(accelmetrics.InvalidOptionError, match="does not accept the address nosuchservice://…"):
        NotifyExporter(f"nosuchservice://{SECRET}")


@pytest.mark.parametrize("url", ["", "hooks.example.org", "https://", "http://["])
def test_what_is_no_address(url: str) -> None:
    """Told where the monitor is made."""
    with pytest.raises(accelmetrics.InvalidOptionError, match="notify"):
        accelmetrics.Monitor(backends=[gpus(1)], notify=[url])


def test_without_apprise_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An https:// address needs nothing."""
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(accelmetrics.MissingDependencyError, match=r"accelmetrics\[notify\]"):
        NotifyExporter("ntfy://topic")
    NotifyExporter("https://hooks.example.org/gpu")


@pytest.mark.parametrize("command", [["record"], ["serve"], ["run"]])
def test_the_test_message_of_commands(command: list[str], server: Server) -> None:
    """Says whether it was taken, and shows no secret."""
    done = call(*command, "--notify", server.url, "--notify-test")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "has accepted a message" in done.stderr and SECRET not in done.stderr
    assert server.taken[0][1]["test"] is True
    server.status.append(404)
    done = call(*command, "--notify", server.url, "--notify-test")
    assert done.returncode == 1 and "answered 404" in done.stderr and SECRET not in done.stderr
    assert "--notify-test needs an address for the message" in call(*command, "--notify-test").stderr


def test_a_recording_that_finds_something_sends_it(server: Server) -> None:
    """On the simulated devices of the demo; the configuration that is shown has no secret."""
    rules = "hot.above=1,hot.seconds=0"
    done = call("demo", "record", "--interval", "0.1", "--duration", "2", "--rules", rules, "--notify", server.url)
    assert done.returncode == 0, done.stderr
    assert {one["key"] for _, message in server.taken for one in message["findings"]} >= {"gpu.0", "gpu.1"}
    shown = call("config", "record", "--notify", server.url)
    assert "http://***" in shown.stdout and SECRET not in shown.stdout + shown.stderr
