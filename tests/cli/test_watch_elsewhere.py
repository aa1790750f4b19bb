"""``watch --url`` and ``watch --fleet``: real nodes, killed and started again; nodes that hang, are away, or answer with something else."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from accelmetrics.cli.watch_remote import NodePolls
from accelmetrics.cli.watch_source import RecordWindow
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from accelmetrics.visibility.nodes import Node
from tests.backends.test_openmetrics import Endpoint
from tests.cli.shell import call, one_line, rest_of, start
from tests.cli.terminals import Terminal, on_terminal
from tests.cli.test_serve import ready, serving
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.network import free_port
from tests.support.waiting import wait_for

NODE = ("--backends", "nvidia", "--interval", "0.1")
SEEN = ("watch", "--interval", "0.1")


@contextmanager
def node(simulator: NvmlSimulator, *arguments: str) -> Iterator[str]:
    """A node that has read something: its host and port."""
    with serving(*NODE, *arguments, **simulator.environment()) as (_, base):
        ready(base)
        yield base.removeprefix("http://")


@contextmanager
def silent() -> Iterator[str]:
    """A node that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def away() -> str:
    """The host and port of a node on which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def test_another_machine_is_shown_as_this_one_is(simulator: NvmlSimulator) -> None:
    """Devices, graphs, findings and processes by their numbers; and no signals: those processes are not here."""
    simulator.gpu[1].set(temperature=97)
    simulator.processes(0, [Process(4711, used=1 << 30, sm=90)])
    with (
        node(simulator, "--rules", "overheating,overheating.seconds=0", "--processes", "5") as name,
        on_terminal(*SEEN, "--url", f"http://{name}", columns=140, rows=30) as terminal,
    ):
        terminal.until(rf"^\S+ +2 gpu .* {re.escape(name)} ", r"gpu\.0 .*37%", "power gpu.0, 1 min .*now ")
        terminal.until("^X gpu.1  overheating  core at 97 °C", "^ *4711 ")
        simulator.gpu[0].set(gpu_util=81)
        terminal.until(r"gpu\.0 .*81%")
        terminal.type("s", r"since the start or the last reset: .* readings", r"^ *gpu\.0 +\d")
        assert terminal.end("q") == 0
        assert terminal.attributes == terminal.before


def test_a_node_that_goes_away_is_told_with_the_reason_and_comes_back(simulator: NvmlSimulator) -> None:
    """Its values age; the screen recovers by itself."""
    address = away()
    arguments = ("--listen", address, *NODE)
    with on_terminal(*SEEN, "--url", address, columns=140) as terminal:
        terminal.until(r"no answer since \d\d:\d\d:\d\d: .*refused")
        with serving(*arguments, **simulator.environment()):
            terminal.until(r"gpu\.0 .*37%", "^q quit")
        terminal.until(r"no answer since \d\d:\d\d:\d\d: ", r"no reading for \d", r"37%\?")
        with serving(*arguments, **simulator.environment()):
            terminal.until("^q quit", r"gpu\.0 .*37%")


def test_a_node_that_hangs_holds_neither_the_keys_nor_the_end() -> None:
    """Who wants to quit, quits."""
    with silent() as address, on_terminal(*SEEN, "--url", f"http://{address}") as terminal:
        terminal.until("reading")
        terminal.type("?")
        assert terminal.end("q") == 0
    with silent() as address, on_terminal(*SEEN, "--url", f"http://{address}") as terminal:
        terminal.until("no answer within 3 s")
        assert terminal.end("\x03") == 0


@pytest.mark.parametrize(
    ("page", "status", "said"),
    [
        ("<html>", 200, "unexpected answer: not JSON"),
        ('{"a": 1}', 200, "unexpected answer: "),
        ("", 404, "HTTP 404.*needs accelmetrics serve of this release"),
        ("", 302, "HTTP 302"),
        ("no \x1b[31m", 401, "HTTP 401.*no "),
        ("x" * (5 << 20), 200, "no answer since"),
    ],
)
def test_another_document_is_told(page: str, status: int, said: str) -> None:
    """Without an end of the program; no redirect is followed."""
    with Endpoint(page) as endpoint:
        endpoint.status = status
        with on_terminal(*SEEN, "--url", endpoint.url, columns=200) as terminal:
            terminal.until(said)
            assert "\x1b[31mno" not in terminal.text
        assert {path for path, _ in endpoint.asked} == {"/api/record"}


def test_what_a_later_release_says_more_is_no_hindrance(simulator: NvmlSimulator) -> None:
    """Unknown fields and reasons."""
    with Endpoint() as endpoint:
        endpoint.kind = "application/json"
        endpoint.page = (
            '{"schema_version": "1.9", "timestamp": "2026-01-01T00:00:00.000000Z", "hostname": "later", "metrics": {"gpu.0.gpu": 37.0},'
            '"devices": [{"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": 0, "vendor_index": 0, "name": "GPU", "novel": 1}],'
            '"unavailable": {"gpu.0.powerWatts": {"reason": "on_strike", "detail": "the fan too"}}, "backends": [], "novelty": {}}'
        )
        with on_terminal(*SEEN, "--url", endpoint.url, columns=140) as terminal:
            terminal.until("^later ", r"gpu\.0 .*37")
            terminal.type("\r", "on strike")


def test_a_password_and_a_token_are_sent_and_never_shown(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """To nodes that want them; one without is told what is wrong."""
    users, token = tmp_path / "users", tmp_path / "token"
    users.write_text(call_with_password("prometheus", "sésame@home"))
    users.chmod(0o600)
    token.write_text("open-sesame-open-sesame\n")
    for file in (users, token):
        file.chmod(0o600)
    with serving(*NODE, "--auth", str(users), "--bearer-token-file", str(token), **simulator.environment()) as (_, base):
        name = base.removeprefix("http://")
        with on_terminal(*SEEN, "--url", f"http://prometheus:s%C3%A9same%40home@{name}", columns=140) as terminal:
            terminal.until(r"gpu\.0 .*37%")
            assert "same" not in "\n".join(terminal.everything)
        with on_terminal(*SEEN, "--url", name, "--fleet-token-file", str(token)) as terminal:
            terminal.until(r"gpu\.0 .*37%")
        with on_terminal(*SEEN, "--url", f"http://prometheus:open-says-me@{name}", columns=140) as terminal:
            terminal.until("HTTP 401")
            assert "open-says-me" not in "\n".join(terminal.everything)


def call_with_password(user: str, password: str) -> str:
    """The line of the file that ``--auth`` takes."""
    from accelmetrics.exporters.http.access import password_line

    return password_line(user, password) + "\n"


def test_what_is_said_to_screen_readers(simulator: NvmlSimulator) -> None:
    """Lines of what changes; a node that goes away and comes back too."""
    address = away()
    with ExitStack() as stack:
        stack.enter_context(serving("--listen", address, *NODE, **simulator.environment()))
        process = start(*SEEN, "--plain", "--url", address)
        stack.callback(process.kill)
        lines = iter(process.stdout.readline, "")
        until_line(lines, ": 2 gpu")
        simulator.lose(1)
        until_line(lines, "gpu.1: lost")
        stack.pop_all()  # kills nothing: the two are ended below
    process.kill()
    rest_of(process)


def until_line(lines: Iterator[str], wanted: str) -> str:
    """Read lines until one has these words."""
    for line in lines:
        if wanted in line:
            return line
    raise AssertionError(f"the output ended before {wanted!r}")


def test_flags_alone_are_refused_not_settings_of_all_commands(simulator: NvmlSimulator) -> None:
    """The environment says how this machine is read wherever something is read."""
    with node(simulator) as name, on_terminal(*SEEN, "--url", name, env={"ACCELMETRICS_BACKENDS": "host"}) as terminal:
        terminal.until(r"gpu\.0 .*37%")


@pytest.mark.parametrize("place", ["fleet", "url", "replay"])
def test_what_is_meant_for_serve_or_for_all_chooses_no_view(place: str, simulator: NvmlSimulator, tmp_path: Path) -> None:
    """A bare ``watch`` shows this machine, whatever the environment says; what is shown stands in its own table, and a flag before that."""
    env = {**simulator.environment(), "ACCELMETRICS_BACKENDS": "nvidia", f"ACCELMETRICS_{place.upper()}": "/nowhere"}
    file = tmp_path / "config.toml"
    file.write_text("")
    with on_terminal(*SEEN, "--config", str(file), env=env) as terminal:
        terminal.until(r"gpu\.0 .*37%")
    file.write_text(f'[watch]\n{place} = "ftp://nowhere"\n')
    done = call("watch", "--config", str(file))
    assert (done.returncode, "ftp://nowhere" in done.stderr) == (2, True)
    done = call("watch", "--config", str(file), "--replay", "/no/recording")
    assert "cannot read the recording /no/recording" in one_line(done.stderr)


class UnforeseenError(Exception):
    """What no one thought of."""


def test_what_nobody_foresaw_is_told_and_asking_goes_on() -> None:
    """Of reading an answer: the thread lasts, and what follows is seen."""

    def read(text: str) -> str:
        if unread:
            raise unread[0]
        return text

    unread: list[Exception] = [UnforeseenError("the sun")]
    with Endpoint("answer") as endpoint:
        node = Node(endpoint.url.split("/")[2])
        polls = NodePolls(lambda: [node], ({}, None), "/", 0.01, read)

        def told() -> str:
            return polls.states[node.target].failure if node.target in polls.states else ""

        try:
            wait_for(lambda: re.search("unexpected answer: .*UnforeseenError: the sun", told()))
            unread.clear()
            wait_for(lambda: polls.states[node.target].content == "answer" and not told())
        finally:
            polls.close()


def test_a_clock_that_was_set_back_begins_the_summary_anew() -> None:
    """The same reading twice counts once."""
    backend = FakeBackend("nvidia", devices=1)
    backend.device(0).set(gpu=10)
    window, key = RecordWindow(), "gpu.0.gpu"
    with Sampler([backend]) as sampler:

        def add(seconds: int, value: float) -> None:
            backend.device(0).set(gpu=value)
            reading = sampler.sample()
            parts = reading.metrics, reading.identities, reading.unavailable, reading.backends
            window.add(Snapshot(seconds * 10**9, "a", *parts), 1.0)

        for second in (5000, 5001, 5001):
            add(second, 10.0)
        assert (window.duration, window.summary[key].count) == (1.0, 2)
        for second in (1400, 1401, 1402):
            add(second, 90.0)
    assert (window.duration, window.summary[key].count, window.summary[key].mean) == (2.0, 3, 90.0)


def rows(terminal: Terminal) -> list[str]:
    """The names of the nodes, from the top."""
    return re.findall(r"^[> ][!X -]?(127\.0\.0\.1:\d+)", terminal.text, re.MULTILINE)


def test_a_fleet_of_three_of_which_one_hangs_and_one_is_away(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """A line each, the worst first; Enter opens one and Escape leaves it; the file is read again when it has changed."""
    hosts = tmp_path / "hosts"
    gone = away()
    for gpu in simulator.gpu:
        gpu.set(ecc_uncorrected_volatile=0)
    with silent() as hanging, node(simulator) as good:
        hosts.write_text(f"{good}\n{gone}\n{hanging}\n")
        with on_terminal(*SEEN, "--fleet", str(hosts), columns=140) as terminal:
            terminal.until(rf"{good} .* 37 +48 ", rf"{gone} +no answer: for \d+ s: ConnectionRefused")
            terminal.until(rf"{hanging} +no answer: for \d+ s: no answer within 3 s")
            assert rows(terminal)[-1] == good
            terminal.until("^3 nodes  2 gpu .*2 no answer +worst first")
            terminal.type("o", "by name")
            assert rows(terminal) == sorted([good, gone, hanging])
            terminal.type("/devices>0\r", lambda: rows(terminal) == [good])
            terminal.type("\r", "power gpu.0, 1 min .*now ", re.escape(good))
            terminal.type("f", "no findings|findings")
            terminal.type("\x1b", "power gpu.0, 1 min .*now ")
            terminal.type("\x1b", "by name")
            terminal.type("\x1b", lambda: len(rows(terminal)) == 3)
            hosts.write_text(f"{good}\n{gone}\n")
            terminal.until(lambda: rows(terminal) == sorted([good, gone]))
            assert terminal.end("q") == 0
            assert terminal.attributes == terminal.before


def test_changes_of_a_fleet_in_lines(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """One for each node that is another thing than before."""
    hosts = tmp_path / "hosts"
    address = away()
    hosts.write_text(f"{address}\n")
    process = start(*SEEN, "--plain", "--fleet", str(hosts))
    try:
        lines = iter(process.stdout.readline, "")
        until_line(lines, f"X {address}: no answer: for ")
        with serving("--listen", address, *NODE, **simulator.environment()):
            until_line(lines, f"{address}: 2 gpu")
            simulator.lose(0)
            assert "gpu.0 lost" in until_line(lines, f"X {address}: 2 gpu")
        until_line(lines, f"X {address}: no answer")
        hosts.write_text("")
        until_line(lines, f"{address}: no longer listed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        rest_of(process)


def test_two_hundred_nodes(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """All in one round, and the keys are heard meanwhile."""
    hosts = tmp_path / "hosts"
    for gpu in simulator.gpu:
        gpu.set(ecc_uncorrected_volatile=0)
    with node(simulator) as good:
        port = good.rpartition(":")[2]
        hosts.write_text("".join(f"127.0.0.{number}:{port}\n" for number in range(1, 201)))
        with on_terminal(*SEEN, "--fleet", str(hosts), columns=140, rows=40) as terminal:
            terminal.until("^200 nodes  2 gpu .*199 no answer")
            terminal.type("?", "open or close this help")
            terminal.type("?")
            terminal.type("\x1b[F", rf"^>[ !]127\.0\.0\.1:{port} .* 37 +48 ")
            wait_for(lambda: "1-" not in terminal.lines[1] and "200 of 200" in terminal.lines[1], what=lambda: terminal.text)
