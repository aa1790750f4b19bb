"""Huawei Ascend NPUs, through the driver's library (``libdcmi.so``), or ``npu-smi`` if the library is missing or refuses."""

from __future__ import annotations

from accelmetrics.backends.ascend.dcmi import LIBRARY
from accelmetrics.backends.ascend.npu_smi import TOOL
from accelmetrics.backends.kit import SourcesBackend

backend = SourcesBackend("ascend", "npu", {"dcmi": LIBRARY, "npu-smi": TOOL})
