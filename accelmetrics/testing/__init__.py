"""Helpers for tests: a backend with scripted values and faults, simulated GPUs under load, and recording and replay of real readings.

>>> from accelmetrics import Sampler
>>> from accelmetrics.testing import FakeBackend
>>> gpus = FakeBackend(devices=2)
>>> gpus.device(0).set(powerWatts=300.0)
>>> with Sampler(backends=[gpus]) as sampler:
...     sampler.sample().metrics["gpu.0.powerWatts"]
300.0
"""

from accelmetrics.testing.demo import DemoBackend
from accelmetrics.testing.fake import FakeBackend, FakeClock, FakeDevice
from accelmetrics.testing.recording import Recorder, Recording, ReplayBackend

__all__ = ["DemoBackend", "FakeBackend", "FakeClock", "FakeDevice", "Recorder", "Recording", "ReplayBackend"]
