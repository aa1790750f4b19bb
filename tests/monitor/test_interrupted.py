"""Signal handlers that use the monitor, and what makes that possible: flags and inboxes that nobody waits for."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections import deque

import pytest

from accelmetrics.backends.flag import Flag
from accelmetrics.monitor.inbox import Inbox
from accelmetrics.monitor.undisturbed import undisturbed
from tests.monitor.test_monitor_exit import PREFACE
from tests.monitor.watching import program
from tests.sampling.conftest import until


def test_a_flag_lets_everybody_go_who_waits() -> None:
    """And who comes later, until it is cleared."""
    flag, gone = Flag(), list[bool]()
    waiting = [threading.Thread(target=lambda: gone.append(flag.wait(30))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    flag.set()
    flag.set()
    for thread in waiting:
        thread.join(5)
    assert gone == [True] * 5
    assert flag.is_set()
    assert flag.wait()
    flag.clear()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.001)
    assert not flag.wait(-1)


def test_a_flag_that_is_set_and_cleared_at_once_does_not_keep_anybody_busy() -> None:
    """Whoever still waits then waits on: at most one wait ends early."""
    flag = Flag()
    ends = deque[float]()

    def wait() -> None:
        for _ in range(3):
            flag.wait(0.1)
            ends.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)
    began = time.monotonic()
    flag.set()
    flag.clear()
    thread.join()
    assert ends[-1] - began > 0.15


def test_a_flag_waits_as_long_as_it_can_be_asked_to() -> None:
    """For ever, and longer than the system can count."""
    flag = Flag()
    threading.Timer(0.02, flag.set).start()
    assert flag.wait(float("inf"))


def test_an_inbox_never_waits_for_who_reads() -> None:
    """What comes meanwhile is worked off by the reader, or with what comes next; in order, each once."""
    seen: list[int] = []

    def work(waiting: deque[int]) -> None:
        while waiting:
            seen.append(waiting.popleft())

    inbox = Inbox[int]()
    inside, go = threading.Event(), threading.Event()

    def look() -> tuple[int, ...]:
        inside.set()
        go.wait(5)
        return tuple(seen)

    inbox.put(0, work)
    found: list[tuple[int, ...]] = []
    reader = threading.Thread(target=lambda: found.append(inbox.read(look, work)))
    reader.start()
    inside.wait(5)
    began = time.monotonic()
    inbox.put(1, work)
    inbox.put(2, work)
    assert time.monotonic() - began < 1
    assert (seen, len(inbox)) == ([0], 2)
    go.set()
    reader.join(5)
    assert found == [(0,)]
    inbox.put(3, work)
    assert (seen, len(inbox)) == ([0, 1, 2, 3], 0)
    assert inbox.read(lambda: len(seen), work) == 4


def test_what_is_undisturbed_ends_though_ctrl_c_comes() -> None:
    """Whoever waits for it is interrupted at once; it goes on, and the next one finds it done."""
    steps: list[int] = []

    def work() -> int:
        for number in range(5):
            time.sleep(0.02)
            steps.append(number)
        return 7

    threading.Timer(0.03, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        undisturbed(work)
    assert time.monotonic() - began < 0.09
    until(lambda: steps == [0, 1, 2, 3, 4])
    assert undisturbed(work) == 7


def test_what_is_undisturbed_raises_what_it_raises() -> None:
    """On any thread."""
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 / 0)
    found: list[type] = []

    def elsewhere() -> None:
        try:
            undisturbed(lambda: 1 / 0)
        except ZeroDivisionError as error:
            found.append(type(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [ZeroDivisionError]


def test_without_a_thread_it_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system gives no more of them."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert undisturbed(lambda: 5) == 5


def test_work_that_fails_can_go_on() -> None:
    """The failure is the caller's; the next one finds nothing taken."""
    done: list[int] = []

    def work(waiting: deque[int]) -> None:
        item = waiting.popleft()
        if item == 1:
            raise ZeroDivisionError
        done.append(item)

    inbox = Inbox[int]()
    with pytest.raises(ZeroDivisionError):
        inbox.put(1, work)
    inbox.put(2, work)
    assert done == [2]


HANDLER = """
import signal
monitor = Monitor(0.05, [Exporter()], backends=[gpus])
Exporter.export = lambda self, record: None
Exporter.flush = Exporter.close = lambda self: None
handled = []
def handler(number, frame):
    if handled and handled[-1] is None:
        return
    handled.append(None)
    USE
    handled[-1] = 1
monitor.start()
ticks(monitor, 1)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05, PACE)
end = time.monotonic() + 1.2
longest = 0.0
while time.monotonic() < end:
    began = time.monotonic()
    monitor.start()
    with monitor.window("step") as window:
        monitor.log(step=1, loss=2.0)
    monitor.history.to_dict()
    window.summary, window.devices, window.energy_joules
    monitor.latest, monitor.status, monitor.windows
    longest = max(longest, time.monotonic() - began)
signal.setitimer(signal.ITIMER_REAL, 0)
monitor.start()
with monitor.window("last") as last:
    time.sleep(0.2)
print(len(handled) > 8, longest < 1.0, last.summary["gpu.0.powerWatts"].count >= 1, last.energy_joules["gpu.0"].joules > 0)
monitor.stop()
"""


@pytest.mark.parametrize(
    ("use", "pace"),
    [
        ("monitor.stop(1.0)", 0.031),
        ("monitor.stop(1.0); monitor.start()", 0.031),
        ("with monitor.window('signal') as inner: pass", 0.0017),
        ("monitor.log(loss=1.0); monitor.history.to_dict(); monitor.windows and monitor.windows[-1].duration", 0.0017),
        ("monitor.pause(); monitor.resume()", 0.0017),
        ("monitor.subscribe(bool)()", 0.0031),
        ("monitor.flush(0.01)", 0.021),
        ("window = monitor.windows and monitor.windows[-1]; window and (window.summary, window.devices, window.energy_joules)", 0.0031),
        ("monitor.history.clear()", 0.0031),
    ],
)
def test_a_signal_handler_may_use_the_monitor_wherever_it_interrupts_the_program(use: str, pace: float) -> None:
    """Whatever the program was doing with the monitor just then: nobody waits for ever, and all goes on afterwards."""
    text = HANDLER.replace("USE", use).replace("PACE", str(pace))
    _, status, output, errors = program(PREFACE + text)
    assert (status, output, errors) == (0, "True True True True\n", "")


RUINED = """
import _thread, random
monitor = Monitor(0.01, backends=[gpus], history=100_000)
end = time.monotonic() + 2.5
def annoy():
    chance = random.Random(5)
    while time.monotonic() < end - 0.3:
        time.sleep(chance.uniform(0.0005, 0.003))
        _thread.interrupt_main()
caught, windows = 0, []
monitor.start()
ticks(monitor, 1)
threading.Thread(target=annoy, daemon=True).start()
while time.monotonic() < end:
    try:
        window = monitor.window("w")
        windows = [*windows[-200:], window]
        with window:
            time.sleep(0.004)
            window.summary
        window.summary, window.devices, window.energy_joules
        monitor.history.to_dict()
    except KeyboardInterrupt:
        caught += 1
for window in windows:
    if window.ended:
        found = window.summary
        assert len({one.count for one in found.values()}) <= 1, found
        assert all(one.seconds <= window.duration + 1e-6 for one in found.values()), (window.duration, found)
        window.devices, window.energy_joules
columns = monitor.history.to_dict()
assert len({len(column) for column in columns.values()}) == 1
assert len(monitor.history) == monitor.status.ticks
assert columns["time"] == sorted(columns["time"])
assert [at - columns["gpu.0.powerWatts"][0] for at in columns["gpu.0.powerWatts"]] == sorted(
    at - columns["gpu.0.powerWatts"][0] for at in columns["gpu.0.powerWatts"])
monitor.stop()
print("whole", caught > 100)
"""


def test_ctrl_c_while_results_are_read_ruins_none() -> None:
    """Neither a window's statistics nor the history's columns: each reading counts once, in its place."""
    text = RUINED.replace("ticks(monitor, 1)", "gpus.device(0).set(powerWatts=time.monotonic)\nticks(monitor, 1)", 1)
    _, status, output, errors = program(PREFACE + text)
    assert (status, output, errors) == (0, "whole True\n", "")
