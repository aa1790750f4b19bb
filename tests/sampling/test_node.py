"""Processes of one job that share one reading: real ones, on simulated GPUs."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.node import NO_JOB, Meeting, NodeSampler, NotSharedError, job_key
from tests.sampling.node import job_environment, rank, serving
from tests.simulators.nvml import NvmlSimulator, Process

READY = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, monitor.channel.why)
"""
PACE_CALL = "nvmlDeviceGetTemperature"


@pytest.mark.parametrize("ranks", [1, 8])
def test_any_number_of_ranks_costs_the_driver_what_one_costs(tmp_path: Path, ranks: int) -> None:
    """One process alone calls the driver, and reads each device once for all: as often as readings were taken."""
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        ticks = monitor.status.ticks
        until(lambda: monitor.status.ticks >= ticks + 10)
        tell(source("nvidia").sequence)
        wait_to_go_on()
    """
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        programs = [stack.enter_context(rank(text, environment, backends=["nvidia"], metrics="core")) for _ in range(ranks)]
        roles = [program.told()[0] for program in programs]
        assert Counter(roles) == Counter({"holder": 1, "client": ranks - 1})
        simulator.start_log()
        before = simulator.calls()[PACE_CALL, 0]
        for program in programs:
            program.go_on()
        sequences = [program.told()[0] for program in programs]
        made = simulator.calls()[PACE_CALL, 0]
        holder = programs[roles.index("holder")].pid
        assert {entry.pid for entry in simulator.log() if entry.function.startswith("nvmlDevice")} == {holder}
        assert made - before >= 8, "ten were taken, of which the first may have been made before"
        assert made <= max(sequences) + 4, "readings that were begun since it was told, and no more"


def test_when_the_one_that_reads_is_killed_another_takes_over(tmp_path: Path) -> None:
    text = (
        READY
        + """
        while True:
            wait_to_go_on()
            before = monitor.status.ticks
            until(lambda: monitor.status.ticks >= before + 3)
            tell(monitor.channel.role, monitor.error)
    """
    )
    with NvmlSimulator(1) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        programs = {program: program.told()[0] for program in (stack.enter_context(rank(text, environment)) for _ in range(3))}
        while len(programs) > 1:
            holder = next(program for program, role in programs.items() if role == "holder")
            del programs[holder]
            holder.process.kill()
            holder.end()
            for program in programs:
                program.go_on()
            told = {program: program.told() for program in programs}
            programs = {program: facts[0] for program, facts in told.items()}
            assert [facts[1] for facts in told.values()] == [""] * len(told)
            assert list(programs.values()).count("holder") == 1


def test_a_hung_driver_costs_the_ranks_what_hangs_alone(tmp_path: Path) -> None:
    """The thread that reads for all is stuck in a call; another one goes on, and the device is back when the call returns."""
    text = (
        READY
        + """
        for reason in ("timed_out", ""):
            wait_to_go_on()
            def known():
                why = monitor.latest.unavailable.get("gpu.0.temp")
                return (why.reason if why else "") == reason and "gpu.1.temp" in monitor.latest.metrics
            until(known)
            before = monitor.status.ticks
            until(lambda: monitor.status.ticks >= before + 3)
            tell(monitor.channel.role, monitor.latest.metrics.get("gpu.0.temp"))
    """
    )
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        options = {"backends": ["nvidia"], "metrics": "temp", "timeout": 0.5}
        programs = [stack.enter_context(rank(text, environment, **options)) for _ in range(2)]
        roles = [program.told()[0] for program in programs]
        simulator.rule(PACE_CALL, 0, hang=True)
        for program in programs:
            program.go_on()
        assert [program.told() for program in programs] == [[role, None] for role in roles]
        simulator.release(PACE_CALL, 0)
        for program in programs:
            program.go_on()
        assert [program.told() for program in programs] == [[role, simulator.gpu[0].get("temperature")] for role in roles]


def test_each_process_has_its_own_facts(tmp_path: Path) -> None:
    """Its CPU time and memory, what it uses of each device, and which devices it sees; device metrics are the same."""
    text = """
    with monitor:
        until(lambda: monitor.latest and "cpu" in monitor.latest.metrics)
        tell(os.getpid())
        wait_to_go_on()
        held = bytearray(int(os.environ["HOLDS"]))
        def known():
            latest = monitor.latest
            return latest.metrics.get(os.environ["USES"]) and latest.metrics["proc.memory.rssMB"] > len(held) / 2**20
        until(known)
        latest = monitor.latest
        tell(
            {key: value for key, value in latest.metrics.items() if ".process." in key and "Bytes" in key},
            [device.visible_index for device in latest.devices],
            latest.metrics["proc.memory.rssMB"] * 2**20 - len(held),
            latest.metrics["gpu.1.powerWatts"],
        )
        wait_to_go_on()
    """
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        options = {"backends": ["nvidia", "host"], "metrics": "all"}
        programs = []
        for number in range(2):
            more = {"CUDA_VISIBLE_DEVICES": str(number), "HOLDS": str(number * 2**28), "USES": f"gpu.process.{number}.memoryAllocatedBytes"}
            environment = job_environment(tmp_path, **simulator.environment(), **more)
            programs.append(stack.enter_context(rank(text, environment, **options)))
        for number, program in enumerate(programs):
            simulator.processes(number, [Process(program.told()[0], "C", 2**30 * (number + 1), sm=10)])
        for program in programs:
            program.go_on()
        first, second = (program.told() for program in programs)
        assert first[0] == {"gpu.process.0.memoryAllocatedBytes": 2**30}
        assert second[0] == {"gpu.process.1.memoryAllocatedBytes": 2**31}
        assert (first[1], second[1]) == ([0, None], [None, 0])
        assert first[2] < 2**28 > second[2]
        assert first[3] == second[3]


def test_each_process_chooses_its_devices_and_metrics(tmp_path: Path) -> None:
    text = """
    with monitor:
        until(lambda: monitor.latest and monitor.latest.metrics)
        tell(monitor.channel.role, [device.key for device in monitor.latest.devices], sorted(monitor.latest.metrics))
        wait_to_go_on()
    """
    with NvmlSimulator(3) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        power = stack.enter_context(rank(text, environment, backends=["nvidia"], metrics="powerWatts", gpus=[2]))
        assert power.told() == ["holder", ["gpu.2"], ["gpu.2.powerWatts"]]
        heat = stack.enter_context(rank(text, environment, backends=["nvidia"], metrics="temp", gpus=[0, "gpu.1"]))
        assert heat.told() == ["client", ["gpu.0", "gpu.1"], ["gpu.0.temp", "gpu.1.temp"]]
        visible = {**environment, "CUDA_VISIBLE_DEVICES": "1"}
        own = stack.enter_context(rank(text, visible, backends=["nvidia"], metrics="temp", visible="renumber"))
        assert own.told() == ["client", ["gpu.0"], ["gpu.0.temp"]]


def test_visible_devices_are_those_that_the_processes_of_the_job_see(tmp_path: Path) -> None:
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell("ready")
        until(lambda: len(monitor.latest.devices) == len(monitor.channel.devices) == 2)
        tell([device.key for device in monitor.latest.devices], sorted(monitor.channel.devices), monitor.channel.processes)
        wait_to_go_on()
    """
    with NvmlSimulator(3) as simulator, ExitStack() as stack:
        programs = [
            stack.enter_context(
                rank(
                    text,
                    job_environment(tmp_path, CUDA_VISIBLE_DEVICES=number, **simulator.environment()),
                    backends=["nvidia"],
                    metrics="temp",
                    visible=True,
                )
            )
            for number in ("0", "2")
        ]
        for program in programs:
            assert program.told() == ["ready"]
        for program in programs:
            keys, uuids, processes = program.told()
            assert (keys, len(uuids), processes) == (["gpu.0", "gpu.2"], 2, 2)


def test_messages_reach_the_other_processes(tmp_path: Path) -> None:
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        monitor.channel.publish({"loss": float("nan")})  # nothing that JSON has
        monitor.channel.publish({"loss": 0.5, "who": os.getpid()})
        until(lambda: len(heard) == 2)
        tell(sorted(message["who"] for message in heard), monitor.channel.dropped)
        wait_to_go_on()
    """
    with ExitStack() as stack:
        programs = [stack.enter_context(rank(text, job_environment(tmp_path))) for _ in range(3)]
        for program in programs:
            program.told()
        for program in programs:
            program.go_on()
        for program in programs:
            assert program.told() == [sorted(other.pid for other in programs if other is not program), 1]


def test_a_window_ends_with_a_reading_that_was_taken_for_it(tmp_path: Path) -> None:
    text = """
    monitor = Monitor(3600.0, share="node", backends=["host"], metrics="load.1m")
    with monitor:
        until(lambda: monitor.latest)
        with monitor.window("w") as window:
            pass
        tell(window.summary["load.1m"].count >= 1)
    """
    with rank(text, job_environment(tmp_path)) as program:
        assert program.told() == [True]
        assert program.end() == 0, program.errors


def test_a_window_ends_with_a_reading_in_which_nothing_was_due(tmp_path: Path) -> None:
    """The host gives what it gave before; the reading was taken after the window's end for all that."""
    text = """
    monitor = Monitor(3600.0, share="node", backends=["host"], metrics="load.1m")
    with monitor:
        until(lambda: monitor.latest)
        for _ in range(4):
            with monitor.window("w") as window:
                pass
            window.summary
        tell(source("host").sequence, window._owner.silent)
    """
    with rank(text, job_environment(tmp_path)) as program:
        assert program.told()[1] is False
        assert program.end() == 0, program.errors


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with rank(READY + "        wait_to_go_on()\n", job_environment(tmp_path)) as program:
        assert program.told() == ["holder", ""]
        assert sorted(path.suffix for path in (tmp_path / "accelmetrics").iterdir()) == [".lock", ".sock"]
        program.go_on()
        assert program.end() == 0, program.errors
    assert not list((tmp_path / "accelmetrics").iterdir())


def test_what_a_killed_process_leaves_is_used_by_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        with rank(READY + "        wait_to_go_on()\n", job_environment(tmp_path)) as program:
            assert program.told() == ["holder", ""]
            program.process.kill()
            program.end()
        assert sorted(path.suffix for path in (tmp_path / "accelmetrics").iterdir()) == [".lock", ".sock"]


def test_a_forked_child_keeps_neither_the_lock_nor_the_connections(tmp_path: Path) -> None:
    """A loader's workers outlive a rank that is killed."""
    holds = (
        READY
        + """
        if os.fork() == 0:
            tell("child", os.getpid())
            wait_to_go_on()
            os._exit(0)
        wait_to_go_on()
    """
    )
    follows = (
        READY
        + """
        until(lambda: monitor.channel.role == "holder")
        tell("took over")
    """
    )
    with rank(holds, job_environment(tmp_path)) as holder:
        assert holder.told() == ["holder", ""]
        _, child = holder.told()
        try:
            with rank(follows, job_environment(tmp_path)) as client:
                assert client.told() == ["client", ""]
                holder.process.kill()
                holder.end()
                assert client.told() == ["took over"]
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_child_of_a_fork_takes_part_by_itself(tmp_path: Path) -> None:
    text = (
        READY
        + """
        pid = os.fork()
        if pid == 0:
            monitor.start()
            until(lambda: monitor.latest)
            tell(monitor.channel.role)
            monitor.stop()
            os._exit(0)
        os.waitpid(pid, 0)
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks > before + 2)
        tell(monitor.channel.role)
    """
    )
    with rank(text, job_environment(tmp_path)) as program:
        assert [program.told()[0] for _ in range(3)] == ["holder", "client", "holder"]
        assert program.end() == 0, program.errors


def test_a_program_that_stops_nothing_ends(tmp_path: Path) -> None:
    text = """
    monitor.start()
    until(lambda: monitor.latest)
    tell("ready")
    """
    with rank(text, job_environment(tmp_path)) as program:
        assert program.told() == ["ready"]
        assert program.end() == 0, program.errors
    assert not list((tmp_path / "accelmetrics").iterdir())


def test_a_process_with_other_options_reads_for_itself_and_says_why_once(tmp_path: Path) -> None:
    with rank(READY + "        wait_to_go_on()\n", job_environment(tmp_path)) as holder:
        assert holder.told() == ["holder", ""]
        with rank(READY, job_environment(tmp_path), disk_paths=["/", str(tmp_path)]) as other:
            role, why = other.told()
            assert role == "alone"
            assert "refuses: it reads with other disk_paths: ['/']" in why
            assert other.end() == 0
            assert other.errors.count("readings are not shared") == 1, other.errors


def test_a_process_that_answers_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """One that is stopped holds the lock and its socket, and says nothing."""
    with rank(READY + "        wait_to_go_on()\n", job_environment(tmp_path)) as holder:
        assert holder.told() == ["holder", ""]
        holder.process.send_signal(signal.SIGSTOP)
        with rank(READY, job_environment(tmp_path)) as other:
            role, why = other.told()
            assert (role, why) == ("alone", "the process that reads for this machine does not answer")
        holder.process.send_signal(signal.SIGCONT)


def test_without_a_job_each_process_reads_for_itself_in_silence(tmp_path: Path) -> None:
    environment = {name: value for name, value in job_environment(tmp_path).items() if not name.startswith("MASTER_")}
    with rank(READY, environment) as program:
        assert program.told() == ["alone", NO_JOB]
        assert program.end() == 0
        assert not program.errors


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "accelmetrics").mkdir()
    (tmp_path / "accelmetrics").chmod(0o777)
    with rank(READY, job_environment(tmp_path)) as program:
        role, why = program.told()
        assert role == "alone"
        assert "accelmetrics is open to other users" in why


def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "accelmetrics").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotSharedError, match="cannot be used"):
        Meeting("job")


def test_the_temporary_directory_has_one_for_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    meeting = Meeting("job")
    made = tmp_path / f"accelmetrics-{os.geteuid()}"
    assert made.stat().st_mode & 0o777 == 0o700
    assert meeting.elect()
    assert not Meeting("job").elect()
    assert Meeting("other job").elect()
    meeting.close()
    assert Meeting("job").elect()


@pytest.mark.parametrize("broken", ["lock", "thread"])
def test_a_process_that_cannot_read_for_others_reads_for_itself(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file cannot be made, or no thread is to be had: neither reaches the program, and no socket is left behind."""
    for name, value in job_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "accelmetrics-node":
            raise RuntimeError("can't start new thread")
        begin(thread)

    if broken == "lock":
        (tmp_path / "accelmetrics").mkdir(0o700)
        (tmp_path / "accelmetrics" / f"{Meeting(job_key())._name}.lock").mkdir()
    else:
        monkeypatch.setattr(threading.Thread, "start", start)
    channel = NodeChannel()
    sampler = NodeSampler({"backends": ["host"], "metrics": "load.1m"}, 1.0, channel, {})
    assert sampler.sample().metrics
    assert channel.role == "alone"
    assert {"lock": "cannot be made", "thread": "can't start new thread"}[broken] in channel.why
    sampler.close()
    assert not list((tmp_path / "accelmetrics").glob("*.sock"))


def test_a_long_directory_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a socket has a hundred letters at most."""
    deep = tmp_path / ("x" * 120)
    deep.mkdir(0o700)
    with rank(READY, job_environment(deep)) as program:
        assert program.told() == ["holder", ""]


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"}, "SLURM_JOB_ID=7"),
        ({"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "TORCHELASTIC_RUN_ID=a"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "h-1"),
        ({"RAY_JOB_ID": "01"}, "RAY_JOB_ID=01"),
        ({"MASTER_ADDR": "h"}, ""),
        ({}, ""),
    ],
    ids=["slurm", "torchrun", "torchrun-none", "ray", "address", "nothing"],
)
def test_what_the_processes_of_a_job_have_in_common(variables: dict[str, str], key: str) -> None:
    assert job_key(variables) == key


def test_a_daemon_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    with serving(path), rank(READY, job_environment(tmp_path, ACCELMETRICS_SOCKET=str(path))) as program:
        assert program.told() == ["client", ""]
    with rank(READY, job_environment(tmp_path, ACCELMETRICS_SOCKET=str(path))) as program:
        assert program.told() == ["holder", ""]


def test_a_socket_that_is_named_and_answers_nobody_is_told_once(tmp_path: Path) -> None:
    """By the process that reads for the others then: with a daemon none would be needed."""
    path = str(tmp_path / "daemon.sock")
    with rank(READY, job_environment(tmp_path, ACCELMETRICS_SOCKET=path)) as program:
        assert program.told() == ["holder", ""]
        assert program.end() == 0
        assert program.errors.count("readings are not shared") == 1, program.errors
        assert f"no daemon answers at '{path}', which ACCELMETRICS_SOCKET names" in program.errors
