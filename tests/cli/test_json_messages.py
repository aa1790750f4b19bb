"""``--log-format json``: every line that a command says is a message with the labels, whatever comes of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import call, environment, rest_of, start

JSON = ("--log-format", "json", "--label", "team=vision", "--backends", "host")
JOB = {"SLURM_JOB_ID": "4711"}


def messages(text: str) -> list[dict[str, Any]]:
    """All lines, each of which must be one, with the labels of one run."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(set(one) >= {"timestamp", "level", "message", "logger", "labels"} for one in found)
    assert all(one["labels"]["team"] == "vision" and one["labels"]["slurm.job.id"] == "4711" for one in found)
    assert all(one["labels"]["hostname"] for one in found)
    assert len({one["labels"]["run_id"] for one in found}) <= 1
    return found


def stopped(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that is stopped as services are, once it has said or printed something."""
    program = start(*arguments, env=environment(**JOB))
    try:
        stream = program.stderr if arguments[0] == "serve" else program.stdout
        assert stream is not None
        first = stream.readline()
        program.send_signal(signal.SIGTERM)
        out, said = rest_of(program)
    finally:
        program.kill()
    return subprocess.CompletedProcess(arguments, program.returncode, out, first + said if arguments[0] == "serve" else said)


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("name", "rest", "status", "words"),
    [
        ("watch", ["--gpus", "77"], 2, "77"),
        ("watch", ["--backends", "nvidai"], 2, "Did you mean 'nvidia'"),
        ("watch", ["--save-dir", "/nowhere"], 2, "is not a directory"),
        ("record", ["--gpus", "77"], 2, "77"),
        ("record", ["--exporter", "jsonll:x"], 2, "Did you mean 'jsonl'"),
        ("record", ["--exporter", "jsonl:/nowhere/x"], 2, "/nowhere"),
        ("record", ["--exporter", "prometheus:TAKEN", "--duration", "0.5", "--no-console"], 1, "exporter prometheus"),
        ("record", ["--pid", "2147483646", "--duration", "0.1"], 0, "there is no process"),
        ("serve", ["--listen", "TAKEN"], 1, "cannot listen on"),
        ("serve", ["--keys", "dcgn"], 2, "Did you mean 'dcgm'"),
        ("serve", ["--exporter", "jsonll:x"], 2, "Did you mean 'jsonl'"),
        ("run", ["--gpus", "77", "--", "true"], 2, "77"),
        ("run", ["--exporter", "jsonll:x", "--", "true"], 2, "Did you mean 'jsonl'"),
        ("run", ["--stats", "/nowhere/x", "--", "true"], 2, "name a file in an existing directory"),
        ("run", ["--", "no-such-command"], 127, "no-such-command"),
        ("run", ["--", "/"], 126, "/"),
        ("run", [], 2, "no command"),
        ("run", ["--quiet", "--exporter", "jsonl:/dev/full", "--", "true"], 0, "exporter jsonl"),
        ("run", ["--", "true"], 0, "summary"),
    ],
)
@pytest.mark.usefixtures("short_stop")
def test_every_line_is_a_message(name: str, rest: list[str], status: int, words: str, taken: str) -> None:
    """What ends a command, what is lost, the summary: each with the labels and the run's one id."""
    done = call(name, *JSON, *(word.replace("TAKEN", taken) for word in rest), env=environment(**JOB))
    assert done.returncode == status, done.stderr
    assert any(words in one["message"] for one in messages(done.stderr)), done.stderr
    if status:
        assert messages(done.stderr)[-1]["level"] in ("error", "warning")


@pytest.mark.parametrize("name", ["watch", "record", "serve"])
def test_good_runs_too(name: str, tmp_path: Path) -> None:
    """Stopped by SIGTERM, nothing but messages stands on standard error; the id is that of the records."""
    recording = tmp_path / "run.jsonl"
    rest = [] if name == "watch" else ["--exporter", f"jsonl:{recording}"]
    listen = ["--listen", "127.0.0.1:0"] if name == "serve" else []
    done = stopped(name, *JSON, *listen, *rest)
    assert done.returncode == 0, done.stderr
    said = messages(done.stderr)
    if name == "serve":
        (address,) = [one for one in said if "address" in one.get("data", {})]
        assert address["data"]["address"].startswith("http://127.0.0.1:")
        assert json.loads(recording.read_text().splitlines()[0])["labels"] == address["labels"]


def test_a_run_id_of_ones_own() -> None:
    """A label wins over the id that is made."""
    done = call("serve", "--log-format", "json", "--label", "run_id=mine", "--keys", "dcgn")
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["labels"]["run_id"] == "mine"


def test_what_serve_loses_is_told_and_is_its_status() -> None:
    """A disk without room: how many records, and status 1, as of record."""
    done = stopped("serve", *JSON, "--listen", "127.0.0.1:0", "--exporter", "jsonl:/dev/full")
    assert done.returncode == 1
    assert "exporter jsonl: 0 records sent" in messages(done.stderr)[-1]["message"]


def test_arguments_that_cannot_be_read_are_told_as_text() -> None:
    """The form is not known then."""
    done = call("record", *JSON, "--interval", "soon")
    assert done.returncode == 2
    assert done.stderr.startswith("accelmetrics record: ") and done.stderr.count("\n") == 1
