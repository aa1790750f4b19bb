"""A simulated run on scripted GPUs and a clock that is told, judged reading by reading."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from types import TracebackType
from unittest.mock import patch

from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.rules import RuleChoice, rules_of
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.record import Finding, Findings, HoldersOf, Step
from accelmetrics.schemas.ring import row_of
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock, FakeDevice

GIB = 2**30
LINKS = 4
HEALTHY: Mapping[str, float] = {
    "gpu": 96,
    "temp": 64,
    "tempLimit.slowdown": 89,
    "powerWatts": 610.0,
    "enforcedPowerLimitWatts": 700.0,
    "energyJoules": 1e6,
    "smClock": 1755,
    "memoryAllocated": 57.0,
    "memoryAllocatedBytes": 45 * GIB,
    "memoryTotalBytes": 80 * GIB,
    "throttle.gpuIdle": 0,
    "throttle.swPowerCap": 0,
    "throttle.hwSlowdown": 0,
    "throttle.hwThermalSlowdown": 0,
    "throttle.hwPowerBrakeSlowdown": 0,
    "throttle.swThermalSlowdown": 0,
    "uncorrectedMemoryErrors": 0,
    "uncorrectedEccErrors": 0,
    "sramThresholdExceeded": 0,
    "rowRemapPending": 0,
    "rowRemapFailure": 0,
    "xidErrors": 0,
    "nvlinkCrcErrors": 0,
    "nvlinkReplayErrors": 0,
    "nvlinkRecoveryErrors": 0,
    "fabricHealthSummary": 1,
    "fabricHealth.routeUnhealthy": 0,
    "fabricHealth.degradedBandwidth": 0,
    "fabricHealth.incorrectConfiguration": 1,
    **{f"nvlink.{link}.state": 1 for link in range(LINKS)},
}
"""What a training H100 says."""


def healthy_gpus(count: int, clock: FakeClock) -> FakeBackend:
    """GPUs in training, whose energy counters move with the clock."""
    backend = FakeBackend(devices=count, vendor="nvidia")
    for device in backend.all_devices():
        device.set(**HEALTHY)
        device.set(energyJoules=lambda: 1e6 + 610.0 * clock.monotonic())
    return backend


class JudgedRun:
    """Readings of scripted GPUs, each judged when it is taken.

    Args:
        rules: The rules, as a monitor takes them.
        devices: How many GPUs there are.
        interval: Seconds between two readings.
        labels: Those of the run.
        attribution: Tells who holds the devices.

    Attributes:
        findings: What was found until the last reading.
        begun: Every finding that has begun, in order.
        seen: None: the process sees no device.
    """

    def __init__(
        self,
        rules: RuleChoice = "default",
        devices: int = 4,
        interval: float = 10.0,
        labels: Mapping[str, str] | None = None,
        attribution: HoldersOf | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.backend = healthy_gpus(devices, self.clock)
        with patch.dict(os.environ, {"ACCELMETRICS_VALIDATE": "0"}):  # thousands of readings alike
            self.sampler = Sampler([self.backend], clock=self.clock)
        self.engine = FindingEngine(rules_of(rules), interval, labels or {}, attribution)
        self.findings = Findings()
        self.begun: list[Finding] = []
        self.joined = True
        self.seen: int | None = 0
        self.interval = interval
        self.chance = random.Random(7)
        self._before: Snapshot | None = None
        self._steps: list[Step] = []

    def __enter__(self) -> JudgedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.sampler.close()

    def gpu(self, number: int) -> FakeDevice:
        """A GPU to be scripted."""
        return self.backend.device(number)

    def step(self, step: int | None = None, rank: int | None = None, **values: float) -> None:
        """Log a step, which comes with the next reading."""
        self._steps.append(Step(self.clock.time_ns(), step, values, rank))

    def step_at(self, moment: float, step: int, rank: int | None = None, **values: float) -> None:
        """As ``step``, logged at a moment of the clock that has passed."""
        self._steps.append(Step(self.clock.time_ns() - int((self.clock.monotonic() - moment) * 1e9), step, values, rank))

    def go(self, seconds: float, each: Callable[[], object] = bool) -> Findings:
        """Let time pass, with a reading at every interval; return what was found until then.

        Args:
            seconds: How much.
            each: Called before each reading.
        """
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(self.interval)
            each()
            snapshot = self.sampler.sample()
            if self.seen is None:
                snapshot.identities = tuple([slot._replace(visible_index=None) for slot in snapshot.identities])
            row = row_of(snapshot, self.clock.monotonic(), self.joined)
            steps, self._steps = self._steps, []
            before = set(self.findings.current)
            self.findings = self.engine.judge(snapshot, row, steps, self.joined)
            self.begun += [finding for finding in self.findings.current if finding not in before]
            self.joined = True
        return self.findings

    def pause(self, seconds: float) -> None:
        """Let time pass without a reading, as a monitor that is paused."""
        self.clock.advance(seconds)
        self.joined = False

    def names(self) -> list[tuple[str, str]]:
        """Rule and key of what lasts."""
        return [(finding.rule, finding.key) for finding in self.findings.current]
