"""A plug-in that breaks the contract loses its own values alone, and is told how it breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.backends.contract import Block, Reading
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeDevice, FakeDriver

GOOD = Reading.of({"temp": 1})


class Panic(BaseException):
    """What an extension written in Rust throws."""


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture
def neighbour() -> FakeBackend:
    backend = FakeBackend("neighbour", "tpu", devices=1)
    backend.device(0).set(dutyCycle=5)
    return backend


def sample_beside(neighbour: FakeBackend, broken: FakeBackend) -> Snapshot:
    """Two samples, of which the neighbour's part must be whole."""
    with Sampler([broken, neighbour], timeout=0.5, open_timeout=1.0) as sampler:
        sampler.sample()
        snapshot = sampler.sample()
    assert snapshot.metrics["tpu.0.dutyCycle"] == 5
    assert snapshot.backends[-1].status == "ok"
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    return snapshot


def giving(read: Callable[[FakeDevice, list[Any]], Any]) -> FakeBackend:
    """A backend whose second device gives what a function says."""
    backend = FakeBackend(devices=2)
    backend.device(0).set(temp=1)

    class Odd(FakeDevice):
        def read(self, steps: list[Any]) -> Reading:
            return read(self, steps)  # type: ignore[no-any-return]

    odd = Odd(backend.device(1).identity)
    backend._devices[1] = odd
    return backend


def raising(error: BaseException) -> Callable[[FakeDevice, list[Any]], Any]:
    def read(device: FakeDevice, steps: list[Any]) -> Any:
        raise error

    return read


def with_parts(**parts: Any) -> Reading:
    reading = Reading.of({"temp": 1})
    for name, value in parts.items():
        setattr(reading, name, value)
    return reading


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "which is no Reading"),
        ("text", "which is no Reading"),
        ({"temp": 1}, "which is no Reading"),
        (with_parts(blocks=None), "blocks is None"),
        (with_parts(blocks=[{"temp": 1}]), "not a list of blocks"),
        (with_parts(unavailable=None), "unavailable is None"),
        (with_parts(unavailable={"fanSpeed": "no fan"}), "not a name and an Unavailable"),
        (with_parts(read_at="now"), "could not convert string to float"),
        (with_parts(blocks=[Block((1, 2), (3, 4))]), "not a tuple of strings"),  # type: ignore[arg-type]
        (with_parts(blocks=[Block(("temp",), None)]), "a block's values are None"),  # type: ignore[arg-type]
    ],
)
def test_a_reading_of_the_wrong_form_is_named(neighbour: FakeBackend, given: Any, words: str) -> None:
    snapshot = sample_beside(neighbour, giving(lambda device, steps: given))
    assert snapshot.metrics["gpu.0.temp"] == 1
    assert "gpu.1.temp" not in snapshot.metrics
    said = [why.detail for key, why in snapshot.unavailable.items() if key.startswith("gpu.1.")] + [snapshot.backends[0].detail]
    assert any(words in detail for detail in said) or snapshot.backends[0].status == "ok"


@pytest.mark.parametrize("read_at", [math.inf, -math.inf, math.nan, 1e300, -1e300])
def test_a_moment_that_no_clock_has_costs_no_reading(neighbour: FakeBackend, read_at: float) -> None:
    snapshot = sample_beside(neighbour, giving(lambda device, steps: with_parts(read_at=read_at)))
    assert snapshot.metrics["gpu.1.temp"] == 1
    age = snapshot.backends[0].age_seconds
    assert age is not None and 0 <= age < math.inf


@pytest.mark.parametrize("error", [Panic("rust"), MuteError(), GeneratorExit(), KeyboardInterrupt()])
def test_whatever_is_thrown_is_caught(neighbour: FakeBackend, error: BaseException) -> None:
    snapshot = sample_beside(neighbour, giving(raising(error)))
    assert snapshot.metrics["gpu.0.temp"] == 1
    assert type(error).__name__ in snapshot.backends[0].detail


@pytest.mark.parametrize("kind", [RuntimeError, PermissionError, SourceError])
def test_what_is_thrown_is_quoted_at_a_sensible_length(neighbour: FakeBackend, kind: Callable[..., Exception]) -> None:
    """Each metric that is missing for it carries its words."""
    error = SourceError(Reason.DRIVER_ERROR, "w" * 5_000_000) if kind is SourceError else kind("w" * 5_000_000)
    snapshot = sample_beside(neighbour, giving(raising(error)))
    assert 0 < len(snapshot.backends[0].detail) < 3000
    assert all(len(why.detail) < 2000 for why in snapshot.unavailable.values())


@pytest.mark.parametrize("value", [True, Decimal("1.5"), 1 + 2j, [1], "1", pytest.param(10**5000, id="a large number")])
def test_what_is_not_exactly_a_number_is_refused(neighbour: FakeBackend, value: Any) -> None:
    snapshot = sample_beside(neighbour, giving(lambda device, steps: Reading.of({"temp": 40, "memory": value})))
    assert snapshot.metrics["gpu.1.temp"] == 40
    assert snapshot.unavailable["gpu.1.memory"].reason == Reason.INVALID_VALUE


def test_too_few_values_are_refused_where_they_are_missing(neighbour: FakeBackend) -> None:
    snapshot = sample_beside(neighbour, giving(lambda device, steps: Reading([Block(("temp", "memory"), (40,))])))
    assert snapshot.metrics["gpu.1.temp"] == 40
    assert snapshot.unavailable["gpu.1.memory"].reason == Reason.INVALID_VALUE


def test_more_values_than_names_cost_no_value(neighbour: FakeBackend) -> None:
    snapshot = sample_beside(neighbour, giving(lambda device, steps: Reading([Block(("temp",), (40, 50)), Block(("memory",), (3,))])))
    assert (snapshot.metrics["gpu.1.temp"], snapshot.metrics["gpu.1.memory"]) == (40, 3)


def test_a_key_with_a_value_and_a_reason_has_the_value(neighbour: FakeBackend) -> None:
    from accelmetrics import Unavailable

    snapshot = sample_beside(neighbour, giving(lambda device, steps: Reading.of({"temp": 1}, {"temp": Unavailable("not_supported")})))
    assert snapshot.metrics["gpu.1.temp"] == 1
    assert "gpu.1.temp" not in snapshot.unavailable


@pytest.mark.parametrize("found", [None, "yes", ("yes",), (True, "evidence")])
def test_a_detection_of_the_wrong_form_is_named(neighbour: FakeBackend, found: Any) -> None:
    broken = FakeBackend(devices=1)
    broken.detection = found
    broken.device(0).set(temp=1)
    snapshot = sample_beside(neighbour, broken)
    assert snapshot.metrics["gpu.0.temp"] == 1
    assert "which is no Detection" in snapshot.backends[0].detail


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (lambda backend: None, "which is no driver"),
        (lambda backend: object(), "it lacks source, machine_wide, devices, reader, close"),
        (lambda backend: _listing(backend, ["gpu0"]), "which is no DeviceIdentity"),
        (lambda backend: _listing(backend, 3), "which is no DeviceIdentity"),
        (lambda backend: _listing(backend, [DeviceIdentity("My NPU", "acme", 0)]), "a device of the kind 'My NPU'"),
        (lambda backend: _listing(backend, [DeviceIdentity("cpu", "acme", 0)]), "a device of the kind 'cpu'"),
    ],
)
def test_a_driver_of_the_wrong_form_does_not_open(neighbour: FakeBackend, opened: Callable[[FakeBackend], Any], words: str) -> None:
    broken = FakeBackend(devices=1)
    broken.open = lambda: opened(broken)  # type: ignore[method-assign]
    snapshot = sample_beside(neighbour, broken)
    assert snapshot.backends[0].status == "failed"
    assert words in snapshot.backends[0].detail


def _listing(backend: FakeBackend, devices: Any) -> Any:
    driver = FakeDriver(backend)

    class Odd(FakeDriver):
        @property
        def devices(self) -> Any:
            return devices

    driver.__class__ = Odd
    return driver


@pytest.mark.parametrize("rows", [["power"], None])
def test_rows_of_the_wrong_form_do_not_open(neighbour: FakeBackend, rows: Any) -> None:
    broken = FakeBackend(devices=1)
    broken.metrics = rows
    assert sample_beside(neighbour, broken).backends[0].status == "failed"


def test_a_reader_that_cannot_be_made_costs_its_consumer_only(neighbour: FakeBackend) -> None:
    broken = FakeBackend(devices=1)
    broken.device(0).set(temp=1)

    class Picky(FakeDriver):
        def reader(self, options: Any) -> Any:
            if options.children:
                raise ValueError("no children here")
            return super().reader(options)

    broken.open = lambda: Picky(broken)  # type: ignore[method-assign]
    with Sampler([broken]) as plain, Sampler([broken], children=True) as refused:
        assert plain.sample().metrics == {"gpu.0.temp": 1}
        snapshot = refused.sample()
        assert "no children here" in snapshot.backends[0].detail
        assert plain.sample().metrics == {"gpu.0.temp": 1}


def test_an_interrupted_write_is_not_taken_for_a_whole_one(neighbour: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelmetrics.sampling.snapshot_builder import KeyMapper

    gpus = FakeBackend(devices=3)
    for device in gpus.all_devices():
        device.set(temp=1)
    with Sampler([gpus]) as sampler:
        real = KeyMapper.put

        def interrupted(mapper: KeyMapper, *rest: Any) -> Any:
            if mapper.key == "gpu.1":
                raise KeyboardInterrupt
            return real(mapper, *rest)

        monkeypatch.setattr(KeyMapper, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sampler.sample()
        monkeypatch.undo()
        assert len(sampler.sample().metrics) == 3
