"""``run``: the command is as it would be alone, and what it used is told."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Monitor
from accelmetrics.cli.run import Signals
from accelmetrics.cli.run_tokens import TokenFile, TokenLines, token_pattern
from accelmetrics.schemas.recording import read_records
from tests.cli.shell import COMMAND, call, environment, one_line, rest_of, start
from tests.simulators.nvml import NvmlSimulator, Ramp
from tests.support.waiting import HANG, wait_for

RUN = ("run", "--backends", "host")
NOTES_SIGNALS = """
import os, signal, sys, time
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, frame: os.write(1, f"{signal.Signals(number).name}\\n".encode()))
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""
FAMILY = """
import json, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "held = b'x' * (160 << 20); input()"], stdin=subprocess.PIPE)
def held():
    lines = pathlib.Path(sys.argv[1]).read_text().split("\\n")[:-1]
    return max((json.loads(line).get("metrics", {}).get("proc.memory.rssMB", 0) for line in lines), default=0)
while held() < 160: time.sleep(0.05)
child.communicate(b"\\n")
"""


def through(
    *command: str, env: dict[str, str] | None = None, options: tuple[str, ...] = (), **given: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command through the command."""
    arguments = [*COMMAND, *RUN, *options, "--", *command]
    return subprocess.run(arguments, env=environment(**(env or {})), capture_output=True, timeout=HANG, **given)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_commands_status_is_ours(script: str, status: int) -> None:
    """As a shell gives it."""
    assert through("sh", "-c", script, options=("--quiet",)).returncode == status


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("no-such-command", 127, "command not found: no-such-command"),
        ("/no/such/command", 127, "command not found: /no/such/command"),
        ("/etc", 126, "cannot run /etc: Permission denied"),
        ("plain", 126, "cannot run plain: Permission denied"),
        ("unfounded", 127, "cannot run ./unfounded: the interpreter that its first line names does not exist"),
    ],
)
def test_a_command_that_cannot_be_started(tmp_path: Path, command: str, status: int, said: str) -> None:
    """Has the status that shells give, and a line."""
    (tmp_path / "plain").write_text("text")
    (tmp_path / "unfounded").write_text("#!/no/such/interpreter\n")
    (tmp_path / "unfounded").chmod(0o755)
    wanted = f"./{command}" if command == "unfounded" else command
    done = through(wanted, env={"PATH": f"{os.environ['PATH']}:{tmp_path}"}, cwd=tmp_path)
    assert done.returncode == status
    assert one_line(done.stderr.decode()) == f"accelmetrics run: {said}"


def test_input_and_output_are_the_commands_own() -> None:
    """Byte by byte; with ``--quiet`` not one is added."""
    data = bytes(range(256)) * 5000
    script = "import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer); sys.stderr.buffer.write(bytes(range(256)))"
    done = through(sys.executable, "-c", script, options=("--quiet",), input=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, bytes(range(256)))


def test_standard_error_has_the_commands_part_first_then_the_summary(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """And standard output only what is the command's."""
    script = tmp_path / "job"
    script.write_text("#!/bin/sh\nuntil grep -q gpu.1.gpu run.jsonl; do sleep 0.05; done; echo out; echo err >&2; exit 4\n")
    script.chmod(0o755)
    arguments = [*COMMAND, "run", "--exporter", "jsonl:run.jsonl", "--", "./job", "a b"]
    env = environment(**simulator.environment())
    done = subprocess.run(arguments, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (4, "out\n")
    first, title, units, headings, *devices, last = done.stderr.splitlines()
    assert first == "err"
    assert title.startswith("./job 'a b': exit status 4: ")
    assert (units.split()[0], headings.split()) == ("util,", [*["mean", "max"] * 3, "max", "J"])
    assert [[float(cell) for cell in line.split()[1:3]] for line in devices] == [[37, 37], [48, 48]]
    assert all(len(line) <= 80 for line in done.stderr.splitlines())
    assert "s of CPU time" in last


def test_no_summary() -> None:
    """When none is wanted."""
    done = through("true", options=("--no-summary",))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_command_without_the_dashes() -> None:
    """Its options are its own."""
    done = subprocess.run([*COMMAND, *RUN, "--quiet", "echo", "--json", "--", "-n"], env=environment(), capture_output=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (0, b"--json -- -n\n")


def test_the_command_begins_as_it_would_without_us() -> None:
    """The same signals blocked, ignored and caught, the same files open, the same environment."""
    script = "grep ^Sig /proc/self/status | grep -v SigQ; ls /proc/self/fd; readlink /proc/$$/fd/0; env | sort"
    seen = []
    for command in (["sh", "-c", script], [*COMMAND, *RUN, "--quiet", "--", "sh", "-c", script]):
        done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG)
        assert (done.returncode, done.stderr) == (0, "")
        # Signals 32 and 33 are glibc's own: no program can use them, and what its posix_spawn starts may begin with them ignored.
        seen.append([re.sub("^SigIgn:\t0000000[01][08]0000000$", "SigIgn:\t0000000000000000", line) for line in done.stdout.splitlines()])
    assert seen[0] == seen[1]
    assert "SigIgn:\t0000000000000000" in seen[0]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH", "SIGCONT"])
def test_signals_are_passed_on_once(name: str) -> None:
    """To a command that goes on after them: the next that it is sent is the next that it has. Its end is ours."""
    other = "SIGUSR1" if name == "SIGUSR2" else "SIGUSR2"
    process = start(*RUN, "--quiet", "--", sys.executable, "-c", NOTES_SIGNALS, name, other)
    assert process.stdout.readline() == "ready\n"
    for sent in (name, other):
        process.send_signal(getattr(signal, sent))
        assert process.stdout.readline() == f"{sent}\n"
    (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    os.kill(pid, signal.SIGKILL)
    out, errors = rest_of(process)
    assert (process.returncode, out, errors) == (137, "", "")


def test_a_signal_before_the_command_began_ends_it_unstarted(tmp_path: Path) -> None:
    """Nothing is started that was stopped already."""
    program = (
        "import os, signal, sys\n"
        "import accelmetrics.cli.run as run\n"
        "made = run.exporters\n"
        "run.exporters = lambda *given: (os.kill(os.getpid(), signal.SIGTERM), made(*given))[1]\n"
        "from accelmetrics.cli import program\n"
        "program()\n"
    )
    arguments = [sys.executable, "-c", program, *RUN, "--quiet", "--", "touch", str(tmp_path / "made")]
    assert subprocess.run(arguments, env=environment(), timeout=HANG).returncode == 143
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("told", [True, False])
def test_signals_are_held_and_handed_out(told: bool) -> None:
    """Where the system says who sent them, and where it does not; afterwards they act as before."""
    before = signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Signals(told) as signals:
        assert signals.next() is None
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # another test may have left a thread that would take it
        assert wait_for(signals.next) == (signal.SIGUSR1, False)
    assert (signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_what_it_used_as_json(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """Per device name, means and maxima, energy, readings; the command, its status, how long it took."""
    simulator.gpu[0].set(gpu_util=80, power_mw=250_000, temperature=66, energy_mj=Ramp(1e9, rate=250_000))
    simulator.gpu[1].set(gpu_util=None, energy_mj=None)
    stats, readings = tmp_path / "stats.json", tmp_path / "run.jsonl"
    script = ["sh", "-c", f"until [ $(grep -c '\"metrics\"' {readings}) -ge 6 ]; do sleep 0.05; done; exit 5"]
    options = ("--interval", "0.2", "--label", "team=vision", "--stats", str(stats), "--exporter", f"jsonl:{readings}", "--quiet")
    began = time.monotonic()
    done = call("run", *options, "--", *script, env=environment(**simulator.environment()))
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
    found = json.loads(stats.read_text())
    assert (found["command"], found["exit_status"], found["interval_seconds"]) == (script, 5, 0.2)
    assert "signal" not in found
    assert found["duration_seconds"] >= 1
    assert found["labels"]["team"] == "vision"
    first, second = found["devices"]["gpu.0"], found["devices"]["gpu.1"]
    assert (first["name"], first["vendor"], first["uuid"][:4]) == ("NVIDIA H100 80GB HBM3", "nvidia", "GPU-")
    assert first["samples"] == first["utilization_percent"]["count"] >= 3
    for measure, value in {"utilization_percent": 80, "power_watts": 250, "temperature_celsius": 66, "memory_bytes": 11226972160}.items():
        assert (first[measure]["mean"], first[measure]["max"]) == pytest.approx((value, value))
    assert first["memory_total_bytes"] == 81559 * 2**20
    assert first["power_limit_watts"] == 700.0
    assert first["energy_source"] == "counter"
    # The counter goes on while a reading is under way: more than between readings within the window, no more than altogether.
    counted = [record.snapshot.metrics.get("gpu.0.energyJoules", 0.0) for record in read_records(readings)][-4:]
    assert counted[-2] - counted[0] <= first["energy_joules"] <= 250 * (time.monotonic() - began)
    assert first["energy_seconds"] > 0
    assert "utilization_percent" not in second
    assert second["energy_source"] == "integrated"
    assert second["energy_joules"] == pytest.approx(second["power_watts"]["mean"] * second["energy_seconds"], rel=0.4)


def test_children_are_counted(tmp_path: Path) -> None:
    """What the command's own children hold and use is its."""
    stats, readings = tmp_path / "stats.json", tmp_path / "run.jsonl"
    options = ("--interval", "0.1", "--stats", str(stats), "--exporter", f"jsonl:{readings}")
    done = through(sys.executable, "-c", FAMILY, str(readings), options=options)
    assert done.returncode == 0
    process = json.loads(stats.read_text())["process"]
    assert process["memory_bytes"]["max"] > 160 << 20
    assert process["threads"]["max"] >= 2
    assert process["cpu_seconds"] > 0
    assert f"at most {process['memory_bytes']['max'] / 2**20:.0f} MiB of memory" in done.stderr.decode()


def test_a_signals_name_is_in_the_stats(tmp_path: Path) -> None:
    """Beside the status."""
    stats = tmp_path / "stats.json"
    assert through("sh", "-c", "kill -ABRT $$", options=("--stats", str(stats))).returncode == 134
    found = json.loads(stats.read_text())
    assert (found["exit_status"], found["signal"]) == (134, "SIGABRT")


def test_stats_replace_a_file_whole(tmp_path: Path) -> None:
    """A reader never finds half of it, nor anything beside it; a pipe is written to."""
    stats = tmp_path / "stats.json"
    stats.write_text("x" * 100_000)
    stats.chmod(0o600)
    node = stats.stat().st_ino
    assert through("true", options=("--stats", str(stats))).returncode == 0
    json.loads(stats.read_text())
    assert stats.stat().st_ino != node
    assert stat.S_IMODE(stats.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [stats]
    done = through("true", options=("--stats", "/dev/stdout", "--quiet"))
    assert json.loads(done.stdout)["exit_status"] == 0


def test_stats_that_cannot_be_written_in_the_end(tmp_path: Path) -> None:
    """Are said, and the status stays the command's."""
    place = tmp_path / "place"
    place.mkdir()
    done = through("sh", "-c", f"rmdir {place}; exit 6", options=("--stats", str(place / "stats.json"), "--no-summary"))
    assert done.returncode == 6
    assert one_line(done.stderr.decode()).startswith(f"accelmetrics run: cannot write {place}/stats.json: ")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (
            ("--stats", "/no/such/place/stats.json"),
            2,
            "--stats /no/such/place/stats.json cannot be written: name a file in an existing directory",
        ),
        (("--stats", "/tmp"), 2, "--stats /tmp cannot be written: name a file in an existing directory"),
        (("--exporter", "jsonnl:x"), 2, "Did you mean 'jsonl'?"),
        (("--exporter", "jsonl:x?fsync=1"), 2, "Did you mean 'fsync_every'?"),
        (("--gpus", "7"), 2, "unknown device 'gpu.7'"),
        (("--backends", "hots"), 2, "Did you mean 'host'?"),
        (("--stat", "x"), 2, "Did you mean '--stats'?"),
        (("--interval", "0.001"), 2, "'0.001' must be a number of seconds from 0.01 to 86,400"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_started(
    tmp_path: Path, options: tuple[str, ...], status: int, said: str
) -> None:
    """The command does not run for days in vain."""
    done = call(*RUN, *options, "--", "touch", str(tmp_path / "made"))
    assert done.returncode == status
    assert said in one_line(done.stderr)
    assert not (tmp_path / "made").exists()


def test_readings_go_to_exporters(tmp_path: Path) -> None:
    """Of the command and not of the one that watches it, with its labels."""
    target = tmp_path / "run.jsonl"
    script = f"until [ $(grep -c '\"metrics\"' {target}) -ge 6 ]; do sleep 0.05; done"
    done = through("sh", "-c", script, options=("--interval", "0.05", "--exporter", f"jsonl:{target}", "--label", "job=a", "--quiet"))
    assert (done.returncode, done.stderr) == (0, b"")
    records = list(read_records(target))
    assert len(records) >= 6
    assert {record.labels["job"] for record in records} == {"a"}
    held = [record.snapshot.metrics["proc.memory.rssMB"] for record in records if "proc.memory.rssMB" in record.snapshot.metrics]
    assert held
    assert max(held) < 10


def test_a_tool_that_hangs_is_named(tmp_path: Path) -> None:
    """Which, and since when."""
    tool, go, target = tmp_path / "rbln-smi", tmp_path / "go", tmp_path / "run.jsonl"
    tool.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    tool.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin")
    read = ("--backends", "rebellions", "--timeout", "0.3", "--interval", "0.1", "--exporter", f"jsonl:{target}")
    try:
        script = f"until [ $(wc -l < {target}) -ge 3 ]; do sleep 0.05; done"
        done = call("run", *read, "--no-summary", "--no-line", "--", "sh", "-c", script, env=env)
    finally:
        go.touch()
    words = rf"source rebellions: {tool} has not answered since \S+Z: the driver is still being opened"
    assert re.search(words, done.stderr), done.stderr


def test_messages_as_json(tmp_path: Path) -> None:
    """Each line of standard error that is ours; the summary is one."""
    done = through("true", options=("--log-format", "json", "--exporter", "jsonl:/dev/full", "--label", "job=a"))
    said = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert {line["labels"]["job"] for line in said} == {"a"}
    assert [line["level"] for line in said].count("warning") >= 1
    assert said[-1]["message"] == "summary"
    assert said[-1]["data"]["command"] == ["true"]


def hung(simulator: NvmlSimulator, tmp_path: Path) -> tuple[str, ...]:
    simulator.rule("*", hang="lock")
    return ()


def pipe_without_a_reader(simulator: NvmlSimulator, tmp_path: Path) -> tuple[str, ...]:
    os.mkfifo(tmp_path / "pipe")
    return ("--exporter", f"jsonl:{tmp_path / 'pipe'}")


def seconds_after_the_command(stats: Path, options: tuple[str, ...], env: dict[str, str]) -> float:
    """Seconds from the end of the command to that of `accelmetrics run`."""
    process = start("run", *options, "--stats", str(stats), "--", "sh", "-c", "sleep 0.3; date +%s.%N", env=env)
    ended = float(process.stdout.readline())
    rest_of(process)
    assert process.returncode == 0
    assert json.loads(stats.read_text())["exit_status"] == 0
    return time.time() - ended


@pytest.mark.parametrize("trouble", [hung, pipe_without_a_reader])
def test_nothing_delays_the_end(
    simulator: NvmlSimulator, tmp_path: Path, trouble: Callable[[NvmlSimulator, Path], tuple[str, ...]]
) -> None:
    """A driver that hangs, an exporter that never returns: they cost less than a monitor usually waits for them."""
    env, stats = environment(**simulator.environment()), tmp_path / "stats.json"
    without = seconds_after_the_command(stats, (), env)
    stats.unlink()
    options = trouble(simulator, tmp_path)
    assert seconds_after_the_command(stats, options, env) < without + inspect.signature(Monitor.stop).parameters["timeout"].default


BENCHMARK = """
import pathlib, sys, time
readings = pathlib.Path(sys.argv[1])
print("no number here: tokens", flush=True)
for _ in range(3): print("generated 1,000 tokens", flush=True)
while not readings.exists() or readings.read_text().count('"metrics"') < 6: time.sleep(0.02)
print("500 tokens", end="")
"""


def tokens_of(
    tmp_path: Path, simulator: NvmlSimulator, program: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a Python program: what it printed, and its tokens in the stats. Readings are in ``run.jsonl``, its argument."""
    stats, readings = tmp_path / "stats.json", tmp_path / "run.jsonl"
    given = ("--interval", "0.05", "--stats", str(stats), "--exporter", f"jsonl:{readings}", *options)
    command = [*COMMAND, "run", *given, "--", sys.executable, "-c", program, str(readings)]
    done = subprocess.run(command, env=environment(**simulator.environment()), capture_output=True, text=True, timeout=HANG)
    return done, json.loads(stats.read_text()).get("work", {}).get("tokens", {})


def test_tokens_of_what_is_printed(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """Lines add up, and all that is printed goes where it went before, also without an end of line."""
    simulator.gpu[0].set(power_mw=250_000, energy_mj=None)
    simulator.gpu[1].set(power_mw=150_000, energy_mj=None)
    done, found = tokens_of(tmp_path, simulator, BENCHMARK, "--tokens-from", "([0-9,]+) tokens")
    assert done.stdout == "no number here: tokens\n" + "generated 1,000 tokens\n" * 3 + "500 tokens"
    assert found["total"] == 3500
    assert found["per_joule"] == pytest.approx(found["per_second"] / 400)
    assert found["per_joule_of_mean_device"] == pytest.approx(found["per_second"] / 200)
    assert f"tokens: {found['per_second']:.1f} per second" in done.stderr
    steps = [step.values["tokens"] for record in read_records(tmp_path / "run.jsonl") for step in record.steps]
    assert steps == [0, 1000, 1000, 1000, 500]


@pytest.mark.parametrize("power", [250_000, None])
def test_stats_and_the_report_of_the_recording_agree(tmp_path: Path, simulator: NvmlSimulator, power: int | None) -> None:
    """Over the whole time of a short command, also that before its first token and after its last; a missing number has a reason."""
    for gpu in simulator.gpu:
        gpu.set(power_mw=power, energy_mj=None)
    program = """if True:
        import pathlib, sys, time
        readings = pathlib.Path(sys.argv[1])
        time.sleep(0.3)
        print("70 tokens", flush=True)
        while not readings.exists() or readings.read_text().count('"metrics"') < 2: time.sleep(0.02)
        time.sleep(0.3)"""
    _, found = tokens_of(tmp_path, simulator, program, "--tokens-from", "([0-9]+) tokens")
    told = json.loads(call("report", str(tmp_path / "run.jsonl"), "--format", "json").stdout)["work"]["tokens"]
    assert found.pop("total") == 70
    assert found["per_second"] < 70 / 0.6
    assert told.get("reason") == found.get("reason")
    assert (told.pop("reason", None) is None) == (found.pop("reason", None) is None) == (power is not None)
    assert {name: value for name, value in told.items() if value is not None} == pytest.approx(found, rel=1e-3)
    assert ("per_joule" in found) == (power is not None)


def test_tokens_as_a_total_on_standard_error(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """A total counts by what it grows, and one that is lower began anew; each stream stays its own."""
    program = "import sys\nfor seen in (100, 250, 40): print('seen', seen, end='.\\r', file=sys.stderr)\nprint('done')"
    done, found = tokens_of(tmp_path, simulator, program, "--quiet", "--tokens-from", "seen (?P<total>[0-9]+)")
    assert (done.stdout, done.stderr) == ("done\n", "seen 100.\nseen 250.\nseen 40.\n")  # as text, a carriage return is an end of line
    assert found["total"] == 250 + 40


def test_tokens_of_a_file(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """Of lines that are appended after the start; the command's streams are ours."""
    log = tmp_path / "log"
    log.write_text("tokens 99\n")
    program = f"""if True:
        import os, pathlib
        log = pathlib.Path({str(log)!r})
        with log.open("a") as file: file.write("tokens 10\\ntokens 5")
        print(os.readlink("/proc/self/fd/1"))"""
    done, found = tokens_of(tmp_path, simulator, program, "--tokens-from", "tokens ([0-9]+)", "--tokens-file", str(log))
    assert found["total"] == 15
    assert done.stdout.startswith("pipe:")  # that of this test


def test_a_file_of_tokens_that_is_replaced(tmp_path: Path) -> None:
    """Is read from its beginning."""
    log, found = tmp_path / "log", list[float]()
    tokens = TokenFile(TokenLines(token_pattern("tokens ([0-9]+)"), found.append), str(log))
    tokens.look()
    log.write_text("tokens 1\ntok")
    tokens.look()
    log.write_text("tokens 1\ntokens 2\n")
    tokens.look()
    log.write_text("tokens 4\n")
    tokens.finish(lambda: False)
    assert found == [1, 2, 4]


def test_no_line_with_tokens_is_told(tmp_path: Path, simulator: NvmlSimulator) -> None:
    """And nothing is invented."""
    done, found = tokens_of(tmp_path, simulator, "print('tokens: none')", "--tokens-from", "tokens: ([0-9]+)")
    assert found == {}
    assert "no line matched --tokens-from 'tokens: ([0-9]+)'" in done.stderr


def test_output_goes_on_after_its_reader_has_gone(tmp_path: Path) -> None:
    """The command is told as it would have been: by SIGPIPE."""
    line = f"{' '.join(COMMAND)} run --backends host --quiet --tokens-from 'x(y)' -- yes; echo $? >{tmp_path / 'status'}"
    subprocess.run(["sh", "-c", f"{{ {line}; }} | head -1"], env=environment(), timeout=HANG, check=True)
    wait_for(lambda: (tmp_path / "status").exists() and (tmp_path / "status").read_text() == f"{128 + signal.SIGPIPE}\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tokens-from", "tokens"), "has no group for the number"),
        (("--tokens-from", "("), "is no regular expression"),
        (("--tokens-file", "log"), "--tokens-file needs the pattern of its lines"),
    ],
)
def test_tokens_that_cannot_be_looked_for(options: tuple[str, ...], said: str) -> None:
    """Are refused before anything is started."""
    done = call("run", *options, "--", "true")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
