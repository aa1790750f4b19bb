"""Sources on Apple silicon: macmon, ioreg, powermetrics and system_profiler, and the backend that combines them.

``macmon pipe`` prints power, utilisation, clocks and temperatures as one JSON object per line, without any rights. Up to 0.7, ``gpu_usage``
is the clock in MHz and the *scaled* ratio (active time, weighted by the clock), and there is nothing else. 0.8.0 has named fields instead,
also for the *active* ratio; 0.8.1 prints both. Ratios go from 0 to 1. macmon prints 0 for a value that it cannot read: a temperature
without sensors, a clock without its table, the power of a part without a counter.

PyPI has another program named macmon, a dashboard that starts a web server. So a command with this name is asked for its version first, and
its first line must have macmon's form. Otherwise it is not used as long as the source is open.

``ioreg`` prints the counters of the GPU's driver, for every user: utilisation in percent, memory in bytes. The GPU has no memory of its
own; its memory is part of the host's.

``powermetrics`` prints power and clocks, for root only, measured over a short interval at each run. Its property list has the GPU's clock
in MHz under the name ``freq_hz``, and the processor's clock in Hz. Power is in mW; instead of power there may be energies in mJ over
``elapsed_ns``. If it prints no property list, its text is parsed, as on older releases.
"""

from __future__ import annotations

import json
import os
import plistlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from accelmetrics.backends.apple import DIRECTORIES, INSTALL_MACMON
from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit import (
    Command,
    Derived,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Source,
    json_documents,
    number,
    quoted,
    share,
    stream,
)
from accelmetrics.backends.kit.commands import CHUNK, LinePoll, run
from accelmetrics.backends.kit.fields import flat
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

SYSTEM = ("/usr/sbin", "/usr/bin")

# macmon

INTERVAL = 1.0
"""Seconds between two lines."""
FIRST_LINE = 4.0
"""Seconds to wait for the first line when the source is opened."""
VERSION_TIMEOUT = 3.0

MISSING = "macmon is not installed (brew install macmon)"
STRANGE = "another program is named macmon: its output is not macmon's"
OFF = Unavailable(Reason.NOT_IN_USE, "the GPU was off during the whole interval")
NO_SWAP = Unavailable(Reason.NOT_SUPPORTED, "there is no swap space")

_VERSION = re.compile(r"macmon v?\d+\.\d+", re.ASCII)


def ratio(printed: object) -> object:
    """Return a ratio from 0 to 1. Single-precision rounding may bring it slightly above 1."""
    return 1.0 if isinstance(printed, float) and 1 < printed <= 1.001 else printed


def clock(printed: object) -> object:
    """Return the GPU's clock, or a reason while the GPU is off."""
    return OFF if printed == 0 else printed


MACMON_GPU = (
    Field("gpu", "gpu_active_ratio", "ratio", ratio, words='macmon "gpu_active_ratio", from 0.8 on'),
    Field("scaledUtilization", ("gpu_scaled_ratio", "gpu_usage.1"), "ratio", ratio),
    Field("freq", ("gpu_freq_mhz", "gpu_usage.0"), "MHz", clock),
    Field("temp", "temp.gpu_temp_avg", "C", zero_is_missing=True),
    Field("powerWatts", "gpu_power", "W"),
    Field("memoryTotalBytes", "memory.ram_total", "B"),
    Field("fanSpeedRpm", "fans.0.rpm", words='macmon "fans", the first, from 0.8 on'),  # 0 while it stands still
)
MACMON_CHIP = (
    Field("cpu.ecpu_freq", ("ecpu_freq_mhz", "ecpu_usage.0"), "MHz", zero_is_missing=True),
    Field("cpu.pcpu_freq", ("pcpu_freq_mhz", "pcpu_usage.0"), "MHz", zero_is_missing=True),
    Field("_ecpu", ("ecpu_scaled_ratio", "ecpu_usage.1"), "ratio", ratio),
    Field("_pcpu", ("pcpu_scaled_ratio", "pcpu_usage.1"), "ratio", ratio),
    # The ratio is weighted by the clock. So if the table of clocks is missing, it is 0 too, and the clock decides.
    Derived("cpu.ecpu_percent", ("cpu.ecpu_freq", "_ecpu"), lambda _, used: 100 * used, 'macmon "ecpu_scaled_ratio"'),
    Derived("cpu.pcpu_percent", ("cpu.pcpu_freq", "_pcpu"), lambda _, used: 100 * used, 'macmon "pcpu_scaled_ratio"'),
    Field("cpu.avg_temp", "temp.cpu_temp_avg", "C", zero_is_missing=True),
    Field("cpu.powerWatts", "cpu_power", "W", zero_is_missing=True),
    Field("soc.powerWatts", "all_power", "W", zero_is_missing=True),
    Field("memory.powerWatts", "ram_power", "W", zero_is_missing=True),
    Field("system.powerWatts", "sys_power", "W", zero_is_missing=True),
    Field("ane.power", "ane_power", "W"),  # the Neural Engine is switched off when idle: then 0 W is a real value
    Field("memory.used", "memory.ram_usage", "B"),
    Field("_ram", "memory.ram_total", "B"),
    share("memory.used_percent", "memory.used", "_ram")._replace(words="macmon memory.ram_usage / memory.ram_total"),
    Field("swap.used", "memory.swap_usage", "B"),
)


def parse_macmon(text: str) -> Iterator[DeviceSample]:
    """Yield the GPU and the machine of one line.

    Raises:
        SourceError: The line is not macmon's.
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
    # Both samples share the record: each has its own fields.
    record = flat(line)
    yield DeviceSample(record)
    yield DeviceSample(record, machine=True)


class MacmonPoll:
    """Poll of the latest line, which checks that the command is macmon.

    Args:
        lines: The poll of its lines, or the reason why the command is not used.
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
            # A command that ended by itself may work when it is started again. A command that keeps running and is not macmon is
            # ended, and never started again.
            if not self._trusted and ((lines.process.ends and error.reason != Reason.DRIVER_ERROR) or error.message == STRANGE):
                self._lines = error.unavailable
                lines.close()
            raise
        # From here on the command has proved to be macmon, and later failures no longer count against it.
        self._trusted = True
        return found

    def close(self) -> None:
        """End the command."""
        if isinstance(self._lines, LinePoll):
            self._lines.close()


def connect_macmon() -> MacmonPoll:
    """Start macmon if it is installed and its version shows that it is macmon.

    Raises:
        SourceError: It is not installed, or this user may not execute it.
    """
    pipe = Command("macmon", ("pipe", "-s", "0", "-i", str(round(1000 * INTERVAL))), directories=DIRECTORIES)
    try:
        path = pipe.find()
    except SourceError as error:
        raise SourceError(error.reason, MISSING, advice=INSTALL_MACMON) from error
    why = f"{path} is another program of that name: "
    try:
        version = run([path, "--version"], timeout=VERSION_TIMEOUT, max_output=CHUNK).stdout.strip()
    except SourceError as error:
        if error.reason != Reason.TIMED_OUT:
            raise
        # A command that does not answer is not run again: it may be the dashboard of the same name.
        return MacmonPoll(Unavailable(Reason.DRIVER_UNAVAILABLE, why + "it does not answer --version"))
    if not _VERSION.match(version):
        return MacmonPoll(Unavailable(Reason.DRIVER_UNAVAILABLE, f"{why}its --version prints {version[:60]!r}"))
    return MacmonPoll(stream(pipe, parse_macmon, interval=INTERVAL, first=FIRST_LINE)())


# ioreg

IOREG = Command("ioreg", ("-r", "-d1", "-c", "IOAccelerator", "-a"), directories=SYSTEM, timeout=1.0)
IOREG_FIELDS = (
    Field("gpu", "Device Utilization %", "%"),
    Field("memoryAllocatedBytes", "In use system memory", "B"),
)


def parse_ioreg(text: str) -> list[DeviceSample]:
    """Return the first accelerator with statistics, and an empty sample of the machine.

    Raises:
        SourceError: The text is no list of accelerators, or no accelerator has statistics.
    """
    plist = guarded(plistlib.loads, text.encode())  # the parser may raise any exception
    if plist.failure is not None or not isinstance(plist.value, list):
        raise SourceError(Reason.PARSE_ERROR, f"ioreg printed no property list: {quoted(text)}")
    for entry in plist.value:
        statistics = entry.get("PerformanceStatistics") if isinstance(entry, Mapping) else None
        if isinstance(statistics, Mapping):
            model = entry.get("model")  # on some releases bytes that end in a zero byte
            name = model.decode("utf-8", "replace").rstrip("\0") if isinstance(model, bytes) else model
            return [DeviceSample({**statistics, "name": name, "cores": entry.get("gpu-core-count")}), DeviceSample({}, machine=True)]
    raise SourceError(Reason.NOT_SUPPORTED, "ioreg lists no GPU with statistics")


# powermetrics

SAMPLE = ("-n", "1", "-i", "200", "--samplers", "cpu_power,gpu_power")
"""Arguments for one sample over 200 ms."""
# Tried in this order: the property list, then the text.
POWERMETRICS = (
    Command("powermetrics", (*SAMPLE, "-f", "plist"), directories=SYSTEM, timeout=2.0),
    Command("powermetrics", SAMPLE, directories=SYSTEM, timeout=2.0),
)
GPU_POWER = (
    Field("gpu", "active", "%", words='powermetrics "GPU HW active residency"'),
    Field("freq", "freq", "MHz", clock, words='powermetrics "GPU HW active frequency"'),
    Field("powerWatts", "gpu", "mW", words='powermetrics "GPU Power"'),
)
CHIP_POWER = (
    Field("cpu.ecpu_freq", "E", "MHz", zero_is_missing=True, words='powermetrics "E-Cluster HW active frequency"'),
    Field("cpu.pcpu_freq", "P", "MHz", zero_is_missing=True, words='powermetrics "P-Cluster HW active frequency"'),
    Field("cpu.powerWatts", "cpu", "mW", zero_is_missing=True, words='powermetrics "CPU Power"'),
    Field("soc.powerWatts", "combined", "mW", zero_is_missing=True, words='powermetrics "Combined Power"'),
    Field("ane.power", "ane", "mW", words='powermetrics "ANE Power"'),
)
_POWERS = ("gpu", "cpu", "ane", "combined")
_HERTZ = 1e5
"""Numbers from here on are Hz, since no clock is so many MHz."""
_NUMBER = r"\s*(\d*\.?\d+)\s*"
_LINES = {
    "active": rf"^GPU (?:HW )?active residency:{_NUMBER}%",
    "idle": rf"^GPU idle residency:{_NUMBER}%",
    "freq": rf"^GPU (?:HW )?active frequency:{_NUMBER}MHz",
    "gpu": rf"^GPU Power:{_NUMBER}mW",
    "cpu": rf"^CPU Power:{_NUMBER}mW",
    "ane": rf"^ANE Power:{_NUMBER}mW",
    "combined": rf"^(?:Combined Power \([^)]*\)|Package Power):{_NUMBER}mW",
}


def connect_powermetrics() -> PollOnce:
    """Return a poll that runs powermetrics for a property list and, if that fails, for text.

    Raises:
        SourceError: This user is not root.
    """
    if os.geteuid() != 0:
        raise SourceError(Reason.NO_PERMISSION, "powermetrics needs root")
    in_plist, in_text = (command.poll(parse_powermetrics)() for command in POWERMETRICS)

    def poll() -> Iterable[DeviceSample]:
        try:
            return list(in_plist())
        except SourceError as error:
            # Older releases print no property list.
            if error.reason not in (Reason.DRIVER_ERROR, Reason.PARSE_ERROR):
                raise
            return in_text()

    return poll


def parse_powermetrics(text: str) -> list[DeviceSample]:
    """Return the GPU and the machine of one sample, in either form.

    Raises:
        SourceError: The sample has neither form.
    """
    plist = guarded(plistlib.loads, text.strip("\0 \n").encode())
    record = _of_plist(plist.value) if isinstance(plist.value, Mapping) else _of_text(text)
    if not record:
        words = f"powermetrics printed nothing about the GPU, as a property list or as text: {quoted(text)}"
        raise SourceError(Reason.PARSE_ERROR, words)
    return [DeviceSample(record), DeviceSample(record, machine=True)]


def _of_plist(sample: Mapping[str, Any]) -> dict[str, object]:
    gpu, processor = sample.get("gpu"), sample.get("processor")
    if not isinstance(gpu, Mapping):
        return {}
    processor = processor if isinstance(processor, Mapping) else {}
    elapsed = number(sample.get("elapsed_ns"), "ns", "s")
    record: dict[str, object] = {"active": _rest(ratio(gpu.get("idle_ratio")), "ratio"), "freq": _megahertz(gpu.get("freq_hz"))}
    for part in _POWERS:
        record[part] = processor.get(f"{part}_power")
        energy = number(processor.get(f"{part}_energy", gpu.get(f"{part}_energy")))
        if record[part] is None and not isinstance(energy, Unavailable) and not isinstance(elapsed, Unavailable) and elapsed > 0:
            record[part] = energy / elapsed  # mJ / s = mW
    clusters = processor.get("clusters")
    listed = [each for each in clusters if isinstance(each, Mapping)] if isinstance(clusters, list) else []
    for letter in "EP":
        record[letter] = _mean([_megahertz(each.get("freq_hz")) for each in listed if str(each.get("name", "")).startswith(letter)])
    return record


def _of_text(text: str) -> dict[str, object]:
    found = {name: re.search(line, text, re.MULTILINE | re.ASCII) for name, line in _LINES.items()}
    record: dict[str, object] = {name: match[1] for name, match in found.items() if match}
    if record:
        record.setdefault("active", _rest(record.get("idle"), "%"))
        for letter in "EP":
            line = rf"^{letter}\d*-Cluster (?:HW )?active frequency:{_NUMBER}MHz"
            record[letter] = _mean(re.findall(line, text, re.MULTILINE | re.ASCII))
    return record


def _rest(idle: object, unit: str) -> object:
    """Return the share of time that was not idle, in percent."""
    share_ = number(idle, unit, "%")
    return share_ if isinstance(share_, Unavailable) else 100 - share_


def _megahertz(printed: object) -> object:
    return printed / 1e6 if isinstance(printed, (int, float)) and _HERTZ <= printed < 1e300 else printed


def _mean(clocks: Iterable[object]) -> float | None:
    """Return the mean of the numbers among the clocks; None without any."""
    known = [value for value in map(number, clocks) if not isinstance(value, Unavailable)]
    return sum(known) / len(known) if known else None


# What does not change

PROFILER = Command("system_profiler", ("SPDisplaysDataType", "-json"), directories=SYSTEM, timeout=4.0)  # takes about a second
SYSCTL = Command("sysctl", ("-n", "hw.memsize"), directories=SYSTEM, timeout=1.0)
ONCE = 3600.0
"""Seconds between two polls of values that do not change."""
NO_LIMIT = Unavailable(Reason.NOT_SUPPORTED, "no power limit is published for the GPUs of Apple's chips")
FIXED_FIELDS = (
    Field("memoryTotalBytes", "memory", "B", words="sysctl hw.memsize"),
    Field("powerPercent", "limit", "%", words="none: no power limit is published"),
    share("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
)
IDENTITY = {"name": ("name", "family"), "cores": "cores", "unified": "unified"}


def connect_fixed() -> PollOnce:
    """Read the GPU's name and cores and the machine's memory once, and return a poll of them."""
    fixed = {"limit": NO_LIMIT, "family": "Apple GPU", "unified": True, "memory": _printed(SYSCTL)}
    fixed |= parse_profile(_printed(PROFILER))
    return lambda: [DeviceSample(fixed)]


def _printed(command: Command) -> str | Unavailable:
    """Return the output of a command, or why there is none."""
    try:
        completed = command.run()
    except SourceError as error:
        return error.unavailable
    return completed.stdout.strip() or Unavailable(Reason.DRIVER_ERROR, f"{command.names[0]}: {completed.words or 'it printed nothing'}")


def parse_profile(printed: str | Unavailable) -> dict[str, object]:
    """Return the name and the number of cores of the first Apple GPU; empty if they are missing."""
    document = None if isinstance(printed, Unavailable) else next(json_documents(printed), None)
    cards = document.get("SPDisplaysDataType") if isinstance(document, Mapping) else None
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, Mapping) and "apple" in str(card.get("spdisplays_vendor", "")).lower():
            return {"name": card.get("sppci_model") or card.get("_name"), "cores": card.get("sppci_cores")}
    return {}


# If several sources have a metric, the first one gives it.
POLLED = PolledBackend(
    "apple",
    kind="gpu",
    source="macmon",
    connect=connect_macmon,
    fields=MACMON_GPU,
    machine=MACMON_CHIP,
    interval=INTERVAL,
    also=(
        Source("ioreg", IOREG.poll(parse_ioreg), IOREG_FIELDS, identity=IDENTITY),
        Source("powermetrics", connect_powermetrics, GPU_POWER, machine=CHIP_POWER, instead_of="macmon"),
        Source("system_profiler", connect_fixed, FIXED_FIELDS, ONCE, identity=IDENTITY),
    ),
)
