"""``record``: what it prints, where readings go, how it is stopped."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from accelmetrics.cli.output import Stdout, WriteError
from accelmetrics.cli.record import SETTLED, _slow
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import RecordFile
from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import COMMAND, call, environment, on_path, one_line, rest_of, run, start
from tests.cli.terminals import Terminal
from tests.exporters.wandb_file import read
from tests.simulators.nvml import NvmlSimulator
from tests.simulators.rocm_smi import RocmSmiStandIn, output
from tests.support.waiting import HANG, wait_for

if TYPE_CHECKING:
    from accelmetrics.monitor.monitor import Monitor

HOST = ("record", "--backends", "host")
MIB = 2**20
PATIENT = """
from accelmetrics import Monitor
from accelmetrics.cli import program
stop = Monitor.stop
Monitor.stop = lambda monitor, timeout=0: stop(monitor, 60)
program()
"""
"""The command, with time for a tracker that is slow to begin and to end."""


def records(path: Path) -> list[Record]:
    """What is in a recording, of which each line must be whole."""
    recording = RecordFile(path)
    found = list(recording)
    assert (recording.skipped, recording.headless) == (0, 0)
    assert path.read_text().endswith("\n")
    return found


def test_a_line_for_every_reading(simulator: NvmlSimulator) -> None:
    """Utilisation and memory of each GPU, word for word."""
    simulator.gpu[0].set(gpu_util=85, memory_total=1000 * MIB, memory_used=763 * MIB, memory_reserved=0)
    simulator.gpu[1].set(gpu_util=0, memory_total=1000 * MIB, memory_used=25 * MIB, memory_reserved=0)
    done = call("record", "--interval", "0.1", "--duration", "0.5", env=environment(**simulator.environment()))
    assert (done.returncode, done.stderr) == (0, "")
    *lines, title, _, headings, first, second = done.stdout.splitlines()
    assert set(lines) == {"GPU Monitor - GPU0: 85%/76% | GPU1: 0%/3%"}
    assert len(lines) >= 2
    assert re.fullmatch(rf"total: \d\.\d s, {len(lines)} readings", title)
    assert [float(cell) for cell in (*first.split()[1:3], *second.split()[1:3])] == [85, 85, 0, 0]
    assert headings.split()[-1] == "J"


def test_what_is_named_is_recorded(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """``--metrics`` reaches the file, which has ``standard`` of a command that names nothing; a misspelt key is refused."""
    path, every = tmp_path / "run.jsonl", ("--interval", "0.1", "--duration", "1", "--backends", "nvidia", "--no-console")
    env = environment(**simulator.environment())
    for named, keys in (("smActive,gpu.0.nvlink.0.state", {"smActive", "nvlink.0.state"}), ("all", set())):
        done = call("record", *every, "--metrics", named, "--exporter", f"jsonl:{path}", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        read = records(path)[-1].snapshot.metrics
        assert {name for name in ("smActive", "nvlink.0.state") if f"gpu.0.{name}" in read} == keys
        path.unlink()
    done = call("record", *every, "--metrics", "gpu.0.powerWats", env=env)
    assert done.returncode == 2
    assert "Did you mean 'gpu.0.powerWatts'" in done.stderr


def test_devices_can_be_chosen(simulator: NvmlSimulator) -> None:
    """By their numbers; one that is not there is refused at once, with those that are."""
    env = environment(**simulator.environment())
    for isolation in ("thread", "process"):
        done = run("record", "--gpus", "1", "--duration", "0.1", "--isolation", isolation, env=env)
        assert done.stdout.startswith("GPU Monitor - GPU1: 48%/")
    refused = run("record", "--gpus", "7", env=env)
    assert refused.returncode == 2
    assert "unknown device 'gpu.7'. Known: gpu.0 (GPU-" in one_line(refused.stderr)


@pytest.mark.parametrize("command", [("record", "--duration", "0.3", "--no-console"), ("run", "--quiet", "--", "sleep", "0.3")])
def test_looking_for_devices_opens_the_driver_for_the_readings_too(simulator: NvmlSimulator, command: tuple[str, ...]) -> None:
    """Once: to open it takes seconds where it keeps nothing open itself."""
    name, *rest = command
    assert call(name, "--backends", "nvidia", "--gpus", "1", *rest, env=environment(**simulator.environment())).returncode == 0
    calls = simulator.calls()
    assert calls["nvmlDeviceGetTemperature", 1] > 1, "looked for, and read"
    assert sum(calls.get((opening, None), 0) for opening in ("nvmlInitWithFlags", "nvmlInit_v2")) == 1


def test_what_a_gpu_does_not_say_has_no_number(simulator: NvmlSimulator) -> None:
    """A dash, never 0; a lost one has its reason."""
    simulator.gpu[0].set(gpu_util=None)
    simulator.lose(1)
    done = call("record", "--duration", "0.1", env=environment(**simulator.environment()))
    assert done.stdout.splitlines()[0] in {"GPU Monitor - GPU0: -/13% | GPU1: lost", "GPU Monitor - GPU0: -/13%"}


def test_a_summary_at_each_interval_and_at_the_end(simulator: NvmlSimulator) -> None:
    """Each of every device; without console lines there is none."""
    env = environment(**simulator.environment())
    patient = ("--timeout", str(HANG))  # so that every reading has the GPU
    done = call("record", "--interval", "0.1", "--summary-interval", "0.3", "--duration", "1.4", *patient, env=env)
    heads = [line for line in done.stdout.splitlines() if line.endswith(("reading", "readings"))]
    *each, total = [re.sub(r"\d+\.\d s, \d+ readings?", "…", head) for head in heads]
    assert 1 <= len(each) <= 4
    assert (set(each), total) == ({"last 0.3 s: …"}, "total: …")
    shown = done.stdout.partition("GPU Monitor - ")[2].splitlines()  # from the first reading on
    assert sum(line.startswith("  gpu.0 ") for line in shown) == sum(bool(re.search(r" [1-9]\d* readings?$", line)) for line in shown) >= 1
    silent = call("record", "--no-console", "--interval", "0.1", "--summary-interval", "0.1", "--duration", "0.3", env=env)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")


def test_a_host_without_devices() -> None:
    """The machine's processors and memory."""
    done = call(*HOST, "--interval", "0.2", "--duration", "0.5")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"Host Monitor - CPU (-|\d+%) \| memory \d+%", lines[0])
    assert any(line.split()[:1] == ["memory_percent"] for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_everything_delivered(tmp_path: Path, number: signal.Signals) -> None:
    """Status 0, a last reading, a summary, whole lines: none of those that were printed is missing."""
    target = tmp_path / "run.jsonl"
    process = start(*HOST, "--interval", "0.05", "--exporter", f"jsonl:{target}")
    for _ in range(5):
        process.stdout.readline()
    sent = time.time_ns()
    process.send_signal(number)
    rest, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "")
    printed = 5 + sum(line.startswith("Host Monitor") for line in rest.splitlines())
    kept = records(target)
    assert len(kept) == printed
    assert kept[-1].snapshot.time_ns > sent
    assert "total: " in rest


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While an exporter that never returns is waited for."""
    os.mkfifo(tmp_path / "pipe")
    process = start(*HOST, "--interval", "3600", "--exporter", f"jsonl:{tmp_path}/pipe")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("Host Monitor"), "the last reading, which comes with the stop"
    process.send_signal(signal.SIGINT)
    rest_of(process)
    assert process.returncode == 130


def test_under_nohup_it_outlives_its_terminal() -> None:
    """A signal that was ignored when it began stays so."""
    arguments = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *COMMAND, *HOST, "--interval", "0.05"]
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    for _ in range(10):
        assert process.stdout.readline().startswith("Host Monitor")
    process.terminate()
    rest_of(process)
    assert process.returncode == 0


def test_a_reader_that_has_gone_ends_it(tmp_path: Path) -> None:
    """As any command in a pipeline; what other exporters hold is delivered all the same."""
    target = tmp_path / "run.jsonl"
    process = start(*HOST, "--interval", "0.05", "--exporter", f"jsonl:{target}")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(HANG) == 141
    assert len(records(target)) >= 2


def test_every_record_carries_the_labels(tmp_path: Path) -> None:
    """The user's, the run's, the host's, the scheduler's."""
    target = tmp_path / "run.jsonl"
    env = environment(SLURM_JOB_ID="4711", RANK="3")
    done = call(
        *HOST, "--no-console", "--duration", "0.2", "--label", "team=vision", "--label", "x=a=b", "--exporter", f"jsonl:{target}", env=env
    )
    assert done.returncode == 0
    labels = records(target)[0].labels
    assert (labels["team"], labels["x"], labels["rank"]) == ("vision", "a=b", "3")
    assert {"run_id", "hostname"} <= labels.keys()
    assert "4711" in labels.values()


@pytest.mark.usefixtures("short_stop")
def test_what_an_exporter_cannot_deliver_is_told_once(tmp_path: Path) -> None:
    """And again, in numbers, at the end; the other exporter has everything."""
    target = tmp_path / "run.jsonl"
    process = start(*HOST, "--interval", "0.05", "--no-console", "--exporter", "jsonl:/dev/full", "--exporter", f"jsonl:{target}")
    first = process.stderr.readline()
    assert first.startswith("accelmetrics: warning: exporter jsonl could not deliver: ")
    assert "No space left on device" in first
    wait_for(lambda: target.read_text().count("\n") >= 2)
    process.send_signal(signal.SIGTERM)
    out, more = rest_of(process)
    assert (process.returncode, out) == (1, "")
    assert re.match(
        r"accelmetrics: warning: exporter jsonl: 0 records sent, 0 failed, \d+ dropped; the last error: ", more.splitlines()[-1]
    )
    assert sum("could not deliver" in line for line in more.splitlines()[:-1]) == 0
    assert len(records(target)) >= 2


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """What lies there already and is something else, or a place that takes no files: status 1, in a line, before the first reading."""
    (tmp_path / "notes.txt").write_text("hello\n")
    for path, said in (
        ("/proc/a", "cannot write /proc/a: No such file or directory"),
        (f"{tmp_path}/notes.txt", "is another kind of file"),
    ):
        done = call(*HOST, "--exporter", f"jsonl:{path}")
        assert (done.returncode, done.stdout) == (1, "")
        assert said in one_line(done.stderr)
    assert (tmp_path / "notes.txt").read_text() == "hello\n"


@pytest.mark.usefixtures("short_stop")
def test_an_exporter_that_never_came_to_open(tmp_path: Path) -> None:
    """A pipe without a reader: the status is 1, and a line names the exporter."""
    os.mkfifo(tmp_path / "pipe")
    done = call(*HOST, "--no-console", "--duration", "0.2", "--exporter", f"jsonl:{tmp_path}/pipe")
    os.close(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))  # lets the exporter's thread go
    assert done.returncode == 1
    assert "accelmetrics: warning: exporter jsonl: 0 records sent, 0 failed, " in done.stderr


def test_lines_that_cannot_be_printed_end_nothing(tmp_path: Path) -> None:
    """The disk below standard output is full: every exporter has every reading until the end, whose status is 1."""
    target = tmp_path / "run.jsonl"
    options = ("--interval", "0.1", "--summary-interval", "0.1", "--duration", "0.6", "--exporter", f"jsonl:{target}")
    with Path("/dev/full").open("w") as full:
        done = run(*HOST, *options, stdout=full)
    assert done.returncode == 1
    assert len(records(target)) >= 3
    assert done.stderr.splitlines()[-1] == "accelmetrics record: cannot write to standard output: No space left on device"
    assert sum("cannot write" in line for line in done.stderr.splitlines()) <= 3


def test_a_summary_that_could_not_be_printed_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the last one is printed: the disk was full for a while."""
    show = Stdout.show

    def refuse(out: Stdout, text: str) -> None:
        if text.startswith("last"):
            raise WriteError("to standard output", OSError(errno.ENOSPC, "No space left on device"))
        show(out, text)

    monkeypatch.setattr(Stdout, "show", refuse)
    done = call(*HOST, "--interval", "0.1", "--summary-interval", "0.1", "--duration", "0.5")
    assert done.returncode == 1
    assert "total" in done.stdout
    assert done.stderr.splitlines()[-1] == "accelmetrics record: cannot write to standard output: No space left on device"


def test_a_terminal_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    """The summary has no reader; the status is that of any other end."""
    target = tmp_path / "run.jsonl"
    ours, theirs = os.openpty()
    arguments = [*COMMAND, *HOST, "--interval", "0.05", "--summary-interval", "0.2", "--exporter", f"jsonl:{target}"]
    process = subprocess.Popen(arguments, env=environment(), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    before = len(target.read_text().splitlines()) if target.exists() else 0
    wait_for(lambda: target.exists() and target.read_text().count("\n") >= before + 6)
    process.send_signal(signal.SIGHUP)
    _, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "")
    assert records(target)


def test_the_total_counts_the_readings_that_are_printed(simulator: NvmlSimulator) -> None:
    """Each is a line, the first and the last among them; those between, which only summaries have, are none."""
    options = ("--interval", "0.15", "--summary-interval", "0.1", "--duration")
    for duration in ("0.1", "0.3", "0.5"):
        done = call("record", "--backends", "nvidia", *options, duration, env=environment(**simulator.environment()))
        (number,) = re.findall(r"total: .*, (\d+) readings?", done.stdout)
        assert int(number) == sum(line.startswith("GPU Monitor") for line in done.stdout.splitlines())


def test_a_process_that_is_not_there_is_told() -> None:
    """One line; it goes on, as one of that number may come."""
    done = call(*HOST, "--pid", "2147483646", "--no-console", "--duration", "0.2")
    assert done.returncode == 0
    assert one_line(done.stderr) == "accelmetrics: warning: there is no process 2147483646: nothing of it can be read"
    done = call(*HOST, "--pid", "1", "--no-console", "--duration", "0.2")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exporter_whose_package_is_missing(tmp_path: Path) -> None:
    """Status 1, and how to get it."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError('not here')\n")
    done = run(*HOST, "--exporter", "console:table", env=on_path(tmp_path))
    assert done.returncode == 1
    assert one_line(done.stderr) == "accelmetrics record: the package 'rich' is not installed: pip install 'accelmetrics[rich]'"


BUSY = "the interpreter was busy elsewhere"


def complaint(*arguments: str, env: Mapping[str, str]) -> str:
    """The one line that ``record`` says, while it goes on until it is stopped; its lines go to standard output all the time.

    On a busy machine it may say too that a reading is late.
    """
    process = start("record", *arguments, env=env)
    while BUSY in (said := process.stderr.readline()) or "a reading every" in said:
        pass
    process.send_signal(signal.SIGTERM)
    out, rest = rest_of(process)
    more = [line for line in rest.splitlines() if BUSY not in line]
    assert (process.returncode, more) == (0, [])
    assert out.startswith("GPU Monitor")
    return said


def test_messages_as_json_lines(simulator: NvmlSimulator) -> None:
    """With level, time and the labels of every record; what is printed for people is as ever."""
    simulator.set(latency_us=10_000)
    options = ("--backends", "nvidia", "--interval", "0.05", "--log-format", "json", "--label", "team=vision", "--rules", "none")
    said = json.loads(complaint(*options, env=environment(**simulator.environment())))
    assert said.keys() == {"timestamp", "level", "message", "logger", "labels"}
    assert (said["labels"]["team"], said["logger"], said["level"]) == ("vision", "accelmetrics", "warning")
    assert {"run_id", "hostname"} <= said["labels"].keys()
    datetime.fromisoformat(said["timestamp"].replace("Z", "+00:00"))


def test_a_source_that_cannot_keep_up_is_said_once(tmp_path: Path) -> None:
    """``rocm-smi`` takes longer than the interval; the line names it."""
    stand_in = RocmSmiStandIn(tmp_path)
    stand_in.behave(output("radeon_6_2"), delay=0.4)
    options = ("--backends", "amd", "--amd-source", "rocm-smi", "--interval", "0.1")
    said = complaint(*options, env=environment(PATH=stand_in.path))
    assert one_line(said) == "accelmetrics: warning: amd (rocm-smi) cannot be read every 0.1 s: give a longer --interval"


@pytest.mark.parametrize(("seconds", "told"), [(0.01, []), (0.3, ["host (linux)"])])
def test_a_host_that_cannot_keep_up_is_said(seconds: float, told: list[str]) -> None:
    """By how long it takes: its values are kept for longer than such an interval."""
    status = BackendStatus("host", "ok", "", "linux", seconds, age_seconds=0.4, sequence=5)
    watching = SimpleNamespace(latest=Snapshot(0, "node", {}, backends=(status,)), status=SimpleNamespace(ticks=SETTLED))
    assert _slow(cast("Monitor", watching), 0.1) == told


def test_a_driver_that_cannot_keep_up_is_said_once(simulator: NvmlSimulator) -> None:
    """Slow calls of NVML's count as well, and at half a second nothing is said."""
    simulator.set(latency_us=10_000)
    env = environment(**simulator.environment())
    said = complaint("--backends", "nvidia", "--interval", "0.05", env=env)
    assert one_line(said) == "accelmetrics: warning: nvidia (nvml) cannot be read every 0.05 s: give a longer --interval"
    done = call("record", "--backends", "nvidia", "--interval", "0.5", "--duration", "1.2", "--no-console", env=env)
    assert done.stderr == ""


def test_a_short_interval_that_is_kept_is_not_spoken_of(simulator: NvmlSimulator) -> None:
    """With every source that this machine has."""
    done = call("record", "--interval", "0.4", "--duration", "1.3", "--no-console", env=environment(**simulator.environment()))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.peers
def test_wandb_by_its_short_options(tmp_path: Path) -> None:
    """A run in that project and of that name, with the readings."""
    env = environment(HOME=str(tmp_path), WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    options = ("--no-console", "--interval", "0.2", "--duration", "0.5", "--wandb-project", "training", "--wandb-run-name", "node-3")
    arguments = [sys.executable, "-c", PATIENT, *HOST, *options]
    done = subprocess.run(arguments, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=4 * HANG)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (file,) = tmp_path.rglob("*.wandb")
    assert b"training" in file.read_bytes() and b"node-3" in file.read_bytes()
    (written,) = read(tmp_path)
    assert any("memory_percent" in key for row in [*written.history, *written.stats] for key in row)


def test_it_says_once_what_it_reads_and_where_that_goes(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """On a terminal before the first line, and as a message for programs; without what is secret."""
    path = tmp_path / "run.jsonl"
    arguments = ("record", "--backends", "nvidia,host", "--interval", "0.2", "--duration", "0.5")
    places = ("--exporter", f"jsonl:{path}?fsync_every=1", "--exporter", "influx:http://ada:s3cret@127.0.0.1:9/write")
    env = environment(**simulator.environment())
    words = rf"2 GPUs \(nvidia, host\), a reading every 0\.2 s for 0\.5 s, to jsonl:{path}, influx:http://\*\*\*@127\.0\.0\.1:9/write"
    with Terminal([*COMMAND, *arguments, *places], env, columns=250) as terminal:
        terminal.end()
        shown = [text for text in terminal.lines if text]
    begin = next(number for number, text in enumerate(shown) if text.startswith("GPU Monitor - "))
    assert all(len(text) <= 80 or " " not in text.strip() for text in shown[:begin])
    rest = shown[begin:]
    assert re.fullmatch(rf"accelmetrics record: {words}", " ".join(map(str.strip, shown[:begin])))
    assert not any("a reading every" in text for text in rest)
    done = call(*arguments, "--no-console", "--log-format", "json", env=env)
    messages = [json.loads(said)["message"] for said in done.stderr.splitlines()]
    assert [said for said in messages if "a reading every" in said] == [
        "2 GPUs (nvidia, host), a reading every 0.2 s for 0.5 s, kept nowhere: --exporter jsonl:run.jsonl keeps them"
    ]


@pytest.mark.parametrize(("form", "level", "times"), [("text", "info", 1), ("journal", "info", 1), ("text", "warning", 0)])
def test_a_plain_log_says_once_what_is_read(simulator: NvmlSimulator, form: str, level: str, times: int) -> None:
    """Where it has messages of that level."""
    options = ("--backends", "nvidia", "--interval", "0.2", "--duration", "0.5", "--no-console", "--log-format", form, "--log-level", level)
    done = call("record", *options, env=environment(**simulator.environment()))
    told = [said for said in done.stderr.splitlines() if "a reading every" in said]
    begin = {"text": "accelmetrics: info: ", "journal": "<6>accelmetrics: info: "}[form]
    assert len(told) == times and all(said.startswith(f"{begin}2 GPUs (nvidia), a reading every 0.2 s") for said in told), done.stderr
