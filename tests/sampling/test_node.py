"""Processes of one job that share one reading: real ones, on simulated GPUs."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.node import JOBS, NO_JOB, SHARE_VARIABLE, NodeReader, job_key
from tests.sampling.node import go_on, job_environment, jobless_environment, rank
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import idle, wait_for


def ready(text: str = "") -> str:
    """A program that tells its role as soon as it has a reading, and goes on with this text."""
    return f"""
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, monitor.channel.why)
{text}"""


READY, WAITS = ready(), ready("        wait_to_go_on()\n")
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
        go_on(programs)
        sequences = [program.told()[0] for program in programs]
        made = simulator.calls()[PACE_CALL, 0]
        holder = programs[roles.index("holder")].pid
        assert {entry.pid for entry in simulator.log() if entry.function.startswith("nvmlDevice")} == {holder}
        assert made - before >= 8, "ten were taken, of which the first may have been made before"
        assert made <= max(sequences) + 4, "readings that were begun since it was told, and no more"


def test_when_the_one_that_reads_is_killed_another_takes_over(tmp_path: Path) -> None:
    text = ready("""
        while True:
            wait_to_go_on()
            before = monitor.status.ticks
            until(lambda: monitor.status.ticks >= before + 3)
            tell(monitor.channel.role, monitor.error)
    """)
    with NvmlSimulator(1) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        programs = {program: program.told()[0] for program in (stack.enter_context(rank(text, environment)) for _ in range(3))}
        while len(programs) > 1:
            holder = next(program for program, role in programs.items() if role == "holder")
            del programs[holder]
            holder.process.kill()
            holder.end()
            go_on(programs)
            told = {program: program.told() for program in programs}
            programs = {program: facts[0] for program, facts in told.items()}
            assert [facts[1] for facts in told.values()] == [""] * len(told)
            assert list(programs.values()).count("holder") == 1


def test_a_process_that_may_take_over_has_imported_its_backends(tmp_path: Path) -> None:
    """Not those of vendors that are absent, and it has opened none."""
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, [name for name in ("nvidia.calls", "amd.in_process") if f"accelmetrics.backends.{name}" in sys.modules])
        wait_to_go_on()
    """
    with NvmlSimulator(1) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        assert stack.enter_context(rank(text, environment, backends=["nvidia", "amd"], metrics="temp")).told()[0] == "holder"
        simulator.start_log()
        client = stack.enter_context(rank(text, environment, backends=["nvidia", "amd"], metrics="temp"))
        assert client.told() == ["client", ["nvidia.calls"]]
        assert client.pid not in {entry.pid for entry in simulator.log()}


def test_a_hung_driver_costs_the_ranks_what_hangs_alone(tmp_path: Path) -> None:
    """The thread that reads for all is stuck in a call; another one goes on, and the device is back when the call returns."""
    text = ready("""
        for reason in ("timed_out", ""):
            wait_to_go_on()
            def known():
                why = monitor.latest.unavailable.get("gpu.0.temp")
                return (why.reason if why else "") == reason and "gpu.1.temp" in monitor.latest.metrics
            until(known)
            before = monitor.status.ticks
            until(lambda: monitor.status.ticks >= before + 3)
            tell(monitor.channel.role, monitor.latest.metrics.get("gpu.0.temp"))
    """)
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        environment = job_environment(tmp_path, **simulator.environment())
        options = {"backends": ["nvidia"], "metrics": "temp", "timeout": 0.5}
        programs = [stack.enter_context(rank(text, environment, **options)) for _ in range(2)]
        roles = [program.told()[0] for program in programs]
        simulator.rule(PACE_CALL, 0, hang=True)
        go_on(programs)
        assert [program.told() for program in programs] == [[role, None] for role in roles]
        simulator.release(PACE_CALL, 0)
        go_on(programs)
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
        go_on(programs)
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
        go_on(programs)
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


FILES = [".bell", ".lock", ".rank", ".ring"]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with rank(WAITS, job_environment(tmp_path)) as program:
        assert program.told() == ["holder", ""]
        assert sorted(path.suffix for path in (tmp_path / "accelmetrics").iterdir()) == FILES
        program.go_on()
        assert program.end() == 0, program.errors
    assert not list((tmp_path / "accelmetrics").iterdir())


def test_what_a_killed_process_leaves_is_used_by_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        with rank(WAITS, job_environment(tmp_path)) as program:
            assert program.told() == ["holder", ""]
            program.process.kill()
            program.end()
        assert sorted(path.suffix for path in (tmp_path / "accelmetrics").iterdir()) == FILES


def test_a_forked_child_keeps_neither_the_lock_nor_the_connections(tmp_path: Path) -> None:
    """A loader's workers outlive a rank that is killed."""
    holds = ready("""
        if os.fork() == 0:
            tell("child", os.getpid())
            wait_to_go_on()
            os._exit(0)
        wait_to_go_on()
    """)
    follows = ready("""
        until(lambda: monitor.channel.role == "holder")
        tell("took over")
    """)
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
    text = ready("""
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
    """)
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


def test_processes_with_other_options_meet_among_themselves(tmp_path: Path) -> None:
    """Nobody reads alone: each of both kinds has one process that reads for it."""
    with ExitStack() as stack:
        roles = []
        for options in ({}, {}, {"disk_paths": ["/", str(tmp_path)]}, {"disk_paths": ["/", str(tmp_path)]}):
            program = stack.enter_context(rank(WAITS, job_environment(tmp_path), **options))
            roles.append(program.told())
        assert roles == [["holder", ""], ["client", ""], ["holder", ""], ["client", ""]]


def test_another_process_stands_in_for_one_that_is_stopped(tmp_path: Path) -> None:
    """Once somebody looks. The one that goes on again reads on, and the other follows it."""
    text = ready("""
        for _ in range(3):
            wait_to_go_on()
            before = monitor.latest
            until(lambda: monitor.latest is not before)
            tell(monitor.channel.role)
        wait_to_go_on()
        until(lambda: monitor.latest and monitor.channel.role == "client")
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks > before + 3)
        tell(monitor.channel.role, monitor.channel.why)
    """)
    with rank(text, job_environment(tmp_path)) as holder, ExitStack() as stack:
        assert holder.told() == ["holder", ""]
        other = stack.enter_context(rank(text, job_environment(tmp_path)))
        assert other.told() == ["client", ""]
        other.go_on()
        assert other.told() == ["client"]
        holder.process.send_signal(signal.SIGSTOP)
        other.go_on()
        wait_for(other.has_told)
        for _ in range(2):
            if not other.has_told():
                other.go_on()
            told = other.told()
        assert told == ["holder"], "the first look may have found a row of before"
        holder.process.send_signal(signal.SIGCONT)
        other.go_on()
        assert other.told() == ["client", ""]
        holder.go_on()
        assert holder.told() == ["holder"]


def test_a_process_whose_reader_is_stopped_as_it_comes_reads_in_its_place(tmp_path: Path) -> None:
    with rank(WAITS, job_environment(tmp_path)) as holder:
        assert holder.told() == ["holder", ""]
        holder.process.send_signal(signal.SIGSTOP)
        with rank(READY, job_environment(tmp_path)) as other:
            assert other.told() == ["holder", ""]
            assert other.end() == 0, other.errors
        holder.process.send_signal(signal.SIGCONT)


def test_without_a_job_each_process_reads_for_itself_in_silence(tmp_path: Path) -> None:
    environment = jobless_environment(tmp_path)
    with rank(READY, environment) as program:
        assert program.told() == ["alone", NO_JOB]
        assert program.end() == 0
        assert not program.errors


def test_a_process_that_reads_for_itself_keeps_its_rates_when_it_looks_for_others_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("accelmetrics.sampling.node.RETRY", 0.0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in (*JOBS, "MASTER_ADDR", SHARE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    reader = NodeReader({"backends": ["host"], "metrics": "cpu"}, 0.05, NodeChannel(), {}, Mock(), Mock())
    found = []
    for _ in range(3):
        (taken,) = reader.take(True)
        found.append("cpu" in taken.snapshot.metrics)
        idle(1.05)  # the host is read once a second
    reader.close()
    assert found == [False, True, True]


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "accelmetrics").mkdir()
    (tmp_path / "accelmetrics").chmod(0o777)
    with rank(READY, job_environment(tmp_path)) as program:
        role, why = program.told()
        assert role == "alone"
        assert "accelmetrics is open to other users" in why
        assert f"RuntimeWarning: accelmetrics: readings are not shared: {why}" in program.errors


def test_a_process_that_cannot_read_for_others_reads_for_itself(tmp_path: Path) -> None:
    environment = job_environment(tmp_path)
    with rank(READY, environment) as first:
        first.told()
        (left,) = (tmp_path / "accelmetrics").glob("*.lock")
        first.process.kill()
        first.end()
    left.unlink()
    left.mkdir()
    with rank(READY, environment) as program:
        role, why = program.told()
        assert role == "alone"
        assert "cannot be locked" in why
        assert program.end() == 0
        assert program.errors.count("RuntimeWarning: accelmetrics: readings are not shared: ") == 1, program.errors


def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    """As at the end of a login, which removes the user's runtime directory. Nobody reads alone."""
    text = ready("""
        wait_to_go_on()
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks >= before + 5 and monitor.channel.processes == 2)
        tell(monitor.channel.role, monitor.channel.why)
        wait_to_go_on()
    """)
    with ExitStack() as stack:
        programs = [stack.enter_context(rank(text, job_environment(tmp_path))) for _ in range(2)]
        for program in programs:
            program.told()
        shutil.rmtree((tmp_path / "accelmetrics").rename(tmp_path / "removed"))
        go_on(programs)
        assert sorted(program.told() for program in programs) == [["client", ""], ["holder", ""]]
        assert {".lock", ".rank", ".ring"} <= {path.suffix for path in (tmp_path / "accelmetrics").iterdir()}
        for program in programs:
            program.go_on()
            assert program.end() == 0
            assert not program.errors


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


# Processes that nobody looks at


def test_a_process_that_nobody_looks_at_does_nothing(tmp_path: Path) -> None:
    """It takes no row; when somebody looks, all that were due are there, in their order, with the facts of the process in the last one."""
    text = """
    monitor = Monitor(0.05, share="node", backends=["host"], metrics="cpu,load.1m")
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        tell(monitor._run.ring.newest(1)[0].number)
        wait_to_go_on()
        tell(monitor._run.ring.newest(1)[0].number)
        own = "cpu" in monitor.latest.metrics
        monitor.history
        rows = monitor._run.ring.newest(1000)
        tell(len(rows), sorted(row.at for row in rows) == [row.at for row in rows], own)
    """
    with rank(text, job_environment(tmp_path)) as holder, ExitStack() as stack:
        assert holder.told() == ["holder"]
        other = stack.enter_context(rank(text, job_environment(tmp_path)))
        assert other.told() == ["client"]
        other.go_on()
        (before,) = other.told()
        holder.go_on()
        holder.told()
        idle(1.0)
        other.go_on()
        assert other.told() == [before]
        count, ordered, own = other.told()
        assert count >= before + 15
        assert ordered
        assert own


def test_windows_of_a_process_that_nobody_looks_at_are_exact(tmp_path: Path) -> None:
    """Also one that lasts longer than rows are kept; its statistics are those of all rows within."""
    text = """
    monitor = Monitor(0.01, share="node", backends=["host"], metrics="load.1m")
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        with monitor.window("w") as window:
            wait_to_go_on()
        tell(window.duration, window.summary["load.1m"].seconds, window.summary["load.1m"].count, window._owner.silent)
        wait_to_go_on()
    """
    with rank(text, job_environment(tmp_path)) as holder, ExitStack() as stack:
        holder.told()
        other = stack.enter_context(rank(text, job_environment(tmp_path)))
        assert other.told() == ["client"]
        other.go_on()
        idle(7.0)
        other.go_on()
        duration, seconds, _, silent = other.told()
        assert duration > 6
        assert seconds == pytest.approx(duration, rel=0.01)
        assert not silent


def test_steps_of_all_ranks_are_heard_by_who_looks(tmp_path: Path) -> None:
    text = """
    monitor = Monitor(0.05, share="node", backends=["host"], metrics="load.1m", labels={"rank": os.environ["RANK"]})
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        for step in range(5):
            monitor.log(step, loss=step / 2, tokens=10)
        tell("logged")
        wait_to_go_on()
        until(lambda: len(monitor.steps) == 15)
        tell(sorted([step.rank, step.step, step.values["loss"]] for step in monitor.steps), [done.amount for done in monitor.work.values()])
        wait_to_go_on()
    """
    with ExitStack() as stack:
        programs = []
        for number in range(3):
            programs.append(stack.enter_context(rank(text, job_environment(tmp_path, RANK=str(number)))))
            programs[-1].told()
        for _ in range(2):
            go_on(programs)
            told = [program.told() for program in programs]
        assert told == [[[[number, step, step / 2] for number in range(3) for step in range(5)], [40.0] * 3]] * 3


def test_steps_of_programs_are_heard_by_who_watches_the_machine(tmp_path: Path) -> None:
    """Of a program that no launcher started, and of both ranks of a job: each program is told from the others. Nothing stays behind."""
    watcher = """
    from accelmetrics import Monitor
    with Monitor(0.05, backends=["host"], metrics="load.1m") as monitor:
        until(lambda: monitor.latest)
        monitor.collect_program_steps()
        tell("looks")
        wait_to_go_on()
        until(lambda: monitor.collect_program_steps() or len(monitor.steps) == 6)
        tell(sorted([step.node, step.rank, step.step, step.values["loss"]] for step in monitor.steps))
    """
    text = """
    monitor = Monitor(0.05, share="node", backends=["host"], metrics="load.1m", labels={"hostname": "n1", **eval(os.environ["LABELS"])})
    with monitor:
        until(lambda: monitor.latest and monitor.channel.file)
        tell(os.getpid())
        wait_to_go_on()
        for step in range(2):
            monitor.log(step, loss=step / 2)
        wait_to_go_on()
    """
    of_job = job_environment(tmp_path, SLURM_JOB_ID="42")
    alone = jobless_environment(tmp_path)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(rank(text, {**environment, "LABELS": repr(labels)}))
            for environment, labels in ((of_job, {"rank": "0"}), (of_job, {"rank": "1"}), (alone, {}))
        ]
        pid = [program.told()[0] for program in programs][-1]
        watching = stack.enter_context(rank(watcher, alone))
        watching.told()
        go_on(programs)
        watching.go_on()
        losses = [(0, 0.0), (1, 0.5)]
        of_both = [["job 42 of n1", number, *loss] for number in (0, 1) for loss in losses]
        assert watching.told() == [[*of_both, *([f"pid {pid} of n1", None, *loss] for loss in losses)]]
        for program in programs:
            program.go_on()
            assert program.end() == 0
    assert not list(tmp_path.glob("*/*.rank"))


def test_a_program_that_listens_hears_the_others_and_not_itself(tmp_path: Path) -> None:
    """Nor its job a second time; and a step at a time that no document holds is passed over."""
    listens = """
    with monitor:
        until(lambda: monitor.latest and monitor.channel.file)
        monitor.collect_program_steps()
        tell("listens")
        wait_to_go_on()
        monitor.log(1, loss=0.5)
        until(lambda: monitor.collect_program_steps() or len(monitor.steps) > 2)
        ticks = monitor.status.ticks
        until(lambda: monitor.collect_program_steps() or monitor.status.ticks > ticks + 10)
        tell(sorted([step.node, step.rank, step.step] for step in monitor.steps))
        wait_to_go_on()
    """
    logs = """
    with monitor:
        until(lambda: monitor.latest and monitor.channel.file)
        monitor.channel.file.steps([(10**30, 8, 1.0, {"loss": 0.5})])
        monitor.log(2, loss=0.5)
        tell("logged")
        wait_to_go_on()
    """
    of_job = job_environment(tmp_path, SLURM_JOB_ID="42")
    alone = jobless_environment(tmp_path)
    with rank(listens, of_job, labels={"rank": "0", "hostname": "n1"}) as listener:
        listener.told()
        with (
            rank(logs, of_job, labels={"rank": "1", "hostname": "n1"}) as sibling,
            rank(logs, alone, labels={"hostname": "n1"}) as other,
        ):
            sibling.told()
            other.told()
            listener.go_on()
            assert listener.told() == [[["n1", 0, 1], ["n1", 1, 2], [f"pid {other.pid} of n1", None, 2]]]
            go_on((listener, sibling, other))


def test_the_file_of_a_program_of_no_job_stays_while_it_looks_for_others(tmp_path: Path) -> None:
    """It is as large as a job's, and what watches the machine would take a new one for another program's."""
    text = """
    from accelmetrics.sampling import node
    node.RETRY = 0.0
    with monitor:
        until(lambda: monitor.channel.file)
        path, ticks = monitor.channel.file.path, monitor.status.ticks
        until(lambda: monitor.status.ticks > ticks + 5)
        tell(monitor.channel.file.path == path, path.exists())
    """
    alone = jobless_environment(tmp_path)
    with rank(text, alone) as program:
        assert program.told() == [True, True]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "follows"])
def test_steps_of_a_rank_that_ends_at_once_are_heard(tmp_path: Path, reads: bool) -> None:
    """By the process that reads, and by one that follows it and looks later."""
    stays = """
    monitor = Monitor(0.05, share="node", backends=["host"], metrics="load.1m", labels={"rank": "0"})
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        until(lambda: not monitor.steps and monitor.channel.processes == int(os.environ["RANKS"]))
        tell("knows")
        wait_to_go_on()
        until(lambda: [step.step for step in monitor.steps] == [0, 1, 2])
        tell("heard")
    """
    leaves = """
    monitor = Monitor(0.05, share="node", backends=["host"], metrics="load.1m", labels={"rank": "1"})
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        for step in range(3):
            monitor.log(step, loss=0.5)
    tell("ended")
    """
    environment = job_environment(tmp_path, RANKS="2" if reads else "3")
    with ExitStack() as stack:
        if not reads:
            stack.enter_context(rank(WAITS, environment)).told()
        first, second = (stack.enter_context(rank(text, environment)) for text in (stays, leaves))
        first.told()
        second.told()
        first.go_on()
        assert first.told() == ["knows"]
        second.go_on()
        assert second.told() == ["ended"]
        first.go_on()
        assert first.told() == ["heard"]


def test_rules_are_judged_once_and_all_ranks_show_what_they_found(tmp_path: Path) -> None:
    """By the keys that the devices have in each; one whose devices are in order has none. One with rules of its own judges itself."""
    text = """
    monitor = Monitor(0.05, share="node", backends=["nvidia"], **eval(os.environ["OPTIONS"]))
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role)
        wait_to_go_on()
        def found():
            return [one.key for one in monitor.findings if one.rule in ("remap_pending", "overheating")]
        until(lambda: found() == eval(os.environ["WANTED"]) and monitor.status.ticks > 20)
        tell(found())
        wait_to_go_on()
    """
    cases = [
        ({}, ["gpu.1"]),
        ({"visible": "renumber"}, ["gpu.0"]),
        ({"gpus": [0]}, []),
        ({"rules": "none"}, []),
        ({"rules": {"overheating": {"above": 20.0, "clear": 10.0, "seconds": 0}}}, ["gpu.0", "gpu.1", "gpu.1"]),
    ]
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        simulator.gpu[1].set(remapped_pending=1)
        programs = []
        for options, wanted in cases:
            more = {"CUDA_VISIBLE_DEVICES": "1", "OPTIONS": repr(options), "WANTED": repr(wanted), **simulator.environment()}
            programs.append(stack.enter_context(rank(text, job_environment(tmp_path, **more))))
            assert programs[-1].told() == ["holder" if len(programs) == 1 else "client"]
        go_on(programs)
        for program, (_, wanted) in zip(programs, cases, strict=True):
            assert program.told() == [wanted]


@pytest.mark.parametrize("ranks", [50])
def test_many_ranks_follow_one(tmp_path: Path, ranks: int) -> None:
    text = ready("""
        wait_to_go_on()
        before = monitor.latest
        until(lambda: monitor.latest is not before)
        tell(monitor.channel.role, monitor.channel.processes)
        wait_to_go_on()
    """)
    with ExitStack() as stack:
        programs = [stack.enter_context(rank(text, job_environment(tmp_path))) for _ in range(ranks)]
        for program in programs:
            program.told()
        go_on(programs)
        told = [program.told() for program in programs]
        assert Counter(role for role, _ in told) == {"holder": 1, "client": ranks - 1}
        next(program for program, (role, _) in zip(programs, told, strict=True) if role == "holder").process.kill()
