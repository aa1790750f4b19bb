"""A stand-in for ``amd-smi``, as a real command on ``PATH``, and outputs in both shapes that it has had."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.simulators.commands import ScriptedCommand

Shape = Literal["list", "gpu_data"]
COUNTER = 8123.5 * 65536
"""Steps of 2^-16 J that the card has counted. The tool multiplies them by 15.3 µJ."""
Mode = Literal["normal", "hang"]

SCRIPT = """\
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
with (here / "calls.jsonl").open("a") as log:
    log.write(json.dumps(" ".join(sys.argv[1:])) + "\\n")
said = json.loads((here / "behaviour.json").read_text())
if said["mode"] == "hang":
    time.sleep(120)
sections = [flag[2:].replace("-", "_") for flag in sys.argv[2:] if flag != "--json"]
if sys.argv[1] == "metric" and any(each in said["crashing"] for each in sections or said["crashing"]):
    os.abort()
sys.stderr.write(said["errors"])
sys.stdout.write(said["outputs"].get(sys.argv[1], ""))
sys.exit(said["status"])
"""


def value(number: float, unit: str) -> dict[str, Any]:
    """A value as the tool prints it."""
    return {"value": number, "unit": unit}


def metric(gpu: int, **changes: Any) -> dict[str, Any]:
    """What ``metric`` prints of an MI210, with other sections where they are given."""
    sections: dict[str, Any] = {
        "usage": {"gfx_activity": value(62, "%"), "umc_activity": value(31, "%"), "mm_activity": "N/A", "vcn_activity": ["N/A", "N/A"]},
        "power": {"socket_power": value(173, "W"), "gfx_voltage": value(813, "mV"), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {"clk": value(1695, "MHz"), "min_clk": value(500, "MHz"), "max_clk": value(1700, "MHz"), "clk_locked": "DISABLED"},
            "mem_0": {"clk": value(1600, "MHz"), "min_clk": value(400, "MHz"), "max_clk": value(1601, "MHz")},
        },
        "temperature": {"edge": value(47, "C"), "hotspot": value(58, "C"), "mem": value(52, "C")},
        "pcie": {"width": 16, "speed": value(16, "GT/s"), "bandwidth": "N/A", "replay_count": 4},
        "ecc": {"total_correctable_count": 9, "total_uncorrectable_count": 1, "total_deferred_count": 0},
        "throttle": {
            **{"ppt_violation_status": "ACTIVE", "socket_thermal_violation_status": "NOT ACTIVE", "hbm_thermal_violation_status": "ACTIVE"},
            **{"prochot_violation_status": "NOT ACTIVE", "vr_thermal_violation_status": "NOT ACTIVE", "ppt_accumulated": 7},
        },
        "fan": {"speed": "N/A", "max": "N/A", "rpm": "N/A", "usage": "N/A"},
        "energy": {"total_energy_consumption": value(round(COUNTER * 15.3 / 1e6, 3), "J")},
        "mem_usage": {
            **{"total_vram": value(65520, "MB"), "used_vram": value(4096, "MB"), "free_vram": value(61424, "MB")},
            **{"total_gtt": value(128000, "MB"), "used_gtt": value(12, "MB")},
        },
    }
    return {"gpu": gpu, **sections, **changes}


def static(gpu: int, bdf: str, serial: str) -> dict[str, Any]:
    """What ``static`` prints."""
    return {
        "gpu": gpu,
        "asic": {"market_name": "AMD Instinct MI210", "asic_serial": serial, "target_graphics_version": "gfx90a"},
        "bus": {"bdf": bdf, "max_pcie_width": 16, "max_pcie_speed": value(16, "GT/s")},
        "limit": {"max_power": value(310, "W"), "socket_power": value(300, "W")},
        "driver": {"name": "amdgpu", "version": "6.10.5"},
        "ifwi": {"version": "022.040.003.043.000001"},
        "board": {"model_number": "102-D67301-00", "product_serial": "PCB052210-0047"},
    }


def document(cards: list[dict[str, Any]], shape: Shape) -> str:
    """The text of one run: a list up to ROCm 6.4, an object since."""
    return json.dumps(cards if shape == "list" else {"gpu_data": cards}, indent=4)


class AmdSmiStandIn(ScriptedCommand):
    """The command in a directory of its own.

    Args:
        directory: Where to put it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SCRIPT, "amd-smi")
        self.behave("")

    def behave(
        self, metrics: str, statics: str = "", *, errors: str = "", status: int = 0, mode: Mode = "normal", crashing: Sequence[str] = ()
    ) -> None:
        """Change what the command does from its next call on; it aborts where ``metric`` is asked for a section that is ``crashing``."""
        behaviour: dict[str, object] = {"outputs": {"metric": metrics, "static": statics}, "errors": errors, "status": status, "mode": mode}
        behaviour["crashing"] = list(crashing)
        self.scripted(behaviour)

    @property
    def calls(self) -> list[str]:
        """Every call so far: its arguments."""
        return self.noted()
