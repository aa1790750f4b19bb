"""W&B's own collector and accelmetrics, on the same simulated GPUs: what both give agrees, and what differs is documented."""

from __future__ import annotations

import pytest

from tests.differential import differences, host_keys, machine
from tests.differential.differences import Found, Phase, Row
from tests.differential.streams import Streams

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.timeout(400)]

SECTIONS = ("GPUs", "After an error", "The host")
PHASES = (machine.HEALTHY, machine.BUSY, machine.FAILING, machine.RECOVERED, machine.LIMITED)

MINIMUM_GPU_KEYS, MINIMUM_HOST_KEYS = 205, 10
"""How many keys agree at least. Fewer say that one of the two has lost some, or that they are not compared any more."""
MINIMUM_VALUES = 930
"""The same for the GPUs' values: each key once in every phase in which both have it."""

EXPECTED_REASONS = {
    "gpu.1.gpu": "driver_error",
    "gpu.1.memory": "driver_error",
    "gpu.2.memoryAllocatedBytes": "timed_out",
    "gpu.2.temp": "no_permission",
    "gpu.3.powerWatts": "driver_error",
    "gpu.3.powerPercent": "driver_error",
    "gpu.3.energyJoules": "driver_error",
    "gpu.4.memoryClock": "driver_error",
    "gpu.6.smActive": "driver_error",
    "gpu.7.smActive": "driver_error",
}


@pytest.fixture(scope="session")
def phases(both: Streams) -> list[Phase]:
    return [differences.phase_of(both, number) for number in PHASES]


@pytest.fixture(scope="session")
def found(phases: list[Phase]) -> list[Found]:
    """Every difference of every phase."""
    before = phases[machine.BUSY].wandb
    return [one for phase in phases for one in differences.differences(phase, before)]


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """What the document says of this machine."""
    text = differences.DOCUMENT.read_text()
    return [row for heading in SECTIONS for row in differences.documented(differences.section(text, heading))]


def test_every_difference_is_documented(found: list[Found], rows: list[Row]) -> None:
    """Nothing differs that docs/wandb-differences.md does not explain."""
    assert _summary(differences.unlisted(found, rows)) == {}


def test_every_documented_difference_is_there(found: list[Found], rows: list[Row]) -> None:
    """The document claims no difference that has gone."""
    assert differences.unseen(found, rows) == []


def test_the_document_is_well_formed(rows: list[Row]) -> None:
    """Each row says a kind that there is, whether every machine shows it, and a reason."""
    assert rows
    assert {row.kind for row in rows} <= set(differences.KINDS)
    assert {row.seen for row in rows} <= {differences.ALWAYS, differences.MACHINE}
    assert [row for row in rows if len(row.reason) < 20] == []


def test_host_keys_agree(both: Streams, phases: list[Phase], rows: list[Row]) -> None:
    """What both say about the host is the same, apart from what has moved between two readings."""
    wrong = {key: words for key in _host_keys(phases, rows) if (words := host_keys.disagreement(key, both))}
    assert wrong == {}


def test_enough_is_compared(phases: list[Phase], found: list[Found], rows: list[Row]) -> None:
    """Agreement means something only about as many keys and values as ever."""
    differing = {(phase.number, key) for phase in phases for key in _differing(phase, found)}
    agreeing = [
        (phase.number, key)
        for phase in phases
        for key in phase.wandb.keys() & phase.ours.metrics.keys()
        if key.startswith("gpu.") and (phase.number, key) not in differing
    ]
    assert len({key for _, key in agreeing}) >= MINIMUM_GPU_KEYS
    assert len(agreeing) >= MINIMUM_VALUES
    assert len(_host_keys(phases, rows)) >= MINIMUM_HOST_KEYS


def test_failures_have_reasons_here(phases: list[Phase]) -> None:
    """While calls fail, the keys that they feed are missing with the driver's reason, and nothing else is."""
    reasons = phases[machine.FAILING].ours.reasons
    assert {key: reasons.get(key) for key in EXPECTED_REASONS} == EXPECTED_REASONS
    lost = {key: why for key, why in reasons.items() if key.startswith(f"gpu.{machine.LOST}.")}
    assert len(lost) > 50
    assert set(lost.values()) == {"device_lost"}


@pytest.mark.parametrize("number", [machine.RECOVERED, machine.LIMITED])
def test_everything_comes_back_here(phases: list[Phase], number: int) -> None:
    """When the calls work again, so does every key of ours; W&B goes without until the run ends."""
    before, after = phases[machine.BUSY], phases[number]
    assert before.ours.metrics.keys() <= after.ours.metrics.keys()
    assert len(before.wandb.keys() - after.wandb.keys()) >= 10


def _summary(found: list[Found]) -> dict[str, str]:
    """One example of each, short enough to read in a failure."""
    return {f"{one.kind}: {one.key}": one.words for one in found}


def _host_keys(phases: list[Phase], rows: list[Row]) -> set[str]:
    """Keys of the host that both have and that are not documented to differ."""
    shared = {key for phase in phases for key in phase.wandb.keys() & phase.ours.metrics.keys() if not key.startswith("gpu.")}
    return {key for key in shared if not any(row.kind == differences.VALUE and row.names(key) for row in rows)}


def _differing(phase: Phase, found: list[Found]) -> set[str]:
    prefix = f"phase {phase.number}:"
    return {one.key for one in found if one.words.startswith(prefix)}
