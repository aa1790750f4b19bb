"""A daemon that reads for all of a machine: the command, and whom its socket lets in."""

from __future__ import annotations

import grp
import os
import signal
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from accelmetrics.monitor import settings
from accelmetrics.sampling.node import DAEMON, listening
from accelmetrics.sampling.node_daemon import NodeDaemon
from accelmetrics.sampling.node_wire import PROTOCOL, Credentials, credentials
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError
from tests.cli.shell import environment, start
from tests.sampling.node import BareClient, job_environment, rank
from tests.simulators.nvml import NvmlSimulator
from tests.support.programs import Program
from tests.support.waiting import HANG, wait_for

STRANGER = 65534
"""The user and group that own nothing."""


def test_the_command_reads_for_processes_of_any_job(tmp_path: Path) -> None:
    """None of them calls the driver; when it ends, the processes of a job share among themselves."""
    path = tmp_path / "made" / "collector.sock"
    text = """
    with monitor:
        until(lambda: monitor.latest)
        tell(monitor.channel.role, monitor.channel.processes)
        wait_to_go_on()
        until(lambda: monitor.channel.role == "holder")
        tell(monitor.channel.role)
    """
    with NvmlSimulator(2) as simulator, ExitStack() as stack:
        arguments = ("--listen", "127.0.0.1:0", "--socket", str(path), "--interval", "0.1", "--backends", "nvidia", "--metrics", "core")
        daemon = stack.enter_context(start("serve", *arguments, env=environment(**simulator.environment())))
        stack.callback(daemon.kill)
        wait_for(path.exists)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        simulator.start_log()
        programs = []
        for port in ("1", "2"):
            env = job_environment(tmp_path, ACCELMETRICS_SOCKET=str(path), MASTER_PORT=port, **simulator.environment())
            programs.append(stack.enter_context(rank(text, env, backends=["nvidia"], metrics="core")))
        assert [program.told() for program in programs] == [["client", 1], ["client", 1]]
        assert {entry.pid for entry in simulator.log()} == {daemon.pid}
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0
        assert not path.exists()
        for program in programs:
            program.go_on()
            assert program.told() == ["holder"]


def test_the_usual_place_is_the_one_where_clients_look() -> None:
    assert settings.COLLECTOR == DAEMON


def test_another_user_is_let_in_by_its_group_alone() -> None:
    if os.geteuid():
        pytest.skip("platform: only root can become another user")
    client = f"""
        import os, socket, sys
        from accelmetrics.sampling.node_wire import frame
        os.setgroups([]), os.setgid({STRANGER}), os.setuid({STRANGER})
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(sys.argv[1])
            connection.sendall(frame({{"type": "hello", "protocol": {PROTOCOL}, "interval": 1.0, "backends": ["host"]}}))
            tell("welcome" if b"welcome" in connection.recv(4096) else "nothing")
        except OSError as error:
            tell(type(error).__name__)
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = f"{directory}/collector.sock"
        for group, answer in (("", "PermissionError"), (grp.getgrgid(STRANGER).gr_name, "welcome")):
            daemon = NodeDaemon(path, group, {"backends": ["host"]})
            daemon.open()
            with Program(client, path) as program:
                assert program.told() == [answer]
            daemon.close()


def test_whom_the_kernel_names_decides(tmp_path: Path) -> None:
    """Also where a file's mode would let a process in: it may have been opened before."""
    own, group = os.geteuid(), grp.getgrall()[-1]
    closed = NodeDaemon(str(tmp_path / "a"), "", {})
    opened = NodeDaemon(str(tmp_path / "a"), group.gr_name, {})
    stranger = Credentials(1, 123_456, group.gr_gid + 1)
    member = Credentials(1, 123_456, group.gr_gid)
    assert [closed._lets_in(peer) for peer in (Credentials(1, own, 0), Credentials(1, 0, 0), stranger, member)] == [
        True,
        True,
        False,
        False,
    ]
    assert [opened._lets_in(peer) for peer in (Credentials(1, own, 0), stranger, member)] == [True, False, True]


def test_the_kernel_says_who_is_there(tmp_path: Path) -> None:
    with listening(str(tmp_path / "a")) as listener, BareClient(tmp_path / "a") as client:
        accepted, _ = listener.accept()
        with accepted:
            assert credentials(accepted) == credentials(client.socket) == (os.getpid(), os.geteuid(), os.getegid())


def test_what_a_daemon_left_behind_is_replaced_and_another_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "collector.sock"
    listening(str(path)).close()
    assert path.exists()
    daemon = NodeDaemon(str(path), "", {"backends": ["host"]})
    daemon.open()
    with BareClient(path) as client:
        client.hello().wait_for("reading")
        with pytest.raises(AccelMetricsError, match="another process does"):
            NodeDaemon(str(path), "", {}).open()
    daemon.close()


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AccelMetricsError, match="no socket stands there"):
        NodeDaemon(str(tmp_path / "file"), "", {}).open()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_group_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no group 'unknown'"):
        NodeDaemon(str(tmp_path / "a"), "unknown", {})
