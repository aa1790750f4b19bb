"""``macmon pipe``: power, utilisation, clocks and temperatures, without any rights, as one JSON object a line.

Up to 0.7, ``gpu_usage`` is a clock in MHz and the *scaled* ratio (time active, weighted by the clock), and that is all there is. 0.8.0
has named fields instead, among them the *active* ratio; 0.8.1 prints both. Ratios go from 0 to 1. A 0 is printed for what could not be
read: a temperature without sensors, a clock without its table, the power of a part whose counter is not there.

Another program of that name is on PyPI: a dashboard that starts a web server. So a command of the name is asked for its version first,
and its first line must be one of macmon's; if not, it is left alone for as long as the source is open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from accelmetrics.backends.apple import DIRECTORIES, INSTALL_MACMON
from accelmetrics.backends.kit import Command, Derived, DeviceSample, Field, share
from accelmetrics.backends.kit.commands import CHUNK, run
from accelmetrics.backends.kit.fields import flat
from accelmetrics.backends.kit.line_process import LinePoll, stream
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

FIRST_LINE = 4.0
"""Seconds to wait for the first line when the source is opened."""
VERSION_TIMEOUT = 3.0

MISSING = "macmon is not installed (brew install macmon)"
STRANGE = "a program named macmon prints something else than macmon does"
OFF = Unavailable(Reason.NOT_IN_USE, "the GPU was off all through the interval")
NO_SWAP = Unavailable(Reason.NOT_SUPPORTED, "there is no swap space")

_VERSION = re.compile(r"macmon v?\d+\.\d+", re.ASCII)


def ratio(printed: object) -> object:
    """Return a ratio from 0 to 1. As a single-precision number it may come out a hair above that."""
    return 1.0 if isinstance(printed, float) and 1 < printed <= 1.001 else printed


def clock(printed: object) -> object:
    """Read the GPU's clock: it has none while it is off."""
    return OFF if printed == 0 else printed


GPU = (
    Field("gpu", "gpu_active_ratio", "ratio", ratio, words='macmon "gpu_active_ratio", from 0.8 on'),
    Field("scaledUtilization", ("gpu_scaled_ratio", "gpu_usage.1"), "ratio", ratio),
    Field("freq", ("gpu_freq_mhz", "gpu_usage.0"), "MHz", clock),
    Field("temp", "temp.gpu_temp_avg", "C", zero_is_missing=True),
    Field("powerWatts", "gpu_power", "W"),
    Field("memoryTotalBytes", "memory.ram_total", "B"),
)
MACHINE = (
    Field("cpu.ecpu_freq", ("ecpu_freq_mhz", "ecpu_usage.0"), "MHz", zero_is_missing=True),
    Field("cpu.pcpu_freq", ("pcpu_freq_mhz", "pcpu_usage.0"), "MHz", zero_is_missing=True),
    Field("_ecpu", ("ecpu_scaled_ratio", "ecpu_usage.1"), "ratio", ratio),
    Field("_pcpu", ("pcpu_scaled_ratio", "pcpu_usage.1"), "ratio", ratio),
    # Without the table of clocks the ratio, which is weighted by them, is 0 too.
    Derived("cpu.ecpu_percent", ("cpu.ecpu_freq", "_ecpu"), lambda _, used: 100 * used, 'macmon "ecpu_scaled_ratio"'),
    Derived("cpu.pcpu_percent", ("cpu.pcpu_freq", "_pcpu"), lambda _, used: 100 * used, 'macmon "pcpu_scaled_ratio"'),
    Field("cpu.avg_temp", "temp.cpu_temp_avg", "C", zero_is_missing=True),
    Field("cpu.powerWatts", "cpu_power", "W", zero_is_missing=True),
    Field("soc.powerWatts", "all_power", "W", zero_is_missing=True),
    Field("system.powerWatts", "sys_power", "W", zero_is_missing=True),
    Field("ane.power", "ane_power", "W"),  # the Neural Engine is switched off while it is not used: 0 W is what it draws
    Field("memory.used", "memory.ram_usage", "B"),
    Field("_ram", "memory.ram_total", "B"),
    share("memory.used_percent", "memory.used", "_ram")._replace(words="macmon memory.ram_usage / memory.ram_total"),
    Field("swap.used", "memory.swap_usage", "B"),
)


def parse(text: str) -> Iterator[DeviceSample]:
    """Yield the GPU and the machine of one line.

    Raises:
        SourceError: It is no line of macmon's.
    """
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict) or "gpu_power" not in line or not {"gpu_usage", "gpu_freq_mhz"} & line.keys():
        raise SourceError(Reason.PARSE_ERROR, STRANGE)
    memory = line.get("memory")
    if isinstance(memory, dict) and memory.get("swap_total") == 0:
        memory["swap_usage"] = NO_SWAP
    record = flat(line)
    yield DeviceSample(record)
    yield DeviceSample(record, machine=True)


class MacmonPoll:
    """The latest line, once the command has shown that it is macmon.

    Args:
        lines: What it prints, or what speaks against it.
    """

    reopens = True

    def __init__(self, lines: LinePoll | Unavailable) -> None:
        self._lines = lines
        self._trusted = False

    def __call__(self) -> Iterable[DeviceSample]:
        lines = self._lines
        if isinstance(lines, Unavailable):
            raise SourceError(lines.reason, lines.detail)
        try:
            found = lines()
        except SourceError as error:
            # One that ends may do better when it is started again; one that goes on, and is not macmon, is not started time and again.
            killed = lines.process.ends and error.reason != Reason.DRIVER_ERROR
            if not self._trusted and (killed or error.message == STRANGE):
                self._lines = error.unavailable
                lines.close()
            raise
        self._trusted = True
        return found

    def close(self) -> None:
        """End the command."""
        if isinstance(self._lines, LinePoll):
            self._lines.close()


def connect(interval: float) -> MacmonPoll:
    """Start macmon, if it is there and says that it is macmon.

    Args:
        interval: Seconds between two lines.

    Raises:
        SourceError: It is not installed, or may not be executed.
    """
    pipe = Command("macmon", ("pipe", "-s", "0", "-i", str(round(1000 * interval))), directories=DIRECTORIES)
    try:
        path = pipe.find()
    except SourceError as error:
        raise SourceError(error.reason, MISSING, advice=INSTALL_MACMON) from error
    why = f"{path} is another program of that name: "
    try:
        said = run([path, "--version"], timeout=VERSION_TIMEOUT, max_output=CHUNK).stdout.strip()
    except SourceError as error:
        if error.reason != Reason.TIMED_OUT:
            raise
        return MacmonPoll(Unavailable(Reason.DRIVER_UNAVAILABLE, why + "it does not answer --version"))
    if not _VERSION.match(said):
        return MacmonPoll(Unavailable(Reason.DRIVER_UNAVAILABLE, f"{why}its --version prints {said[:60]!r}"))
    return MacmonPoll(stream(pipe, parse, interval=interval, first=FIRST_LINE)())
