"""`torch.cuda`, as far as its memory is concerned."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

_CARDS: list[dict[str, Any]] = json.loads(os.environ.get("TORCH_STANDIN_CARDS", "[]"))
_state = {"initialized": False}
calls: list[str] = []


class _CUuuid:
    """The real one is no text either."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def init() -> None:
    """Start CUDA."""
    _state["initialized"] = True


def is_initialized() -> bool:
    """Whether CUDA was started."""
    return _state["initialized"]


def device_count() -> int:
    """How many devices the process sees."""
    calls.append("device_count")
    return len(_CARDS)


def get_device_properties(device: int) -> SimpleNamespace:
    """Starts CUDA, as the real one does."""
    _use("get_device_properties")
    uuid = _CARDS[device]["uuid"]
    return SimpleNamespace(name="Stand-in", **({"uuid": _CUuuid(uuid)} if uuid else {}))


def memory_stats(device: int) -> dict[str, int]:
    """Return what the allocator counts, as far as it is asked for."""
    _use("memory_stats")
    card = _CARDS[device]
    return {
        "allocated_bytes.all.current": int(card["allocated"]),
        "allocated_bytes.all.peak": int(card.get("peak", 0)),
        "reserved_bytes.all.current": int(card["reserved"]),
    }


def _use(name: str) -> None:
    calls.append(name if is_initialized() else f"started by {name}")
    init()
