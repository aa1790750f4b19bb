"""Mutations of what a tool prints, through a vendor's parser and rows.

fuzz(backend, parse, LISTING)                     # 1,000 mutations; `make fuzz` takes 100,000
"""

from __future__ import annotations

import copy
import math
import os
import random
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from accelmetrics.backends.contract import MOST_DEVICES, ReadOptions
from accelmetrics.backends.kit import DeviceSample, Field, PolledBackend
from accelmetrics.backends.kit.fields import possible
from accelmetrics.backends.kit.parsing import parsed
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.metric import Metric

ROUNDS = int(os.environ.get("ACCELMETRICS_FUZZ", "1000"))
WORDS = (
    *(
        "N/A",
        "[Not Supported]",
        "-",
        "--",
        "",
        " ",
        "nan",
        "inf",
        "-1",
        "0",
        "65535",
        "4294967295",
        "18446744073709551615",
        "1e309",
        "9" * 5000,
    ),
    *(
        "-273",
        "1e9 W",
        "99999999 MiB",
        "1 / 0",
        "5 W / N/A",
        "0 MiB(0 MiB)",
        "٣",
        "12,5",
        "0x10",
        "true",
        "null",
        "{}",
        "[]",
        "[[",
        "}",
        '"',
    ),
    *("<", "&amp;", "</", "<gpu>", "|", "||", "+---+", "│", "═══", ":", "::", ",", "\t", "\n", "\r", "\x00", "\ufffd", "\u2028", "℃", "°C"),
    *("Insufficient Permissions", "Unknown Error", "No devices were found", "A" * 300, "{0}", "%s", "../..", "..", "."),
)
_TOKEN = re.compile(r"[^\s|,:<>\"{}\[\]]+")


def mutated(text: str, chance: random.Random) -> str:
    """A text that a broken, newer or foreign tool may print instead."""
    for _ in range(chance.randint(1, 4)):
        lines = text.splitlines(keepends=True) or [""]
        place, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        tokens = list(_TOKEN.finditer(text))
        token = chance.choice(tokens).span() if tokens else (0, 0)
        at = chance.randint(0, len(text))
        kind = chance.randrange(9)
        if kind <= 2:
            text = f"{text[: token[0]]}{chance.choice(WORDS)}{text[token[1] :]}"
        elif kind == 3:
            text = f"{text[:at]}{chance.choice(WORDS)}{text[at:]}"
        elif kind == 4:
            text = text[:at] if chance.random() < 0.5 else text[at:]
        elif kind == 5:
            text = text[:at] + text[at + chance.randint(1, 9) :]
        elif kind == 6:
            lines[place], lines[other] = lines[other], lines[place]
            text = "".join(lines)
        elif kind == 7:
            text = "".join(
                (*lines[:place], *lines[place + 1 :]) if chance.random() < 0.5 else (*lines[:place], lines[other], *lines[place:])
            )
        else:
            text = "".join(str(chance.randint(0, 9)) if each.isdigit() and chance.random() < 0.1 else each for each in text)
    return text


def fuzz(backend: PolledBackend, parse: Callable[[str], Iterable[DeviceSample]], *samples: str, source: str = "") -> None:
    """Hold what mutated samples come to against the rules: only the kit's exceptions, no value outside of its unit's bounds.

    Args:
        backend: The vendor's backend.
        parse: Its parser of these samples.
        samples: What the tool prints.
        source: The source whose rows read them; the first when left out.
    """
    spec = next(each for each in backend.specs if source in ("", each.name))
    texts = [text for sample in samples for text in (sample, sample.replace("\n", "\r\n"))]
    chance = random.Random(f"{backend.name} {spec.name}")
    numbers = sum(_read(backend, spec.name, parse, text) for text in samples)
    assert numbers, "the samples give no value"
    for round_ in range(ROUNDS):
        text = mutated(chance.choice(texts), chance)
        try:
            _read(backend, spec.name, parse, text)
        except BaseException as error:
            raise AssertionError(f"round {round_} of {backend.name}: {error!r} for {text!r}") from error


def _read(backend: PolledBackend, source: str, parse: Callable[[str], Iterable[DeviceSample]], text: str) -> int:
    """Read all devices of a text; how many values there were."""
    samples: list[DeviceSample] = []
    failure: SourceError | None = None
    try:
        samples.extend(islice(parsed(source, parse, text), MOST_DEVICES))
    except SourceError as error:
        failure = error
    assert failure is None or (failure.reason in list(Reason) and failure.message)

    def poll() -> Iterable[DeviceSample]:
        yield from samples
        if failure is not None:
            raise failure

    spec = next(each for each in backend.specs if each.name == source)
    made = copy.copy(backend)
    made.specs = (spec._replace(connect=lambda: poll, interval=0.0, instead_of=""),)
    vars(made)["tables"] = (backend.tables[backend.specs.index(spec)],)
    try:
        driver = made.open()
    except SourceError:
        return 0
    highs = {row.metric: row.high for row in spec.fields if isinstance(row, Field)}
    count = 0
    for unit, device in enumerate(driver.devices):
        for said in (device.name, device.uuid, device.serial, device.pci_bus_id):
            assert len(said) <= 256 and said.isprintable(), said
        reading = driver.reader(ReadOptions(1)).read(unit, [])
        for block in reading.blocks:
            for name, value in zip(block.names, block.values, strict=True):
                _check(_row(backend, name), value, highs.get(name))
                count += 1
        for name, why in reading.unavailable.items():
            assert why.reason in list(Reason) and why.detail and len(why.detail) <= 1000, (name, why)
    driver.close()
    return count


def _row(backend: PolledBackend, name: str) -> Metric:
    own = [row for row in backend.own_metrics() if row.name == name]
    row = own[0] if own else match(f"{backend.kind}.0.{name}") or match(name)
    assert row is not None, f"{name} is no metric"
    return row


def _check(row: Metric, value: Any, high: float | None) -> None:
    assert type(value) in (int, float) and math.isfinite(value), (row.name, value)
    low, most = possible(row, high)
    assert low <= value <= most, (row.name, value, low, most)
