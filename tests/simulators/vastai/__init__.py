"""What ``vasmi getmem`` and ``vasmi summary`` print with ``--display-format=json``."""

from __future__ import annotations

import json
from typing import Any


def memory(number: int, said: object = "16384 MiB", name: str = "Physical") -> dict[str, Any]:
    """A card in the document of ``getmem``."""
    return {"pci_bus": f"0000:{0x3B + number:02x}:00.0", "sn": f"VA00{number}", "vals": {name: {"value": said}}}


def summary(number: int, draw: object = "45.5 W", cap: object = "75 W") -> dict[str, Any]:
    """A card in the document of ``summary``, which has other digits of the address."""
    address = f"00000000:{0x3B + number:02X}:00.0"
    return {"vals": {"devBusId": {"value": address}, "P_Cap": {"value": cap}, "P_Cur": {"value": draw}}}


def document(*elements: dict[str, Any]) -> str:
    """The whole document."""
    return json.dumps({"elem": elements}, indent=1)
