"""`examples/adapters` beside the real programs: four H100s, one with a MIG device and one lost, two MI210s, and an NPU."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelmetrics.schemas.snapshot import Device, Snapshot
from tests.cli.shell import COMMAND
from tests.frameworks.programs import ROOT, run_program
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.nvml import NvmlSimulator
from tests.simulators.tenstorrent import TenstorrentTree

ADAPTERS = ROOT / "examples" / "adapters"
DIVIDED, LOST = 1, 3
"""GPUs of the simulated driver."""


class Adapted:
    """The machine, and what a program with an adapter says of it."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, env
        done = run_program([*COMMAND, "dump", "--json", "--backends", "accelerators"], folder, **env)
        assert done.status == 0, done.said
        snapshot = Snapshot.from_json(done.out)
        self.devices: list[Device] = [device for device in snapshot.devices if device.parent is None]
        assert [device.vendor for device in self.devices] == ["nvidia"] * 4 + ["amd"] * 2 + ["tenstorrent"]
        assert self.devices[-1].index == self.devices[0].index == 0, "the NPU has a GPU's index"
        assert len(snapshot.devices) == len(self.devices) + 1, "a MIG device beside"
        assert not self.devices[LOST].values
        assert self.devices[DIVIDED].metrics.power_watts is not None

    def each(self, metric: str, scale: float = 1) -> list[float | None]:
        """A metric of each whole device, None where it is unknown."""
        values = [getattr(device.metrics, metric) for device in self.devices]
        return [None if value is None else value * scale for value in values]

    def says(self, name: str, program: str, **env: str) -> Any:
        """The JSON that a program prints on a line of its own, which loads this adapter first."""
        path = self._folder / "adapted.py"
        path.write_text(f"import sys; sys.path.insert(0, {str(ADAPTERS)!r})\nimport json, for_{name}\n{textwrap.dedent(program)}")
        done = run_program([sys.executable, str(path)], self._folder, **{**self._env, **env})
        assert done.status == 0, done.said
        (*_, last) = (line for line in done.out.splitlines() if line.startswith(("[", "{")))
        return json.loads(last)


@contextmanager
def adapted(folder: Path) -> Iterator[Adapted]:
    """The machine, until the block ends."""
    tree = Tree(folder / "root")
    machines.mi210_pair(tree)
    TenstorrentTree(tree.root).card(0)
    home = folder / "home"
    home.mkdir()
    with NvmlSimulator(gpus=4) as nvidia:
        nvidia.partition(DIVIDED, ["1g.10gb"])
        nvidia.lose(LOST, enumerable=True)
        yield Adapted(home, {**nvidia.environment(), "ACCELMETRICS_SYSROOT": str(tree.root), "CUDA_VISIBLE_DEVICES": "0,1,2,3"})
