"""Eighty columns: the help of every command, and what commands print of a machine with faults, in a pipe as on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accelmetrics.cli.main import COMMANDS, GROUPS, load, root_parser
from accelmetrics.cli.options import Parser
from accelmetrics.schemas.text import cells
from tests.cli.shell import call, environment
from tests.simulators.nvml import NvmlSimulator

COLUMNS = 80


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_not_wider(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    parser = root_parser()
    if name:
        command = load(name)
        parser = Parser.for_command(name, COMMANDS[name], command.EXAMPLES)
        parser.add_options(command.OPTIONS)
    text = parser.format_help()
    assert [line for line in text.splitlines() if cells(line) > COLUMNS] == []
    assert "examples:" in text


def test_the_programs_help_begins_with_three_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands are in it, in groups, and three examples."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    text = root_parser().format_help()
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert list(COMMANDS)[:3] == ["watch", "dump", "run"]
    assert all(f"\n{title}:\n" in text for title in GROUPS)
    assert text.partition("examples:")[2].count("\n  accelmetrics ") == 3


@pytest.fixture(scope="module")
def machine() -> Iterator[dict[str, str]]:
    """Eight GPUs: one has fallen off the bus, one is hot."""
    with NvmlSimulator(8) as simulator:
        simulator.gpu[2].set(temperature=97)
        simulator.lose(5)
        yield environment(**simulator.environment(), COLUMNS="")


@pytest.mark.parametrize(
    "command",
    [
        "dump",
        "dump --all",
        "dump temp powerWatts",
        "list",
        "ps",
        "topology",
        "allocation",
        "doctor",
        "metrics temp",
        "exporters",
        "dialects",
        "config",
        "verify --span 0.1",
    ],
)
def test_what_a_command_prints_is_not_wider(command: str, machine: dict[str, str]) -> None:
    """On standard output, and the problems on standard error."""
    name, *more = command.split()
    read = ["--backends", "nvidia,host"] if name in ("dump", "list", "ps", "topology", "allocation", "doctor", "verify") else []
    done = call(name, *more, *read, env={key: value for key, value in machine.items() if key != "COLUMNS"})
    assert done.stdout
    assert [line for line in (done.stdout + done.stderr).splitlines() if cells(line) > COLUMNS] == []
    assert ("gpu.5" in done.stderr) == (name in ("list", "ps", "topology"))
