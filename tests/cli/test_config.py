"""Options from flags, variables and a file: which one counts, what is refused, and what ``accelmetrics config`` says of it."""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.cli.main import load
from accelmetrics.exporters.prometheus import PORT
from accelmetrics.exporters.scrape_cache import MAX_SERIES
from accelmetrics.monitor import settings
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.recording import RecordFile
from tests.cli.shell import REPOSITORY, call, environment, one_line, start
from tests.support.waiting import HANG

pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
OWN_FLAGS = {
    "serve": {"--config", "--make-password", "--notify-test"},
    "record": {"--config", "--notify-test"},
    "watch": {"--config", "file"},
    "run": {
        "--config",
        "--notify-test",
        "--stats",
        "--tokens-from",
        "--tokens-file",
        "--as-nvml",
        "--no-line",
        "--no-summary",
        "--quiet",
        "command",
    },
}
"""Flags of one command line, which no file gives."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def shown(*arguments: str, **env: str) -> dict[str, dict[str, Any]]:
    """What ``config --json`` says of a command's options, by name."""
    done = call("config", "--json", *arguments, env=environment(**env))
    assert (done.returncode, done.stderr) == (0, "")
    return {entry["option"]: entry for entry in json.loads(done.stdout)["options"]}


def test_a_flag_then_the_environment_then_the_file_then_the_default(file: Path) -> None:
    """And the command's own table before the top of the file; each says what gave it."""
    file.write_text(
        'interval = 5\ntimeout = 6\nmetrics = "core"\nisolation = "process"\n[record]\ninterval = 4\ntimeout = 7\nmetrics = "wandb"\n'
    )
    found = shown("--config", str(file), "record", "--interval", "2", ACCELMETRICS_INTERVAL="3", ACCELMETRICS_TIMEOUT="8")
    assert {
        name: (found[name]["value"], found[name]["source"], found[name]["where"])
        for name in ("interval", "timeout", "metrics", "isolation", "gpus")
    } == {
        "interval": (2.0, "flag", "--interval"),
        "timeout": (8.0, "environment", "ACCELMETRICS_TIMEOUT"),
        "metrics": ("wandb", "file", f"{file}: record.metrics"),
        "isolation": ("process", "file", f"{file}: isolation"),
        "gpus": (None, "default", ""),
    }
    assert found["open_timeout"] == {**found["timeout"], "option": "open_timeout"}


def test_every_command_has_its_own_table(file: Path) -> None:
    """Without a command, each value is told with those that have it."""
    file.write_text("interval = 5\n[serve]\ninterval = 15\n[monitor]\nhistory = 0\n")
    done = call("config", "--show", "--config", str(file), env=environment(COLUMNS="200"))
    tables = {title: rows for title, *rows in (part.splitlines() for part in done.stdout.split("\n\n"))}
    rows = {title: [re.split(r"  +", row.strip()) for row in found] for title, found in tables.items()}
    assert ["interval", "15.0", f"file {file}: serve.interval"] in rows["for serve:"]
    assert ["interval", "5.0", f"file {file}: interval"] in rows["for record, watch, run, monitor:"]
    assert ["history", "0", f"file {file}: monitor.history"] in rows["for monitor:"]
    assert ["backends", "all", "default"] in rows["for all that take options:"]


def test_a_file_can_give_every_option_and_the_example_has_each(file: Path) -> None:
    """As `config --example` prints it, once each # is taken away; other values than the defaults arrive as flags would give them."""
    example = call("config", "--example").stdout
    file.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in example.splitlines()))
    found = shown("--config", str(file))
    assert set(found) == set(settings.OPTIONS)
    sources = {name: entry["source"] for name, entry in found.items()}
    assert set(sources.values()) == {"file"}
    assert (found["gpus"]["value"], found["backends"]["value"]) == ([0, 2, 3], ["nvidia", "host"])
    assert (found["labels"]["value"], found["exporters"]["value"]) == ({"team": "vision"}, ["jsonl:run.jsonl"])
    file.write_text(
        'gpus = [0, "2-3", "GPU-18ef14e9"]\nmetrics = ["core", "-fanSpeed"]\ndisk_paths = "/data"\nvisible = "renumber"\nchildren = true\n'
    )
    found = shown("--config", str(file), "watch")
    values = [found[name]["value"] for name in ("gpus", "metrics", "disk_paths", "visible", "children")]
    assert values == [[0, 2, 3, "GPU-18ef14e9"], "core,-fanSpeed", ["/data"], "renumber", True]


def test_variables_say_what_flags_say() -> None:
    """Items of what may be given again are separated by spaces, quoted as in a shell; an empty variable is none."""
    given = {
        "GPUS": "0,2-3",
        "LABELS": "team=vision site='New York'",
        "EXPORTERS": "jsonl:a.jsonl?metrics=core,-temp prometheus",
        "DISK_PATHS": "/ '/my data'",
        "VISIBLE": "true",
        "CONSOLE": "off",
        "INTERVAL": "",
    }
    found = shown("record", **{f"ACCELMETRICS_{name}": text for name, text in given.items()})
    assert {name: found[name.lower()]["value"] for name in given} == {
        "GPUS": [0, 2, 3],
        "LABELS": {"team": "vision", "site": "New York"},
        "EXPORTERS": ["jsonl:a.jsonl?metrics=core,-temp", "prometheus"],
        "DISK_PATHS": ["/", "/my data"],
        "VISIBLE": True,
        "CONSOLE": False,
        "INTERVAL": 1.0,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("intervall = 5", ["unknown key in {file}: 'intervall'", "Did you mean 'interval'?"]),
        ("[server]\nlisten = 'x'", ["unknown key in {file}: 'server'", "Did you mean 'serve'?"]),
        ("[serve]\nlissten = 'x'", ["unknown key in [serve] of {file}: 'lissten'", "Did you mean 'listen'?"]),
        ("[record]\nlisten = 'x'", ["[record] of {file}: record has no option listen: it is an option of serve"]),
        ("serve = 1", ["{file}: serve is 1: it must be a table: [serve]"]),
        ("url = 'node-1'", ["{file}: url belongs to one command: move it to [watch]"]),
        ("interval = '5'", ["{file}, key interval: '5' must be a number of seconds from 0.01 to 86,400"]),
        ("interval = true", ["{file}, key interval: True must be a number of seconds"]),
        ("interval = 0.001", ["{file}, key interval: '0.001' must be a number of seconds from 0.01"]),
        ("[serve]\nmax_series = 1.5", ["[serve] of {file}, key max_series: '1.5' must be a whole number above 0"]),
        ("isolation = 'moon'", ["key isolation: 'moon' must be thread or process"]),
        ("children = 'yes'", ["key children: 'yes' must be true or false"]),
        ("exporters = [1.5]", ["key exporters: 1.5 in a list: its items must be strings"]),
        ("labels = 'a=b'", ["key labels: 'a=b' must be a table of names and texts"]),
        ("labels = {a = [1]}", ["key labels: a is [1]: it must be a string"]),
        ("gpus = '3-1'", ["key gpus: the range 3-1 runs backwards"]),
        ("interval = x\nhistory = 1", ["the configuration file {file} cannot be read: it is not valid TOML:", "line 1"]),
    ],
    ids=lambda value: value.replace("\n", " ") if isinstance(value, str) else "",
)
def test_a_file_with_a_mistake_is_refused(file: Path, text: str, words: list[str]) -> None:
    """By every command that takes it, in a line that names the file, the key and what is accepted."""
    file.write_text(text)
    for done in (call("record", "--config", str(file)), call("config", env=environment(ACCELMETRICS_CONFIG=str(file)))):
        line = one_line(done.stderr)
        assert (done.returncode, done.stdout) == (2, "")
        for word in words:
            assert word.format(file=file) in line


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/no/such/file", "No such file or directory"),
        ("/", "Is a directory"),
        ("/dev/zero", "has more than 1 MiB"),
        ("/bin/sh", "it is not valid TOML"),
    ],
)
def test_what_is_no_file_is_refused(path: str, why: str) -> None:
    """With the system's words; what has no end is not read to it."""
    done = call("watch", "--config", path)
    assert done.returncode == 2
    assert f"the configuration file {path}" in one_line(done.stderr)
    assert why in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("INTERVAL", "soon", "the environment variable ACCELMETRICS_INTERVAL: 'soon' must be a number of seconds"),
        (
            "EXPORTERS",
            "'otlp:h?headers=a=hunter2",
            "the environment variable ACCELMETRICS_EXPORTERS: it cannot be split into words: No closing quotation",
        ),
        ("LABELS", "team", "the environment variable ACCELMETRICS_LABELS: 'team' is not a label: write NAME=VALUE"),
        ("CHILDREN", "perhaps", "the environment variable ACCELMETRICS_CHILDREN: 'perhaps' must be true or false"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused(name: str, text: str, said: str) -> None:
    """With its name and what is accepted."""
    done = call("record", env=environment(**{f"ACCELMETRICS_{name}": text}))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)
    assert "hunter" not in done.stderr


def test_a_name_that_does_not_exist_is_told_with_the_place_that_has_it(file: Path) -> None:
    """The command line does not show it; what a flag gave needs no place."""
    file.write_text('exporters = ["promtheus:127.0.0.1:0"]\n[watch]\nmetrics = "powerWats"\n')
    done = call("record", "--backends", "host", "--config", str(file))
    assert (done.returncode, one_line(done.stderr).rpartition(" (")[2]) == (2, f"from the file, {file}: exporters)")
    done = call("watch", "--backends", "host", "--config", str(file))
    assert (done.returncode, one_line(done.stderr).rpartition(" (")[2]) == (2, f"from the file, {file}: watch.metrics)")
    done = call("record", env=environment(ACCELMETRICS_BACKENDS="host,nvida"))
    assert (done.returncode, one_line(done.stderr).rpartition(" (")[2]) == (2, "from the environment, ACCELMETRICS_BACKENDS)")
    done = call("record", "--backends", "nvida", env=environment(ACCELMETRICS_RULES="none"))
    assert (done.returncode, "from the" in one_line(done.stderr)) == (2, False)


def test_a_python_that_reads_no_toml_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 3.10 does, without the extra; without a file nothing is needed."""
    monkeypatch.setattr("accelmetrics.monitor.settings.sys", SimpleNamespace(version_info=(3, 10)))
    monkeypatch.setitem(sys.modules, "tomli", None)
    file.write_text("interval = 5")
    done = call("config", "--config", str(file))
    assert (done.returncode, one_line(done.stderr)) == (
        1,
        "accelmetrics config: the package 'tomli' is not installed: pip install 'accelmetrics[config]'",
    )
    assert call("config", env=environment(ACCELMETRICS_INTERVAL="3")).returncode == 0


def test_variables_that_nothing_reads_are_told_and_not_refused() -> None:
    """Kubernetes makes some of the name of a Service; no option may be called like one of those."""
    made = {
        f"ACCELMETRICS_{name}": "x"
        for name in ("SERVICE_HOST", "SERVICE_PORT_METRICS", "PORT", "PORT_22235_TCP_ADDR", "SERVE_SERVICE_HOST", "SERVE_PORT")
    }
    done = call("config", env=environment(**made, ACCELMETRICS_INTERVALL="3", ACCELMETRICS_SYSROOT="/"))
    assert done.returncode == 0
    assert one_line(done.stderr) == "accelmetrics config: unknown variable 'ACCELMETRICS_INTERVALL'. Did you mean 'ACCELMETRICS_INTERVAL'?"
    assert not [option.variable for option in settings.OPTIONS.values() if settings._SERVICE.fullmatch(option.variable)]


def test_secrets_are_not_shown(file: Path) -> None:
    """Neither those in addresses nor those among an exporter's options."""
    file.write_text(
        'exporters = ["influx:http://anna:hunter2@db:8086?db=x", "otlp:http://c:4318?headers=Authorization=hunter3&timeout=2"]\n'
    )
    for form in ("--show", "--json"):
        done = call("config", form, "--config", str(file))
        assert done.returncode == 0
        assert "hunter" not in done.stdout + done.stderr
        assert "@db:8086?db=x" in done.stdout
        assert "&timeout=2" in done.stdout


def test_a_recording_as_the_file_and_the_environment_have_it(file: Path, tmp_path: Path) -> None:
    """Into the exporter of the file, with the variable's labels, at the flag's pace; nothing is printed, for the file says so."""
    target = tmp_path / "run.jsonl"
    file.write_text(
        f'backends = ["host"]\nexporters = ["jsonl:{target}"]\nlabels = {{team = "language"}}\n[record]\nconsole = false\nduration = 0.3\n'
    )
    done = call("record", "--interval", "0.1", "--config", str(file), env=environment(ACCELMETRICS_LABELS="team=vision"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    records = list(RecordFile(target))
    assert {record.monitor.interval for record in records if record.monitor} == {0.1}
    assert {record.labels["team"] for record in records} == {"vision"}
    again = call("record", "--console", "--duration", "0.1", "--config", str(file))
    assert (again.returncode, "total: " in again.stdout) == (0, True)


def test_a_server_as_its_file_has_it(file: Path) -> None:
    """A process of its own, whose environment names the file; messages are JSON, for the file says so."""
    file.write_text('backends = "host"\nlog_format = "json"\n[serve]\nlisten = "127.0.0.1:0"\nprocesses = 0\n')
    program = start("serve", env=environment(ACCELMETRICS_CONFIG=str(file)))
    try:
        assert json.loads(program.stderr.readline())["data"]["address"].startswith("http://127.0.0.1:")
        program.send_signal(signal.SIGTERM)
        assert program.wait(HANG) == 0
    finally:
        program.kill()
        program.communicate(timeout=HANG)


def test_commands_that_answer_once_read_neither(file: Path) -> None:
    """What `dump` prints for a program does not change by a file."""
    file.write_text("no TOML")
    done = call(
        "dump", "--json", "--backends", "host", "--settle", "0", env=environment(ACCELMETRICS_CONFIG=str(file), ACCELMETRICS_METRICS="zzz")
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_monitor_reads_the_file_that_it_is_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments stand above the environment, that above the file; `Monitor()` is what it was."""
    file.write_text(
        'interval = 7\nhistory = 5\nlabels = {team = "vision"}\nbackends = ["host"]\n[serve]\nlisten = "x"\n[monitor]\ninterval = 8\n'
    )
    monkeypatch.setenv("ACCELMETRICS_TIMEOUT", "0.5")
    monitor = Monitor.from_config(file)
    assert (monitor.interval, monitor.labels["team"], monitor._run.ring._most) == (8.0, "vision", 5)
    monkeypatch.setenv("ACCELMETRICS_CONFIG", str(file))
    monkeypatch.setenv("ACCELMETRICS_INTERVAL", "9")
    assert Monitor.from_config().interval == 9.0
    assert Monitor.from_config(interval=0.5, labels={"team": "language"}).labels["team"] == "language"
    assert Monitor.from_config(interval=0.5).interval == 0.5
    assert (Monitor(backends=["host"]).interval, "team" in Monitor(backends=["host"]).labels) == (1.0, False)
    file.write_text("interval = 0")
    with pytest.raises(accelmetrics.InvalidOptionError, match="key interval: '0' must be"):
        Monitor.from_config()


def test_the_table_has_every_option_of_the_commands_and_of_the_monitor() -> None:
    """With the same defaults; what it leaves out is listed here."""
    for command, own in OWN_FLAGS.items():
        flags = {flag for group in load(command).OPTIONS.values() for flag in group}
        assert flags - own == {option.long_flag for option in settings.taken_by(command)}, command
    parameters = dict(inspect.signature(Monitor).parameters)
    for name in ("clock", "on_finding", "attribution"):  # what no text can say; of the last, `serve` takes a word
        del parameters[name]
    assert set(parameters) == {option.name for option in settings.taken_by(settings.MONITOR)}
    for name, parameter in parameters.items():
        default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert settings.OPTIONS[name].default == (default if name != "labels" else {}), name
    assert (settings.OPTIONS["listen"].default, settings.OPTIONS["max_series"].default) == (f"127.0.0.1:{PORT}", MAX_SERIES)


def test_every_variable_is_listed() -> None:
    """Whatever the package reads or sets under its prefix is an option's or stands among the others, and no name is both."""
    found = {
        name for path in (REPOSITORY / "accelmetrics").rglob("*.py") for name in re.findall(r"\bACCELMETRICS_[A-Z]+\b", path.read_text())
    }
    variables = {option.variable for option in settings.OPTIONS.values()}
    assert found <= variables | set(settings.OTHER_VARIABLES)
    assert not variables & set(settings.OTHER_VARIABLES)
