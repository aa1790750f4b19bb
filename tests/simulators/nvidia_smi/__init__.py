"""A stand-in for ``nvidia-smi --query-gpu``, as a real command on ``PATH``: prints the fields that a test gives it.

stand_in = NvidiaSmiStandIn(tmp_path, simulator)        # agrees with the simulated driver
stand_in.behave({"power.draw": "999.00"})               # lies about every GPU from its next run on
stand_in.behave(unknown=("pstate",))                    # an older release refuses the whole query
stand_in.behave(hang=True)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.simulators.commands import ScriptedCommand
from tests.simulators.nvml import NvmlSimulator, Ret

SCRIPT = """\
import json, sys, time
from pathlib import Path
here = Path(__file__).parent
said = json.loads((here / "behaviour.json").read_text())
with (here / "calls.jsonl").open("a") as log:
    log.write("0\\n")
while said["hang"]:
    time.sleep(60)
query, form = sys.argv[1:]
assert form == "--format=csv,noheader,nounits", form
fields = query.removeprefix("--query-gpu=").split(",")
for field in fields:
    if field in said["unknown"]:
        sys.exit(print(f'Field "{field}" is not a valid field to query.\\n') or 2)
for row in said["rows"]:
    print(", ".join(row.get(field, "[N/A]") for field in fields))
"""
MIB = 1 << 20
PLAIN = {
    "utilization.gpu": "gpu_util",
    "utilization.memory": "memory_util",
    "temperature.gpu": "temperature",
    "temperature.memory": "memory_temp",
    "clocks.sm": "clock_sm",
    "clocks.mem": "clock_mem",
}
"""By field, the simulator's value that it prints as it is."""
MILLI = {"power.draw": "power_mw", "enforced.power.limit": "power_limit_enforced_mw"}
MEMORY = {"memory.total": "memory_total", "memory.used": "memory_used", "memory.free": "memory_free"}


class NvidiaSmiStandIn(ScriptedCommand):
    """The command in a directory of its own.

    Args:
        directory: Where to put it.
        simulator: The machine of which it tells the truth until it is made to lie.
    """

    def __init__(self, directory: Path, simulator: NvmlSimulator) -> None:
        super().__init__(directory, SCRIPT, "nvidia-smi")
        self._simulator = simulator
        self.behave()

    def behave(self, changes: Mapping[str, str] = {}, *, unknown: Sequence[str] = (), hang: bool = False) -> None:
        """Change what it does from its next run on: fields that are another text for every GPU, fields that it does not know."""
        rows = [{**self._truth(number), **changes} for number in range(len(self._simulator.gpu))]
        self.scripted({"rows": rows, "unknown": list(unknown), "hang": hang})

    @property
    def calls(self) -> int:
        """How often it was run."""
        return len(self.noted())

    def _truth(self, number: int) -> dict[str, str]:
        gpu = self._simulator.gpu[number]
        given = {name: gpu.get(value) for names in (PLAIN, MILLI, MEMORY) for name, value in names.items()}
        numbers = {name: value for name, value in given.items() if not isinstance(value, Ret)}
        if gpu.get("mig_mode") == 1:  # it prints [N/A] then
            numbers = {name: value for name, value in numbers.items() if not name.startswith("utilization.")}
        printed = {name: f"{value:.0f}" for name, value in numbers.items() if name in PLAIN}
        printed |= {name: f"{value / 1000:.2f}" for name, value in numbers.items() if name in MILLI}
        printed |= {name: f"{value // MIB:.0f}" for name, value in numbers.items() if name in MEMORY}
        return {"uuid": self._simulator.uuid(number), "pstate": "P0", "persistence_mode": "Enabled", **printed}
