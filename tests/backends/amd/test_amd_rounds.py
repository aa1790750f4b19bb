"""One run of the command serves every card and every consumer, and each pass over the cards makes one run."""

import threading
import time

import pytest

from accelmetrics.backends.amd.rocm_smi import RocmSmiDriver, RocmSmiReader
from accelmetrics.backends.amd.rocm_smi_command import Tool
from accelmetrics.backends.amd.rocm_smi_json import Output, parse
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason
from tests.simulators.rocm_smi import output

OPTIONS = ReadOptions(pid=1)
INTERVAL = 2.0


class FakeClock:
    """Time that passes when a test, or a command, says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        raise NotImplementedError


class FakeTool(Tool):
    """A command that takes its time on the fake clock."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = seconds
        self.runs = 0
        self.failing = False
        self.busy = threading.Semaphore()

    def read(self) -> Output:
        assert self.busy.acquire(blocking=False), "the command runs twice at once"
        self.runs += 1
        self.clock.now += self.seconds
        time.sleep(0.01)  # long enough for a second run at the same time to be noticed
        self.busy.release()
        if self.failing:
            raise SourceError(Reason.TIMED_OUT, "late")
        return parse(output("mi250_pair_5_4"))


class Machine:
    """A driver on a fake clock, and a consumer of it."""

    def __init__(self, seconds: float) -> None:
        self.clock = FakeClock()
        self.tool = FakeTool(self.clock, seconds)
        self.driver = RocmSmiDriver(self.clock, INTERVAL, self.tool)

    def consumer(self) -> RocmSmiReader:
        return self.driver.reader(OPTIONS)


def a_pass(reader: RocmSmiReader) -> list[float | None]:
    """Read both cards; when each was read at the source."""
    return [reader.read(unit, []).read_at for unit in (0, 1)]


@pytest.mark.parametrize("seconds", [0.1, 1.5, 3.0, 9.0])
def test_the_first_pass_is_served_from_opening(seconds: float) -> None:
    machine = Machine(seconds)
    assert a_pass(machine.consumer()) == [100 + seconds] * 2
    assert machine.tool.runs == 1


@pytest.mark.parametrize("seconds", [0.1, 1.5, 3.0, 9.0])
def test_each_pass_makes_one_run_however_long_it_takes(seconds: float) -> None:
    machine = Machine(seconds)
    reader = machine.consumer()
    a_pass(reader)
    for runs in range(2, 7):
        machine.clock.now += max(0.0, INTERVAL - seconds)
        first, second = a_pass(reader)
        assert first == second == machine.clock.now
        assert machine.tool.runs == runs


def test_a_pass_that_comes_too_soon_is_served_the_same_round_again() -> None:
    machine = Machine(0.1)
    reader = machine.consumer()
    first = a_pass(reader)
    machine.clock.now += 0.5
    assert a_pass(reader) == first
    assert machine.tool.runs == 1


def test_a_second_consumer_shares_a_fresh_round() -> None:
    machine = Machine(0.5)
    ours, theirs = machine.consumer(), machine.consumer()
    for runs in range(2, 6):
        machine.clock.now += INTERVAL
        assert a_pass(ours) == a_pass(theirs)
        assert machine.tool.runs == runs


def test_an_old_round_is_not_served_to_a_newcomer() -> None:
    machine = Machine(0.5)
    machine.clock.now += INTERVAL / 2 + 0.01
    assert machine.consumer().read(0, []).read_at == machine.clock.now
    assert machine.tool.runs == 2


def test_a_round_that_failed_costs_its_timeout_once() -> None:
    machine = Machine(8.0)
    reader = machine.consumer()
    a_pass(reader)
    machine.tool.failing = True
    for unit in (0, 1):
        with pytest.raises(SourceError, match="late"):
            reader.read(unit, [])
    assert machine.tool.runs == 2
    machine.tool.failing = False
    assert a_pass(reader) == [machine.clock.now] * 2


def test_the_error_of_a_round_is_raised_anew_each_time() -> None:
    """Raised in two threads, one exception object would collect both tracebacks."""
    machine = Machine(0.0)
    machine.tool.failing = True
    reader = machine.consumer()
    machine.clock.now += INTERVAL
    caught = []
    for unit in (0, 1):
        with pytest.raises(SourceError) as error:
            reader.read(unit, [])
        caught.append(error.value)
    assert caught[0] is not caught[1]
    assert machine.tool.runs == 2


def test_what_did_not_change_is_the_same_object() -> None:
    machine = Machine(0.1)
    reader = machine.consumer()
    before = reader.read(0, [])
    machine.clock.now += INTERVAL
    after = reader.read(0, [])
    assert after is not before
    assert after.blocks[0].names is before.blocks[0].names
    assert after.unavailable is before.unavailable


def test_many_threads_that_ask_at_once_share_one_run() -> None:
    machine = Machine(0.1)
    machine.clock.now += INTERVAL
    consumers = [machine.consumer() for _ in range(8)]
    together = threading.Barrier(8)
    read: list[float | None] = []

    def ask(reader: RocmSmiReader) -> None:
        together.wait()
        read.append(reader.read(0, []).read_at)

    threads = [threading.Thread(target=ask, args=(reader,)) for reader in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 8
    assert len(set(read)) == 1
    assert machine.tool.runs == 2
