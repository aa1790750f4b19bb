"""``accelmetrics serve`` as a service: what a hang-up changes, and what systemd is told."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from accelmetrics.cli.serve import ServiceManager
from tests.cli.shell import Started, environment, start
from tests.cli.test_serve import get, ready
from tests.exporters.certificates import Authority
from tests.support.waiting import HANG

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: has no SIGHUP")
SERVE = ("serve", "--listen", "127.0.0.1:0", "--backends", "host", "--attribution", "none")


def line_with(program: Started, words: str) -> str:
    """The next line that holds these words."""
    for line in program.stderr:
        if words in line:
            return line
    raise AssertionError(f"the command ended without {words!r}")


def address(program: Started) -> str:
    return line_with(program, "accelmetrics serve: http://").split()[-1].removesuffix("/metrics")


def test_a_hang_up_takes_what_the_file_says_now_and_never_ends_the_service(tmp_path: Path) -> None:
    """Nothing, a mistake and what cannot be served leave all as it was; a change is in force, under the same run's id."""
    file = tmp_path / "accelmetrics.toml"
    anywhere = '[serve]\nlisten = "127.0.0.1:0"\n'
    file.write_text(anywhere)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        program = start("serve", *SERVE[3:], "--config", str(file), env=environment())
        try:
            base = address(program)
            ready(base)

            def hang_up(text: str) -> None:
                file.write_text(text)
                program.send_signal(signal.SIGHUP)

            hang_up(anywhere)
            assert "nothing has changed" in line_with(program, "configuration reloaded")
            hang_up(f"{anywhere}uii = true\n")
            assert "the former one stays in use: unknown key in [serve]" in line_with(program, "error: ")
            assert get(f"{base}/-/healthy")[0] == 200
            hang_up(f"{anywhere}ui = true\n")
            assert "ui changed" in line_with(program, "configuration reloaded")
            assert "<html" in get(f"{address(program)}/")[1]
            hang_up(f'[serve]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\n')
            assert "the former one stays in use: cannot listen on" in line_with(program, "error: ")
            assert "<html" in get(f"{address(program)}/")[1]
            program.send_signal(signal.SIGTERM)
            assert program.wait(HANG) == 0
        finally:
            program.kill()
            program.communicate(timeout=HANG)


def test_new_certificates_that_are_none_are_told_and_the_level_of_messages_changes(tmp_path: Path) -> None:
    """Without a new beginning: connections, counts and windows go on."""
    file, users = tmp_path / "accelmetrics.toml", tmp_path / "users"
    users.write_text("")
    file.write_text("")
    program = start(*SERVE, "--config", str(file), "--auth", str(users), env=environment())
    try:
        address(program)
        users.unlink()
        program.send_signal(signal.SIGHUP)
        assert "the password file" in line_with(program, "warning: ")
        assert "nothing has changed" in line_with(program, "configuration reloaded")
        users.write_text("")
        program.send_signal(signal.SIGHUP)
        assert "the passwords changed" in line_with(program, "configuration reloaded")
        file.write_text('log_level = "error"')
        program.send_signal(signal.SIGHUP)
        assert "log_level changed" in line_with(program, "configuration reloaded")
        file.write_text('log_level = "errr"')
        program.send_signal(signal.SIGHUP)
        assert "error: the configuration cannot be used" in program.stderr.readline()
    finally:
        program.kill()
        program.communicate(timeout=HANG)


def test_new_certificates_are_shown_to_clients_that_connect(tmp_path: Path) -> None:
    """After a hang-up, without a new beginning; where a file is no certificate, the one of before stays, and a line says so."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("first", "node")
    program = start(*SERVE, "--tls-cert", str(certificate), "--tls-key", str(key), "--log-level", "info", env=environment())
    try:
        port = int(line_with(program, "accelmetrics serve: https://").split()[-1].removesuffix("/metrics").rpartition(":")[2])

        def name() -> str:
            with (
                socket.create_connection(("127.0.0.1", port), HANG) as plain,
                ssl.create_default_context(cafile=str(authority.file)).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            return shown.subject.rfc4514_string()

        assert name() == "CN=first"
        authority.issue("second", "node")
        program.send_signal(signal.SIGHUP)
        assert "the certificate, its key changed" in line_with(program, "configuration reloaded")
        assert name() == "CN=second"
        certificate.write_text("none")
        program.send_signal(signal.SIGHUP)
        assert str(certificate) in line_with(program, "warning: ")
        assert "nothing has changed" in line_with(program, "configuration reloaded")
        assert name() == "CN=second"
    finally:
        program.kill()
        program.communicate(timeout=HANG)


def test_systemd_is_told_what_the_service_does(tmp_path: Path) -> None:
    """Ready once it listens, again after a reload, alive while it reads, and that it stops."""
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(HANG)
        program = start(*SERVE, env=environment(NOTIFY_SOCKET=place, WATCHDOG_USEC="3000000"))
        try:
            told = [manager.recv(4096).decode()]
            assert told[0].splitlines()[0] == "READY=1"
            while "WATCHDOG=1" not in told:
                told.append(manager.recv(4096).decode())
            program.send_signal(signal.SIGHUP)
            while not told[-1].startswith("RELOADING=1\nMONOTONIC_USEC="):
                told.append(manager.recv(4096).decode())
            while told[-1] != "READY=1":
                told.append(manager.recv(4096).decode())
            program.send_signal(signal.SIGTERM)
            while told[-1] != "STOPPING=1":
                told.append(manager.recv(4096).decode())
        finally:
            program.kill()
            program.communicate(timeout=HANG)


def test_readings_that_come_to_a_halt_are_not_called_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything said where nobody listens."""
    now, said = [0.0], []
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setattr("accelmetrics.cli.serve.time.monotonic", lambda: now[0])
    manager = ServiceManager()
    monkeypatch.setattr(manager, "tell", lambda *lines: said.append((now[0], *lines)))
    for second in range(100):
        now[0] = float(second)
        manager.beat(min(second, 10), False, 1.0)
    assert [at for at, _ in said] == [0.0, 20.0, 40.0]
    manager.beat(10, True, 1.0)
    assert said[-1] == (99.0, "WATCHDOG=1")


def test_loose_permissions_are_told(tmp_path: Path) -> None:
    """Of the password file, the token and a configuration with a secret in it: a line each, with what mends it."""
    config, users, token = tmp_path / "accelmetrics.toml", tmp_path / "users", tmp_path / "token"
    config.write_text('[serve]\nnotify = ["https://hooks.example/T0KEN"]\n')
    users.write_text("ada:scrypt$16384$8$1$c2FsdA==$" + "A" * 43 + "=\n")
    token.write_text("open-says-me\n")
    for file in (config, users, token):
        file.chmod(0o644)
    options = ("--config", str(config), "--auth", str(users), "--bearer-token-file", str(token))
    program = start(*SERVE, *options, env=environment())
    try:
        told = "".join(line_with(program, "other users can read") for _ in range(3))
    finally:
        program.kill()
        program.communicate(timeout=HANG)
    for file in (config, users, token):
        assert f"{file} (mode 0644): chmod 640 {file}\n" in told


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hang_up_while_the_command_is_loaded_ends_nothing(ignored: bool) -> None:
    """One that `nohup` has it ignore stays ignored."""
    lines = [
        "import os, signal",
        "from accelmetrics.cli import outlast_hang_ups",
        *(["signal.signal(signal.SIGHUP, signal.SIG_IGN)"] if ignored else []),
        "outlast_hang_ups()",
        "os.kill(os.getpid(), signal.SIGHUP)",
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout) == (0, f"{ignored}\n")
