"""A ``brsmi`` that is queried for fields, and refuses the whole query for one that it does not know."""

from __future__ import annotations

from pathlib import Path

from tests.simulators.commands import ScriptedCommand

PROGRAM = """\
import json, sys
from pathlib import Path
state = json.loads((Path(__file__).parent / "behaviour.json").read_text())
asked = next(each for each in sys.argv if each.startswith("--query-gpu=")).partition("=")[2].split(",")
unknown = [name for name in asked if name not in state["fields"]]
if state["stderr"]:
    sys.exit(state["stderr"])
if unknown:
    sys.exit(f'Field "{unknown[0]}" is not a valid field to query.')
for gpu in state["gpus"]:
    print(", ".join(str(gpu.get(name, "N/A")) for name in asked))
"""
PROVEN = ("index", "name", "serial", "memory.used", "memory.free", "temperature.gpu")
ANALOGOUS = ("uuid", "pci.bus_id", "memory.total", "utilization.gpu", "power.draw", "power.limit")


class Brsmi(ScriptedCommand):
    """The command in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, PROGRAM, "brsmi")

    def behave(self, *gpus: dict[str, str], fields: tuple[str, ...] = (*PROVEN, *ANALOGOUS), stderr: str = "") -> None:
        """Change its GPUs, the fields that it knows, or what it complains about."""
        self.scripted({"gpus": gpus, "fields": fields, "stderr": stderr})


def gpu(number: int, **changed: str) -> dict[str, str]:
    """A GPU; ``changed`` has fields with ``_`` for a dot."""
    said = {
        "index": str(number),
        "name": "Biren106M",
        "serial": f"BR00{number}",
        "uuid": f"GPU-0000000{number}",
        "pci.bus_id": f"0000:{0x3B + number:02x}:00.0",
        "memory.used": "1024 MiB",
        "memory.free": "31744 MiB",
        "memory.total": "32768 MiB",
        "temperature.gpu": str(41 + number),
        "utilization.gpu": "63 %",
        "power.draw": "75.5 W",
        "power.limit": "151 W",
    }
    return said | {key.replace("__", " ").replace("_", "."): value for key, value in changed.items()}
