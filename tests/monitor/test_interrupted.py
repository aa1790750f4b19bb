"""Signal handlers that use the monitor, and the flag that makes that possible."""

from __future__ import annotations

import sys
import threading
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.run import Run
from accelmetrics.sampling.threads import Flag
from tests.monitor.test_monitor_exit import PREFACE
from tests.monitor.watching import Recorder, gpus, program, ticks
from tests.support.waiting import HANG

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def test_a_flag_ends_all_waits() -> None:
    """Later ones too, until it is cleared."""
    flag, gone = Flag(), list[bool]()
    waiting = [threading.Thread(target=lambda: gone.append(flag.wait(HANG))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    flag.set()
    flag.set()
    for thread in waiting:
        thread.join(HANG)
    assert gone == [True] * 5
    assert flag.is_set()
    assert flag.wait()
    flag.clear()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.001)
    assert not flag.wait(-1)


def test_a_flag_waits_as_long_as_it_can_be_asked_to() -> None:
    """For ever, and longer than the system can count."""
    flag = Flag()
    threading.Timer(0.02, flag.set).start()
    assert flag.wait(float("inf"))


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
while len(handled) < COUNT:
    monitor.start()
    with monitor.window("step") as window:
        monitor.log(step=1, loss=2.0)
    monitor.history.to_dict()
    window.summary, window.devices, window.energy_joules
    monitor.latest, monitor.status, monitor.windows
signal.setitimer(signal.ITIMER_REAL, 0)
monitor.start()
with monitor.window("last") as last:
    while not last.summary or last.summary["gpu.0.powerWatts"].seconds == 0:
        time.sleep(0.005)
print(last.summary["gpu.0.powerWatts"].count >= 1, last.energy_joules["gpu.0"].joules > 0)
monitor.stop()
"""


@pytest.mark.parametrize(
    ("use", "pace", "count"),
    [
        ("monitor.stop(1.0)", 0.031, 25),
        ("monitor.log(loss=1.0)", 0.0017, 400),
    ],
)
def test_a_signal_handler_may_log_and_stop_wherever_it_interrupts_the_program(use: str, pace: float, count: int) -> None:
    """Whatever the program was doing with the monitor just then: nothing waits for ever, and all goes on afterwards."""
    text = HANDLER.replace("USE", use).replace("PACE", str(pace)).replace("COUNT", str(count))
    _, status, output, errors = program(PREFACE + text)
    assert (status, output, errors) == (0, "True True\n", "")


RUINED = """
import _thread, random, signal
monitor = Monitor(0.01, backends=[gpus], history=100_000)
def annoy():
    chance = random.Random(5)
    while caught < 300:
        time.sleep(chance.uniform(0.0005, 0.003))
        _thread.interrupt_main()
caught, windows = 0, []
monitor.start()
ticks(monitor, 1)
annoying = threading.Thread(target=annoy, daemon=True)
inside = False
def interrupt(*_):
    global inside
    if inside:
        inside = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
annoying.start()
while annoying.is_alive():
    try:
        inside = True
        window = monitor.window("w")
        windows = [*windows[-200:], window]
        with window:
            window.summary
        window.summary, window.devices, window.energy_joules
        monitor.history.to_dict()
        inside = False
    except KeyboardInterrupt:
        caught += 1
for window in windows:
    if window.ended:
        found = window.summary
        assert len({one.count for one in found.values()}) <= 1, found
        assert all(one.seconds <= window.duration + 1e-6 for one in found.values()), (window.duration, found)
        window.devices, window.energy_joules
monitor.stop()
columns = monitor.history.to_dict()
assert len({len(column) for column in columns.values()}) == 1
assert len(monitor.history) == monitor.status.ticks
assert columns["time"] == sorted(columns["time"])
assert [at - columns["gpu.0.powerWatts"][0] for at in columns["gpu.0.powerWatts"]] == sorted(
    at - columns["gpu.0.powerWatts"][0] for at in columns["gpu.0.powerWatts"])
print("whole")
"""


def test_ctrl_c_while_results_are_read_ruins_none() -> None:
    """Neither a window's statistics nor the history's columns: each reading counts once, in its place."""
    text = RUINED.replace("ticks(monitor, 1)", "gpus.device(0).set(powerWatts=time.monotonic)\nticks(monitor, 1)", 1)
    _, status, output, errors = program(PREFACE + text)
    assert (status, output, errors) == (0, "whole\n", "")


@pytest.mark.parametrize("line", range(12))
def test_a_stop_anywhere_within_a_start_holds_and_harms_no_later_one(line: int) -> None:
    """A signal handler's, between any two lines of a run's beginning."""
    exporter = Recorder()
    monitor = Monitor(3600, [exporter], backends=[gpus(1)])
    lines = count()

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        if frame.f_code is not Run.begin.__code__:
            return None
        if event == "line" and next(lines) == line:
            monitor.stop()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        monitor.start()
    finally:
        sys.settrace(before)
    if next(lines) > line:
        assert not monitor.running
    monitor.stop()
    exporter.records.clear()
    monitor.start()
    ticks(monitor, 1)
    monitor.stop()
    assert len(exporter.records) >= 2, "its first reading and its last"
