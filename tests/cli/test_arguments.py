"""Arguments that cannot be used end in one line that says what is wrong and what is allowed, and in exit status 2."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from accelmetrics.cli import options
from accelmetrics.cli.main import COMMANDS, load, main
from accelmetrics.monitor import settings
from tests.cli.machines import Printed, Rig
from tests.cli.shell import call, one_line

REFUSED = [
    (["dump", "--flat", "--format", "table"], ["--flat excludes --format table", "json and jsonl"]),
    (["dump", "--flat", "--format", "csv"], ["--flat excludes --format csv", "json and jsonl"]),
    (["dump", "--flat", "--format", "influx"], ["--flat excludes --format influx", "json and jsonl"]),
    (["dump", "--keys", "dcgm", "--format", "influx"], ["--format influx", "excludes --keys"]),
    (["dump", "--indent", "2", "--format", "influx"], ["--indent", "one JSON document"]),
    (["dump", "--json", "--format", "csv"], ["--json is short for --format json", "--format csv"]),
    (["dump", "--indent", "2", "--count", "2"], ["--indent is for one JSON document"]),
    (["dump", "--indent", "2", "--format", "jsonl"], ["--indent is for one JSON document"]),
    (["dump", "--indent", "0"], ["--indent", "'0'", "whole number above 0"]),
    (["dump", "--settle", "0.1", "--count", "2"], ["--settle", "--count above 1"]),
    (["dump", "--settle", "0", "--interval", "1"], ["--settle", "--interval"]),
    (["dump", "--interval", "-1"], ["--interval", "'-1'", "number of seconds"]),
    (["dump", "--interval", "0"], ["--interval", "'0'", "above 0"]),
    (["dump", "--interval", "nan"], ["--interval", "'nan'"]),
    (["dump", "--interval", "inf"], ["--interval", "'inf'"]),
    (["dump", "--interval", "1e300"], ["--interval", "above 0, and at most 1,000,000"]),
    (["dump", "--interval"], ["--interval", "expected one argument", "seconds between readings"]),
    (["dump", "--count", "0"], ["--count", "'0'", "whole number above 0"]),
    (["dump", "--count", "1.5"], ["--count", "'1.5'", "whole number"]),
    (["dump", "--count", "-3"], ["--count", "'-3'"]),
    (["dump", "--timeout", "-0.5"], ["--timeout", "'-0.5'"]),
    (["dump", "--timeout", "soon"], ["--timeout", "'soon'"]),
    (["dump", "--settle", "-1"], ["--settle", "'-1'"]),
    (["dump", "--pid", "-4"], ["--pid", "'-4'"]),
    (["dump", "--pid", "99999999999999999999"], ["--pid", "from 1 to 2147483647"]),
    (["dump", "--gpus", "3-1"], ["--gpus", "3-1 runs backwards", "write 1-3"]),
    (["dump", "--gpus", "0-99999999"], ["unknown device '0-99999999'"]),
    (["dump", "--gpus", ""], ["--gpus", "not a device", "such as 0,2-3 or gpu.1"]),
    (["dump", "--gpus", "0,,1"], ["--gpus", "not a device"]),
    (["dump", "--gpus", "-1"], ["--gpus", "'-1'", "not a device"]),
    (["dump", "--gpus", "7"], ["unknown device 'gpu.7'", "gpu.0", "gpu.2"]),
    (["dump", "--gpus", "GPU-ffffffff"], ["unknown device 'GPU-ffffffff'"]),
    (["dump", "--backends", "rigg"], ["unknown backend 'rigg'", "Did you mean 'rig'?", "host"]),
    (["dump", "--backends", "rig,rig"], ["rig more than once"]),
    (["dump", "--backends", "rig,"], ["unknown backend ''"]),
    (["dump", "--disk-path", ""], ["--disk-path", "the path is empty"]),
    (["dump", "--output", ""], ["--output", "the path is empty"]),
    (["dump", "--format", "xml"], ["--format", "'xml'", "table", "jsonl", "csv"]),
    (["dump", "--format"], ["--format", "expected one argument", "table|json|jsonl|csv"]),
    (["dump", "--isolation", "moon"], ["--isolation", "'moon'", "thread", "process"]),
    (["dump", "--jsn"], ["unknown option '--jsn'", "Did you mean '--json'?", "--format"]),
    (["dump", "--gpu=1"], ["unknown option '--gpu'", "'--gpus'"]),
    (["dump", "--json=yes"], ["--json", "'yes'"]),
    (["dump", "gpu.0"], ["unknown metric or preset 'gpu.0'"]),
    (["list", "a\nb"], ["unexpected argument"]),
    (["dmp"], ["unknown command 'dmp'", "Did you mean 'dump'?", "doctor"]),
    (["--jason"], ["unknown option '--jason'", "--help"]),
    (["doctor", "--backends", "nothing"], ["unknown backend 'nothing'", "rig, host"]),
    (["doctor", "--timeout", "0"], ["--timeout", "above 0"]),
    (["list", "--backends", "nothing"], ["unknown backend 'nothing'"]),
    (["metrics", "gpu.0.powerWats"], ["unknown metric 'gpu.0.powerWats'", "Did you mean 'gpu.{i}.powerWatts'?"]),
    (["metrics", "zzz"], ["unknown metric 'zzz'", "`accelmetrics metrics` lists them all"]),
    (["metrics", "--backend", "nothing"], ["unknown backend 'nothing'"]),
    (["schema", "--json"], ["unknown option '--json'"]),
    (["completion"], ["required", "bash|zsh|tcsh"]),
    (["completion", "fish"], ["'fish'", "bash", "zsh", "tcsh"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_refused(rig: Rig, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    """Nothing on standard output; what was typed and what is allowed on one line of standard error."""
    del rig
    assert main(arguments) == 2
    printed = capsys.readouterr()
    line = one_line(printed.err)
    assert printed.out == ""
    assert line.startswith("accelmetrics")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["watch", "--save-dir", "/nowhere"], "--save-dir '/nowhere' is not a directory"),
        (["watch", "--hot-memory", "much"], "'much' must be a number"),
        (["watch", "--hot-temperature", "nan"], "'nan' must be a number"),
        (["watch", "--interval", "0"], "must be a number of seconds from 0.01 to 86,400"),
        (["watch", "--gpu", "0"], "Did you mean '--gpus'?"),
        (["watch", "--backends", "nvidea"], "Did you mean 'nvidia'?"),
        (["record", "--exporter", "promtheus"], "unknown exporter 'promtheus'. Did you mean 'prometheus'?"),
        (["record", "--exporter", "jsonl"], "the exporter 'jsonl' needs its path: write jsonl:PATH"),
        (["record", "--exporter", "jsonl:/no/such/place/x"], "the directory /no/such/place does not exist"),
        (["record", "--label", "team"], "'team' is not a label: write NAME=VALUE"),
        (["record", "--interval", "0.001"], "'0.001' must be a number of seconds from 0.01 to 86,400"),
        (["record", "--interval", "0"], "'0' must be a number of seconds from 0.01 to 86,400"),
        (["record", "--interval", "abc"], "'abc' must be a number of seconds from 0.01 to 86,400"),
        (["record", "--summary-interval", "-1"], "must be a number of seconds from 0"),
        (["record", "--backends", "nvida"], "Did you mean 'nvidia'?"),
        (["record", "--log-format", "yaml"], "'yaml' must be text or json"),
        (["watch", "--url", "ftp://a"], "'ftp://a' is not an address of accelmetrics serve"),
        (["watch", "--url", "http://"], "is not an address"),
        (["watch", "--url", "http://user:secret@a:99999"], "'http://***@a:99999' is not an address"),
        (["watch", "--url", "a", "--fleet", "b"], "--url and --fleet exclude each other"),
        (["watch", "--url", "a", "--replay", "b"], "--replay and --url exclude each other"),
        (["watch", "--url", "a", "--speed", "2"], "--speed needs --replay"),
        (["watch", "a", "--url", "b"], "a file and --url exclude each other"),
        (["watch", "a", "--gpus", "0"], "--gpus is for readings of this machine: leave it out with a file"),
        (["watch", "--url", "a", "--host", "b"], "--host needs a file or --replay"),
        (["watch", "/nowhere"], "cannot read the recording /nowhere"),
        (["watch", "--replay", "a", "--speed", "0"], "'0' must be a number from 0.1 to 3600"),
        (["watch", "--replay", "/nowhere"], "cannot read the recording /nowhere"),
        (["watch", "--replay", "/dev/zero"], "not a regular file"),
        (["watch", "--replay", "/etc/passwd"], "is not a recording"),
        (["watch", "--url", "a", "--gpus", "0"], "--gpus is for readings of this machine"),
        (["watch", "--fleet", "a", "--read-only"], "--read-only is for readings of this machine"),
        (["watch", "--fleet-ca", "a"], "--fleet-ca needs --url or --fleet"),
        (["watch", "--url", "a", "--fleet-ca", "/nowhere"], "cannot read --fleet-token-file or --fleet-ca"),
        (["watch", "--fleet", "/nowhere"], "the hosts file /nowhere cannot be read"),
        (
            ["watch", "--fleet", "ftp://user:secret@a"],
            "--fleet 'ftp://***@a' is not an address of a Prometheus, such as http://prometheus:9090",
        ),
        (["serve", "--keys", "dcgn"], "Did you mean 'dcgm'"),
        (["serve", "--listen", "nowhere:at:all"], "is not HOST:PORT"),
        (["serve", "--make-password", "a:b"], "is no valid user name"),
        (["serve", "--exporter", "jsonll:x"], "Did you mean 'jsonl'"),
        (["serve", "--attribution", "none", "--dcgm-jobs", "/tmp", "--backends", "host"], "--dcgm-jobs excludes --attribution none"),
        (["targets"], "say where the nodes are from"),
        (["targets", "--hosts", "x", "--slurm"], "say where the nodes are from"),
        (["targets", "--slurm", "a", "--partition", "gpu"], "--partition chooses"),
        (["targets", "--hosts", "x", "--partition", "gpu"], "--partition chooses"),
        (["targets", "--hosts", "/dev/null", "--label", "1x=2"], "--label: '1x=2' is no label: write NAME=VALUE"),
        (["targets", "--hosts", "/nonexistent/x"], "the hosts file /nonexistent/x cannot be read"),
        (["allocation", "--pool", "actor=2"], "--pool is of the actors of a Ray cluster"),
        (["allocation", "--ray", "--pid", "1"], "--ray is of a cluster's actors"),
        (["allocation", "--ray", "--pool", "actor=none"], "is not a number of devices"),
        (["allocation", "--ray", "--pool", "Actor=0"], "0-0 for device 0 alone"),
        (["run"], "`accelmetrics run -- python train.py`"),
        (["run", "--"], "`accelmetrics run -- python train.py`"),
        (["run", "--quiet"], "`accelmetrics run -- python train.py`"),
    ],
)
def test_refused_before_anything_is_read(arguments: list[str], said: str) -> None:
    """In a line, with status 2, and with the nearest that there is."""
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)


def test_nothing_asked_for_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help goes to standard error, since it is not what was asked for."""
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for name in COMMANDS:
        assert f"  {name} " in printed.err or f"  {name}\n" in printed.err


def test_version(output: Printed) -> None:
    """The version is a document."""
    from accelmetrics._version import __version__

    assert output("--version") == f"accelmetrics {__version__}\n"


def _examples(text: str) -> list[str]:
    lines = (line.strip() for line in re.sub(r"\\\n *", "", text).splitlines())
    return [line for line in lines if line.startswith("accelmetrics ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples_that_work(command: str, output: Printed) -> None:
    """Examples are parsed as they stand, so that none outlives the option that it shows."""
    help_text = output(command, "--help")
    assert f"usage: accelmetrics {command}" in help_text
    examples = _examples(help_text.partition("examples:")[2])
    assert examples
    for example in examples:
        words = shlex.split(example.partition("   ")[0], comments=True)
        arguments = words[2 : next((place for place, word in enumerate(words) if word in {"|", ">", ">>", "||"}), None)]
        parser = options.Parser.for_command(words[1], "x", "")
        parser.add_options(load(words[1]).OPTIONS)
        assert isinstance(parser.parse_strictly(arguments), argparse.Namespace)


@pytest.mark.parametrize("command", ["dump", "list", "watch", "record", "serve", "run", "ps", "allocation", "doctor"])
def test_help_groups_the_options_that_commands_share(command: str, output: Printed) -> None:
    """Each is worded alike wherever it is; a command that knows its process does not ask for one."""
    groups = output(command, "--help").partition("examples:")[0].partition("what is read, and how:")[2]
    assert "--backends LIST" in groups
    assert "--timeout S" in groups
    assert ("--pid PID" in groups) == (command in {"dump", "watch", "record", "serve"})


def test_root_help(output: Printed) -> None:
    """The root's help names every command."""
    text = output("--help")
    assert all(name in text for name in COMMANDS)


def test_devices_in_every_spelling() -> None:
    """Numbers, ranges, keys and UUIDs; what is named twice counts once."""
    uuid = "GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1"
    assert settings.devices.parse(f"0,2-3, 2,gpu.5,{uuid}") == [0, 2, 3, "gpu.5", uuid]
    assert settings.devices.parse("4-4") == [4]


def test_a_uuid_of_digits_and_hyphens_is_no_range() -> None:
    """Only a whole word of two numbers is a range."""
    assert settings.devices.parse("0x1234abcd5678ef00") == ["0x1234abcd5678ef00"]
    assert settings.devices.parse("12345678-9012-4345-8678-901234567890") == ["12345678-9012-4345-8678-901234567890"]
