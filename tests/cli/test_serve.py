"""``accelmetrics serve``, from outside: what it answers, whom it lets in, how it ends."""

from __future__ import annotations

import base64
import getpass
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import COMMAND, Started, call, environment, one_line, start
from tests.cli.terminals import on_terminal
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import HANG, wait_for


@contextmanager
def serving(*arguments: str, **env: str) -> Iterator[tuple[Started, str]]:
    """The command, and the address that it says."""
    program = start("serve", "--listen", "127.0.0.1:0", *arguments, env=environment(**env))
    try:
        line = program.stderr.readline()
        assert line.startswith("accelmetrics serve: http://127.0.0.1:"), line
        yield program, line.split()[-1].removesuffix("/metrics")
    finally:
        program.kill()
        program.communicate(timeout=HANG)


def get(url: str, user: str = "", **headers: str) -> tuple[int, str]:
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    try:
        with urlopen(Request(url, headers=headers), timeout=HANG) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ready(base: str) -> None:
    wait_for(lambda: get(f"{base}/-/ready")[0] == 200, what="it never became ready")


def test_every_path_answers() -> None:
    """Metrics of simulated GPUs under our names, the snapshot as a document, both probes."""
    with NvmlSimulator(2) as simulator, serving("--backends", "nvidia,host", **simulator.environment()) as (_, base):
        ready(base)
        status, metrics = get(f"{base}/metrics")
        assert status == 200
        assert 'accel_power_watts{accelerator="gpu.0",uuid="GPU-' in metrics
        assert "accelmetrics_up 1.0" in metrics
        snapshot = Snapshot.from_json(get(f"{base}/api/snapshot")[1])
        assert snapshot.metrics["gpu.1.powerWatts"] > 0
        assert get(f"{base}/-/healthy")[0] == 200
        assert get(f"{base}/nowhere")[0] == 404


@pytest.mark.skipif(sys.platform != "linux", reason="platform: reads /proc")
def test_the_command_describes_itself_under_its_own_names() -> None:
    """Of a watched process it speaks only where it was given one."""
    for watched in ((), ("--pid", str(os.getpid()))):
        with serving("--backends", "host", *watched) as (program, base):
            ready(base)
            metrics = get(f"{base}/metrics")[1]
            document = Snapshot.from_json(get(f"{base}/api/snapshot")[1])
            began = psutil.Process(program.pid).create_time()
        said = re.search(r"^accelmetrics_process_start_time_seconds (\S+)$", metrics, re.MULTILINE)
        assert said is not None and float(said[1]) == pytest.approx(began, abs=1)
        assert ("accel_host_process_memory_bytes" in metrics) == ("proc.memory.rssMB" in document.metrics) == bool(watched)
        assert "accel_host_memory_available_bytes" in metrics
        if not watched:
            assert not {key for key in (*document.metrics, *document.unavailable) if key == "cpu" or key.startswith("proc.memory.rss")}


def test_no_more_series_are_served_than_asked_for() -> None:
    """What was left out is counted; `--max-age` is taken too."""
    with NvmlSimulator(2) as simulator:
        limits = ("--max-series", "5", "--max-age", "60")
        with serving("--backends", "nvidia", *limits, **simulator.environment()) as (_, base):
            ready(base)
            metrics = get(f"{base}/metrics")[1]
    left_out = re.search(r"^accelmetrics_series_dropped_total (\S+)$", metrics, re.MULTILINE)
    assert left_out is not None and float(left_out[1]) > 0
    assert len(re.findall(r"^accel_\w+\{", metrics, re.MULTILINE)) <= 5


def test_other_names_are_served() -> None:
    """Dashboards made for DCGM find their metrics; processes have ours, where so many are asked for."""
    with NvmlSimulator(1) as simulator:
        simulator.processes(0, [Process(7, used=1 << 20), Process(8, used=1 << 30)])
        for more, pids in (((), []), (("--processes", "0"), []), (("--processes", "1"), ["8"])):
            with serving("--keys", "dcgm", "--backends", "nvidia", *more, **simulator.environment()) as (_, base):
                ready(base)
                metrics = get(f"{base}/metrics")[1]
            assert "DCGM_FI_DEV_GPU_TEMP{" in metrics
            assert re.findall(r'^accel_process_info\{.*pid="(\d+)"', metrics, re.MULTILINE) == pids


def test_processes_are_served_whatever_is_selected_and_say_whose_they_are() -> None:
    """With `--metrics core` too, of which they are none; a label that there is not is refused."""
    me = os.getpid()
    with NvmlSimulator(1) as simulator:
        simulator.processes(0, [Process(me, used=1 << 30)])
        options = ("--processes", "5", "--process-labels", "user, pod", "--metrics", "core", "--backends", "nvidia")
        with serving(*options, **simulator.environment()) as (_, base):
            ready(base)
            metrics = get(f"{base}/metrics")[1]
    (info,) = re.findall(r"^accel_process_info\{(.*)\}", metrics, re.MULTILINE)
    assert f'pid="{me}"' in info
    assert f'user="{getpass.getuser()}"' in info
    assert re.findall(r"^accel_process_memory_bytes\{.* (\S+)$", metrics, re.MULTILINE) == ["1.073741824e+09"]
    assert "accel_fan_speed_ratio" not in metrics
    refused = call("serve", "--processes", "5", "--process-labels", "usr")
    assert refused.returncode == 2
    assert "Did you mean 'user'" in refused.stderr


def test_only_names_of_this_machine_are_answered_to() -> None:
    """On loopback, and those that are allowed: a web site whose name is made to mean this machine reads nothing."""
    with serving("--backends", "host", "--allowed-host", "gpu.example", "--allowed-host", "node.example") as (_, base):
        statuses = [get(f"{base}/-/healthy", Host=host)[0] for host in ("localhost", "gpu.example:80", "node.example", "evil.example")]
    assert statuses == [200, 200, 200, 421]


@pytest.mark.parametrize("size", [9_000, 200_000])
def test_a_head_that_is_too_large_is_answered(size: int) -> None:
    """Also where more of it comes than is read."""
    with serving("--backends", "host") as (_, base):
        port = int(base.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=HANG) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Much: " + b"a" * size + b"\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 431 ")
        assert get(f"{base}/-/healthy")[0] == 200


def test_a_password_is_asked_for(tmp_path: Path) -> None:
    """Only who has it is let in; the file holds no password."""
    line = subprocess.run(
        [*COMMAND, "serve", "--make-password", "prom"],
        input="open sesame\n",
        env=environment(),
        text=True,
        capture_output=True,
        timeout=HANG,
    ).stdout
    assert line.startswith("prom:scrypt$")
    assert "sesame" not in line
    users = tmp_path / "users"
    users.write_text(line)
    users.chmod(0o600)
    with serving("--backends", "host", "--auth", str(users)) as (_, base):
        assert get(f"{base}/metrics")[0] == 401
        assert get(f"{base}/metrics", "prom:wrong")[0] == 401
        assert get(f"{base}/metrics", "prom:open sesame")[0] == 200


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "the password is empty"),
        (b"\n", "the password is empty"),
        (b"caf\xe9\n", "the password is not UTF-8"),
        (None, "standard input is closed"),
    ],
)
def test_what_is_no_password(given: bytes | None, said: str) -> None:
    """Nothing, no line, bytes that no client could send, a closed stream: one line says so, and nothing is printed."""
    command = [*COMMAND, "serve", "--make-password", "prom"]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(closed if given is None else command, input=given, env=environment(), capture_output=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"accelmetrics serve: {said}") and done.stderr.count(b"\n") == 1


def test_an_empty_password_at_a_terminal() -> None:
    """Asked for without showing it; Return alone, and the end of the file, are none."""
    for key in ("\r", "\x04"):
        with on_terminal("serve", "--make-password", "prom") as terminal:
            terminal.until("^password of prom:")
            assert terminal.end(key) == 2
            assert "the password is empty" in terminal.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_stopped_by_a_signal(number: signal.Signals) -> None:
    """Both are how it ends: the status is 0."""
    with serving("--backends", "host") as (program, base):
        ready(base)
        program.send_signal(number)
        assert program.wait(timeout=HANG) == 0


def test_a_port_in_use_is_told() -> None:
    """One line says which port, and the status is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call("serve", "--listen", f"127.0.0.1:{port}", "--backends", "host")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"accelmetrics serve: cannot listen on 127.0.0.1:{port}: port {port} of 127.0.0.1 is in use by another program"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--listen", "a..b:22932", "the host 'a..b' is not found"),
        ("--auth", "binary", "binary is not a password file"),
        ("--auth", "missing", "missing cannot be read: No such file or directory"),
        ("--bearer-token-file", "missing", "missing cannot be read: No such file or directory"),
        ("--auth", ".", "cannot be read: Is a directory"),
        ("--tls-cert", "binary", "binary cannot be used"),
    ],
)
def test_it_does_not_say_that_it_serves_when_it_does_not(option: str, value: str, words: str, tmp_path: Path) -> None:
    """Whatever keeps it from listening is one line, and the status is 1."""
    (tmp_path / "binary").write_bytes(b"ada:\xff")
    listen = () if option == "--listen" else ("--listen", "127.0.0.1:0")
    done = call("serve", *listen, option, value if option == "--listen" else str(tmp_path / value), "--backends", "host")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "cannot listen on " in line and words in line
    assert "Errno" not in line


def test_a_folder_that_summaries_cannot_be_written_to_is_told_before_anything_listens(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("")
    done = call("serve", "--listen", "127.0.0.1:0", "--summaries", str(tmp_path / "file"), "--backends", "host")
    assert (done.returncode, one_line(done.stderr)) == (1, f"accelmetrics serve: cannot write {tmp_path / 'file'}: File exists")


def test_a_folder_for_summaries_is_made(tmp_path: Path) -> None:
    """Before the first job."""
    with serving("--summaries", str(tmp_path / "a" / "b"), "--backends", "host") as (_, base):
        ready(base)
        assert list((tmp_path / "a" / "b").iterdir()) == []
