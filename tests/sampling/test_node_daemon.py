"""A daemon that reads for all of a machine: the command, and who may read its files."""

from __future__ import annotations

import grp
import os
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from accelmetrics.monitor import settings
from accelmetrics.sampling.node import DAEMON, daemon_files, daemon_place, trusted_in
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError
from tests.cli.shell import environment, start
from tests.sampling.node import go_on, job_environment, rank
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for

STRANGER = 65534
"""The user and group that own nothing."""


def test_the_command_reads_for_processes_of_any_job(tmp_path: Path) -> None:
    """None of them calls the driver; ranks of a job hear each other; when it ends, the processes of a job share among themselves."""
    place = tmp_path / "made"
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, monitor.channel.why, len(monitor.latest.devices))
        wait_to_go_on()
        monitor.log(1, loss=0.5)
        with monitor.window("w") as window:
            pass
        tell(window.summary["gpu.0.temp"].count > 0, window._owner.silent)
        wait_to_go_on()
        until(lambda: len(monitor.steps) == 2)
        tell(monitor.channel.processes)
        wait_to_go_on()
        until(lambda: monitor.latest and monitor._run.ticker._node._lease is not None)
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks > before + 3)
        tell(monitor.channel.role)
        wait_to_go_on()
    """
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        arguments = ("--listen", "127.0.0.1:0", "--share", str(place), "--interval", "0.1", "--backends", "nvidia", "--metrics", "core")
        daemon = stack.enter_context(start("serve", *arguments, env=environment(**simulator.environment())))
        stack.callback(daemon.kill)
        ring = wait_for(lambda: next(place.glob("*.ring"), None))
        wait_for(lambda: simulator.calls().get(("nvmlDeviceGetTemperature", 0), 0) > 2)
        assert ring is not None
        assert stat.S_IMODE(ring.stat().st_mode) == 0o600
        simulator.start_log()
        programs = []
        for number in ("0", "1"):
            env = job_environment(tmp_path, ACCELMETRICS_SHARE_DIRECTORY=str(place), RANK=number, **simulator.environment())
            options = {"backends": ["nvidia"], "metrics": "core", "labels": {"rank": number}}
            programs.append(stack.enter_context(rank(text, env, **options)))
            assert programs[-1].told() == ["client", "", 2]
        go_on(programs)
        assert [program.told() for program in programs] == [[True, False]] * 2
        go_on(programs)
        assert [program.told() for program in programs] == [[2]] * 2
        assert {entry.pid for entry in simulator.log()} == {daemon.pid}
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0
        assert not list(place.iterdir())
        go_on(programs)
        assert sorted(program.told()[0] for program in programs) == ["client", "holder"]


def test_a_daemon_with_fewer_backends_serves_what_it_has(tmp_path: Path) -> None:
    """Each process reads the host itself. One that wants other devices, or fewer, does not follow the daemon."""
    text = """
    with monitor:
        until(lambda: monitor.latest and "load.1m" in monitor.latest.metrics)
        latest = monitor.latest
        status = source("host")
        tell(monitor.channel.role, sorted(latest.metrics), [status.status, status.sequence > 0, status.detail])
        wait_to_go_on()
    """
    with NvmlSimulator(1) as simulator, ExitStack() as stack:
        arguments = ("--listen", "127.0.0.1:0", "--share", str(tmp_path / "made"), "--interval", "0.1", "--backends", "nvidia")
        daemon = stack.enter_context(start("serve", *arguments, env=environment(**simulator.environment())))
        stack.callback(daemon.kill)
        wait_for(lambda: simulator.calls().get(("nvmlDeviceGetTemperature", 0), 0) > 2)
        env = job_environment(tmp_path, ACCELMETRICS_SHARE_DIRECTORY=str(tmp_path / "made"), **simulator.environment())
        for backends in (None, ["nvidia", "host"], "all,-amd"):
            with rank(text, env, backends=backends, metrics="gpu.0.temp,load.1m") as program:
                role, keys, status = program.told()
                assert (role, keys, status[:2]) == ("client", ["gpu.0.temp", "load.1m"], ["ok", True])
                assert "the daemon leaves the host out" in status[2]
                program.go_on()
                assert (program.end(), program.errors) == (0, "")
        for backends in (["host"], ["nvidia", "host", "amd"]):
            with rank(text, env, backends=backends, metrics="load.1m") as program:
                assert program.told()[0] == "holder"
                program.go_on()
                assert program.end() == 0
                assert "reads other backends" in program.errors


def test_a_daemon_that_reads_something_else_is_told_and_not_followed(tmp_path: Path) -> None:
    """As one of another release, and one that is named and is not there."""
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, monitor.channel.why)
    """
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "machine-0.ring").touch()
    for name, words in (("other", "is not of release"), ("none", "no daemon writes in")):
        with rank(text, job_environment(tmp_path, ACCELMETRICS_SHARE_DIRECTORY=str(tmp_path / name))) as program:
            assert program.told() == ["holder", ""]
            assert program.end() == 0
            assert program.errors.count("RuntimeWarning: accelmetrics: readings are not shared: ") == 1, program.errors
            assert words in program.errors


def test_the_usual_place_is_the_one_where_clients_look() -> None:
    assert settings.SHARED_READINGS == DAEMON


def test_another_user_reads_by_its_group_alone_and_writes_nothing() -> None:
    if os.geteuid():
        pytest.skip("platform: only root can become another user")
    client = f"""
import os, sys
from pathlib import Path
from accelmetrics.sampling.node import daemon_files, trusted_in
from accelmetrics.sampling.shared_ring import SharedRing, SharedRingWriter
from accelmetrics.sampling.slot_file import NotSharedError
from accelmetrics.sampling.election import Lock, with_end, LOCK, RING
directory = Path(sys.argv[1])
files = daemon_files(str(directory), {{}})
os.setgroups([]), os.setgid({STRANGER}), os.setuid({STRANGER})
try:
    row = SharedRing(with_end(files, RING), trusted_in(directory)).newest()
    print(row.numbers)
except NotSharedError as error:
    print(error)
for write in (lambda: SharedRingWriter(with_end(files, RING)).take(1.0), lambda: Lock(with_end(files, LOCK)).take(False)):
    try:
        write()
        print("written")
    except NotSharedError:
        pass
"""
    from accelmetrics.sampling.election import RING, with_end
    from accelmetrics.sampling.shared_ring import SharedRingWriter
    from accelmetrics.schemas.snapshot import Snapshot

    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        for group, answer in (("", "Permission denied"), (grp.getgrgid(STRANGER).gr_name, "(1,)")):
            _, number = daemon_place(directory, group, {})
            path = with_end(daemon_files(directory, {}), RING)
            path.unlink(missing_ok=True)
            writer = SharedRingWriter(path, number)
            writer.take(1.0)
            writer.write(Snapshot(0, "node", {"a": 1}), 1.0, 2.0)
            done = subprocess.run([sys.executable, "-c", client, directory], capture_output=True, text=True, check=True)
            assert answer in done.stdout
            assert "written" not in done.stdout
            writer.close()


def test_files_that_others_may_write_or_put_there_are_not_read(tmp_path: Path) -> None:
    trusted, file = trusted_in(tmp_path), tmp_path / "a"
    file.touch(0o640)
    assert trusted(file.stat())
    file.chmod(0o660)
    assert not trusted(file.stat())
    file.chmod(0o640)
    tmp_path.chmod(0o777)
    assert not trusted(file.stat())
    tmp_path.chmod(0o755)
    if not os.geteuid():
        os.chown(file, STRANGER, STRANGER)
        assert not trusted(file.stat())
        os.chown(tmp_path, STRANGER, STRANGER)
        assert trusted(file.stat())


def test_two_daemons_do_not_write_in_one_place(tmp_path: Path) -> None:
    code = f"from accelmetrics.sampling.node import daemon_place; daemon_place({str(tmp_path)!r}, '', {{}}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(AccelMetricsError, match="another daemon does"):
            daemon_place(str(tmp_path), "", {})
        other.communicate("\n")
    (tmp_path / "file").touch()
    with pytest.raises(AccelMetricsError, match="cannot share in"):
        daemon_place(str(tmp_path / "file"), "", {})


def test_a_group_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no group 'unknown'"):
        daemon_place(str(tmp_path), "unknown", {})
