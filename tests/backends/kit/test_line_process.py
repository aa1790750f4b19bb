"""The supervised child: what it promises, whatever the command does."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.guard import WAITS
from accelmetrics.backends.kit import Command, DeviceSample, Field, PolledBackend, commands
from accelmetrics.backends.kit.commands import CLOSED, FORKED, LinePoll, LineProcess, LineRecord, split_lines
from accelmetrics.schemas.errors import Reason, SourceError
from tests.support.pids import gone
from tests.support.waiting import HANG, wait_for

TICK = "import sys, time, os, json\nsay = lambda text: (sys.stdout.write(text), sys.stdout.flush())\n"
FOREVER = TICK + "n = 0\nwhile True:\n    n += 1\n    say(json.dumps({'n': n, 'pid': os.getpid()}) + '\\n')\n    time.sleep(0.02)\n"

Start = Callable[..., LineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Make a stream of a Python program; each is closed in the end."""
    made: list[LineProcess] = []

    def program(text: str, **options: object) -> LineProcess:
        command = tmp_path / f"program{len(made)}"
        command.write_text(f"#!{sys.executable} -IS\n{text}", "utf-8")
        command.chmod(0o755)
        stream = LineProcess([str(command)], **{"silence": 5.0, "first_pause": 0.05} | options)  # type: ignore[arg-type]
        made.append(stream)
        return stream

    yield program
    for stream in made:
        stream.close()


def first(stream: LineProcess) -> LineRecord:
    record = stream.wait(HANG)
    assert record is not None, stream.failure
    return record


def child_of(stream: LineProcess) -> int:
    pid = json.loads(first(stream).line)["pid"]
    assert isinstance(pid, int)
    return pid


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now

    def time_ns(self) -> int:
        return 0


# Lines


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" for line in lines) + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    found, pending = [], b""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        ended, pending = split_lines(pending + text[begin:end], 100)
        found += ended
    assert (found, pending) == (lines, b"rest")


def test_a_line_without_end_takes_no_memory() -> None:
    pending = b""
    for _ in range(100):
        ended, pending = split_lines(pending + b"x" * 999, 1000)
        assert ended == []
    assert len(pending) == 1001, "one byte above the bound: it is known to be too long"


# Reading


def test_the_latest_line_with_its_time(start: Start) -> None:
    clock = Clock()
    stream = start(FOREVER, clock=clock)
    wait_for(lambda: first(stream).number >= 3)
    record = stream.latest()
    assert record is not None
    assert record.arrived == 1000.0
    assert json.loads(record.line)["n"] >= 3
    assert stream.failure is None


def test_a_record_keeps_the_time_at_which_it_came(start: Start) -> None:
    clock = Clock()
    stream = start(TICK + "say('{\"n\": 1}\\n'); time.sleep(60)", clock=clock, silence=100.0)
    assert first(stream)[:2] == (b'{"n": 1}', 1000.0)
    clock.now += 2.5
    assert stream.latest() == (b'{"n": 1}', 1000.0, 1)


def test_nothing_yet(start: Start) -> None:
    stream = start(TICK + "time.sleep(60)")
    assert stream.wait(0.2) is None
    assert stream.latest() is None
    assert stream.failure is not None and stream.failure.reason == Reason.TIMED_OUT
    assert re.search(r"/program0 was started at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ and has printed nothing yet", stream.failure.detail)


def test_while_the_first_record_is_waited_for_that_is_what_the_thread_waits_for(start: Start) -> None:
    stream = start(TICK + "time.sleep(60)")
    thread = threading.Thread(target=stream.wait, args=(HANG,))
    thread.start()
    wait_for(lambda: thread.ident in WAITS)
    assert WAITS[thread.ident or 0].tool.endswith("/program0")
    stream.close()
    thread.join()
    assert thread.ident not in WAITS


def test_lines_of_many_mebibytes(start: Start) -> None:
    stream = start(TICK + "say('{\"a\": \"' + 'x' * (5 << 20) + '\"}\\n'); time.sleep(60)")
    assert len(first(stream).line) == (5 << 20) + 9


def test_a_line_that_is_too_long_is_said_and_the_next_one_is_served(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    stream = start(
        TICK + f"say('{{' + 'x' * 5000 + '\\n')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nsay('{{}}\\n'); time.sleep(60)",
        max_line=4096,
    )
    wait_for(lambda: stream.failure is not None and stream.failure.reason == Reason.PARSE_ERROR)
    assert "4096 bytes" in stream.failure.detail  # type: ignore[union-attr]
    go.touch()
    assert first(stream).line == b"{}"
    assert stream.failure is None


def test_banners_are_words_and_no_records(start: Start) -> None:
    stream = start(TICK + "say('Welcome!\\n{\"n\": 1}\\nBye\\n'); time.sleep(60)")
    assert first(stream).line == b'{"n": 1}'
    assert first(stream).number == 1


def test_a_command_that_prints_no_records_is_told_by_its_words(start: Start) -> None:
    stream = start(TICK + "say('usage: program [-h]\\n'); time.sleep(60)")
    wait_for(lambda: stream.failure is not None and stream.failure.reason == Reason.PARSE_ERROR)
    assert stream.failure is not None
    assert stream.failure.detail == "program0 has printed no record; its last words: usage: program [-h]"


def test_errors_are_drained(start: Start) -> None:
    """More than a pipe holds: not reading it would stop the command."""
    stream = start(TICK + "sys.stderr.write('e' * (1 << 20)); say('{}\\n'); time.sleep(60)")
    assert first(stream).line == b"{}"


# Surroundings


def test_the_path_must_be_absolute() -> None:
    with pytest.raises(ValueError, match="absolute"):
        LineProcess(["macmon", "pipe"], silence=1.0)


def test_what_the_child_finds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    stream = start(
        TICK + "say(json.dumps({'in': sys.stdin.read(), 'cwd': os.getcwd(), 'env': dict(os.environ), 'own': os.getpgrp(),"
        " 'file': open('config.json').read(), 'mode': os.stat('.').st_mode & 0o777}) + '\\n'); time.sleep(60)",
        files={"config.json": "{}"},
    )
    found = json.loads(first(stream).line)
    assert (found["in"], found["file"], found["mode"]) == ("", "{}", 0o700)
    assert found["env"]["LC_ALL"] == "C"
    assert "SECRET" not in found["env"]
    assert found["own"] != os.getpgrp()
    assert Path(found["cwd"]).name.startswith("accelmetrics-")
    stream.close()
    assert not Path(found["cwd"]).exists()


# Ends and restarts


def test_a_child_that_dies_is_started_again(start: Start) -> None:
    stream = start(TICK + "say(json.dumps({'pid': os.getpid()}) + '\\n'); sys.stderr.write('so long\\n'); sys.exit(4)")
    one = child_of(stream)
    wait_for(lambda: stream.ends > 0 and stream.failure)
    assert stream.failure == (Reason.DRIVER_ERROR, "program0 ended with status 4; its last words: so long")
    wait_for(lambda: child_of(stream) != one)


def test_the_last_record_outlives_the_child(start: Start) -> None:
    clock = Clock()
    stream = start(TICK + "say('{}\\n')", clock=clock, first_pause=60.0)
    wait_for(lambda: stream.ends == 1)
    clock.now += 7.0
    assert stream.latest() == (b"{}", 1000.0, 1)
    assert stream.failure is not None and stream.failure.detail == "program0 ended with status 0"


def test_half_a_line_before_death_is_no_record(start: Start) -> None:
    stream = start(TICK + "say('{\"a\": 1')", first_pause=60.0)
    wait_for(lambda: stream.ends == 1)
    assert stream.latest() is None


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("os.kill(os.getpid(), 9)", Reason.DRIVER_ERROR, "was ended by signal 9"),
        ("os.kill(os.getpid(), 11)", Reason.DRIVER_ERROR, "was ended by signal 11"),
        ("sys.exit(0)", Reason.DRIVER_ERROR, "ended with status 0"),
    ],
)
def test_how_it_ended(start: Start, text: str, reason: Reason, words: str) -> None:
    stream = start(TICK + text, first_pause=60.0)
    assert stream.wait(HANG) is None
    assert stream.failure == (reason, f"program0 {words}")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    stream = LineProcess([str(tmp_path / "none")], silence=1.0)
    assert stream.wait(HANG) is None
    assert stream.failure is not None and stream.failure.reason == Reason.DRIVER_UNAVAILABLE
    assert "is not there" in stream.failure.detail
    stream.close()


def test_pauses_double_and_a_steady_child_resets_them(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    really = threading.Condition.wait_for

    def noted(self: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        if threading.current_thread().name.startswith("accelmetrics program"):
            pauses.append(timeout or 0.0)
            clock.now += steady.pop() if steady else 0.0
            return really(self, predicate, 0.0)
        return really(self, predicate, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", noted)
    clock, steady = Clock(), list[float]()
    stream = start("", clock=clock, first_pause=1.0)
    wait_for(lambda: len(pauses) >= 8)
    stream.close()
    assert pauses[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_child_that_ran_steadily_is_replaced_soon(start: Start, tmp_path: Path) -> None:
    """Moving the clock while it runs makes it a minute old."""
    clock = Clock()
    end = tmp_path / "end"
    stream = start(TICK + f"say('{{}}\\n')\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)", clock=clock, silence=1000.0)
    stream._pause = 60.0
    first(stream)
    clock.now += commands.STEADY
    end.touch()
    wait_for(lambda: stream.starts > 1)


def test_silence_ends_the_child(start: Start) -> None:
    stream = start(TICK + "say(json.dumps({'pid': os.getpid()}) + '\\n'); time.sleep(60)", silence=0.3)
    pid = child_of(stream)
    wait_for(lambda: stream.starts > 1 and gone(pid))


def test_silence_from_the_start_is_borne_a_little_longer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    stream = start(TICK + "time.sleep(60)", silence=0.1, clock=clock)
    wait_for(lambda: stream.starts)
    clock.now += commands.START_UP - 0.1
    looks = clock.looks
    wait_for(lambda: clock.looks > looks + 3)
    assert stream.ends == 0
    clock.now += 0.2
    wait_for(lambda: stream.ends == 1)
    assert stream.failure is not None and stream.failure.reason == Reason.TIMED_OUT


def test_a_child_that_closes_its_outputs_and_lives_on_is_ended(start: Start) -> None:
    stream = start(TICK + "say(json.dumps({'pid': os.getpid()}) + '\\n'); os.close(1); os.close(2); time.sleep(60)", silence=0.3)
    pid = child_of(stream)
    wait_for(lambda: stream.ends == 1 and gone(pid))
    assert stream.failure == (Reason.TIMED_OUT, "program0 printed no record for 0.3 s and was killed")


def test_what_a_dead_child_left_behind_is_killed(start: Start) -> None:
    """It holds the outputs open, in a session of its own."""
    stream = start(
        TICK + "import subprocess\nleft = subprocess.Popen([sys.executable, '-IS', '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)\nsay(json.dumps({'pid': left.pid}) + '\\n')",
        first_pause=60.0,
    )
    pid = child_of(stream)
    wait_for(lambda: stream.ends == 1 and gone(pid))


def test_it_never_spins(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that prints nothing is looked at at a slow pace, also where it closed its outputs; one that is dead, not at all."""
    looks: list[tuple[str, float | None]] = []
    really = selectors.DefaultSelector.select

    def noted(self: selectors.DefaultSelector, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        looks.append((threading.current_thread().name, timeout))
        return really(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", noted)
    made = [start(TICK + text, first_pause=60.0) for text in ("time.sleep(60)", "sys.exit(1)", "os.close(1); os.close(2); time.sleep(60)")]
    wait_for(lambda: made[1].ends)
    looks.clear()
    wait_for(lambda: len(looks) >= 6 and len(set(looks)) == 2)
    assert set(looks) == {("accelmetrics program0", commands.GLANCE), ("accelmetrics program2", commands.GLANCE)}


BLOCKS = """
def row(n, device):
    say(f"{n}, {device}, {10 * n + device}\\n")
say("Timestamp, DeviceId, Power\\n")
for n in (1, 2):
    row(n, 0)
    row(n, 1)
{then}
time.sleep(60)
"""


@pytest.mark.parametrize(("then", "rows"), [("", "2, 0, 20\n2, 1, 21"), ("row(3, 0)", "2, 0, 20\n2, 1, 21")], ids=["quiet", "next began"])
def test_the_last_whole_block_with_its_heading(start: Start, then: str, rows: str) -> None:
    stream = start(TICK + BLOCKS.replace("{then}", then), opening=re.compile(rb"\d+, 0,"))
    wait_for(lambda: first(stream).number == 2)
    assert first(stream).line.decode() == f"Timestamp, DeviceId, Power\n{rows}"
    assert stream.failure is None


# Its end, and ours


STUBBORN = (
    TICK + "import signal, subprocess\n"
    "for number in (1, 2, 13, 15): signal.signal(number, signal.SIG_IGN)\n"
    "sleep = [sys.executable, '-IS', '-c', 'import time; time.sleep(120)']\n"
    "left = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]\n"
    "say(json.dumps({'pid': os.getpid(), 'left': left, 'cwd': os.getcwd()}) + '\\n')\ntime.sleep(120)\n"
)


def test_closing_ends_it_with_all_its_children_and_reaps_it(start: Start) -> None:
    before = {child.pid for child in psutil.Process().children()}
    stream = start(STUBBORN)
    told = json.loads(first(stream).line)
    stream.close()
    wait_for(lambda: all(gone(pid) for pid in (told["pid"], *told["left"])))
    assert {child.pid for child in psutil.Process().children()} <= before
    assert stream.failure == CLOSED
    assert stream.latest() is not None, "what was read is not forgotten"


def test_closing_twice_and_before_anything_was_started(start: Start) -> None:
    stream = start(FOREVER)
    stream.close()
    stream.close()
    assert not stream._thread.is_alive()


PARENT = """
import os, sys, time
from accelmetrics.backends.kit.commands import LineProcess
stream = LineProcess([sys.argv[1]], silence=60.0)
print(stream.wait(30.0).line.decode(), flush=True)
{end}
"""


def parent(program: Path, end: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen([sys.executable, "-c", PARENT.format(end=end), str(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told: dict[str, object] = json.loads(process.stdout.readline())
    return process, told


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    program = tmp_path / "stubborn"
    program.write_text(f"#!{sys.executable} -IS\n{STUBBORN}", "utf-8")
    program.chmod(0o755)
    return program


def all_gone(told: dict[str, object]) -> bool:
    left = told["left"]
    assert isinstance(left, list) and isinstance(told["pid"], int)
    return all(gone(pid) for pid in (told["pid"], *left))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent_however_that_dies(stubborn: Path, number: signal.Signals) -> None:
    """A silent one that ignores signals, with children of which one has left the group."""
    process, told = parent(stubborn, "time.sleep(120)")
    with process:
        process.send_signal(number)
        process.wait(HANG)
    wait_for(lambda: all_gone(told))
    wait_for(lambda: not Path(str(told["cwd"])).exists())


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os._exit(4)", "raise SystemError"], ids=["end", "exit", "_exit", "error"])
def test_interpreter_exit_waits_for_nothing_and_leaves_nothing(stubborn: Path, end: str) -> None:
    """The command would go on for 120 s."""
    process, told = parent(stubborn, end)
    with process:
        process.wait(HANG)
    wait_for(lambda: all_gone(told))


def test_after_a_fork_the_new_process_leaves_it_alone(start: Start) -> None:
    stream = start(FOREVER)
    pid = child_of(stream)
    inside, outside = os.pipe()
    forked = os.fork()
    if forked == 0:
        stream.close()
        alone = stream.latest() is None and stream.wait(0.1) is None and stream.failure == FORKED
        os.write(outside, b"y" if alone else b"n")
        os._exit(0)
    os.waitpid(forked, 0)
    assert os.read(inside, 1) == b"y"
    os.close(inside)
    os.close(outside)
    number = first(stream).number
    wait_for(lambda: first(stream).number > number + 5)
    assert child_of(stream) == pid
    assert stream.starts == 1


def test_a_fork_that_lives_on_does_not_keep_it_alive(stubborn: Path) -> None:
    """The forked process holds no end of the pipe whose closing tells that the parent is gone."""
    process, told = parent(
        stubborn, "child = os.fork()\nif child == 0: time.sleep(20); os._exit(0)\nprint(child, flush=True); time.sleep(120)"
    )
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    with process:
        process.kill()
        process.wait(HANG)
        wait_for(lambda: all_gone(told))
        os.kill(forked, signal.SIGKILL)


def test_many_threads_may_ask(start: Start) -> None:
    stream = start(FOREVER)
    first(stream)
    seen: list[int] = []

    def ask() -> None:
        before = 0
        for _ in range(300):
            record = stream.latest()
            assert record is not None and record.number >= before
            before = record.number
        seen.append(before)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4


# As a poll

SAY_AGAIN = TICK + "while True:\n    say(open('@').read() + '\\n')\n    time.sleep(0.01)"


class Told:
    """A command that prints a file's content as a line, over and over, and what becomes of each line."""

    def __init__(self, start: Start, path: Path, said: str, clock: Clock) -> None:
        self._path = path
        self.clock = clock
        self.parsed: list[str] = []
        self.say(said)
        self.process = start(SAY_AGAIN.replace("@", str(path)), clock=clock, silence=1e9)
        self.poll = LinePoll(self.process, self._parse, 3.0, HANG)

    def _parse(self, text: str) -> list[DeviceSample]:
        self.parsed.append(text)
        if "watts" not in text:
            raise SourceError(Reason.PARSE_ERROR, f"odd: {text}")
        return [DeviceSample(json.loads(text))]

    def say(self, said: str) -> None:
        """Have it print something else."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(said, "utf-8")
        fresh.replace(self._path)

    def hear(self, said: str) -> None:
        """Wait until that is what it prints."""
        self.say(said)
        wait_for(lambda: (record := self.process.latest()) is not None and record.line.decode() == said)

    def watts(self) -> object:
        """What the latest poll gives."""
        (sample,) = self.poll()
        return sample.record.get("watts")


@pytest.fixture
def told(start: Start, tmp_path: Path) -> Told:
    return Told(start, tmp_path / "said", '{"watts": 1}', Clock())


def test_a_poll_waits_for_the_first_record_and_gives_the_latest(told: Told) -> None:
    (sample,) = told.poll()
    assert (sample.record, sample.read_at) == ({"watts": 1}, 1000.0)
    told.hear('{"watts": 2}')
    assert told.watts() == 2


def test_a_record_is_parsed_once(start: Start) -> None:
    parsed: list[str] = []
    process = start(TICK + "say('{}\\n'); time.sleep(600)", silence=600.0)
    poll = LinePoll(process, lambda text: (parsed.append(text), [DeviceSample({})])[1], 600.0, HANG)  # type: ignore[func-returns-value]
    assert poll() is poll()
    assert parsed == ["{}"]


def test_a_record_that_is_not_understood_is_passed_over_while_the_one_before_it_is_fresh(told: Told) -> None:
    assert told.watts() == 1
    told.hear('{"volts": 2}')
    assert told.watts() == 1
    told.clock.now += 3.5
    wait_for(lambda: (record := told.process.latest()) is not None and record.arrived == 1003.5)
    with pytest.raises(SourceError, match="odd") as caught:
        told.poll()
    assert caught.value.reason == Reason.PARSE_ERROR
    told.hear('{"watts": 3}')
    assert told.watts() == 3


def test_a_record_that_is_too_old_is_not_given(start: Start) -> None:
    clock = Clock()
    poll = LinePoll(start(TICK + "say('{}\\n'); time.sleep(600)", clock=clock, silence=600.0), lambda text: [DeviceSample({})], 3.0, HANG)
    poll()
    clock.now += 2.9
    poll()
    clock.now += 0.2
    with pytest.raises(SourceError) as caught:
        poll()
    assert caught.value.reason == Reason.STALE


def test_why_there_is_no_newer_record_is_the_reason(start: Start) -> None:
    clock = Clock()
    process = start(TICK + "say('{}\\n'); sys.stderr.write('no sensors'); sys.exit(7)", clock=clock, first_pause=600.0)
    poll = LinePoll(process, lambda text: [DeviceSample({})], 3.0, HANG)
    poll()
    wait_for(lambda: process.ends)
    clock.now += 3.5
    with pytest.raises(SourceError, match="ended with status 7; its last words: no sensors") as caught:
        poll()
    assert caught.value.reason == Reason.DRIVER_ERROR


def test_a_command_that_fails_at_once_is_not_waited_for(start: Start) -> None:
    poll = LinePoll(start(TICK + "sys.exit(7)", first_pause=600.0), lambda text: [], 3.0, 600.0)
    with pytest.raises(SourceError, match="ended with status 7"):
        poll()


def test_a_backend_on_a_stream(tmp_path: Path) -> None:
    command = tmp_path / "acme-top"
    command.write_text(f"#!{sys.executable} -IS\n{TICK}say(open('acme.json').read() + '\\n'); time.sleep(600)", "utf-8")
    command.chmod(0o755)
    connect = commands.stream(
        Command("acme-top", directories=(str(tmp_path),)),
        lambda text: [DeviceSample(json.loads(text))],
        interval=600.0,
        files={"acme.json": '{"watts": 7}'},
        first=HANG,
    )
    driver = PolledBackend("acme", kind="npu", source="acme-top", connect=connect, fields=(Field("powerWatts", "watts", "W"),)).open()
    try:
        (block,) = driver.reader(ReadOptions(1)).read(0, []).blocks
        assert (block.names, tuple(block.values)) == (("powerWatts",), (7,))
    finally:
        driver.close()
