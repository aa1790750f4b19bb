"""Each rule about devices: what provokes it, when it is over, and what it must stay silent about."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.record import Holder, Holders
from tests.monitor.judged_run import GIB, HEALTHY, JudgedRun

MINUTE, HOUR = 60.0, 3600.0


def test_healthy_devices_give_no_finding_and_every_rule_about_them_can_judge() -> None:
    """Also from the first reading on."""
    with JudgedRun() as run:
        run.go(2 * HOUR)
        assert run.begun == []
        assert [lack for lack in run.findings.cannot_tell if lack.reason != "not_logged"] == []


@pytest.mark.parametrize(
    ("rule", "metric", "beyond", "after", "between", "calm", "over"),
    [
        ("hot", "temp", 81, 5 * MINUTE, 79, 70, 2 * MINUTE),
        ("overheating", "temp", 86, MINUTE, 84, 70, 2 * MINUTE),
        ("near_slowdown", "tempLimit.slowdown", 68, 2 * MINUTE, 70, 89, 2 * MINUTE),
        ("near_slowdown", "tempMargin", 4, 2 * MINUTE, 6, 25, 2 * MINUTE),
        ("memory_full", "memoryAllocated", 91.0, 10 * MINUTE, 88.0, 57.0, MINUTE),
        ("sram_threshold", "sramThresholdExceeded", 1, 0.0, 1, 0, 0.0),
        ("remap_pending", "rowRemapPending", 1, 0.0, 1, 0, 0.0),
        ("remap_failed", "rowRemapFailure", 1, 0.0, 1, 0, 0.0),
    ],
)
def test_a_limit_holds_for_its_time_and_ends_below_a_second_one(
    rule: str, metric: str, beyond: float, after: float, between: float, calm: float, over: float
) -> None:
    """Just short of the time there is nothing; between both limits it lasts."""
    with JudgedRun([rule]) as run:
        run.go(MINUTE)
        run.gpu(2).set(**{metric: beyond})
        if after:
            run.go(after)
            assert run.names() == []
        run.go(run.interval)
        assert run.names() == [(rule, "gpu.2")]
        (finding,) = run.findings.current
        assert finding.until_ns is None
        assert run.clock.time_ns() - finding.since_ns == pytest.approx(after * 1e9, abs=1000)
        assert finding.message
        assert finding.advice
        run.gpu(2).set(**{metric: between})
        run.go(HOUR)
        assert run.names() == [(rule, "gpu.2")]
        began = run.clock.time_ns()
        run.gpu(2).set(**{metric: calm})
        run.go(over + run.interval)
        assert run.names() == []
        (ended,) = run.findings.ended
        assert ended == finding._replace(until_ns=ended.until_ns)
        assert ended.until_ns == pytest.approx(began + run.interval * 1e9, abs=1000)


def test_what_the_driver_asks_for_is_found() -> None:
    """By its field, or by an answer that a reset is required; it is over when neither says so."""
    with JudgedRun(["recovery_needed"]) as run:
        for device in range(4):
            run.gpu(device).set(recoveryAction=0)
        run.go(MINUTE)
        assert run.names() == []
        run.gpu(1).set(recoveryAction=2)
        run.gpu(2).miss("memoryTemp", Reason.RESET_REQUIRED, "NVML_ERROR_RESET_REQUIRED")
        run.go(run.interval)
        assert run.names() == [("recovery_needed", "gpu.1"), ("recovery_needed", "gpu.2")]
        assert [finding.message for finding in run.findings.current] == [
            "reboot asked for",
            "a reset is required before all values are available",
        ]
        run.gpu(1).set(recoveryAction=0)
        run.gpu(2).set(memoryTemp=50)
        run.go(run.interval)
        assert run.names() == []


def test_throttling_counts_by_its_share_of_the_time_under_load() -> None:
    """Heat for two thirds of five minutes; not power alone, not an idle device, not a quarter of the time."""
    with JudgedRun(["throttled"]) as run:
        turns = iter(range(100_000))

        def two_of_three() -> None:
            turn = next(turns)
            run.gpu(0).set(**{"throttle.swThermalSlowdown": int(turn % 3 > 0)})
            run.gpu(1).set(**{"throttle.swPowerCap": 1})
            run.gpu(2).set(**{"throttle.hwSlowdown": 1, "gpu": 10})
            run.gpu(3).set(**{"throttle.hwPowerBrakeSlowdown": int(turn % 4 == 0)})

        run.go(10 * MINUTE, two_of_three)
        assert run.names() == [("throttled", "gpu.0")]
        run.gpu(0).set(**{"throttle.swThermalSlowdown": 0})
        run.go(5 * MINUTE)
        assert run.names() == []


def test_memory_errors_count_for_an_hour_what_stood_there_at_the_first_reading_too() -> None:
    """A counter that begins anew is no error."""
    with JudgedRun(["ecc_uncorrected"]) as run:
        run.gpu(1).set(uncorrectedMemoryErrors=3)
        run.go(run.interval)
        assert run.names() == [("ecc_uncorrected", "gpu.1")]
        run.go(HOUR + run.interval)
        assert run.names() == []
        run.gpu(1).set(uncorrectedMemoryErrors=0)
        run.go(MINUTE)
        assert run.names() == []
        run.gpu(1).set(uncorrectedMemoryErrors=1)
        run.go(MINUTE)
        assert run.names() == [("ecc_uncorrected", "gpu.1")]


@pytest.mark.parametrize("counter", ["uncorrectedEccErrors", "uncorrectedSramParityErrors", "uncorrectedSramSecDedErrors"])
def test_errors_anywhere_on_the_chip_count_like_those_of_its_memory(counter: str) -> None:
    """Of counters that contain each other, an error counts once."""
    with JudgedRun(["ecc_uncorrected"]) as run:
        run.go(MINUTE)
        run.gpu(1).set(**{counter: 3})
        run.gpu(2).set(uncorrectedMemoryErrors=2, uncorrectedEccErrors=2)
        run.go(run.interval)
        assert run.names() == [("ecc_uncorrected", "gpu.1"), ("ecc_uncorrected", "gpu.2")]
        assert [finding.value for finding in run.findings] == [3, 2]
        assert counter in run.findings.current[0].message


@pytest.mark.parametrize(
    ("values", "rule", "words"),
    [
        ({"fabricHealth.routeUnhealthy": 1}, "fabric_unhealthy", "route unhealthy"),
        ({"fabricHealth.incorrectConfiguration": 4}, "fabric_unhealthy", "no partition"),
        ({"fabricHealthSummary": 2}, "fabric_unhealthy", "unhealthy"),
        ({"fabricHealthSummary": 2, "fabricHealth.routeRecovery": 1}, "fabric_unhealthy", "a route is being recovered"),
        ({"fabricHealth.degradedBandwidth": 1, "fabricHealthSummary": 3}, "fabric_degraded", "less than its full bandwidth"),
    ],
)
def test_the_fabric_s_health(values: dict[str, float], rule: str, words: str) -> None:
    """What lasts for half a minute is found, and a minute after it has passed it is over."""
    healthy = {"fabricHealthSummary": 1, "fabricHealth.routeUnhealthy": 0}
    healthy |= {"fabricHealth.degradedBandwidth": 0, "fabricHealth.routeRecovery": 0, "fabricHealth.incorrectConfiguration": 1}
    with JudgedRun(["fabric_unhealthy", "fabric_degraded"]) as run:
        run.go(MINUTE)
        run.gpu(2).set(**values)
        run.go(MINUTE)
        assert run.names() == [(rule, "gpu.2")]
        assert words in run.findings.current[0].message
        run.gpu(2).set(**healthy)
        run.go(2 * MINUTE)
        assert run.names() == []


@pytest.mark.parametrize(
    ("code", "rule", "severity"),
    [
        *((code, "xid_hardware", "critical") for code in (48, 62, 64, 74, 79, 95, 119, 120)),
        *((code, "xid_program", "info") for code in (13, 31, 43, 45)),
        *((code, "xid", "warning") for code in (94, 110)),
    ],
)
def test_an_xid_is_told_by_its_code_and_ages(code: int, rule: str, severity: str) -> None:
    """The first of a code has no column before: it counts; its meaning is said. After an hour it is over."""
    with JudgedRun(["xid_hardware", "xid_program", "xid"]) as run:
        run.go(MINUTE)
        run.gpu(3).set(**{"xidErrors": 1, "lastXid": code, f"xid.{code}.errors": 1})
        run.go(run.interval)
        assert run.names() == [(rule, "gpu.3")]
        (finding,) = run.findings.current
        assert finding.severity == severity
        assert finding.message.startswith(f"Xid {code}: ")
        run.go(HOUR / 2)
        run.gpu(3).set(**{"xidErrors": 2, f"xid.{code}.errors": 2})
        run.go(HOUR / 2 + MINUTE)
        assert run.names() == [(rule, "gpu.3")]
        run.go(HOUR / 2)
        assert run.names() == []


@pytest.mark.parametrize("code", [63, 92])
def test_what_the_driver_notes_down_as_corrected_is_no_finding(code: int) -> None:
    """A row was remapped; corrected errors are frequent."""
    with JudgedRun() as run:
        run.gpu(3).set(**{"xidErrors": 1, "lastXid": code, f"xid.{code}.errors": 1})
        run.go(MINUTE)
        assert run.names() == []


def test_an_nvlink_is_down_where_it_was_up_or_is_up_on_the_same_product() -> None:
    """A device without any link up has no bridge, which is as it should be."""
    with JudgedRun(["nvlink_down"]) as run:
        for link in range(4):
            run.gpu(0).set(**{f"nvlink.{link}.state": 0})
        run.gpu(1).set(**{"nvlink.3.state": 0})
        run.go(3 * MINUTE)
        assert run.names() == [("nvlink_down", "gpu.1")]
        for link in range(4):
            run.gpu(2).set(**{f"nvlink.{link}.state": 0})
        run.go(3 * MINUTE)
        assert run.names() == [("nvlink_down", "gpu.1"), ("nvlink_down", "gpu.2")]
        assert "NVLinks down: 4" in run.findings.current[1].message


def test_nvlink_errors_are_rises_and_checksum_errors_a_rate() -> None:
    """What stood there before is none, a few checksum errors neither."""
    with JudgedRun(["nvlink_errors", "nvlink_crc"]) as run:
        counted = {"crc": 0, "few": 0}

        def count() -> None:
            counted["crc"] += int(150 * run.interval)
            counted["few"] += 5
            run.gpu(1).set(nvlinkCrcErrors=counted["crc"])
            run.gpu(2).set(nvlinkCrcErrors=counted["few"])

        run.gpu(0).set(nvlinkReplayErrors=70)
        run.go(3 * MINUTE, count)
        assert run.names() == [("nvlink_crc", "gpu.1")]
        run.gpu(0).set(nvlinkReplayErrors=71)
        run.go(run.interval, count)
        assert run.names() == [("nvlink_errors", "gpu.0"), ("nvlink_crc", "gpu.1")]
        run.go(11 * MINUTE)
        assert run.names() == []


def test_a_lost_device_is_found_at_the_third_reading_and_what_was_found_of_it_before_stands() -> None:
    """It is told once, and every other rule says that it cannot judge it; nothing says that it has cooled down."""
    with JudgedRun() as run:
        run.gpu(3).set(temp=82)
        run.go(6 * MINUTE)
        assert run.names() == [("hot", "gpu.3")]
        run.gpu(3).lose()
        run.go(2 * run.interval)
        assert run.names() == [("hot", "gpu.3")]
        run.go(run.interval)
        assert run.names() == [("device_lost", "gpu.3"), ("hot", "gpu.3")]
        assert run.findings.current[0].message == "lost: the device has fallen off the bus"
        run.go(HOUR)
        assert run.names() == [("device_lost", "gpu.3"), ("hot", "gpu.3")]
        lost = [lack for lack in run.findings.cannot_tell if lack.reason == "device_lost"]
        assert {lack.rule for lack in lost} >= {"hot", "near_slowdown", "throttled", "xid_hardware"}
        assert {lack.keys for lack in lost} == {("gpu.3",)}
        run.gpu(3).set(temp=60).fail(None)
        run.go(MINUTE)
        assert run.names() == [("device_lost", "gpu.3"), ("hot", "gpu.3")]
        run.go(run.interval)
        assert run.names() == [("hot", "gpu.3")]
        run.go(2 * MINUTE)
        assert run.names() == []


def test_a_device_that_is_lost_for_a_moment_is_no_finding() -> None:
    """Two readings, however often."""
    with JudgedRun(["device_lost", "device_missing"]) as run:
        for _ in range(10):
            run.gpu(1).lose()
            run.go(2 * run.interval)
            run.gpu(1).fail(None)
            run.go(run.interval)
        assert run.begun == []


def test_a_driver_that_is_loaded_again_loses_no_device() -> None:
    """Nor does a device that must be reset, or that its mode of partitions is changed of; what was lost before stays so meanwhile."""
    with JudgedRun(["device_lost"]) as run:
        run.go(MINUTE)
        run.backend.go_away()
        run.go(10 * MINUTE)
        run.backend.come_back()
        run.go(MINUTE)
        run.gpu(1).fail(SourceError(Reason.RESET_REQUIRED, "it must be reset"))
        run.go(10 * MINUTE)
        run.gpu(1).fail(None)
        run.go(MINUTE)
        assert run.begun == []
        run.gpu(2).lose()
        run.go(MINUTE)
        run.backend.go_away()
        run.go(20 * MINUTE)
        assert run.names() == [("device_lost", "gpu.2")]
        run.gpu(2).fail(None)
        run.backend.come_back()
        run.go(3 * MINUTE)
        assert run.names() == []


@pytest.mark.parametrize(
    ("lost", "words"), [(True, "the device has fallen off the bus"), (False, "the driver no longer lists this device")]
)
def test_a_device_that_is_listed_no_more_is_told_once(lost: bool, words: str) -> None:
    """As lost, after the driver was loaded again, and not as missing too."""
    with JudgedRun(["device_lost", "device_missing"]) as run:
        run.go(MINUTE)
        if lost:
            run.gpu(3).lose()
            run.go(MINUTE)
        run.backend.go_away()
        run.go(MINUTE)
        run.backend.reorder(0, 1, 2)
        run.backend.come_back()
        run.go(HOUR)
        assert run.names() == [("device_lost", "gpu.3")]
        assert run.findings.current[0].message.endswith(words)


def test_an_xid_of_a_device_that_is_lost_then_ages_as_any_other() -> None:
    """Within its hour it stands, though the counter has gone."""
    with JudgedRun(["xid_hardware"]) as run:
        run.go(MINUTE)
        run.gpu(3).set(**{"xidErrors": 1, "lastXid": 79, "xid.79.errors": 1})
        run.go(run.interval)
        run.gpu(3).lose()
        run.go(HOUR - MINUTE)
        assert run.names() == [("xid_hardware", "gpu.3")]
        run.go(2 * MINUTE)
        assert run.names() == []


@pytest.mark.parametrize(
    ("reason", "missing"), [("suspended", False), ("no_permission", False), ("timed_out", True), ("driver_error", True)]
)
def test_a_device_that_gives_nothing_is_missing_unless_that_is_in_order(reason: str, missing: bool) -> None:
    """Asleep, or not this user's to read."""
    with JudgedRun(["device_missing"]) as run:
        run.go(MINUTE)
        for name in HEALTHY:
            run.gpu(1).miss(name, reason)
        run.go(3 * MINUTE)
        assert run.names() == ([("device_missing", "gpu.1")] if missing else [])


def test_a_source_that_never_answers_is_missing() -> None:
    """Its hardware was found without its driver."""
    with JudgedRun() as run:
        run.backend.go_away()
        run.go(3 * MINUTE)
        assert run.names() == [("device_missing", "fake")]
        run.backend.come_back()
        run.go(3 * MINUTE)
        assert run.names() == []


JOB, POD = Holder("gpu.0", "job", {"job_id": "42"}), Holder("gpu.0", "pod", {"pod": "train-0"})


@pytest.mark.parametrize(
    ("used", "unified", "seen", "labels", "holders", "told"),
    [
        (0, False, 0, {}, (), False),
        (2 * GIB, False, 0, {}, (), True),
        (2 * GIB, True, 0, {}, (), False),
        (0, False, 0, {"slurm.job.id": "42"}, (), True),
        (0, False, None, {"slurm.job.id": "42"}, (), False),
        (0, False, 0, {}, (JOB,), True),
        (0, False, None, {}, (POD,), True),
        (0, False, 0, {}, (JOB._replace(device="gpu.1"),), False),
    ],
)
def test_an_idle_device_is_told_where_something_holds_it(
    used: int, unified: bool, seen: int | None, labels: Mapping[str, str], holders: tuple[Holder, ...], told: bool
) -> None:
    """A job that sees it, a job or a pod that it was given to, or a gigabyte in use; memory that is the host's own says nothing."""
    with JudgedRun(["idle_held"], labels=labels, attribution=lambda snapshot: Holders(holders)) as run:
        run.seen = seen
        for device in run.backend.all_devices():
            device.identity = device.identity._replace(unified=unified)
        run.gpu(0).set(gpu=0, memoryAllocatedBytes=used)
        run.go(HOUR)
        assert run.names() == []
        run.go(MINUTE)
        assert run.names() == ([("idle_held", "gpu.0")] if told else [])
        run.gpu(0).set(gpu=50)
        run.go(2 * MINUTE)
        assert run.names() == []


def test_loading_data_for_minutes_is_not_being_idle() -> None:
    """One busy reading in an hour begins the hour anew."""
    with JudgedRun(["idle_held"]) as run:
        for _ in range(5):
            run.gpu(0).set(gpu=0)
            run.go(50 * MINUTE)
            run.gpu(0).set(gpu=60)
            run.go(MINUTE)
        assert run.begun == []


def test_a_straggler_is_slower_than_its_loaded_peers() -> None:
    """Of at least three with the same limit; a device that idles is none, nor is one of another product."""
    with JudgedRun(["straggler"]) as run:
        run.gpu(1).set(smClock=1410)
        run.gpu(2).set(smClock=345, gpu=3)
        run.go(6 * MINUTE)
        assert run.names() == [("straggler", "gpu.1")]
        run.gpu(1).set(smClock=1640)
        run.go(6 * MINUTE)
        assert run.names() == [("straggler", "gpu.1")]
        run.gpu(1).set(smClock=1700)
        run.go(6 * MINUTE)
        assert run.names() == []
        run.gpu(1).set(smClock=1410, enforcedPowerLimitWatts=500.0)
        run.go(6 * MINUTE)
        assert run.names() == []


def test_an_energy_counter_that_stands_still_is_stuck_unless_the_device_sleeps() -> None:
    """It is over as soon as it moves."""
    with JudgedRun(["stuck_counter"]) as run:
        run.gpu(0).set(energyJoules=5.0)
        run.gpu(1).set(energyJoules=5.0, powerWatts=4.0)
        run.go(MINUTE)
        assert run.names() == [("stuck_counter", "gpu.0")]
        run.gpu(0).set(energyJoules=6.0)
        run.go(run.interval)
        assert run.names() == []


def test_an_energy_counter_is_not_stuck_for_the_time_in_which_the_device_was_lost() -> None:
    """Nothing was read then; a counter that stands still afterwards is found as ever."""
    with JudgedRun(["stuck_counter"]) as run:
        run.gpu(0).set(energyJoules=5.0)
        run.go(2 * run.interval)
        run.gpu(0).lose()
        run.go(5 * MINUTE)
        run.gpu(0).fail(None)
        run.go(3 * run.interval)
        assert run.begun == []
        run.go(MINUTE)
        assert run.names() == [("stuck_counter", "gpu.0")]


def test_memory_that_grows_steadily_leaks() -> None:
    """Also below what the program frees now and then."""
    with JudgedRun(["leak"]) as run:
        begin = run.clock.monotonic()

        def grow() -> None:
            hours = (run.clock.monotonic() - begin) / HOUR
            run.gpu(0).set(memoryAllocated=50 + 3 * hours + run.chance.uniform(0, 10))
            run.gpu(1).set(memoryAllocated=50 + 0.5 * hours)
            run.gpu(2).set(memoryAllocated=10 + 2 * hours)
            run.gpu(3).set(memoryAllocated=0.0 if hours < 0.5 else 60 + run.chance.uniform(0, 20))

        run.go(1.5 * HOUR, grow)
        assert [(finding.rule, finding.key) for finding in run.begun] == [("leak", "gpu.0")]
        run.go(1.5 * HOUR, lambda: run.gpu(0).set(memoryAllocated=57 + run.chance.uniform(0, 20)))
        assert run.names() == []


def test_growth_of_pytorchs_own_use_counts_below_what_its_allocator_holds() -> None:
    """The allocator gives nothing back, so that the driver's number stands."""
    with JudgedRun(["leak"]) as run:
        begin = run.clock.monotonic()
        share = HEALTHY["memoryTotalBytes"] / 100
        run.backend.machine.set(**{"torch.2.memoryAllocatedBytes": lambda: share * (40 + 4 * (run.clock.monotonic() - begin) / HOUR)})
        run.backend.machine.set(**{"torch.3.memoryAllocatedBytes": 40 * share})
        run.go(1.5 * HOUR)
        assert run.names() == [("leak", "gpu.2")]


def test_a_pause_begins_windows_anew_and_ends_no_finding() -> None:
    """Nothing is known of the time between."""
    with JudgedRun(["hot"]) as run:
        run.gpu(0).set(temp=82)
        run.go(4 * MINUTE)
        run.pause(HOUR)
        run.go(4 * MINUTE)
        assert run.names() == []
        run.go(2 * MINUTE)
        assert run.names() == [("hot", "gpu.0")]
        (finding,) = run.findings.current
        run.pause(HOUR)
        run.go(MINUTE)
        assert run.findings.current == (finding,)


@pytest.mark.parametrize(("gap", "told"), [(40.0, True), (90.0, False)])
def test_a_window_needs_four_fifths_of_its_readings(gap: float, told: bool) -> None:
    """A short gap in one device's readings is none; a longer one begins its window anew."""
    with JudgedRun(["hot"]) as run:
        run.gpu(0).set(temp=82)
        run.go(3 * MINUTE)
        run.gpu(0).miss("temp", "timed_out")
        run.go(gap)
        run.gpu(0).set(temp=82)
        run.go(3 * MINUTE)
        assert (run.names() == [("hot", "gpu.0")]) is told
