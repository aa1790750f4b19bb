"""Backends whose source is asked for all devices at once: what one poll serves, who is who, and what a failure costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import NOT_NEEDED, Reading, ReadOptions
from accelmetrics.backends.kit import MEMORY, POWER_SHARE, DeviceSample, Field, PolledBackend, Rate, Source, polled
from accelmetrics.backends.kit.fields import DeviceRecord
from accelmetrics.backends.kit.polled import RETRY, PolledDriver
from accelmetrics.schemas.errors import ADVICE, DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing import FakeClock

IDENTITY = {"vendor_index": "npu", "uuid": ("uuid", "sid"), "name": "name", "pci_bus_id": "bdf"}
FIELDS = (Field("powerWatts", "power", "W"), Field("temp", "temp", "C"))


class Tool:
    """A source that lists what it is told."""

    def __init__(self, *records: Mapping[str, Any]) -> None:
        self.records: list[Mapping[str, Any]] = list(records)
        self.processes: dict[int, tuple[DeviceProcess, ...]] = {}
        self.error: BaseException | None = None
        self.reopens = False
        self.whole: Callable[[Mapping[str, Any]], str] = lambda _: ""
        self.connects = 0
        self.polls = 0
        self.closes = 0

    def connect(self) -> Tool:
        self.connects += 1
        return self

    def __call__(self) -> Iterable[DeviceSample]:
        self.polls += 1
        for number, record in enumerate(self.records):
            yield DeviceSample(dict(record), self.processes.get(number), whole=self.whole(record))
        if self.error is not None:
            raise self.error

    def fail(self, error: BaseException | None, *records: Mapping[str, Any]) -> None:
        """Fail after these devices; list them without failing where there is no error."""
        self.error, self.records = error, list(records)

    def close(self) -> None:
        self.closes += 1


def npu(number: int, **more: Any) -> dict[str, Any]:
    return {"npu": number, "uuid": f"RBLN-{number}", "power": f"{100 + number} W", "temp": "40C"} | more


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tool() -> Tool:
    return Tool(npu(0), npu(1))


def backend_of(tool: Tool, clock: FakeClock, **more: Any) -> PolledBackend:
    given: dict[str, Any] = {"fields": FIELDS, "identity": IDENTITY, "interval": 2.0, "advice": "look again"} | more
    return PolledBackend("acme", kind="npu", source="acme-smi", connect=tool.connect, clock=clock, **given)


def opened(tool: Tool, clock: FakeClock, **more: Any) -> PolledDriver:
    return backend_of(tool, clock, **more).open()


def values(reading: Reading, process: bool = False) -> dict[str, Any]:
    return {
        name: value for block in reading.blocks if block.process == process for name, value in zip(block.names, block.values, strict=True)
    }


WATCHING = ReadOptions(1)


# Polls


def test_one_poll_serves_every_device_and_consumer_for_half_an_interval(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    first, second = driver.reader(WATCHING), driver.reader(WATCHING)
    progress: list[Any] = []
    assert [values(reader.read(unit, progress))["powerWatts"] for reader in (first, second) for unit in (0, 1)] == [100, 101, 100, 101]
    assert (tool.polls, len(progress)) == (1, 4)
    clock.advance(2.0)
    first.read(0, progress)
    first.read(1, progress)
    clock.advance(0.9)
    second.read(0, progress)
    assert tool.polls == 2
    first.read(0, progress)
    assert tool.polls == 3, "one that has had the latest gets a new one"


@pytest.mark.parametrize(
    ("metrics", "polls", "slow_polls"),
    [
        ("all", 1, 1),
        ("powerWatts", 1, 0),
        ("memoryTotalBytes", 1, 1),
        ("memoryAllocated", 1, 1),
        ("npu.1.temp", 1, 0),
        ("standard,-npu.*", 0, 0),
        ("cpu,gpu.0.powerWatts", 0, 0),
        ("cpu,processes", 1, 1),
    ],
)
def test_a_source_that_gives_nothing_wanted_is_not_asked(tool: Tool, clock: FakeClock, metrics: str, polls: int, slow_polls: int) -> None:
    """One that says which devices there are is asked while anything is wanted; a derived metric has all sources asked."""
    tool.records = [npu(0, used="1 MiB")]
    slow = Tool({"npu": 0, "uuid": "RBLN-0", "total": "2 MiB"})
    fields = (*FIELDS, Field("memoryAllocatedBytes", "used", "MiB"), *MEMORY)
    total = Source("acme-info", slow.connect, (Field("memoryTotalBytes", "total", "MiB"),), interval=10.0, identity=IDENTITY)
    reader = opened(tool, clock, fields=fields, also=(total,)).reader(ReadOptions(1, metrics=MetricSelection(metrics)))
    before = tool.polls, slow.polls
    clock.advance(20.0)
    reading = reader.read(0, [])
    assert (tool.polls - before[0], slow.polls - before[1]) == (polls, slow_polls)
    assert bool(values(reading)) == bool(polls)
    assert (reading.processes == NOT_NEEDED) == (not polls), "that they are not listed is not for want of a list"
    if metrics == "memoryAllocated":
        assert values(reading)[metrics] == 50


def test_a_new_poll_gives_a_new_reading_with_its_time(tool: Tool, clock: FakeClock) -> None:
    reader = opened(tool, clock).reader(WATCHING)
    first = reader.read(0, [])
    clock.advance(2.0)
    second = reader.read(0, [])
    assert second is not first
    assert second.read_at == 1002.0
    assert second.blocks[0].names == first.blocks[0].names


def test_an_answer_that_has_not_changed_is_looked_at_once(clock: FakeClock) -> None:
    """As a stream's is between two records: each poll asks, and none identifies, flattens or reads a device again."""

    class Counting(DeviceRecord):
        """Counts what is looked up."""

        asked = 0

        def get(self, place: str) -> object:
            Counting.asked += 1
            return super().get(place)

    def answer(watts: int) -> tuple[DeviceSample, ...]:
        return tuple(DeviceSample(Counting(npu(number, power=watts)), read_at=clock.monotonic()) for number in range(4))

    given: list[Any] = [answer(5)]
    calls: list[object] = []

    def poll() -> Iterable[DeviceSample]:
        calls.append(given[0])
        if isinstance(given[0], SourceError):
            raise given[0]
        return given[0]  # type: ignore[no-any-return]

    backend = PolledBackend("acme", kind="npu", source="s", connect=lambda: poll, fields=FIELDS, identity=IDENTITY, clock=clock)
    reader = backend.open().reader(WATCHING)
    first, asked = [reader.read(unit, []) for unit in range(4)], Counting.asked
    for polls in (2, 3):
        clock.advance(1.0)
        assert all(reader.read(unit, []) is first[unit] for unit in range(4))
        assert (len(calls), Counting.asked) == (polls, asked)
    other = backend.open().reader(WATCHING).read(0, [])
    assert (values(other), other.read_at) == (values(first[0]), first[0].read_at), "another consumer reads it for itself"
    clock.advance(1.0)
    given[0] = answer(6)
    assert [values(reader.read(unit, []))["powerWatts"] for unit in range(4)] == [6] * 4
    given[0] = SourceError(Reason.STALE, "too old")
    clock.advance(1.0)
    with pytest.raises(SourceError, match="too old"):
        reader.read(0, [])
    given[0] = calls[-2]
    clock.advance(1.0)
    assert values(reader.read(0, []))["powerWatts"] == 6, "a failure between two equal answers is no answer"


def test_devices_are_recognised_without_comparing_each_with_each(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def is_same(known: Any, told: Any) -> bool:
        compared.append(told["vendor_index"])
        return same(known, told)

    same = polled.is_same
    monkeypatch.setattr(polled, "is_same", is_same)
    tool = Tool(*(npu(number, bdf=f"0000:{number:02x}:00.0") for number in range(64)))
    reader = opened(tool, clock).reader(WATCHING)
    compared.clear()
    tool.records.reverse()
    clock.advance(2.0)
    assert values(reader.read(5, []))["powerWatts"] == 105
    assert len(compared) <= 3 * 64


def test_a_failed_poll_is_shared_and_the_next_one_is_tried(tool: Tool, clock: FakeClock) -> None:
    reader = opened(tool, clock).reader(WATCHING)
    reader.read(0, [])
    reader.read(1, [])
    tool.fail(SourceError(Reason.NO_PERMISSION, "not for you", advice="ask"))
    for unit in (0, 1):
        clock.advance(0.5)
        with pytest.raises(SourceError, match="not for you") as caught:
            reader.read(unit, [])
        assert (caught.value.reason, caught.value.backend, caught.value.advice) == (Reason.NO_PERMISSION, "acme", "ask")
    assert tool.polls == 2
    tool.fail(SourceError(Reason.NO_PERMISSION, "not for you"))
    clock.advance(2.0)
    with pytest.raises(SourceError) as caught:
        reader.read(0, [])
    assert caught.value.advice.startswith(ADVICE[Reason.NO_PERMISSION])
    tool.fail(None, npu(0), npu(1))
    clock.advance(2.0)
    assert values(reader.read(0, []))["powerWatts"] == 100


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), KeyError("x")], ids=["error", "exit", "bug"])
def test_whatever_a_poll_throws_is_a_reason(tool: Tool, clock: FakeClock, error: BaseException) -> None:
    reader = opened(tool, clock).reader(WATCHING)
    tool.fail(error)
    clock.advance(2.0)
    with pytest.raises(SourceError, match=type(error).__name__) as caught:
        reader.read(0, [])
    assert caught.value.reason == Reason.DRIVER_ERROR


def test_after_three_failures_in_a_row_the_driver_is_to_be_opened_again(tool: Tool, clock: FakeClock) -> None:
    reader = opened(tool, clock).reader(WATCHING)
    tool.fail(RuntimeError("boom"))
    kinds = []
    for _ in range(3):
        clock.advance(2.0)
        with pytest.raises(SourceError) as caught:
            reader.read(0, [])
        kinds.append(type(caught.value))
    assert kinds == [SourceError, SourceError, DriverGoneError]


def test_threads_that_ask_together_share_a_poll(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    clock.advance(2.0)
    threads = [threading.Thread(target=driver.reader(WATCHING).read, args=(unit, [])) for unit in (0, 1) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tool.polls == 2


def test_it_is_closed_with_its_driver(tool: Tool, clock: FakeClock) -> None:
    opened(tool, clock).close()
    assert tool.closes == 1


# Opening


def test_a_source_that_lists_nothing_does_not_open(clock: FakeClock) -> None:
    tool = Tool()
    with pytest.raises(SourceError, match="acme-smi lists no NPU") as caught:
        opened(tool, clock)
    assert (caught.value.reason, caught.value.backend, caught.value.advice) == (Reason.DRIVER_UNAVAILABLE, "acme", "look again")
    assert tool.closes == 1


def test_why_a_source_does_not_open_is_told(clock: FakeClock) -> None:
    def refuse() -> Any:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, "not installed", advice="install it")

    backend = PolledBackend("acme", kind="npu", source="acme-smi", connect=refuse, fields=FIELDS, clock=clock)
    with pytest.raises(SourceError, match="not installed") as caught:
        backend.open()
    assert caught.value.advice == "install it"


# Devices


def test_devices_stand_in_the_order_of_their_numbers(clock: FakeClock) -> None:
    driver = opened(Tool(npu(4), npu(1), npu(2)), clock)
    assert [device.vendor_index for device in driver.devices] == [1, 2, 4]
    assert [values(driver.reader(WATCHING).read(unit, []))["powerWatts"] for unit in range(3)] == [101, 102, 104]


def test_identity_is_what_the_record_tells(clock: FakeClock) -> None:
    record = npu(3, name=" CA22 ", uuid="N/A", sid="S1", bdf="0000:C1:00.0") | {"memory": {"total": "16 GiB"}}
    fields = (*FIELDS, Field("memoryTotalBytes", "memory.total", "B"))
    (device,) = opened(Tool(record), clock, fields=fields, vendor="acme-inc").devices
    assert (device.kind, device.vendor, device.vendor_index, device.name, device.uuid) == ("npu", "acme-inc", 3, "CA22", "S1")
    assert (device.pci_bus_id, device.memory_total_bytes) == ("0000:C1:00.0", 2**34)


def test_a_device_that_moves_in_the_list_stays_itself(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    reader = driver.reader(WATCHING)
    tool.records = [npu(7, uuid="RBLN-1", power="7 W"), npu(8, uuid="RBLN-0", power="8 W")]
    clock.advance(2.0)
    assert [values(reader.read(unit, []))["powerWatts"] for unit in (0, 1)] == [8, 7]
    assert [device.vendor_index for device in driver.devices] == [8, 7]


@pytest.mark.parametrize("again", ["0000:c1:00.0", "00000000:C1:00.0", "C1:00.0"])
def test_pci_addresses_are_compared_however_they_are_printed(clock: FakeClock, again: str) -> None:
    tool = Tool({"npu": 0, "bdf": "0000:C1:00.0", "power": 5}, {"npu": 1, "bdf": "0000:C2:00.0", "power": 6})
    reader = opened(tool, clock).reader(WATCHING)
    tool.records = [{"npu": 1, "bdf": again, "power": 7}]
    clock.advance(2.0)
    assert values(reader.read(0, []))["powerWatts"] == 7


@pytest.mark.parametrize("printed", ["0", "c1", "a:b:c:d:e"])
def test_what_is_no_pci_address_costs_no_device(clock: FakeClock, printed: str) -> None:
    driver = opened(Tool(npu(0, uuid="N/A", bdf=printed), npu(1)), clock)
    assert [values(driver.reader(WATCHING).read(unit, []))["powerWatts"] for unit in (0, 1)] == [100, 101]


def test_one_that_is_no_longer_listed_is_lost_and_costs_no_other(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    reader = driver.reader(WATCHING)
    tool.records = [npu(1)]
    clock.advance(2.0)
    with pytest.raises(SourceError, match="acme-smi no longer lists NPU 0") as caught:
        reader.read(0, [])
    assert caught.value.reason == Reason.DEVICE_LOST
    assert values(reader.read(1, []))["powerWatts"] == 101
    tool.records = [npu(0), npu(1)]
    clock.advance(2.0)
    assert values(reader.read(0, []))["powerWatts"] == 100
    assert len(driver.devices) == 2


def test_one_that_is_new_is_added(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    before = driver.devices
    reader = driver.reader(WATCHING)
    clock.advance(2.0)
    reader.read(0, [])
    assert driver.devices is before
    tool.records.append(npu(2))
    clock.advance(2.0)
    reader.read(0, [])
    assert [device.uuid for device in driver.devices] == ["RBLN-0", "RBLN-1", "RBLN-2"]
    assert values(reader.read(2, []))["powerWatts"] == 102


@pytest.mark.parametrize(
    "shared",
    [{"uuid": "RBLN-X"}, {"bdf": "0000:C1:00.0"}, {"npu": 0}, {"uuid": "RBLN-X", "bdf": "0000:C1:00.0", "npu": 0}],
    ids=["uuid", "address", "number", "all"],
)
def test_devices_that_share_an_identity_are_all_there(clock: FakeClock, shared: dict[str, Any]) -> None:
    """What they share names none of them, in later polls too: where one is missing, the others stay what they are."""
    records = [npu(number, bdf=f"0000:C{number}:00.0") | shared for number in range(3)]
    for number, record in enumerate(records):
        record["power"] = 100 + number
    tool = Tool(*records)
    driver = opened(tool, clock)
    before = driver.devices
    reader = driver.reader(WATCHING)
    assert [values(reader.read(unit, []))["powerWatts"] for unit in range(3)] == [100, 101, 102]
    assert len({device.anchor for device in before}) == 3
    for part, attribute in (("uuid", "uuid"), ("bdf", "pci_bus_id")):
        assert [bool(getattr(device, attribute)) for device in before] == [part not in shared] * 3
    if len(shared) == 1:
        tool.records = [*records[1:]]
        clock.advance(2.0)
        with pytest.raises(SourceError, match="no longer lists NPU 0"):
            reader.read(0, [])
        assert [values(reader.read(unit, []))["powerWatts"] for unit in (1, 2)] == [101, 102]
    tool.records = [*records]
    clock.advance(2.0)
    assert [values(reader.read(unit, []))["powerWatts"] for unit in range(3)] == [100, 101, 102]
    assert driver.devices == before


def test_parts_of_one_card_keep_its_address(clock: FakeClock) -> None:
    """They are told apart by their ids, in whatever order they come; without ids, or without a word for the card, it is no one's."""
    parts = [npu(number, bdf=f"0000:C{number // 2}:00.0", power=100 + number) for number in range(4)]
    tool = Tool(*parts)
    tool.whole = lambda record: record["bdf"]
    driver = opened(tool, clock)
    reader = driver.reader(WATCHING)
    assert [device.pci_bus_id for device in driver.devices] == ["0000:C0:00.0"] * 2 + ["0000:C1:00.0"] * 2
    tool.records = [*parts[::-1]]
    clock.advance(2.0)
    assert [values(reader.read(unit, []))["powerWatts"] for unit in range(4)] == [100, 101, 102, 103]
    nameless = Tool(*(part | {"uuid": "N/A"} for part in parts))
    nameless.whole = tool.whole
    assert {device.pci_bus_id for device in opened(nameless, clock).devices} == {""}


def test_an_id_that_a_new_device_brings_again_costs_neither(tool: Tool, clock: FakeClock) -> None:
    """As when a card is partitioned while it is watched."""
    driver = opened(tool, clock)
    reader = driver.reader(WATCHING)
    tool.records += [npu(2, uuid="RBLN-0")]
    clock.advance(2.0)
    reader.read(0, [])
    assert [values(reader.read(unit, []))["powerWatts"] for unit in range(3)] == [100, 101, 102]


def test_a_source_beside_joins_nothing_by_what_repeats(tool: Tool, clock: FakeClock) -> None:
    info = Tool(*({"npu": 0, "uuid": f"RBLN-{number}", "limit": 250 + number} for number in (1, 0)), {"npu": 0, "limit": 999})
    reader = opened(tool, clock, also=[slow(info, LIMIT)]).reader(WATCHING)
    assert [values(reader.read(unit, []))["enforcedPowerLimitWatts"] for unit in (0, 1)] == [250, 251]


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_a_source_beside_whose_numbers_repeat_is_not_joined_by_its_order(tool: Tool, clock: FakeClock, interval: float) -> None:
    info = Tool({"npu": 0, "limit": 999}, {"npu": 0, "limit": 251}, {"npu": 0, "uuid": "RBLN-0", "limit": 250})
    reader = opened(tool, clock, also=[slow(info, LIMIT, interval)]).reader(WATCHING)
    first, second = (reader.read(unit, []) for unit in (0, 1))
    assert values(first)["enforcedPowerLimitWatts"] == 250
    reason, detail = second.unavailable["enforcedPowerLimitWatts"]
    assert (reason, detail.partition(" does ")[2]) == (Reason.NOT_SUPPORTED, "not list this device, or not with a unique identity")


def test_the_value_of_a_whole_stands_once(clock: FakeClock) -> None:
    """With its first part, and with the next one while that is not listed; what follows from it too."""
    boards = ["a", "a", "b", "a", ""]
    rows = (
        Field("powerWatts", "power", "W", of_whole=True),
        Field("enforcedPowerLimitWatts", "limit", "W", of_whole=True),
        Rate("throttle.swPowerCap", "capped", "us", rose=True, of_whole=True),
        POWER_SHARE,
        Field("temp", "temp", "C"),
    )
    tool = Tool(*(npu(number, power=80, limit=100) for number in range(5)))

    def connect() -> Any:
        return lambda: [each._replace(whole=boards[each.record["npu"]]) for each in tool()]  # type: ignore[index]

    backend = PolledBackend("acme", kind="npu", source="s", connect=connect, fields=rows, identity=IDENTITY, interval=2.0, clock=clock)
    driver = backend.open()
    reader = driver.reader(WATCHING)
    readings = [reader.read(unit, []) for unit in range(5)]
    assert [values(reading).get("powerWatts") for reading in readings] == [80, None, 80, None, 80]
    assert [values(reading).get("powerPercent") for reading in readings] == [80, None, 80, None, 80]
    assert [values(reading)["temp"] for reading in readings] == [40] * 5
    why = Unavailable(Reason.NOT_SUPPORTED, "s reports it for the whole card, and NPU 0 has it")
    assert {readings[3].unavailable[name] for name in ("powerWatts", "enforcedPowerLimitWatts", "throttle.swPowerCap")} == {why}
    tool.records.pop(0)
    clock.advance(2.0)
    assert [values(reader.read(unit, [])).get("powerWatts") for unit in range(1, 5)] == [80, 80, None, 80]


def test_an_attribute_that_is_missing_for_a_while_is_kept(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock)
    before = driver.devices
    tool.records[0] = npu(0, uuid="N/A")
    clock.advance(2.0)
    driver.reader(WATCHING).read(0, [])
    assert driver.devices is before


def test_output_that_is_cut_costs_the_devices_that_it_lacks(tool: Tool, clock: FakeClock) -> None:
    reader = opened(tool, clock).reader(WATCHING)
    tool.fail(SourceError(Reason.PARSE_ERROR, "cut after NPU 0"), npu(0))
    clock.advance(2.0)
    assert values(reader.read(0, []))["powerWatts"] == 100
    with pytest.raises(SourceError, match="cut after NPU 0") as caught:
        reader.read(1, [])
    assert caught.value.reason == Reason.PARSE_ERROR


def test_a_device_that_was_never_understood_is_told_of(tool: Tool) -> None:
    """It has no key at which its reason could stand, so the source's status has it, until all of them are listed."""
    clock = FakeClock()
    tool.fail(SourceError(Reason.PARSE_ERROR, "cut after NPU 0"), npu(0))
    with Sampler([backend_of(tool, clock)], clock=clock) as sampler:
        for _ in range(2):
            snapshot = sampler.sample()
            assert [device.key for device in snapshot.devices] == ["npu.0"]
            assert (snapshot.backends[0].status, snapshot.backends[0].detail) == ("degraded", "parse_error: cut after NPU 0")
            assert snapshot.metrics["npu.0.powerWatts"] == 100
            clock.advance(2.0)
        tool.fail(None, npu(0), npu(1))
        for _ in range(4):  # one finds the device, a later one lists it, and then it is read at the source's pace
            clock.advance(2.0)
            snapshot = sampler.sample()
    assert ([device.key for device in snapshot.devices], snapshot.backends[0].status) == (["npu.0", "npu.1"], "ok")


# Several sources


def slow(tool: Tool, fields: tuple[Field, ...], interval: float = 60.0) -> Source:
    return Source("acme-info", tool.connect, fields, interval, identity=IDENTITY)


LIMIT = (Field("enforcedPowerLimitWatts", "limit", "W"),)


def test_a_second_source_has_its_own_pace_and_fields(tool: Tool, clock: FakeClock) -> None:
    info = Tool({"npu": 1, "uuid": "RBLN-1", "limit": 300, "name": "CA22"}, {"npu": 0, "limit": 250}, {"npu": 9, "limit": 1})
    driver = opened(tool, clock, also=[slow(info, LIMIT)])
    reader = driver.reader(WATCHING)
    for _ in range(5):
        assert [values(reader.read(unit, [])) for unit in (0, 1)] == [
            {"powerWatts": 100, "temp": 40, "enforcedPowerLimitWatts": 250},
            {"powerWatts": 101, "temp": 40, "enforcedPowerLimitWatts": 300},
        ]
        clock.advance(2.0)
    assert (tool.polls, info.polls) == (5, 1)
    assert (len(driver.devices), driver.devices[1].name, driver.source) == (2, "CA22", "acme-smi")
    clock.advance(60.0)
    reader.read(0, [])
    assert info.polls == 2


def test_a_source_that_fails_costs_its_fields_alone(tool: Tool, clock: FakeClock) -> None:
    info = Tool()
    info.fail(SourceError(Reason.TIMED_OUT, "static hangs"))
    driver = opened(tool, clock, also=[slow(info, LIMIT)])
    reading = driver.reader(WATCHING).read(0, [])
    assert values(reading) == {"powerWatts": 100, "temp": 40}
    assert dict(reading.unavailable) == {"enforcedPowerLimitWatts": Unavailable(Reason.TIMED_OUT, "static hangs")}
    assert driver.source == "acme-smi"
    info.fail(None, npu(0, limit=250))
    clock.advance(60.0)
    assert values(driver.reader(WATCHING).read(0, []))["enforcedPowerLimitWatts"] == 250


def test_sources_that_both_list_devices_stand_in_for_each_other(tool: Tool, clock: FakeClock) -> None:
    """The first that has a metric gives it; while one fails, the other's devices are still read."""
    other = Tool(npu(0, power="1 W", temp="N/A"), npu(1, power="2 W", fan=7))
    also = Source("acme-stat", other.connect, (*FIELDS, Field("fanSpeed", "fan", "%")), identity=IDENTITY)
    reader = opened(tool, clock, also=[also]).reader(WATCHING)
    assert values(reader.read(1, [])) == {"powerWatts": 101, "temp": 40, "fanSpeed": 7}
    tool.fail(RuntimeError("boom"))
    clock.advance(2.0)
    reading = reader.read(0, [])
    assert values(reading) == {"powerWatts": 1}
    assert {name: why.reason for name, why in reading.unavailable.items()} == {
        "temp": Reason.DRIVER_ERROR,
        "fanSpeed": Reason.NOT_SUPPORTED,
    }


def test_one_source_of_several_is_opened_again_by_itself(tool: Tool, clock: FakeClock) -> None:
    info = Tool(npu(0, limit=250))
    reader = opened(tool, clock, also=[slow(info, LIMIT, 2.0)]).reader(WATCHING)
    info.fail(RuntimeError("boom"))
    for _ in range(4):
        clock.advance(2.0)
        reader.read(0, [])
    assert (info.connects, info.closes, info.polls) == (1, 1, 4)
    info.fail(None, npu(0, limit=250))
    clock.advance(RETRY)
    assert values(reader.read(0, []))["enforcedPowerLimitWatts"] == 250
    assert (info.connects, tool.connects) == (2, 1)


def test_a_metric_that_no_source_has_is_missing_for_the_reason_that_says_most(tool: Tool, clock: FakeClock) -> None:
    other = Tool()
    also = Source("acme-stat", other.connect, FIELDS, identity=IDENTITY)
    driver = opened(tool, clock, also=[also])
    reader = driver.reader(WATCHING)
    tool.records = [npu(0, temp="N/A"), npu(1)]
    other.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "acme-stat is not installed"))
    clock.advance(2.0)
    assert reader.read(0, []).unavailable["temp"] == (Reason.NOT_SUPPORTED, "N/A; acme-stat is not installed")
    other.fail(SourceError(Reason.TIMED_OUT, "acme-stat hangs"))
    clock.advance(2.0)
    assert reader.read(0, []).unavailable["temp"] == (Reason.TIMED_OUT, "N/A; acme-stat hangs")


def test_a_metric_stays_with_its_source_while_that_answers(tool: Tool, clock: FakeClock) -> None:
    """For every consumer, until the driver is opened again."""
    other = Tool(npu(0, temp="70C"))
    tool.records = [npu(0)]
    driver = opened(tool, clock, also=[Source("acme-stat", other.connect, FIELDS, identity=IDENTITY)])
    assert values(driver.reader(WATCHING).read(0, []))["temp"] == 40
    tool.records = [npu(0, temp="N/A")]
    clock.advance(2.0)
    assert driver.reader(WATCHING).read(0, []).unavailable["temp"] == (Reason.NOT_SUPPORTED, "N/A")
    again = opened(tool, clock, also=[Source("acme-stat", other.connect, FIELDS, identity=IDENTITY)]).reader(WATCHING)
    assert values(again.read(0, []))["temp"] == 70
    tool.records = [npu(0)]
    clock.advance(2.0)
    assert values(again.read(0, []))["temp"] == 70


def test_where_every_source_fails_each_is_told(tool: Tool, clock: FakeClock) -> None:
    other = Tool()
    other.fail(SourceError(Reason.NO_PERMISSION, "acme-stat is for root", advice="be root"))
    also = Source("acme-stat", other.connect, FIELDS, identity=IDENTITY)
    reader = opened(tool, clock, also=[also]).reader(WATCHING)
    tool.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "acme-smi has gone"))
    clock.advance(2.0)
    with pytest.raises(SourceError, match=r"^acme-smi has gone; acme-stat is for root$") as caught:
        reader.read(0, [])
    assert (caught.value.reason, caught.value.advice) == (Reason.NO_PERMISSION, "be root")
    with pytest.raises(SourceError, match=r"^acme-smi has gone; acme-stat is for root$"):
        opened(tool, clock, also=[also])


def test_sources_that_disagree_about_numbers_add_no_devices(tool: Tool, clock: FakeClock) -> None:
    """One still says the numbers from before the driver was loaded again; a third one knows numbers alone."""
    second, third = Tool(npu(0), npu(1)), Tool({"npu": 0, "temp": "50C"}, {"npu": 1, "temp": "51C"})
    also = [
        Source("second", second.connect, (), identity=IDENTITY),
        Source("third", third.connect, FIELDS[1:], identity={"vendor_index": "npu"}),
    ]
    driver = opened(tool, clock, also=also, fields=FIELDS[:1])
    reader = driver.reader(ReadOptions(1))
    second.records = [npu(0, uuid="RBLN-1"), npu(1, uuid="RBLN-0")]
    for _ in range(3):
        clock.advance(2.0)
        assert (values(reader.read(0, []))["temp"], values(reader.read(1, []))["temp"]) == (50, 51)
    assert len(driver.devices) == 2


def test_a_source_that_stands_in_is_asked_while_the_other_gives_no_device(tool: Tool, clock: FakeClock) -> None:
    other = Tool(npu(0, power="1 W"), npu(1, power="2 W"))
    also = Source("acme-stat", other.connect, FIELDS, identity=IDENTITY, instead_of="acme-smi")
    driver = opened(tool, clock, also=[also])
    reader = driver.reader(WATCHING)
    assert (values(reader.read(0, []))["powerWatts"], driver.source, other.connects) == (100, "acme-smi", 0)
    tool.fail(RuntimeError("boom"))
    clock.advance(2.0)
    assert (values(reader.read(0, []))["powerWatts"], driver.source, other.connects) == (1, "acme-stat", 1)
    tool.fail(None, npu(0), npu(1))
    for _ in range(2):
        clock.advance(2.0)
        assert values(reader.read(0, []))["powerWatts"] == 100
    assert (driver.source, other.polls) == ("acme-smi", 1)


def test_sources_are_all_opened_before_the_first_is_asked(clock: FakeClock) -> None:
    """So that a stream gets ready while the others start."""
    told: list[str] = []

    def source(name: str) -> Any:
        def poll() -> Iterable[DeviceSample]:
            told.append(f"ask {name}")
            return [DeviceSample(npu(0))]

        def connect() -> Any:
            told.append(f"open {name}")
            return poll

        return connect

    also = Source("info", source("info"), FIELDS)
    PolledBackend("acme", kind="npu", source="smi", connect=source("smi"), fields=FIELDS, also=[also], clock=clock).open()
    assert told == ["open smi", "open info", "ask smi", "ask info"]


def test_what_opens_itself_again_is_left_to_that(tool: Tool, clock: FakeClock) -> None:
    tool.reopens = True
    reader = opened(tool, clock).reader(WATCHING)
    tool.fail(RuntimeError("boom"))
    for _ in range(5):
        clock.advance(2.0)
        with pytest.raises(SourceError) as caught:
            reader.read(0, [])
        assert type(caught.value) is SourceError
    assert tool.closes == 0


def test_each_part_of_an_identity_is_from_the_first_source_that_tells_it(tool: Tool, clock: FakeClock) -> None:
    tool.records = [npu(0, name="CA22")]
    also = Source("acme-stat", Tool(npu(5, name="other", bdf="0000:C1:00.0") | {"uuid": "RBLN-0"}).connect, FIELDS, identity=IDENTITY)
    driver = opened(tool, clock, also=[also])
    reader = driver.reader(WATCHING)
    for name in ("CA22", "CA25"):
        tool.records = [npu(0, name=name)]
        clock.advance(2.0)
        reader.read(0, [])
        (device,) = driver.devices
        assert (device.name, device.vendor_index, device.pci_bus_id) == (name, 0, "0000:C1:00.0")


# Processes


def test_values_that_are_counted_by_program_are_those_of_the_consumer(tool: Tool, clock: FakeClock) -> None:
    power = {777: 5, 4242: 7}

    def of_consumer(options: ReadOptions, watches: Callable[[int], bool]) -> dict[str, object]:
        return {"power": sum(watts for pid, watts in power.items() if watches(pid) or not options.watched)}

    def connect() -> Any:
        return lambda: [DeviceSample(npu(3), tuple(map(DeviceProcess, power)), scoped=of_consumer)]

    backend = PolledBackend("acme", kind="npu", source="acme-smi", connect=connect, fields=FIELDS, identity=IDENTITY, clock=clock)
    driver = backend.open()
    assert driver.devices[0].vendor_index == 3
    read = {options: driver.reader(options).read(0, []) for options in (WATCHING, ReadOptions(777, watched=True))}
    assert [values(reading) for reading in read.values()] == [{"powerWatts": 12}, {"powerWatts": 5}]
    assert {values(reading, process=True) == {} for reading in read.values()} == {True}, "nothing is given of processes unless said"


def test_the_watched_process_is_told_of_apart(tool: Tool, clock: FakeClock) -> None:
    fields = (*FIELDS, Field("memoryTotalBytes", "total", "B"), Field("memoryAllocatedBytes", "used", "B"), *MEMORY)
    tool.records = [npu(0, total=1000, used=600), npu(1)]
    tool.processes = {0: (DeviceProcess(777, "compute", 250), DeviceProcess(4242, "compute", 350)), 1: ()}
    backend = backend_of(tool, clock, fields=fields, processes='acme-smi "contexts"')
    reader = backend.open().reader(ReadOptions(777, watched=True))
    reading = reader.read(0, [])
    assert values(reading, process=True) == {"memoryAllocatedBytes": 250, "memoryAllocated": 25.0, "temp": 40, "powerWatts": 100}
    assert reading.processes == tool.processes[0]
    assert values(reader.read(1, []), process=True) == {}
    assert values(reader.read(1, []))["powerWatts"] == 101
    assert backend.coverage().processes["memoryAllocatedBytes"] == 'acme-smi "contexts"'


def test_a_device_of_one_program_is_not_in_use_by_another(tool: Tool, clock: FakeClock) -> None:
    tool.processes = {0: (DeviceProcess(777),), 1: ()}
    driver = opened(tool, clock, exclusive=True)
    named, anyone = driver.reader(ReadOptions(777, watched=True)), driver.reader(ReadOptions(777))
    assert values(named.read(0, [])) == {"powerWatts": 100, "temp": 40}
    assert values(anyone.read(1, [])) == {"powerWatts": 101, "temp": 40}
    reading = named.read(1, [])
    assert dict(reading.unavailable) == dict.fromkeys(
        ("powerWatts", "temp"), Unavailable(Reason.NOT_IN_USE, "the watched process 777 does not use this NPU")
    )


# Rates, the machine, coverage


def test_rates_belong_to_the_consumer(tool: Tool, clock: FakeClock) -> None:
    driver = opened(tool, clock, fields=(Rate("powerWatts", "energy", "J"),))
    first, second = driver.reader(WATCHING), driver.reader(WATCHING)
    given: list[list[Any]] = [[], []]
    for second_too in (True, False, False, True):
        tool.records = [npu(0, energy=100 * tool.polls)]
        clock.advance(2.0)
        for reader, told in zip((first, second), given, strict=True):
            if reader is first or second_too:
                told.append(values(reader.read(0, [])).get("powerWatts"))
    assert given == [[None, 50, 50, 50], [None, 50]]


def test_a_stream_s_time_is_its_own(clock: FakeClock) -> None:
    def connect() -> Any:
        return lambda: [DeviceSample(npu(0), read_at=1.5)]

    backend = PolledBackend("acme", kind="npu", source="acme-stream", connect=connect, fields=FIELDS, clock=clock)
    assert backend.open().reader(WATCHING).read(0, []).read_at == 1.5


def test_what_belongs_to_no_device(tool: Tool, clock: FakeClock) -> None:
    machine = DeviceSample({"watts": "5 W"}, machine=True)

    def connect() -> Any:
        return lambda: [machine, *tool()]

    backend = PolledBackend(
        "acme",
        kind="npu",
        source="acme-smi",
        connect=connect,
        fields=FIELDS,
        identity=IDENTITY,
        machine=(Field("cpu.powerWatts", "watts", "W"),),
        clock=clock,
    )
    assert dict(backend.coverage().machine) == {"cpu.powerWatts": 'acme-smi "watts"'}
    driver = backend.open()
    assert (driver.machine_wide, driver.interval) == (True, 0.0)
    reader = driver.reader(WATCHING)
    assert (values(reader.read(2, [])), values(reader.read(1, []))) == ({"cpu.powerWatts": 5}, {"powerWatts": 101, "temp": 40})
    tool.records.append(npu(2))
    clock.advance(2.0)
    with pytest.raises(DriverGoneError, match="lists a new device"):
        reader.read(0, [])


def test_a_record_that_reads_is_asked_when_the_device_is_read(clock: FakeClock) -> None:
    """As a directory of files does: one device that cannot be read costs no other."""

    class Files(DeviceRecord):
        """Counts how often it is asked."""

        asked = 0

        def get(self, place: str) -> object:
            self.asked += place == "power"
            return super().get(place)

    def asleep(progress: list[Any]) -> None:
        raise SourceError(Reason.SUSPENDED, "it sleeps")

    one, other = Files(npu(0)), Files(npu(1))

    def connect() -> Any:
        return lambda: [DeviceSample(one, begin=lambda progress: None), DeviceSample(other, begin=asleep)]

    backend = PolledBackend("acme", kind="npu", source="sysfs", connect=connect, fields=FIELDS, identity=IDENTITY, clock=clock)
    reader = backend.open().reader(WATCHING)
    clock.advance(0.05)
    reading = reader.read(0, [])
    assert (values(reading)["powerWatts"], reading.read_at) == (100, 1000.05)
    reader.read(0, [])
    assert one.asked == 2
    with pytest.raises(SourceError, match="it sleeps"):
        reader.read(1, [])
    assert other.asked == 0


def test_coverage_lists_every_name_once(tool: Tool, clock: FakeClock) -> None:
    also = [slow(Tool(), (*LIMIT, Field("temp", "t", "C", words="acme-info --slow")))]
    coverage = backend_of(tool, clock, also=also).coverage()
    assert dict(coverage.devices) == {
        "powerWatts": 'acme-smi "power"',
        "temp": 'acme-smi "temp"; else acme-info --slow',
        "enforcedPowerLimitWatts": 'acme-info "limit"',
    }
    assert (coverage.partitions, coverage.machine, coverage.processes, coverage.optional) == ({}, {}, {}, {})


def test_a_sampler_reads_it_like_any_other(tool: Tool) -> None:
    backend = PolledBackend("acme", kind="npu", source="acme-smi", connect=tool.connect, fields=FIELDS, identity=IDENTITY)
    tool.records[1] = npu(1, temp="N/A")
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics == {"npu.0.powerWatts": 100, "npu.0.temp": 40, "npu.1.powerWatts": 101}
    assert snapshot.unavailable["npu.1.temp"] == (Reason.NOT_SUPPORTED, "N/A")
    assert (snapshot.backends[0].status, snapshot.backends[0].source) == ("ok", "acme-smi")


@pytest.mark.parametrize("machine", [(), (Field("trn.neuron_runtime_count", "programs"),)], ids=["devices", "and the machine"])
def test_more_devices_than_can_be_are_refused(clock: FakeClock, machine: Sequence[Field]) -> None:
    """As many as can be are listed; of one more, none is."""
    tool = Tool(*({"npu": number} for number in range(1024)))
    assert len(opened(tool, clock, identity={"vendor_index": "npu"}, machine=machine).devices) == 1024
    tool.records += [{"npu": 1024}, {"npu": 1025}]
    with pytest.raises(SourceError, match="acme-smi lists more than 1024 devices") as raised:
        opened(tool, clock, identity={"vendor_index": "npu"}, machine=machine)
    assert raised.value.reason == Reason.INVALID_VALUE


@pytest.mark.parametrize("printed", ["0", "0x0000000000000000", "000000", 0])
def test_zeros_are_no_serial_number_and_no_id(clock: FakeClock, printed: object) -> None:
    tool = Tool({"npu": 0, "uuid": printed, "sid": "RBLN-7", "serial": printed})
    (device,) = opened(tool, clock, identity={**IDENTITY, "serial": "serial"}).devices
    assert (device.uuid, device.serial) == ("RBLN-7", "")
