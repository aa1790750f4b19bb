"""PCIe throughput of GPUs that have neither GPM nor byte counters: measured beside the readings."""

from __future__ import annotations

import os

import pytest

from accelmetrics.backends.nvidia import threads
from accelmetrics.backends.nvidia.metrics import PCIE_RATES
from tests.backends.nvidia.machine import MEASURING, Consume, Seen, Simulate, run_program
from tests.simulators.nvml import NvmlSimulator, Ret
from tests.support.threads import own_threads
from tests.support.waiting import wait_for

THREAD = "accelmetrics-nvidia-pcie"


@pytest.fixture
def machine(simulate: Simulate) -> NvmlSimulator:
    """Three A100s."""
    made = simulate(gpus=3, profile="a100")
    for gpu in made.gpu:
        gpu.set(pcie_tx_kbps=1000 + gpu.index, pcie_rx_kbps=2000 + gpu.index)
    return made


def measured() -> None:
    """Wait until no measurement is in progress."""
    wait_for(lambda: not own_threads(THREAD))


def rates(seen: Seen) -> list[object]:
    """Both rates, or the reasons why they are missing."""
    return [seen.metrics[name] if name in seen.metrics else seen.reason(name) for name in PCIE_RATES]


def test_the_value_is_wandbs(machine: NvmlSimulator, consume: Consume) -> None:
    """KB/s × 1024, of each GPU its own, at the reading after the one that began to measure."""
    consumer = consume()
    for unit in range(3):
        assert rates(consumer.read(unit)) == ["needs_interval"] * 2
    measured()
    for unit in range(3):
        assert rates(consumer.later(0.1, unit)) == [(1000 + unit) * 1024, (2000 + unit) * 1024]


def test_a_reading_does_not_wait(machine: NvmlSimulator, consume: Consume) -> None:
    """A reading is over while the driver is still measuring, and gives everything else."""
    machine.rule(MEASURING, hang=True)
    consumer = consume()
    seen = consumer.read(0)
    machine.wait_for(MEASURING, 0)
    assert rates(consumer.later(0.1)) == ["needs_interval"] * 2
    assert seen.metrics["temp"] == machine.gpu[0].get("temperature")
    machine.clear_rules()


@pytest.mark.parametrize(("metrics", "seconds"), [("all", 10), ("pcieTxBytes", 1), ("temp,gpu.0.pcieRxBytes", 1), ("pcie*", 1)])
def test_its_pace(machine: NvmlSimulator, consume: Consume, metrics: str, seconds: int) -> None:
    """Every ten seconds, and each second where it is asked for by name."""
    consumer = consume(metrics=metrics)
    for _ in range(20):
        consumer.given(1.0)
        measured()
    assert machine.count(MEASURING) == 2 * 20 / seconds


def test_a_consumer_that_names_it_makes_it_faster_for_all(machine: NvmlSimulator, consume: Consume) -> None:
    """The faster pace holds from then on, and what is read for the others goes on."""
    consumer = consume()
    consumer.read(0)
    measured()
    other = consumer.another(metrics="pcieTxBytes")
    for _ in range(5):
        other.given(1.0)
        measured()
    assert machine.count(MEASURING) == 2 * 6
    assert rates(consumer.read(0)) == [1000 * 1024, 2000 * 1024]


@pytest.mark.parametrize(
    ("profile", "metrics"), [("h100", "all"), ("b200", "all"), ("gb10", "all"), ("a100", "standard"), ("t4", "core,processes")]
)
def test_where_it_is_not_called(simulate: Simulate, consume: Consume, profile: str, metrics: str) -> None:
    """Neither where there is GPM or a counter, nor where the rates are not wanted: there is no thread then."""
    simulator = simulate(gpus=1, profile=profile)
    consumer = consume(metrics=metrics)
    for _ in range(3):
        consumer.given(11.0)
    assert simulator.count(MEASURING) == 0
    assert not simulator.stubs_called()
    assert not own_threads(THREAD)


def test_old_values_are_not_served(machine: NvmlSimulator, consume: Consume) -> None:
    """After a minute without a reading the last value is stale, and the reading after that has a new one."""
    consumer = consume()
    consumer.read(0)
    measured()
    assert rates(consumer.later(0.1)) == [1000 * 1024, 2000 * 1024]
    machine.gpu[0].set(pcie_tx_kbps=7)
    assert rates(consumer.later(60.0)) == ["stale"] * 2
    measured()
    assert rates(consumer.later(0.1)) == [7 * 1024, 2000 * 1024]


def test_a_call_that_hangs_costs_these_values_of_one_gpu(machine: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed out there until the call returns, and it is not called a second time; other GPUs are measured."""
    monkeypatch.setattr(threads, "PATIENCE", 0.01)
    machine.rule(MEASURING, 1, hang=True)
    consumer = consume()
    consumer.read(1)
    machine.wait_for(MEASURING, 1)
    for unit in (0, 2):
        consumer.read(unit)
    wait_for(lambda: len(own_threads(THREAD)) == 1)
    for unit in (0, 2):
        assert rates(consumer.later(0.1, unit)) == [(1000 + unit) * 1024, (2000 + unit) * 1024]
    for _ in range(3):
        seen = consumer.later(10.0, 1)
        assert rates(seen) == ["timed_out"] * 2
        assert seen.metrics.keys() >= {"temp", "powerWatts", "gpu"}
    assert machine.calls()[MEASURING, 1] == 1
    machine.clear_rules()
    measured()
    consumer.later(10.0, 1)
    measured()
    assert rates(consumer.later(0.1, 1)) == [1001 * 1024, 2001 * 1024]


@pytest.mark.parametrize(
    ("answer", "reason", "calls"),
    [(Ret.NOT_SUPPORTED, "not_supported", 2), (Ret.NO_PERMISSION, "no_permission", 6), (2**32 - 1, "invalid_value", 6)],
    ids=["unsupported", "forbidden", "nonsense"],
)
def test_a_call_that_fails(machine: NvmlSimulator, consume: Consume, answer: Ret | int, reason: str, calls: int) -> None:
    """The driver's reason; what is not supported is not asked for again."""
    machine.gpu[0].set(pcie_tx_kbps=answer, pcie_rx_kbps=answer)
    consumer = consume()
    for _ in range(3):
        consumer.later(10.0)
        measured()
    assert rates(consumer.later(0.1)) == [reason] * 2
    assert machine.count(MEASURING) == calls


def test_nothing_is_left_after_closing(machine: NvmlSimulator, consume: Consume) -> None:
    """Closing waits for a measurement in progress; a reading after it begins none."""
    consumer = consume()
    consumer.read(0)
    consumer.driver.close()
    assert not own_threads(THREAD)
    assert machine.count("nvmlShutdown") == 1


def test_closing_while_a_call_hangs(machine: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library stays open for the call that uses it."""
    monkeypatch.setattr(threads, "PATIENCE", 0.01)
    machine.rule(MEASURING, hang=True)
    consumer = consume()
    consumer.read(0)
    machine.wait_for(MEASURING, 0)
    consumer.driver.close()
    assert machine.count("nvmlShutdown") == 0
    machine.clear_rules()
    measured()


def test_exit_does_not_wait_for_a_call_that_hangs(machine: NvmlSimulator) -> None:
    """The interpreter ends with the thread in the driver."""
    machine.rule(MEASURING, hang=True)
    program = """
    import accelmetrics
    print(accelmetrics.sample(["nvidia"]).metrics["gpu.1.temp"])
    """
    assert run_program(machine, program) == (0, "42\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")
def test_children_of_a_fork_measure_for_themselves(machine: NvmlSimulator) -> None:
    """No fork meets a thread inside the driver: each child opens the driver anew and measures."""
    status, output = run_program(
        machine,
        """
        import os, accelmetrics
        from accelmetrics.backends.nvidia import nvml
        def measured():
            while "gpu.0.pcieTxBytes" not in (metrics := accelmetrics.sample(["nvidia"], metrics="pcieTxBytes").metrics):
                pass
            return metrics["gpu.0.pcieTxBytes"]
        for _ in range(5):
            assert measured() == 1000 * 1024
            pid = os.fork()
            if pid == 0:
                os._exit(0 if measured() == 1000 * 1024 and not nvml._held else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print("done")
        """,
    )
    assert (status, output) == (0, "done\n")
