"""Makes the pictures of the documentation with the product itself: ``python -m scripts.pictures [NAME …]``.

Each picture is a function in ``PICTURES``, by its file's name in ``docs/pictures``; it shows the program on simulated devices. Needs
what the tests need: a C compiler, and Debian's chromium and chromium-driver for the page; terminals are drawn in Debian's
fonts-dejavu-core.
"""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyte
from PIL import Image, ImageDraw, ImageFont
from pyte.screens import Char

from tests.cli.shell import environment
from tests.cli.terminals import on_terminal
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
    with NvmlSimulator(8) as machine, tempfile.TemporaryDirectory() as profile, tempfile.TemporaryDirectory() as shared:
        start_well(machine)
        train(machine, 0.0)
        for index in range(len(machine.gpu)):
            machine.processes(index, [Process(os.getpid(), used=60 << 30, sm=90)])
        with (
            serving(machine, "--interval", "0.25", XDG_RUNTIME_DIR=shared) as node,
            sharing(machine, shared),
            chromium(Path(profile)) as driver,
        ):
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
            browser.resize((1200, 1490))
            return driver.get_screenshot_as_png()


def start_well(machine: NvmlSimulator) -> None:
    """Have GPUs that nothing is wrong with, full of a model."""
    for index, gpu in enumerate(machine.gpu):
        gpu.set(ecc_uncorrected_volatile=0, ecc_corrected_volatile=0, clocks_event_reasons=0, clock_sm=1980)
        gpu.set(memory_used=int((61 + index / 4) * 2**30), energy_mj=Ramp(5e9, rate=540_000))


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


HW_THERMAL = 0x40
"""Of NVML's reasons for lower clocks."""
RECORDING = """
import math, sys, time
from accelmetrics import Monitor
rules = {"hot": {"above": 80, "seconds": 5}}
with Monitor(backends=["nvidia", "host"], interval=0.25, rules=rules, exporters=[f"jsonl:{sys.argv[1]}"]) as monitor:
"""
SHARING = """
import math, sys, time
from accelmetrics import Monitor
with Monitor(backends=["nvidia", "host"], interval=0.25, rules={}, share="node") as monitor:
"""
STEPS = """
    began, step = time.monotonic(), 0
    while (passed := time.monotonic() - began) < float(sys.argv[2]):
        time.sleep(0.2 + 0.04 * math.sin(step))
        loss = 4 * math.exp(-passed / 25) + 1 + 0.1 * math.sin(step * 7)
        monitor.log(step=step, loss=loss, learning_rate=3e-4 * min(1, passed / 10), epoch=int(passed // 15), tokens=8192)
        step += 1
"""


def report() -> bytes:
    """The report of a training run on four GPUs, of which one gets hot and is throttled."""
    with NvmlSimulator(4) as machine, tempfile.TemporaryDirectory() as folder:
        recording, html = Path(folder, "run.jsonl"), Path(folder, "run.html")
        start_well(machine)
        arguments = [sys.executable, "-c", RECORDING + STEPS, str(recording), str(RUN)]
        program = subprocess.Popen(arguments, env=environment(**machine.environment()))
        began = time.monotonic()
        while program.poll() is None:
            passed = time.monotonic() - began
            train(machine, passed)
            if passed > RUN / 2:
                machine.gpu[2].set(clocks_event_reasons=HW_THERMAL, clock_sm=1410, temperature=86)
            time.sleep(0.1)
        done = subprocess.run([*arguments[:1], "-m", "accelmetrics", "report", str(recording), "--html", str(html)], check=False)
        if program.returncode or done.returncode:
            raise SystemExit("no recording was made")
        with chromium(Path(folder, "profile")) as driver:
            browser = Browser(driver)
            browser.open(html.as_uri(), (1200, 1800))
            browser.until(lambda: browser.run("return document.body.dataset.drawn"))
            return driver.get_screenshot_as_png()


@contextmanager
def sharing(machine: NvmlSimulator, folder: str) -> Iterator[None]:
    """A training run of a job, which shares its steps in a folder."""
    variables = {**machine.environment(), "XDG_RUNTIME_DIR": folder, "SLURM_JOB_ID": "4711"}
    program = subprocess.Popen([sys.executable, "-c", SHARING + STEPS, "", "3600"], env=environment(**variables))
    try:
        yield
    finally:
        program.terminate()
        program.wait()


@contextmanager
def working(machine: NvmlSimulator) -> Iterator[None]:
    """A process on each GPU. They are shells that wait for the end of their input, and are named as what they stand for."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "train.py").write_text("read end")
        for index in range(len(machine.gpu)):
            named = ["python", "train.py", "--config", "llama-8b.yaml", "--rank", str(index)]
            process = stack.enter_context(subprocess.Popen(named, executable="/bin/sh", cwd=folder, stdin=subprocess.PIPE))
            machine.processes(index, [Process(process.pid, used=int((60 + index / 4) * 2**30), sm=88 + index % 8)])
        yield


def watch(gpus: int, rows: int, columns: int) -> bytes:
    """A terminal with ``watch``: GPUs in a training run; of several, one gets hot and is throttled, and one is lost."""
    with NvmlSimulator(gpus) as machine, working(machine):
        start_well(machine)
        arguments = ("watch", "--backends", "nvidia,host", "--interval", "0.25")
        variables = {**machine.environment(), "COLORTERM": "truecolor"}
        with on_terminal(*arguments, rows=rows, columns=columns, env=variables) as terminal:
            began = time.monotonic()
            lost = False
            while (passed := time.monotonic() - began) < RUN:
                train(machine, passed)
                if gpus > 1 and passed > RUN / 2:
                    machine.gpu[2].set(clocks_event_reasons=HW_THERMAL, clock_sm=1410, temperature=88)
                if gpus > 1 and passed > 0.75 * RUN and not lost:
                    machine.lose(gpus // 2 + 1)
                    lost = True
                time.sleep(0.1)
            return drawn(terminal.raw, rows, columns)


FONT = 20
CELL = (12, 24)
"""Width and height in pixels of a character in that size of the font."""
MARGIN = 16
BACKGROUND, FOREGROUND, DIM = "#16181d", "#d8dbe0", "#8b919b"
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit's dot in a letter of Braille."""


def drawn(written: bytes, rows: int, columns: int) -> bytes:
    """Draw what a program has written to a terminal."""
    screen = pyte.Screen(columns, rows)
    # Pyte knows nothing of dim text, and no program of ours blinks.
    pyte.ByteStream(screen).feed(written.replace(b"\x1b[2m", b"\x1b[5m"))
    size = (columns * CELL[0] + 2 * MARGIN, rows * CELL[1] + 2 * MARGIN)
    image = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(image)
    fonts = [ImageFont.truetype(f"DejaVuSansMono{bold}.ttf", FONT) for bold in ("", "-Bold")]
    for row in range(rows):
        for column in range(columns):
            draw_cell(draw, (MARGIN + column * CELL[0], MARGIN + row * CELL[1]), screen.buffer[row][column], fonts)
    packed = io.BytesIO()
    image.save(packed, "PNG")
    return packed.getvalue()


def draw_cell(draw: ImageDraw.ImageDraw, at: tuple[int, int], cell: Char, fonts: list[ImageFont.FreeTypeFont]) -> None:
    """Draw one character. Blocks and Braille fill their cell, as terminals draw them, which no font does."""
    (left, top), (width, height) = at, CELL
    ink = (DIM if cell.blink else FOREGROUND) if cell.fg == "default" else f"#{cell.fg}"
    if cell.reverse:
        draw.rectangle((left, top, left + width - 1, top + height - 1), fill=ink)
        ink = BACKGROUND
    code = ord(cell.data[:1] or " ")  # nothing stands in the second half of a wide character
    if 0x2581 <= code <= 0x2588:  # from an eighth to the whole of a cell
        draw.rectangle((left, top + height - (code - 0x2580) * height // 8, left + width - 1, top + height - 1), fill=ink)
    elif 0x2800 <= code <= 0x28FF:
        for bit, (across, down) in enumerate(DOTS):
            if code >> bit & 1:
                x, y = left + width * (2 * across + 1) // 4, top + height * (2 * down + 1) // 8
                draw.ellipse((x - 2, y - 2, x + 1, y + 1), fill=ink)
    else:
        draw.text((left, top), cell.data, fill=ink, font=fonts[cell.bold])


PICTURES: dict[str, Callable[[], bytes]] = {
    "page.png": page,
    "report.png": report,
    "watch-1.png": partial(watch, 1, 30, 100),
    "watch-8.png": partial(watch, 8, 40, 120),
    "watch-64.png": partial(watch, 64, 40, 120),
}


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
