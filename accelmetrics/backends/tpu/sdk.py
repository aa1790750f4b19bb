"""Answers of libtpu's SDK, which runs in a child process, and the parsing of its strings.

The SDK is the only source of some metrics and the second source of others. Loading it takes seconds and may crash. So it runs only while a
TPU is in use, only in a child process, and only every ten seconds on its own thread. Readings use its latest answers. If it fails, it is
asked at growing intervals; if it is not installed, it is not asked again.

The SDK lists devices by position, and the runtime's ids in ascending order belong to these positions. It lists links by the location of
their chip (``tray1.chip3.ici0.int: 0``). The score of a chip is the score of its worst link, and the sorted locations belong to the chips
in order. Throttle scores follow the number of their device (``2-0``). Utilisation may have a value for each core of a device.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Clock, Number, Value
from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.watchdog import script
from accelmetrics.backends.tpu.values import CORES, LINK_HEALTH, MAX_LABELS, THROTTLE, DeviceField, checked, sanitized
from accelmetrics.schemas.catalogue.tpu import Family
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

INTERVAL = 10.0
LONGEST_INTERVAL = 600.0
TIMEOUT = 8.0
OLDEST = 2 * INTERVAL + TIMEOUT
"""Age in seconds from which an answer is stale."""
MAX_OUTPUT = 1024 * 1024
FIRST_WAIT = 3.0
"""Longest time in seconds that opening the source waits for the first answer."""

NOT_YET = Unavailable(Reason.TIMED_OUT, "libtpu's SDK has not answered yet")
NOT_INSTALLED = "libtpu's SDK is not installed for this Python: pip install libtpu"


SdkSeries = tuple[str, Sequence[str]]
"""The SDK's answer for one metric: a description, and values as strings."""


class SdkReading(NamedTuple):
    """Result of one run of the SDK.

    Attributes:
        taken: Time of the run on the monotonic clock.
        metrics: The answer for each of the SDK's names, or why there is none.
        otherwise: Why all other names have no answer.
        missing: Whether the SDK is not installed or cannot be loaded.
    """

    taken: float
    metrics: Mapping[str, SdkSeries | Unavailable]
    otherwise: Unavailable
    missing: bool = False

    @property
    def failed(self) -> bool:
        """Whether no metric has an answer."""
        return all(isinstance(found, Unavailable) for found in self.metrics.values())

    def first(self, names: Sequence[str]) -> SdkSeries | Unavailable:
        """Return the answer of the first name that has values, else a reason."""
        found = [self.metrics.get(name, self.otherwise) for name in names]
        # Some releases know a name and return an empty list under it.
        for answer in found:
            if not isinstance(answer, Unavailable) and answer[1]:
                return answer
        if not all(isinstance(answer, Unavailable) for answer in found):
            return Unavailable(Reason.NOT_SUPPORTED, "libtpu's SDK has no values of it")
        return found[0] if found else self.otherwise


class Sdk:
    """The SDK, asked at most every ten seconds on its own thread, and only while readings are taken.

    Args:
        names: The SDK's names of the metrics.
        clock: Clock for ages.
    """

    def __init__(self, names: Sequence[str], clock: Clock) -> None:
        self._names = tuple(names)
        self._clock = clock
        self._due = self._pause = 0.0
        self._answered = threading.Event()
        self._last = SdkReading(clock.monotonic(), {}, NOT_YET)

    def want(self, wait: float = 0.0) -> None:
        """Start a run if one is due. Wait up to ``wait`` seconds for the first answer ever."""
        if self._clock.monotonic() >= self._due:
            self._due = math.inf  # no second run before this one ends
            threading.Thread(target=self._ask, name="accelmetrics-tpu-sdk", daemon=True).start()
        self._answered.wait(wait)

    def latest(self) -> SdkReading:
        """Return the last answers, or a stale reason if they are too old."""
        last = self._last
        if last.missing or last.failed or self._clock.monotonic() - last.taken <= OLDEST:
            return last
        return last._replace(metrics={}, otherwise=Unavailable(Reason.STALE, f"libtpu's SDK has not answered for {OLDEST:g} s"))

    def _ask(self) -> None:
        self._last = last = ask(self._names, self._clock)
        self._answered.set()
        self._pause = min(2 * max(self._pause, INTERVAL), LONGEST_INTERVAL) if last.failed else INTERVAL
        # An SDK that is not installed is not asked again.
        if not last.missing:
            self._due = last.taken + self._pause


def ask(names: Sequence[str], clock: Clock) -> SdkReading:
    """Ask the SDK once, in a child process."""
    if not sys.executable:
        return SdkReading(clock.monotonic(), {}, Unavailable(Reason.NOT_SUPPORTED, "there is no Python to run libtpu's SDK with"), True)
    try:
        # This Python's own interpreter, so that the child imports the libtpu of the same environment.
        completed = commands.run((sys.executable, *script(__package__, "sdk_script.py"), *names), timeout=TIMEOUT, max_output=MAX_OUTPUT)
    except SourceError as error:
        return SdkReading(clock.monotonic(), {}, Unavailable(error.reason, f"libtpu's SDK: {error.message}"))
    return understood(completed.stdout, completed.returncode, clock.monotonic())


def understood(printed: str, status: int, taken: float) -> SdkReading:
    """Parse the output of the child, and ignore lines that libtpu itself may have printed in between."""
    metrics: dict[str, SdkSeries | Unavailable] = {}
    ending = f"signal {-status}" if status < 0 else f"exit status {status}"
    otherwise = Unavailable(Reason.DRIVER_ERROR, f"libtpu's SDK ended its process ({ending})")
    for text in printed.splitlines():
        line: Any = None
        with suppress(ValueError, RecursionError):
            line = json.loads(text) if text.startswith("{") else None
        if not isinstance(line, dict):
            continue
        name, data = str(line.get("name")), line.get("data")
        if "missing" in line:
            return SdkReading(taken, {}, Unavailable(Reason.NOT_SUPPORTED, f"{NOT_INSTALLED} ({line['missing']})"), missing=True)
        if "broken" in line:
            why = f"libtpu's SDK is installed and does not load: {line['broken']}"
            return SdkReading(taken, {}, Unavailable(Reason.DRIVER_UNAVAILABLE, why), missing=True)
        if "done" in line:
            otherwise = Unavailable(Reason.NOT_SUPPORTED, "libtpu's SDK does not have it")
        elif isinstance(data, list):
            metrics[name] = str(line.get("description", "")), tuple(map(str, data))
        else:
            metrics[name] = Unavailable(Reason.NOT_SUPPORTED, f"libtpu's SDK: {line.get('error', 'no data')}")
    return SdkReading(taken, metrics, otherwise)


_LINK = re.compile(r"(?P<chip>.*?)\.?\bici\d+[^:]*:\s*(?P<score>\S+)", re.IGNORECASE | re.ASCII)
_SCORE = re.compile(r"\s*(?P<device>\d{1,10})\s*-\s*(?P<score>\S+)\s*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?(e[+-]?\d+)?|nan|inf(inity)?)", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"(\d+)", re.ASCII)
LONGEST = 60


def number(text: str) -> Number | None:
    """Return a text as a number, whole numbers as int; None if it is no number."""
    text = text.strip()
    if len(text) > LONGEST or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def sdk_devices(
    field: DeviceField, series: SdkSeries | Unavailable, chips: Sequence[Sequence[int]], per_chip: int, cores: int = 1
) -> Mapping[int, Value] | Unavailable:
    """Return a metric of every device, by the runtime's device number.

    Args:
        field: The metric.
        series: The SDK's answer.
        chips: The device numbers of each chip, in order.
        per_chip: Number of devices that share a duty cycle.
        cores: TensorCores of a device.
    """
    if isinstance(series, Unavailable):
        return series
    data = series[1] if field.name != THROTTLE else _scores(series[1])
    links = field.name == LINK_HEALTH and any(map(_LINK.fullmatch, data))
    values = _worst_links(field, data) if links else [_checked(field, text) for text in data]
    if isinstance(values, Unavailable):
        return values
    devices = [device for chip in chips for device in chip]
    if field.name == CORES and cores > 1 and len(values) == cores * len(devices):
        values = [_mean(values[first : first + cores]) for first in range(0, len(values), cores)]
    # Values are assigned by position, so their number must fit.
    if len(values) == len(devices) and not links:
        return dict(zip(devices, values, strict=True))
    if len(values) == len(chips) and (field.name == LINK_HEALTH or (field.per_chip and per_chip > 1)):
        return {device: value for chip, value in zip(chips, values, strict=True) for device in chip}
    what = f"the links of {len(values)} chips, and {len(chips)}" if links else f"{len(values)} devices, and {len(devices)}"
    return Unavailable(Reason.PARSE_ERROR, f"libtpu's SDK reports {what} are in use")


def _scores(data: Sequence[str]) -> Sequence[str]:
    """Return the scores sorted by the device numbers before them. Data in another form is returned unchanged."""
    found = [_SCORE.fullmatch(text) for text in data]
    numbered = [(int(each["device"]), each["score"]) for each in found if each is not None]
    return [score for _, score in sorted(numbered)] if len(dict(numbered)) == len(data) else data


def _mean(values: Sequence[Value]) -> Value:
    """Return the mean of the values, or the reason of the first missing one."""
    known = [value for value in values if not isinstance(value, Unavailable)]
    missing = next((value for value in values if isinstance(value, Unavailable)), None)
    return sum(known) / len(known) if missing is None else missing


def _checked(field: DeviceField, text: str) -> Value:
    value = number(text)
    return checked(field, text if value is None else value)


def _worst_links(field: DeviceField, data: Sequence[str]) -> list[Value] | Unavailable:
    """Return the score of each chip's worst link, ordered by the location of the chip."""
    by_place: dict[str, list[Value]] = {}
    for text in data:
        link = _LINK.fullmatch(text.strip())
        if link is None:
            return Unavailable(Reason.PARSE_ERROR, f"no link and its score: {text[:LONGEST]!r}")
        by_place.setdefault(link["chip"], []).append(_checked(field, link["score"]))
    # A score that cannot be parsed counts as the worst: it may have been the highest.
    worst = {
        place: max(scores, key=lambda score: math.inf if isinstance(score, Unavailable) else score) for place, scores in by_place.items()
    }

    def in_order(place: str) -> list[tuple[int, str]]:  # numeric order: tray1.chip10 comes after tray1.chip9
        return [(int(part), "") if part.isdecimal() else (0, part) for part in _DIGITS.split(place)]

    return [worst[place] for place in sorted(by_place, key=in_order)]


def sdk_distributions(family: Family, series: SdkSeries | Unavailable) -> dict[str, dict[str, Number]]:
    """Return the statistics of a metric family by label and name. The label is empty for a family without labels.

    The SDK writes ``label, mean, p50, …`` in one string for each label. Without labels it writes ``mean, p50, …`` in one string or several.
    """
    if isinstance(series, Unavailable):
        return {}
    description, data = series
    if not family.labelled:
        numbers = _named(description, _split(data[0]) if len(data) == 1 else [text.strip() for text in data])
        return {"": numbers} if numbers else {}
    rows = [_split(text)[:64] for text in data[:MAX_LABELS]]
    return {sanitized(row[0]): _named(description, row[1:]) for row in rows if len(row) > 1}


def sdk_counts(series: SdkSeries | Unavailable) -> dict[str, Number]:
    """Return the sum of the counts of each label, from strings of the form ``label: count``."""
    found: dict[str, Number] = {}
    for position, text in enumerate(() if isinstance(series, Unavailable) else series[1][:MAX_LABELS]):
        label, separator, value = text.rpartition(":")
        known = number(value)
        if known is not None:
            key = sanitized(label) if separator else f"item_{position}"
            found[key] = found.get(key, 0) + known
    return found


def _named(description: str, numbers: Sequence[str]) -> dict[str, Number]:
    """Return the numbers of a row by statistic name."""
    # The SDK names the statistics only in its description, if at all. The names by position are the same as W&B's.
    words = description.lower()
    p95 = "p99" if "p99" in words.replace("p999", "") and "p95" not in words else "p95"
    others = tuple(f"stat{position}" for position in range(len(numbers)))
    names = {5: ("mean", "p50", "p90", p95, "p999"), 4: ("p50", "p90", "p95", "p999")}.get(len(numbers), others)
    return {name: value for name, text in zip(names, numbers, strict=True) if (value := number(text)) is not None}


def _split(text: str) -> list[str]:
    parts = (part.strip().strip("\"'") for part in text.strip().strip("[]").split(","))
    return [part for part in parts if part]
