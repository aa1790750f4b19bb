"""Whatever stands behind ``--exporter``, and behind the commands that take a path: told in one line, without a password, and at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import call, one_line

PASSWORD = "correct-horse"
HOST = ("record", "--backends", "host", "--no-console", "--interval", "0.1", "--duration", "1")
TARGETS = (
    "influx:ada:{}@h",
    "influx:ftp://ada:{}@h/x",
    "influx://ada:{}@h",
    "influx:http://ada:{}@127.0.0.1:1?timeout=x",
    "influx:http://ada:{}@127.0.0.1:1",
    "otlp:ada:{}@h",
    "otlp:http://ada:{}@h:99999/?protocol=http",
    "otlp:http://ada:{}@127.0.0.1:1?protocol=http",
    "statsd:ada:{}@h:12",
    "prometheus:ada:{}@h:1",
    "jsonl:/nowhere/ada:{}@h/f",
    "tensorboard:/proc/ada:{}@h",
    "http://ada:{}@h",
)


@pytest.mark.usefixtures("short_stop")
@pytest.mark.parametrize("target", TARGETS)
def test_a_password_that_was_typed_is_not_shown(target: str) -> None:
    """In no message, whether the target is refused or cannot be reached."""
    done = call(*HOST, "--log-format", "text", "--exporter", target.format(PASSWORD))
    assert done.returncode != 0
    assert done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_in_a_forgotten_place_is_not_shown() -> None:
    """Where the option's name was left out."""
    assert PASSWORD not in one_line(call("record", f"http://ada:{PASSWORD}@h").stderr)


LONG = "x" * 300


@pytest.mark.usefixtures("short_stop")
@pytest.mark.parametrize(
    "target", ["jsonl:{}", "csv:{}", "influx:{}", "training-files:{}", "textfile:{}.prom", "tensorboard:{}", "jsonl:{}/run.jsonl"]
)
def test_a_name_that_is_too_long_is_told_in_words(target: str, tmp_path: Path) -> None:
    """As any path that cannot be."""
    done = call(*HOST, "--exporter", target.format(tmp_path / LONG))
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "File name too long" in done.stderr


@pytest.mark.parametrize("arguments", [("report",), ("dump", "--backends", "host", "--output")])
def test_so_is_one_that_a_command_takes(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = call(*arguments, str(tmp_path / LONG))
    assert done.returncode != 0
    one_line(done.stderr)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_a_device_is_no_recording(device: str) -> None:
    """It may have no end."""
    assert f"{device} is a device" in one_line(call("report", device).stderr)
