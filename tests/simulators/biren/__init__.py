"""A ``brsmi`` that is queried for fields, and refuses the whole query for one that it does not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROGRAM = """#!{python} -IS
import json, sys
state = json.load(open({state!r}, encoding="utf-8"))
asked = next(each for each in sys.argv if each.startswith("--query-gpu=")).partition("=")[2].split(",")
unknown = [name for name in asked if name not in state["fields"]]
if state["stderr"]:
    sys.exit(state["stderr"])
if unknown:
    sys.exit(f'Field "{{unknown[0]}}" is not a valid field to query.')
for gpu in state["gpus"]:
    print(", ".join(str(gpu.get(name, "N/A")) for name in asked))
"""
PROVEN = ("index", "name", "serial", "memory.used", "memory.free", "temperature.gpu")
ANALOGOUS = ("uuid", "pci.bus_id", "memory.total", "utilization.gpu", "power.draw", "power.limit")


class Brsmi:
    """The command in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "brsmi-bin"
        self.directory.mkdir()
        self._state = self.directory / "state.json"
        command = self.directory / "brsmi"
        command.write_text(PROGRAM.format(python=sys.executable, state=str(self._state)), encoding="utf-8")
        command.chmod(0o755)

    def behave(self, *gpus: dict[str, str], fields: tuple[str, ...] = (*PROVEN, *ANALOGOUS), stderr: str = "") -> None:
        """Change its GPUs, the fields that it knows, or what it complains about."""
        draft = self._state.with_suffix(".draft")
        draft.write_text(json.dumps({"gpus": gpus, "fields": fields, "stderr": stderr}), encoding="utf-8")
        draft.replace(self._state)


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
