"""The cards are found whatever stands around them, and only whole ones count."""

import json

import pytest

from accelmetrics.backends.amd.rocm_smi import parse
from tests.simulators.rocm_smi import OUTPUTS, output

NOISE = (
    "Exception caught: map::at\n",
    "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n",
    '{"level": "warning", "text": "no card here"}\n',
    "{unbalanced [ and 'card0': {\n",
    '{ "cut": {"deeper": ',
    "\x00\ufeff\x1b[31m",
)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("noise", NOISE)
def test_noise_around_the_object_changes_nothing(name: str, noise: str) -> None:
    clean = parse(output(name))
    assert clean[2]
    assert parse(noise + output(name) + noise) == clean


def test_keys_are_compared_without_case_and_surrounding_space() -> None:
    assert parse('{"CARD3": {" Card Series ": "\\tNavi "}}')[0] == {3: {"card series": "Navi"}}


def test_cards_of_several_objects_are_taken_together() -> None:
    found = parse('{"card0": {"a": "1"}} and {"card1": {"a": "2"}, "system": {"Driver version": "6.8"}}')
    assert found == ({0: {"a": "1"}, 1: {"a": "2"}}, {"driver version": "6.8"}, True)


def test_what_is_no_card_is_ignored() -> None:
    others = {"system": {"PID1": "card9, 1"}, "card": {"a": "1"}, "cardX": {}, "card5": "text", "card99999": {}, "xcard1": {}}
    assert parse(json.dumps(others | {"card7": {"b": "2"}}))[0] == {7: {"b": "2"}}


def test_a_card_that_is_cut_is_not_there() -> None:
    whole = output("mi300x_6_2")
    found = parse(whole[: whole.index('"card2"') + 200])
    assert not found[2]
    assert list(found[0]) == [0]
    assert found[0][0] == parse(whole)[0][0]


def test_a_card_within_a_string_is_no_card() -> None:
    text = json.dumps({"system": {"PID7": 'name "card3": {"gpu use (%)": "5"}, 0, 0'}})
    assert parse(text[:-1])[0] == {}


@pytest.mark.parametrize(
    "text", ["", "   \n", "null", "[]", "{}", '{"card0": null}', '{"card0"', "rocm-smi: not found", '{"card0": {"a": ' + "[" * 5000]
)
def test_text_without_cards_gives_none(text: str) -> None:
    assert parse(text)[0] == {}


@pytest.mark.parametrize(
    "text", ['{"a": ' * 200_000, '{"a":"' * 200_000, '{"card0": ' * 100_000, "{" * 2_000_000, '{"a": ' + "9" * 1_000_000 + "}"]
)
def test_hostile_text_is_given_up_soon(text: str) -> None:
    """Two megabytes of openings that lead nowhere; the suite's timeout is the judge."""
    assert parse(text)[0] == {}
