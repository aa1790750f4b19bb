"""Signal handlers that use the monitor, and what makes that possible: flags and inboxes that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections import deque

import pytest

from accelmetrics.backends.flag import Flag
from accelmetrics.sampling.inbox import Inbox
from tests.sampling.test_monitor_exit import PREFACE
from tests.sampling.watching import program


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


def test_who_interrupts_the_work_sees_what_there_is() -> None:
    """The same thread comes to the same inbox again, as a signal handler does: it neither waits nor works in the middle."""
    seen: list[object] = []
    inbox: Inbox[int]

    def work(waiting: deque[int]) -> None:
        while waiting:
            item = waiting.popleft()
            if item == 1:
                inbox.put(9, work)
                seen.append(inbox.read(lambda: ("seen", *seen), work))
            seen.append(item)

    inbox = Inbox(batch=3)
    for number in range(3):
        inbox.put(number, work)
    assert seen == [0, ("seen", 0), 1, 2, 9]


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
end = time.monotonic() + 2.0
longest = 0.0
while time.monotonic() < end:
    began = time.monotonic()
    monitor.start()
    with monitor.window("step") as window:
        monitor.log(step=1, loss=2.0)
    monitor.history.to_dict()
    monitor.latest, monitor.status, monitor.windows
    longest = max(longest, time.monotonic() - began)
signal.setitimer(signal.ITIMER_REAL, 0)
monitor.start()
with monitor.window("last") as last:
    time.sleep(0.2)
print(len(handled) > 15, longest < 1.0, last.summary["gpu.0.powerWatts"].count >= 1, last.energy_joules["gpu.0"].joules > 0)
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
    ],
)
def test_a_signal_handler_may_use_the_monitor_wherever_it_interrupts_the_program(use: str, pace: float) -> None:
    """Whatever the program was doing with the monitor just then: nobody waits for ever, and all goes on afterwards."""
    text = HANDLER.replace("USE", use).replace("PACE", str(pace))
    _, status, output, errors = program(PREFACE + text)
    assert (status, output, errors) == (0, "True True True True\n", "")
