"""The training beside the devices: programs of processes of their own log steps, and ``watch`` shows them on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.backends.test_openmetrics import Endpoint
from tests.cli.shell import environment, run
from tests.cli.terminals import Terminal, on_terminal
from tests.sampling.node import job_environment
from tests.simulators.nvml import NvmlSimulator
from tests.support.programs import Program

TRAINING = """
    import math, time
    from accelmetrics import Monitor
    with Monitor(0.1, {exporters!r}, backends=["nvidia"], metrics="powerWatts,gpu", share={share!r}) as monitor:
        while not (monitor.latest and (monitor.channel.file or not {share!r})):
            time.sleep(0.005)
        step = 0
        tell(monitor.channel.role)
        while True:
            wait_to_go_on()
            for _ in range(2):
                step += 1
                monitor.log(step, loss={loss}, tokens=1000, lr=3e-4)
                ticks = monitor.status.ticks
                while monitor.status.ticks < ticks + 2:
                    time.sleep(0.005)
            tell(step)
"""


def trainer(env: Mapping[str, str], share: str | None = None, exporters: tuple[str, ...] = (), loss: str = "2.25") -> Program:
    """Start a program that logs two steps, two readings apart, whenever it is told to go on."""
    return Program(TRAINING.replace("{exporters!r}", repr(exporters)).replace("{share!r}", repr(share)).replace("{loss}", loss), env=env)


def seen(terminal: Terminal, pattern: str, *programs: Program) -> Callable[[], bool]:
    """Return what has programs log until a pattern is on the screen."""

    def logged() -> bool:
        for program in programs:
            program.go_on()
            program.told()
        return re.search(pattern, terminal.text, re.MULTILINE) is not None

    return logged


@pytest.fixture
def machine(simulator: NvmlSimulator, tmp_path: Path) -> dict[str, str]:
    """The environment of programs on a machine with two GPUs, of which none is of a job."""
    of_job = job_environment(tmp_path, **simulator.environment())
    return environment(**{name: value for name, value in of_job.items() if not name.startswith("MASTER_")})


def test_a_program_that_shares_is_shown_with_what_it_logs(machine: dict[str, str]) -> None:
    """Without any configuration: its loss, step time, tokens a second and per joule of the devices; a key hides them."""
    with trainer(machine, share="node") as program:
        assert program.told() == ["alone"]
        with on_terminal("watch", "--interval", "0.1", "--backends", "nvidia", rows=30, columns=120, env=machine) as terminal:
            terminal.until("power gpu.0")
            assert "training" not in terminal.text
            terminal.until(seen(terminal, r"training, 1 min .*loss 2\.25 .*step 0?\.?\d+", program))
            terminal.until(seen(terminal, r"tokens/s \d+.*tokens/J", program), "learning rate 0.0003", r"most│", r"least│")
            assert terminal.text.count("-30 s") == 4
            terminal.type("l", lambda: "training" not in terminal.text)
            terminal.type("l", "training, 1 min")
            terminal.type("?", r"the training values \(loss, step time")
            assert terminal.end("?q") == 0


def test_steps_from_before_the_start_are_shown(machine: dict[str, str]) -> None:
    """The program keeps its last ones in its shared file."""
    with trainer(machine, share="node") as program:
        program.told()
        program.go_on()
        program.told()
        with on_terminal("watch", "--interval", "0.1", "--backends", "nvidia", rows=30, columns=120, env=machine) as terminal:
            terminal.until(r"training, 1 min .*loss 2\.25 .*step 0?\.?\d+ .*tokens/s \d+")
            assert terminal.end("q") == 0


def test_several_programs_are_shown_one_after_the_other(machine: dict[str, str]) -> None:
    """Each under its number; ranks of a job are one program, and its rate is that of all."""
    of_job = {**machine, "SLURM_JOB_ID": "42"}
    with (
        trainer(machine, "node") as alone,
        trainer({**of_job, "RANK": "0"}, "node") as first,
        trainer({**of_job, "RANK": "1"}, "node") as second,
    ):
        programs = (alone, first, second)
        for program in programs:
            program.told()
        with on_terminal("watch", "--interval", "0.1", "--backends", "nvidia", rows=30, columns=120, env=machine) as terminal:
            terminal.until("power gpu.0")
            terminal.until(seen(terminal, rf"training (job 42|pid {alone.pid}), 1 min .*loss 2\.25", *programs))
            shown = "job 42" if "training job 42" in terminal.text else f"pid {alone.pid}"
            other = f"pid {alone.pid}" if shown == "job 42" else "job 42"
            terminal.type("l", seen(terminal, rf"training {other}, 1 min .*loss 2\.25", *programs))
            assert terminal.end("q") == 0


def test_a_recording_is_followed_while_a_program_writes_it(machine: dict[str, str], tmp_path: Path) -> None:
    """What it logs and what its devices do, from its beginning and as it comes; a number that is not finite is a finding with a mark."""
    path = tmp_path / "run.jsonl"
    with trainer(machine, exporters=(f"jsonl:{path}",), loss="math.nan if step > 2 else 1.5") as program:
        program.told()
        program.go_on()
        program.told()
        with on_terminal("watch", str(path), rows=30, columns=120, env=machine) as terminal:
            terminal.until(r"2 gpu .* run\.jsonl live", r"power gpu\.0, 1 min .* now \d+ W")
            terminal.type("t", r"training, 5 min .*loss 1\.5 ")
            program.go_on()
            program.told()
            terminal.until("X 1 critical", r"loss 1\.5 ", r"least│.*X")
            assert terminal.end("q") == 0
    with on_terminal("watch", "--replay", str(path), rows=30, columns=80, env=machine) as terminal:
        terminal.type("t", "5 min")
        terminal.type("\x1b[F", r"training  .*loss 1\.5 .*tokens/J \d")
        assert terminal.end("q") == 0


def test_what_another_machine_says_of_a_training_is_shown() -> None:
    """Its programs by their names there, without that of the machine."""
    step = {"timestamp": "2026-01-01T00:00:00.000000Z", "step": 7, "values": {"loss": 2.25}}
    document = {
        **{"schema_version": "1.0", "timestamp": step["timestamp"], "hostname": "node8", "metrics": {"gpu.0.gpu": 37.0}, "unavailable": {}},
        "devices": [{"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": 0, "vendor_index": 0, "name": "GPU"}],
        **{"backends": [], "training": [{**step, "node": f"{program} of node8"} for program in ("job 42", "job 43")]},
    }
    with Endpoint(json.dumps(document)) as endpoint:
        endpoint.kind = "application/json"
        with on_terminal("watch", "--url", endpoint.url, rows=30, columns=120) as terminal:
            terminal.until("^node8 ", r"training job 42, 1 min  ━ loss 2\.25 ")
            terminal.type("l", r"training job 43, 1 min  ━ loss 2\.25 ")
            assert terminal.end("q") == 0


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    """In one sentence, and a second place to read from too."""
    assert "is not a recording" in run("watch", "/etc/passwd").stderr
    done = run("demo", "watch", str(tmp_path / "run.jsonl"))
    assert (done.returncode, done.stderr) == (2, "accelmetrics demo: FILE reads no device: leave out `demo`\n")
