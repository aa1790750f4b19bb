"""Whatever the text, nothing is raised and no number is made up."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.backends.amd.rocm_smi import PrintedCard, is_unified, parse
from accelmetrics.backends.contract import Value
from accelmetrics.schemas.catalogue import expected_names, find
from accelmetrics.schemas.errors import Reason, Unavailable
from tests.backends.amd.printed import identify, read_card
from tests.simulators.rocm_smi import OUTPUTS, output

TEXTS = {name: output(name) for name in OUTPUTS}
KEYS = sorted({key for text in TEXTS.values() for card in parse(text)[0].values() for key in card})
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.from_regex(r"\(?-?[0-9]{1,12}(\.[0-9]*)?(Mhz\))?")
)
names = st.sampled_from(OUTPUTS)


def check(card: PrintedCard) -> dict[str, Value]:
    """A card's metrics, each of them a possible number or a reason."""
    found = read_card(card)
    assert found.keys() <= set(expected_names("amd"))
    for name, value in found.items():
        if isinstance(value, Unavailable):
            assert value.reason in {Reason.NOT_SUPPORTED, Reason.PARSE_ERROR, Reason.INVALID_VALUE}
            continue
        row = find(f"gpu.0.{name}")
        assert math.isfinite(value)
        assert not isinstance(value, bool)
        assert row.minimum is None or value >= row.minimum
        assert row.maximum is None or value <= row.maximum
        assert isinstance(value, int) or not row.integer
    return found


@given(st.text() | st.text(alphabet='{}[]":, card01N/A.%\\'))
def test_any_text_can_be_parsed(text: str) -> None:
    parsed = parse(text)
    if parsed[0]:
        identify(dict(parsed[0]), parsed[1])
    for card in parsed[0].values():
        check(card)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), SCALARS | st.lists(SCALARS), max_size=30))
def test_any_record_gives_possible_numbers_or_reasons(card: dict[str, object]) -> None:
    check(card)
    identify({0: card}, card)


@given(names, st.data())
def test_a_cut_output_gives_the_same_numbers_or_none(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    cut = parse(text[: data.draw(st.integers(0, len(text)))])
    whole = parse(text)
    for number, card in cut[0].items():
        assert card == whole[0][number]
    assert not cut[2] or cut[0] == whole[0]


@given(names, st.data())
def test_a_damaged_output_never_raises_and_stays_possible(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    damaged = text[:start] + data.draw(st.text(max_size=10)) + text[end:]
    for card in parse(damaged)[0].values():
        check(card)


@settings(max_examples=50)
@given(names, st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Nd"]), max_size=30))
def test_words_in_place_of_values_never_become_numbers(name: str, words: str) -> None:
    for card in parse(TEXTS[name])[0].values():
        found = check(dict.fromkeys(card, words))
        assert all(isinstance(value, Unavailable) for value in found.values())


@pytest.mark.parametrize("name", OUTPUTS)
def test_without_one_key_only_what_is_read_from_it_changes(name: str) -> None:
    """No metric takes its value from a key that another one is made of, unless it is made of both."""
    for card in parse(TEXTS[name])[0].values():
        whole = read_card(card)
        for key in card:
            others = {other: value for other, value in card.items() if other != key}
            if is_unified(others) != is_unified(card):
                continue
            rest = read_card(others)
            changed = {metric for metric, value in rest.items() if value != whole[metric] and not isinstance(value, Unavailable)}
            assert changed <= {"temp", "memoryAllocated", "energyJoules"}
