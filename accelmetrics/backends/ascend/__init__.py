"""Huawei Ascend NPUs, through the driver's library (``libdcmi.so``), or ``npu-smi`` where it is missing or refuses."""

from __future__ import annotations

from accelmetrics.backends.ascend.dcmi import LIBRARY
from accelmetrics.backends.ascend.npu_smi import TOOL
from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import Clock, Coverage, Detection, Driver
from accelmetrics.backends.kit import SourcesBackend, find_hardware
from accelmetrics.backends.kit.fields import joined_words


def _open_library(_clock: Clock) -> Driver:
    return LIBRARY.open()


def _open_tool(_clock: Clock) -> Driver:
    return TOOL.open()


def _detect() -> Detection:
    row = BUILT_IN["ascend"]
    return find_hardware("ascend", str(row.kind), row.pci, row.nodes, pass_nodes=row.pass_nodes)


def _coverage() -> Coverage:
    own, tool = LIBRARY.coverage(), TOOL.coverage()
    return own._replace(devices=joined_words((*own.devices.items(), *tool.devices.items())))


backend = SourcesBackend("ascend", "npu", {"dcmi": _open_library, "npu-smi": _open_tool}, detect=_detect, coverage=_coverage)
