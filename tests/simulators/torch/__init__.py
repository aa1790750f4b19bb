"""A stand-in for PyTorch: what of `torch.cuda` concerns memory, for programs in a process of their own.

environment = os.environ | torch_environment([Card(uuid="18ef14e9-…", allocated=5)])
subprocess.run([sys.executable, "-c", "import torch; torch.cuda.init(); …"], env=environment)

As in the real one, CUDA is started by `init()` or by the first use of a device. `torch.cuda.calls` has what was called, and
asking for a device before CUDA was started is noted there as `started by …`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SITE = Path(__file__).with_name("site")
VARIABLE = "TORCH_STANDIN_CARDS"


class Card(NamedTuple):
    """One device, in PyTorch's order. The UUID is as PyTorch writes it; empty for a release that has none."""

    uuid: str = ""
    allocated: int = 0
    reserved: int = 0
    peak: int = 0


def torch_environment(cards: Sequence[Card]) -> dict[str, str]:
    """The variables with which `import torch` finds the stand-in, with these devices."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, VARIABLE: json.dumps([card._asdict() for card in cards])}


def of_hip(unique_id: str) -> str:
    """How PyTorch writes the UUID of one of AMD's devices: HIP fills the sixteen bytes with the digits of the unique id."""
    digits = unique_id.removeprefix("0x").encode().hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
