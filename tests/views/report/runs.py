"""Runs that training jobs could have had, as records: utilisation in waves, a device that gets hot, epochs, a loss that falls."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, sin

from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.record import Finding, Findings, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.test_report import GIB, START, place

ADVICE = "Clean the filters; look at the fans."


def run(
    seconds: int, gpus: int = 2, *, power: float = 400.0, host: str = "node-1", label: str = "a", train: bool = True
) -> Iterator[Record]:
    """Yield a reading a second; the last device is throttled and found hot in the second half."""
    slots: list[DeviceSlot] = [place(number) for number in range(gpus)]
    hot = gpus - 1
    since = START + seconds // 2
    finding = Finding(
        "hot", "warning", f"gpu.{hot}", "88 °C, limit 80 °C", 88.0, 80.0, since * 10**9, (START + seconds * 3 // 4) * 10**9, ADVICE
    )
    for second in range(seconds):
        late = second >= seconds // 2
        values: dict[str, int | float] = {"cpu": 20.0 + second % 5, "memory_percent": 40.0}
        for number in range(gpus):
            wave = 1 + sin(second / 20 + number)
            throttled = int(late and number == hot)
            values |= {
                f"gpu.{number}.gpu": round(45 * wave + 5, 1),
                f"gpu.{number}.powerWatts": round(power * (0.5 + wave / 4) + number, 1),
                f"gpu.{number}.temp": 50 + number + 30 * throttled,
                f"gpu.{number}.memoryAllocatedBytes": 40 * GIB + number * GIB + second * 1024,
                f"gpu.{number}.smClock": 1980 - 600 * throttled,
                f"gpu.{number}.enforcedPowerLimitWatts": 700.0,
                f"gpu.{number}.throttle.hwThermalSlowdown": throttled,
            }
        moment = (START + second) * 10**9
        steps: tuple[Step, ...] = ()
        if train:
            numbers = {
                "loss": 2 * exp(-second / seconds) + 0.01 * (second % 3),
                "epoch": 4 * second // seconds,
                "lr": 1.2345e-5 * (1 + second % 3),
            }
            steps = (Step(moment, 2 * second, {**numbers, "step_seconds": 0.5 + 0.01 * (second % 7), "tokens": 4096.0}),)
        findings = Findings((finding,)) if late else Findings()
        yield Record(Snapshot(moment, host, values, slots), {"run_id": "a"}, steps, findings=findings)
