"""``powermetrics``: power and clocks, for root alone, over a short interval at each run.

Its property list gives the GPU's clock in MHz under the name ``freq_hz`` and the processor's in Hz; power is in mW, or there
are energies in mJ over ``elapsed_ns``. Where there is no property list its text is read, which older releases print.
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Mapping

from accelmetrics.backends.apple.macmon import OFF
from accelmetrics.backends.apple.tools import output
from accelmetrics.backends.apple.values import Convert, Value, Values, look_up, milliwatts, number, percent_of_ratio, within
from accelmetrics.backends.contract import Number
from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

SAMPLE = ("-n", "1", "-i", "200", "--samplers", "cpu_power,gpu_power")
"""One sample, over 200 ms."""
FORMS = (("-f", "plist"), ())
TIMEOUT = 2.0

POWERS = {"powerWatts": "gpu", "ane.power": "ane", "cpu.powerWatts": "cpu", "soc.powerWatts": "combined"}
CLUSTERS = {"cpu.ecpu_freq": "E", "cpu.pcpu_freq": "P"}
NAMES = frozenset({"gpu", "freq", *POWERS, *CLUSTERS})

_HERTZ = 1e5
"""No clock is this many MHz: from here on it is Hz."""
_LONGEST = 10**15
"""Nanoseconds: no sample takes eleven days."""
_NUMBER = r"\s*(\d*\.?\d+)\s*"
_LINES: dict[str, tuple[str, ...]] = {
    "active": (rf"^GPU (?:HW )?active residency:{_NUMBER}%",),
    "idle": (rf"^GPU idle residency:{_NUMBER}%",),
    "freq": (rf"^GPU (?:HW )?active frequency:{_NUMBER}MHz",),
    "powerWatts": (rf"^GPU Power:{_NUMBER}mW",),
    "ane.power": (rf"^ANE Power:{_NUMBER}mW",),
    "cpu.powerWatts": (rf"^CPU Power:{_NUMBER}mW",),
    "soc.powerWatts": (rf"^Combined Power \([^)]*\):{_NUMBER}mW", rf"^Package Power:{_NUMBER}mW"),
}
_CLUSTER = rf"^{{letter}}\d*-Cluster (?:HW )?active frequency:{_NUMBER}MHz"

_clock = within(0, 10_000, zero=OFF, reason=Reason.NOT_IN_USE)
_some_milliwatts = within(0, 1e6, zero="0 mW is printed where the counter was not read", factor=0.001)


def run() -> Values:
    """Take a sample.

    Raises:
        SourceError: The command is not there, may not be used, was late, or printed something else.
    """
    failure = SourceError(Reason.PARSE_ERROR, "powermetrics printed nothing about the GPU, as a property list or as text")
    for form in FORMS:
        try:
            values = parse(output("powermetrics", (*SAMPLE, *form), TIMEOUT))
        except SourceError as error:
            if error.reason != Reason.DRIVER_ERROR:  # that is how one refuses a form
                raise
            failure = error
            continue
        if values is not None:
            return values
    raise failure


def parse(text: str) -> Values | None:
    """Every metric of one sample, in either form; None when it is neither."""
    plist = guarded(plistlib.loads, text.strip("\0 \n").encode())  # the parser throws whatever comes to pass in it
    if isinstance(plist.value, Mapping):
        return _of_plist(plist.value)
    return _of_text(text)


def _of_plist(sample: Mapping[str, object]) -> Values | None:
    if not isinstance(sample.get("gpu"), Mapping):
        return None
    idle = number(look_up(sample, (("gpu", "idle_ratio"),)), "idle_ratio", percent_of_ratio)
    values: Values = {
        "gpu": idle if isinstance(idle, Unavailable) else 100.0 - idle,
        "freq": number(look_up(sample, (("gpu", "freq_hz"),)), "the GPU's freq_hz", _megahertz),
    }
    values |= {name: _power(sample, part, name) for name, part in POWERS.items()}
    return values | {name: _cluster(sample, letter) for name, letter in CLUSTERS.items()}


def _power(sample: Mapping[str, object], part: str, name: str) -> Value:
    printed = look_up(sample, (("processor", f"{part}_power"),))
    elapsed = sample.get("elapsed_ns")
    if printed is not None or not isinstance(elapsed, int) or not 0 < elapsed < _LONGEST:
        return number(printed, f"{part}_power", _of(name))
    energy = look_up(sample, (("processor", f"{part}_energy"), ("gpu", f"{part}_energy")))
    return number(energy, f"{part}_power", lambda millijoules: _of(name)(millijoules * 1e9 / elapsed))


def _of(name: str) -> Convert:
    """The GPU and the Neural Engine are switched off while they are not used; the processor never is."""
    return milliwatts if name in ("powerWatts", "ane.power") else _some_milliwatts


def _cluster(sample: Mapping[str, object], letter: str) -> Value:
    clusters = look_up(sample, (("processor", "clusters"),))
    found = [cluster for cluster in clusters if isinstance(cluster, Mapping)] if isinstance(clusters, list) else []
    clocks = [cluster.get("freq_hz") for cluster in found if str(cluster.get("name", "")).startswith(letter)]
    return _mean([number(clock, f"freq_hz of the {letter} clusters", _megahertz) for clock in clocks], letter)


def _mean(clocks: list[Value], letter: str) -> Value:
    known = [clock for clock in clocks if not isinstance(clock, Unavailable)]
    if not known:
        return Unavailable(Reason.NOT_SUPPORTED, f"powermetrics gives no clock of {letter} clusters")
    return sum(known) / len(known)


def _megahertz(printed: Number) -> Value:
    return _clock(printed / 1e6 if printed >= _HERTZ else printed)


def _of_text(text: str) -> Values | None:
    found = {name: _find(text, patterns) for name, patterns in _LINES.items()}
    if all(value is None for value in found.values()):
        return None
    idle, active = found.pop("idle"), found.pop("active")
    if active is None and idle is not None:
        active = 100.0 - idle
    values: Values = {
        "gpu": number(active, "the GPU's active residency", within(0, 100)),
        "freq": number(found.pop("freq"), "the GPU's active frequency", _clock),
    }
    values |= {name: number(printed, name, _of(name)) for name, printed in found.items()}
    for name, letter in CLUSTERS.items():
        clocks = re.findall(_CLUSTER.format(letter=letter), text, re.MULTILINE | re.ASCII)
        values[name] = _mean([_clock(float(clock)) for clock in clocks], letter)
    return values


def _find(text: str, patterns: tuple[str, ...]) -> float | None:
    matches = (re.search(pattern, text, re.MULTILINE | re.ASCII) for pattern in patterns)
    return next((float(match.group(1)) for match in matches if match), None)
