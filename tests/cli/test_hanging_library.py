"""Every command ends beside a driver's library whose constructor never returns, and gives what other sources have."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from accelmetrics.backends.nvidia import library_name
from tests.cli.shell import environment, rest_of, run, start
from tests.simulators import hanging

READ = ("--backends", "nvidia,host", "--timeout", "1")
COMMANDS = {
    "dump": ("dump", *READ, "--json"),
    "dump_table": ("dump", *READ, "--format", "table"),
    "dump_csv": ("dump", *READ, "--format", "csv", "--count", "2", "--interval", "0.1"),
    "dump_otel": ("dump", *READ, "--keys", "otel"),
    "list": ("list", *READ, "--json"),
    "doctor": ("doctor", *READ),
    "record": ("record", *READ, "--duration", "1", "--exporter", "jsonl:run.jsonl"),
    "run": ("run", *READ, "--", "true"),
}


@pytest.fixture
def hung(tmp_path: Path) -> dict[str, str]:
    return environment(LD_LIBRARY_PATH=str(hanging.install(tmp_path / "lib", library_name())))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends(name: str, hung: dict[str, str], tmp_path: Path) -> None:
    arguments = [word.replace("run.jsonl", str(tmp_path / "run.jsonl")) for word in COMMANDS[name]]
    done = run(*arguments, env=hung)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("arguments", [("serve", "--listen", "127.0.0.1:0", *READ), ("watch", *READ)])
def test_a_command_that_goes_on_ends_by_a_signal(arguments: tuple[str, ...], hung: dict[str, str]) -> None:
    process = start(*arguments, env=hung)
    assert (process.stderr if arguments[0] == "serve" else process.stdout).readline()
    process.send_signal(signal.SIGINT)
    said = rest_of(process)
    assert process.returncode in (0, 130), said
