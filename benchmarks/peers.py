"""Rows that only inform: what other tools need for one sample of the same machine."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.environments import peers_python
from benchmarks.programs import finish, started, wait_for_line
from benchmarks.rows import Row, Scale
from tests.simulators.nvml import NvmlSimulator


def peers(scale: Scale) -> Iterator[Row]:
    """nvitop and gpustat."""
    python = peers_python()
    for tool, sample in (("nvitop 1.7", "`Device.as_snapshot()` of each GPU"), ("gpustat 1.1", "`GPUStatCollection.new_query()`")):
        with NvmlSimulator(scale.gpus) as simulator, started(simulator, "peer", tool.split()[0], scale.peers, python=python) as program:
            wait_for_line(program)
            before = sum(simulator.calls().values())
            result = finish(program)
            made = sum(simulator.calls().values()) - before
        calls = made / result["readings"] / scale.gpus
        yield Row(f"{tool}, {sample}: NVML calls per GPU per sample", calls, "", note=f"{result['median'] * 1e3:.1f} ms a sample")
