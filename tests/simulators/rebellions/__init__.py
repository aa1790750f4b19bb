"""What ``rbln-smi --json`` prints, in the form of driver 3."""

import json
from typing import Any


def npu(number: int, **changed: Any) -> dict[str, Any]:
    """One NPU on a card of its own."""
    device = {
        "npu": number,
        "name": "RBLN-CA22",
        "sid": f"0025{number:04}",
        "uuid": f"0f0e9d8c-0000-4000-8000-{number:012x}",
        "device": f"rbln{number}",
        "status": "normal",
        "fw_ver": "1.4.2",
        "pci": {
            "dev": "0x1220",
            "bus_id": f"0000:{0x51 + number:02x}:00.0",
            "numa_node": "1",
            "link_speed": "32.0GT/s",
            "link_width": "16",
        },
        "temperature": f"{41 + number}C",
        "card_power": "38.5W",
        "pstate": "P14",
        "memory": {"used": "1073741824", "total": "16911433728"},
        "util": "12.5",
        "board_info": "CA22",
        "location": "0",
    }
    return device | changed


def context(npu_: int, pid: int, memory: str) -> dict[str, Any]:
    """One program's context on one NPU."""
    return {"ctx_id": f"{pid}-{npu_}", "npu": npu_, "pid": pid, "cmd": "python3", "memory": memory}


def grouped_context(ctx_id: int, npu_: int, pid: int, memory: str) -> dict[str, Any]:
    """The same as driver 3 prints it where NPUs are grouped: the number is that within the group."""
    said = {"ctx_id": str(ctx_id), "npu": npu_, "process": "python3", "pid": str(pid), "priority": "normal", "ptid": "0"}
    return {**said, "memalloc": memory, "status": "idle", "util_info": "12.5"}


def listing(*devices: dict[str, Any], contexts: tuple[dict[str, Any], ...] = ()) -> str:
    """The whole document."""
    return json.dumps({"KMD_version": "3.0.1", "devices": devices, "contexts": contexts}, indent=2)
