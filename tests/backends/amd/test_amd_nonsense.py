"""Tools, a library and files that answer nonsense: what they count is bounded, and no answer costs more than its own metric."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from accelmetrics.backends.amd import amd_smi, amdsmi, rocm_smi
from accelmetrics.backends.amd.amdsmi import CALLS, METRICS, AmdsmiCard, open_cards
from accelmetrics.backends.contract import Value
from accelmetrics.backends.kit.fields import Field
from accelmetrics.schemas.catalogue import find
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from tests.backends.amd.printed import AMD_SMI, listed, read, read_card
from tests.simulators.amd_smi import metric, static
from tests.simulators.rocm_smi import cards

pytestmark = pytest.mark.usefixtures("root")  # nothing is known but what is answered

DEEP: Any = 7
for _ in range(900):
    DEEP = {"value": [DEEP]}
EXTREMES: dict[str, Any] = {
    **{"minus one": -1, "minus 2^63": -(2**63), "2^31": 2**31, "2^64 - 1": 2**64 - 1, "300 digits": 10**300, "4,000 digits": 10**4000},
    **{"the largest float": 1.7e308, "the smallest float": -1.7e308, "infinity": math.inf, "no number": math.nan, "yes": True},
    **{"a long text": "9" * 1_000_000, "not UTF-8": "\udcff\ud800", "control characters": "\x1b[2J\x00\n", "a deep document": DEEP},
    **{"a long list": [1] * 50_000, "an empty object": {}, "a pattern": r"\1\g<9>{}"},
}
extremes = pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)


def check(found: Mapping[str, Value]) -> None:
    """Each a possible number, or a reason of sensible length."""
    for name, value in found.items():
        if isinstance(value, Unavailable):
            assert len(value.detail) < 500, name
            continue
        row = find(f"gpu.0.{name}")
        assert math.isfinite(value) and abs(value) < 2**63, name
        assert row.minimum is None or value >= row.minimum
        assert row.maximum is None or value <= row.maximum


def replaced(document: Any, extreme: Any) -> Any:
    """A document with the extreme in the place of each value, but of the number of the card."""
    if isinstance(document, dict):
        return {name: value if name == "gpu" else replaced(value, extreme) for name, value in document.items()}
    return extreme


@extremes
def test_whatever_amd_smi_prints(extreme: Any) -> None:
    card = {**static(0, "0000:63:00.0", "0x3B7A21C0FFEE0001"), **metric(0)}
    (device,) = listed(amd_smi.backend(), [amd_smi.sample(replaced(card, extreme))])
    assert max(len(text) for text in device if isinstance(text, str)) <= 130
    check(read(AMD_SMI, amd_smi.sample(replaced(card, extreme))))
    for section, value in card.items():
        sound = read(AMD_SMI, amd_smi.sample({**card, section: replaced(value, extreme)}))
        check(sound)
        assert len([value for value in sound.values() if not isinstance(value, Unavailable)]) > 10, "the other sections' values"


@extremes
def test_whatever_rocm_smi_prints(extreme: Any) -> None:
    for name in ("mi250_pair_5_4", "apu_and_card_6_2"):
        for card in cards(name).values():
            lowered = {key.lower(): value for key, value in card.items()}
            check(read_card(dict.fromkeys(lowered, extreme)))
            for key in lowered:
                check(read_card({**lowered, key: extreme}))


@pytest.mark.parametrize("count", [1025, 9999])
def test_more_cards_than_can_be(count: int) -> None:
    """Refused in words, before a device is made of them."""
    printed = json.dumps({f"card{number}": {"GPU use (%)": "7"} for number in range(count)})
    with pytest.raises(SourceError, match="more than 1024 devices") as raised:
        listed(rocm_smi.backend(), rocm_smi.samples(rocm_smi.parse(printed)))
    assert raised.value.reason == Reason.INVALID_VALUE
    both = amd_smi.parse(json.dumps([{"gpu": number} for number in range(count)]))[0]
    with pytest.raises(SourceError, match="more than 1024 devices"):
        listed(amd_smi.backend(), map(amd_smi.sample, both.values()))


@pytest.mark.parametrize("number", [-1, 2**31, 10**300, True, 1.5, "0", None])
def test_a_number_that_no_card_has(number: object) -> None:
    assert amd_smi.parse(json.dumps([{"gpu": number}, {"gpu": 3}]))[0] == {3: {"gpu": 3}}


@pytest.mark.parametrize(
    "printed", ["[" * 1_000_000, "{" * 1_000_000, '{"gpu":' * 100_000, '[{"gpu": 0, "usage": ' * 100_000], ids=range(4)
)
def test_documents_of_any_depth(printed: str) -> None:
    assert amd_smi.parse(printed)[0] == {}
    assert rocm_smi.parse(printed)[0] == {}


class Library(SimpleNamespace):
    """A module ``amdsmi`` of which every function answers one thing."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer=answer)

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: self.answer) if name.startswith("amdsmi_") else SimpleNamespace(**dict.fromkeys(TYPES))


TYPES = ("EDGE", "JUNCTION", "VRAM", "HBM_0", "GTT", "GFX", "MEM", "CURRENT", "CRITICAL", "EMERGENCY")


@extremes
def test_whatever_the_library_answers(extreme: Any) -> None:
    """Once as it is, and once under every name that is looked up."""
    names = {word for row in amdsmi.FIELDS if isinstance(row, Field) for word in str(row.where).replace("'", ".").split(".")}
    names |= {"energy_accumulator", "counter_resolution", "pcie_static", "pcie_metric"}
    for answer in (extreme, dict.fromkeys(names, extreme), {"pcie_static": dict.fromkeys(names, extreme)}):
        card = AmdsmiCard(Library(answer), object(), "")
        progress: list[Any] = []
        check(card.read(METRICS, False, progress, {}))
        # The limits are those of one sensor; what the energy counter counts is known of some cards alone.
        assert set(CALLS) - set(progress) <= {"gtt", "energy", "hbm", "junction_critical", "junction_emergency"}


def test_more_handles_than_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before one of them is asked who it is."""
    module = SimpleNamespace(amdsmi_init=lambda: None, amdsmi_get_processor_handles=lambda: range(2**31), AmdSmiException=RuntimeError)
    monkeypatch.setattr(amdsmi, "load", lambda: module)
    with pytest.raises(SourceError, match=f"amdsmi lists {2**31} cards: more than 1024") as raised:
        open_cards([])
    assert raised.value.reason == Reason.INVALID_VALUE
