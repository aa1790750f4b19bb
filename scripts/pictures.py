"""Makes the pictures of the documentation with the product itself: ``python -m scripts.pictures [NAME …]``.

Each picture is a function in ``PICTURES``, by its file's name in ``docs/pictures``; it shows the program on simulated devices. Needs
what the tests need: a C compiler, and Debian's chromium and chromium-driver for the page.
"""

from __future__ import annotations

import io
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.simulators.nvml import NvmlSimulator, Process, Ramp
from tests.views.page.browser import Browser, chromium
from tests.views.page.node import serving

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
MOST_BYTES = 200_000
COLOURS = 256
"""Are enough for pages and terminals, and make a file half as large."""
RUN = 70.0
"""Seconds that the page watches before it is taken."""


def page() -> bytes:
    """The page, in light colours: a training run on eight GPUs, of which one is lost and one has memory errors."""
    with NvmlSimulator(8) as machine, tempfile.TemporaryDirectory() as profile:
        for index, gpu in enumerate(machine.gpu):
            gpu.set(ecc_uncorrected_volatile=0, ecc_corrected_volatile=0, clocks_event_reasons=0, memory_used=int((61 + index / 4) * 2**30))
            gpu.set(energy_mj=Ramp(5e9, rate=540_000))
            machine.processes(index, [Process(os.getpid(), used=60 << 30, sm=90)])
        with serving(machine, "--interval", "0.25") as node, chromium(Path(profile)) as driver:
            browser = Browser(driver)
            browser.open(node.url)
            began = time.monotonic()
            lost = False
            while (passed := time.monotonic() - began) < RUN:
                train(machine, passed)
                if passed > 0.75 * RUN and not lost:
                    machine.gpu[6].set(ecc_uncorrected_volatile=1)
                    machine.lose(3)
                    lost = True
                time.sleep(0.1)
            browser.until_text("#findings", "gpu.6")
            browser.resize((1200, 1250))
            return driver.get_screenshot_as_png()


def train(machine: NvmlSimulator, seconds: float) -> None:
    """Have the GPUs work as in a run whose steps end with a short wait; the third stands in a warm place."""
    for index, gpu in enumerate(machine.gpu):
        waits = seconds % 15 > 13
        busy = 20 if waits else 92 + 5 * math.sin(seconds * 1.7 + index)
        heat = min(seconds / 2, 25) + (14 if index == 2 else 0)
        gpu.set(
            gpu_util=round(busy),
            temperature=round(40 + heat + 2 * math.sin(seconds / 9 + index)),
            power_mw=round((150 if waits else 540 + 40 * math.sin(seconds + index)) * 1000),
        )


PICTURES: dict[str, Callable[[], bytes]] = {"page.png": page}


def write(name: str) -> None:
    """Make a picture and write it small enough for a repository."""
    image = Image.open(io.BytesIO(PICTURES[name]())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    image.save(packed, "PNG", optimize=True)
    if len(packed.getvalue()) > MOST_BYTES:
        raise SystemExit(f"{name} has {len(packed.getvalue())} bytes, at most {MOST_BYTES} are for a repository")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_bytes(packed.getvalue())
    print(f"docs/pictures/{name}: {image.width}x{image.height}, {len(packed.getvalue())} bytes")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        if chosen not in PICTURES:
            raise SystemExit(f"no picture {chosen!r}: there are {', '.join(PICTURES)}")
        write(chosen)
