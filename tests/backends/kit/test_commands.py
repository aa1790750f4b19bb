"""What the runner of vendor commands promises, with real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from accelmetrics.backends import guard
from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.commands import Child, Completed
from accelmetrics.backends.kit.watchdog import Watchdog
from accelmetrics.schemas.errors import Reason, SourceError
from tests.support.pids import gone
from tests.support.waiting import HANG, wait_for

SH = "/bin/sh"
PYTHON = sys.executable


def shell(script: str, *, timeout: float = 20.0, max_output: int = commands.MAX_OUTPUT) -> Completed:
    return commands.run([SH, "-c", script], timeout=timeout, max_output=max_output)


def python(code: str, *arguments: str, timeout: float = 20.0) -> Completed:
    return commands.run([PYTHON, "-IS", "-c", textwrap.dedent(code), *arguments], timeout=timeout)


def wait_until_gone(*pids: int) -> None:
    """All of them sleep for 120 s by themselves, four times as long as this waits."""
    wait_for(lambda: all(map(gone, pids)))


def late(run: Callable[[float], Completed], pids: Path, count: int) -> list[int]:
    """Run a command that is to be late, but not before it has noted so many processes; return them."""
    for timeout in (0.3, 1.0, 4.0, 16.0):
        pids.write_text("")
        with pytest.raises(SourceError, match=f"gave no answer in {timeout:g} s and was killed") as caught:
            run(timeout)
        assert caught.value.reason == Reason.TIMED_OUT
        listed = [int(pid) for pid in pids.read_text().split()]
        if len(listed) == count:
            return listed
    raise AssertionError(f"it noted {listed}")


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A file for process ids, one a line; whatever is left of them is killed after the test."""
    path = tmp_path / "pids"
    path.touch()
    yield path
    for line in path.read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made in this test."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


# What comes back


def test_output_complaints_and_status_come_back_apart() -> None:
    done = shell("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.returncode, done.truncated) == ("out\n", "err\n", 3, False)
    assert done.seconds > 0


def test_much_output_on_both_streams_at_once_is_read_whole() -> None:
    """More than both pipes hold: reading one after the other would wait for ever."""
    done = python("import sys\nfor _ in range(100):\n    sys.stderr.write('e' * 10000); sys.stdout.write('o' * 10000)")
    assert (len(done.stdout), len(done.stderr)) == (1_000_000, 1_000_000)


def test_a_signal_is_a_negative_status() -> None:
    assert shell("kill -TERM $$").returncode == -signal.SIGTERM


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert shell(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_arguments_reach_the_command_as_they_are() -> None:
    arguments = ["$HOME", "`id`", "a b", "*", ";exit 1", ""]
    assert json.loads(python("import sys, json; print(json.dumps(sys.argv[1:]))", *arguments).stdout) == arguments


def test_a_command_may_close_its_output_and_go_on() -> None:
    done = python("import os, time; os.write(1, b'x'); os.close(1); os.close(2); time.sleep(0.3); os._exit(7)")
    assert (done.stdout, done.returncode) == ("x", 7)
    assert done.seconds >= 0.3


# What it starts with


def test_standard_input_is_empty() -> None:
    """Even where the program's own is not."""
    code = "from accelmetrics.backends.kit import commands; print(repr(commands.run(['/bin/cat'], timeout=5).stdout))"
    assert interpreter(code, given="typed by the user").stdout == "''\n"


def test_the_environment_is_reduced_to_what_tools_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/usr/bin:relative::/bin", "HOME": "/home/x", "LD_LIBRARY_PATH": "/opt/rocm/lib"})
    os.environ |= {
        "ROCM_PATH": "/opt/rocm",
        "HSA_X": "1",
        "LC_ALL": "tr_TR.UTF-8",
        "LANG": "tr_TR",
        "PYTHONPATH": "/evil",
        "SECRET_TOKEN": "s",
    }
    environment = json.loads(python("import os, json; print(json.dumps(dict(os.environ)))").stdout)
    assert environment.pop(commands.MARK)
    environment.pop("LC_CTYPE", None)
    assert environment == {
        **{"PATH": "/usr/bin:/bin", "HOME": "/home/x", "LD_LIBRARY_PATH": "/opt/rocm/lib"},
        **{"ROCM_PATH": "/opt/rocm", "HSA_X": "1", "LC_ALL": "C"},
    }


def test_the_working_directory_is_temporary_and_removed(scratch: Path) -> None:
    done = shell("pwd -P; ls -ld .; mkdir -p deep/er; echo x > deep/er/file")
    directory, listed = done.stdout.splitlines()
    assert Path(directory).parent == scratch.resolve()
    assert listed.startswith("drwx------"), "no other user may enter it"
    assert list(scratch.iterdir()) == []


def test_where_nothing_may_be_written_the_command_still_runs(monkeypatch: pytest.MonkeyPatch, pids: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(pids / "below-a-file"))
    assert shell("pwd").stdout == "/\n"


def test_the_command_is_in_a_session_of_its_own() -> None:
    """A Ctrl-C at the terminal is for the program, not for its commands."""
    session, group = map(int, python("import os; print(os.getsid(0), os.getpgid(0))").stdout.split())
    assert session == group != os.getsid(0)


def test_a_closed_pipe_ends_what_it_starts_as_it_does_anywhere() -> None:
    """Python itself ignores the signal that tells of it."""
    done = shell("yes | head -n 1")
    assert (done.stdout, done.stderr) == ("y\n", "")


@pytest.mark.parametrize("change", [("executable", ""), ("executable", None), ("frozen", True)], ids=["embedded", "unknown", "frozen"])
def test_a_program_that_is_no_interpreter_does_not_run_the_watchdog(
    change: tuple[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started with a watchdog's arguments, an application would start itself once more."""
    (tmp_path / "python3").symlink_to(PYTHON)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, *change, raising=False)
    assert shell("echo out").stdout == "out\n"
    (tmp_path / "python3").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="no Python interpreter was found") as caught:
        shell("echo out")
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_the_programs_standard_streams_may_be_closed(closed: str, tmp_path: Path) -> None:
    code = f"from accelmetrics.backends.kit import commands; done = commands.run({[SH, '-c', 'cat; echo out; echo err >&2']!r}, timeout=20)"
    code += "; open(sys.argv[1], 'w').write(done.stdout + done.stderr)"
    root = str(Path(commands.__file__).parents[3])
    argv = [SH, "-c", f'exec "$0" -c "$1" "$2" {closed}', PYTHON, f"import sys; {code}", str(tmp_path / "told")]
    subprocess.run(argv, env=os.environ | {"PYTHONPATH": root}, timeout=2 * HANG, check=True)
    assert (tmp_path / "told").read_text() == "out\nerr\n"


def test_no_descriptors_are_inherited(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as handle:
        os.set_inheritable(handle.fileno(), True)
        code = "import os, sys\ntry: os.fstat(int(sys.argv[1])); print('inherited')\nexcept OSError: print('closed')"
        assert python(code, str(handle.fileno())).stdout == "closed\n"


# How it ends


def test_a_late_command_is_killed_with_its_children(pids: Path, scratch: Path) -> None:
    script = f"echo $$ >> {pids}; sleep 120 & echo $! >> {pids}; sleep 120"
    wait_until_gone(*late(lambda timeout: shell(script, timeout=timeout), pids, 2))
    assert list(scratch.iterdir()) == []


ESCAPE = """
import os, sys, subprocess, time
held = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(120)"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "a") as log:
            print(os.getpid(), file=log)
        time.sleep(120)
    os._exit(0)
os.wait()
with open(sys.argv[1], "a") as log:
    print(held.pid, file=log)
"""


def test_children_that_left_the_group_or_their_parent_are_killed_too(pids: Path) -> None:
    program = ESCAPE + "\ntime.sleep(120)"
    wait_until_gone(*late(lambda timeout: python(program, str(pids), timeout=timeout), pids, 2))


def test_a_child_that_wiped_its_environment_is_killed_too(pids: Path) -> None:
    """Nothing but its parent tells whose it is."""
    code = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(120)"], env={}, start_new_session=True)
    print(child.pid, file=open(sys.argv[1], "w"), flush=True)
    time.sleep(120)
    """
    wait_until_gone(*late(lambda timeout: python(code, str(pids), timeout=timeout), pids, 1))


def test_a_watchdog_that_cannot_be_killed_now_is_reaped_after_a_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the kernel holds on to: it is not waited for, and leaves no zombie in the end."""
    before = set(psutil.Process().children())
    with monkeypatch.context() as stuck:
        stuck.setattr(commands, "REAP", 0.01)
        stuck.setattr(Watchdog, "end", lambda watchdog: os.kill(watchdog.pid, signal.SIGSTOP))
        stuck.setattr(Watchdog, "kill", lambda watchdog: None)
        with pytest.raises(SourceError):
            shell("sleep 120", timeout=0.1)
    (left,) = set(psutil.Process().children()) - before
    os.killpg(left.pid, signal.SIGKILL)
    wait_until_gone(left.pid)

    def reaped() -> bool:
        """Its last thread may end after the first, which is what the status is of."""
        shell("true")
        return left not in psutil.Process().children()

    wait_for(reaped)


def test_a_command_that_ignores_signals_is_killed(pids: Path) -> None:
    script = f"trap '' TERM INT HUP; echo $$ > {pids}; while :; do sleep 1; done"
    wait_until_gone(*late(lambda timeout: shell(script, timeout=timeout), pids, 1))


def test_a_late_command_that_closed_its_output_is_killed(pids: Path) -> None:
    script = f"exec >/dev/null 2>&1; echo $$ > {pids}; sleep 120"
    wait_until_gone(*late(lambda timeout: shell(script, timeout=timeout), pids, 1))


def test_a_child_that_keeps_the_output_open_is_waited_for_a_grace_only(pids: Path) -> None:
    done = python(ESCAPE + "\nprint('payload')", str(pids), timeout=60)
    assert done.stdout == "payload\n"
    assert done.returncode == 0
    assert done.seconds < HANG  # those left behind hold it for 120
    wait_until_gone(*map(int, pids.read_text().split()))


def test_a_command_takes_variables_and_gives_a_file_of_its_own() -> None:
    """What it writes in its working directory is read before that is removed."""
    script = 'echo "$HABANA_LOGS $LIBRARIES"; printf text > report.json; mkdir folder'
    environment = {"HABANA_LOGS": "{directory}", "LIBRARIES": "{bin}/../lib"}
    written = []
    for name in ("report.json", "folder", "none"):
        done = commands.run([SH, "-c", script + "; pwd"], timeout=20, environment=environment, output=name)
        said, directory = done.stdout.splitlines()
        assert said == f"{directory} /bin/../lib"
        written.append(done.written)
    assert written == ["text", None, None]


def test_a_daemon_that_holds_nothing_of_ours_is_left_alone(pids: Path) -> None:
    done = shell(f"sleep 120 >/dev/null 2>&1 & echo $! > {pids}; echo done")
    assert done.stdout == "done\n"
    assert not gone(int(pids.read_text()))


@pytest.mark.parametrize("stream", ["1", "2"])
def test_endless_output_is_cut_and_the_command_killed(stream: str, pids: Path) -> None:
    done = shell(f"echo $$ > {pids}; while :; do echo 0123456789; done >&{stream}", max_output=50_000)
    assert done.truncated
    assert len(done.stdout) + len(done.stderr) == 50_000
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(int(pids.read_text()))


def test_output_of_exactly_the_bound_is_whole() -> None:
    done = shell("printf 0123456789", max_output=10)
    assert (done.stdout, done.truncated, done.returncode) == ("0123456789", False, 0)


def test_endless_output_of_a_child_left_behind_is_cut_too(pids: Path) -> None:
    done = shell(f"yes & echo $! > {pids}; echo main", max_output=3_000_000)
    assert len(done.stdout) <= 3_000_000
    wait_until_gone(int(pids.read_text()))


def test_nothing_is_left_behind() -> None:
    """No zombies and no descriptors, after good runs, late ones, cut ones and ones that could not start."""
    this = psutil.Process()
    shell("true")
    before, children = this.num_fds(), set(this.children())
    for _ in range(5):
        shell("echo x")
        shell("yes", max_output=1000)
        shell("sleep 120 & echo x")
        for argv in ([SH, "-c", "sleep 120"], ["/nonexistent"]):
            with pytest.raises(SourceError):
                commands.run(argv, timeout=0.05)
    assert this.num_fds() <= before
    assert set(this.children()) <= children


# What cannot be started


@pytest.mark.parametrize("argv", [[], ["sh"], ["./sh"], ["bin/sh", "-c", "true"]])
def test_a_relative_path_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        commands.run(argv, timeout=1)


def test_a_command_that_is_not_there_is_unavailable(scratch: Path) -> None:
    with pytest.raises(SourceError, match="/nonexistent/tool is not there") as caught:
        commands.run(["/nonexistent/tool"], timeout=1)
    assert caught.value.reason == Reason.DRIVER_UNAVAILABLE
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "mode", "reason", "words"),
    [
        (b"#!/nonexistent/python\n", 0o755, Reason.DRIVER_UNAVAILABLE, "the interpreter that it names"),
        (b"#!/bin/sh\n", 0o644, Reason.NO_PERMISSION, "may not be executed"),
        (b"\x00\x01\x02", 0o755, Reason.DRIVER_ERROR, "could not be started: Exec format error"),
    ],
    ids=["no interpreter", "no permission", "no program"],
)
def test_a_file_that_cannot_be_started(tmp_path: Path, text: bytes, mode: int, reason: Reason, words: str) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(text)
    tool.chmod(mode)
    with pytest.raises(SourceError, match=words) as caught:
        commands.run([str(tool)], timeout=1)
    assert caught.value.reason == reason


# Finding


def executable(directory: Path, name: str = "tool", mode: int = 0o755) -> str:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def test_path_comes_before_the_vendors_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = executable(tmp_path / "a"), executable(tmp_path / "b")
    monkeypatch.setenv("PATH", str(tmp_path / "a"))
    assert commands.find("tool", [str(tmp_path / "b")]) == first
    monkeypatch.setenv("PATH", "/nonexistent")
    assert commands.find("tool", [f"{tmp_path / 'b'}/"]) == second
    assert commands.find("tool") is None


def test_relative_directories_are_never_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "bin")
    monkeypatch.chdir(tmp_path / "bin")
    for path in (".", "", ":", "../bin"):
        monkeypatch.setenv("PATH", path)
        assert commands.find("tool", [".", "", "../bin"]) is None


def test_what_may_be_executed_is_preferred_and_the_rest_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, runnable = executable(tmp_path / "a", mode=0o644), executable(tmp_path / "b")
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert commands.find("tool") == runnable
    Path(runnable).unlink()
    assert commands.find("tool") == plain


def test_a_directory_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commands.find("tool") is None


# Threads, exit, fork


def test_runs_in_many_threads_do_not_mix() -> None:
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = shell(f"echo {number}; true | cat; echo {number}").stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n{number}\n" for number in range(12)}


def interpreter(code: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Another interpreter with the package on its path."""
    root = str(Path(commands.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    argv = [PYTHON, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(argv, env=environment, input=given, capture_output=True, text=True, timeout=30)


EXIT_MEANWHILE = """
import sys, tempfile, threading, time
from accelmetrics.backends import guard
from accelmetrics.backends.kit import commands
tempfile.tempdir = sys.argv[1]
def work():
    commands.run(["/bin/sh", "-c", "echo $$ > " + sys.argv[2] + "; sleep 120"], timeout=100)
threading.Thread(target=work, daemon=True).start()
while not open(sys.argv[2]).read().strip():
    time.sleep(0.01)
"""


def test_interpreter_exit_waits_for_nothing_and_leaves_nothing(pids: Path, scratch: Path) -> None:
    """The command would go on for longer than this waits for the program."""
    done = interpreter(EXIT_MEANWHILE, str(scratch), str(pids))
    assert (done.returncode, done.stderr) == (0, "")
    wait_until_gone(int(pids.read_text()))
    wait_for(lambda: not list(scratch.iterdir()))


def test_a_fork_that_exits_leaves_its_parents_commands_alone(pids: Path, scratch: Path) -> None:
    code = """
    import os
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    print(commands.run(["/bin/sh", "-c", "kill -0 $0 && echo still there", open(sys.argv[2]).read().strip()], timeout=30).stdout, end="")
    """
    done = interpreter(EXIT_MEANWHILE + textwrap.dedent(code), str(scratch), str(pids))
    assert (done.stdout, done.returncode) == ("still there\n", 0)


def test_after_a_fork_in_the_middle_of_a_run_the_child_can_run_commands(pids: Path, scratch: Path) -> None:
    code = """
    import os
    if os.fork() == 0:
        print(commands.run(["/bin/sh", "-c", "echo from the child"], timeout=5).stdout, end="", flush=True)
        os._exit(0)
    os.wait()
    """
    assert interpreter(EXIT_MEANWHILE + textwrap.dedent(code), str(scratch), str(pids)).stdout == "from the child\n"


RUN_AT_EXIT = """
import atexit, sys
from accelmetrics.backends import guard
from accelmetrics.backends.kit import commands
def late():
    try:
        print(commands.run(["/bin/echo", "ran"], timeout=5).stdout, end="")
    except commands.SourceError as error:
        print(error)
def run():
    commands.run(["/bin/true"], timeout=5)
for step in sys.argv[1:]:
    {"register": lambda: atexit.register(late), "run": run}[step]()
"""


def test_handlers_at_exit_may_run_commands() -> None:
    assert interpreter(RUN_AT_EXIT, "register", "run").stdout == "ran\n"
    assert interpreter(RUN_AT_EXIT, "run", "register").stdout == "ran\n"


# The part that a long-lived command shares


def test_a_child_can_be_read_piece_by_piece_and_is_killed_when_left(pids: Path, scratch: Path) -> None:
    script = f"echo $$ > {pids}; while :; do echo tick; sleep 0.01; done"
    with Child([SH, "-c", script]) as child:
        pieces = child.read()
        printed = b""
        while printed.count(b"\n") < 3:
            printed += next(pieces)[1]
        assert not child.process.ended
    assert printed.startswith(b"tick\ntick\ntick\n")
    wait_until_gone(int(pids.read_text()))
    assert child.process.returncode == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


# What a late reading can tell of


def test_while_a_command_runs_it_is_what_its_thread_waits_for(tmp_path: Path) -> None:
    go = tmp_path / "go"
    thread = threading.Thread(target=shell, args=(f"while [ ! -e {go} ]; do sleep 0.02; done",))
    before = time.time_ns()
    thread.start()
    wait = wait_for(lambda: guard.WAITS.get(thread.ident or 0))
    assert wait is not None
    assert wait.tool == SH
    assert before <= wait.since <= time.time_ns()
    go.touch()
    thread.join()
    assert thread.ident not in guard.WAITS
