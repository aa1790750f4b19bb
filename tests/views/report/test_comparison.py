"""Two runs compared: means and spreads, what is noise, what makes them hard to compare."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.schemas.record import Record, Step
from accelmetrics.views.report.comparison import Comparison, compare
from accelmetrics.views.report.making import CHARTED, Wanted
from accelmetrics.views.report.run_report import Plain
from tests.cli.shell import call
from tests.cli.test_report import START, record, write
from tests.views.report.test_making import made

COMPARED = Wanted(series=CHARTED, compared=True)


def run(watts: float, seconds: float = 1.0, seed: int = 1, idle: int = 0, length: int = 400, rest: str = "") -> list[Record]:
    """A GPU that draws so much, give or take 20 W, with a step a reading that takes so long, give or take 5 %; before it, idle time."""
    chance = random.Random(seed)
    records = []
    for number in range(idle + length):
        busy = number >= idle
        values = {"gpu.0.powerWatts": watts + chance.uniform(-20, 20) if busy else 5.0, "gpu.0.gpu": 90 if busy else 0}
        logged = {"step_seconds": seconds * chance.uniform(0.95, 1.05), "tokens": 100, "tokens_per_second": 100 / seconds}
        steps = (Step(int((START + number) * 1e9), number, logged),) if busy and not rest else ()
        records.append(record(number, values, gpus=1, steps=steps, run_id=f"run-{seed}"))
    return records


def compared(a: list[Record], b: list[Record]) -> Comparison:
    return compare(made(a, COMPARED), made(b, COMPARED))


def by_name(found: Comparison) -> dict[str, Plain]:
    return {one["name"]: one for one in found.differences}


def test_a_difference_that_chance_does_not_make() -> None:
    """Less power at the same step time: less energy for each step."""
    found = by_name(compared(run(300.0), run(270.0, seed=2)))
    power = found["power_watts"]
    assert (power["verdict"], power["unit"]) == ("differs", "W")
    assert -33 < power["delta"] < -27 and 0 < power["plus_minus"] < 5
    assert power["a"]["p25"] < power["a"]["mean"] < power["a"]["p75"] < power["a"]["p95"] <= 320
    assert found["step_seconds"]["verdict"] == found["utilization_percent"]["verdict"] == "within noise"
    energy = found["energy_per_step_joules"]
    assert energy["verdict"] == "differs" and -12 < energy["percent"] < -8
    assert found["tokens_per_joule"]["verdict"] == "differs"


def test_the_same_run_twice_is_within_noise() -> None:
    """By other numbers of chance; a twentieth of the pairs may be told to differ, which these are not."""
    assert {one["verdict"] for one in compared(run(300.0), run(300.0, seed=3)).differences} == {"within noise"}


def test_time_before_the_first_step_is_left_out() -> None:
    """A run that waited for its data for long is no other run."""
    power = by_name(compared(run(300.0), run(300.0, seed=2, idle=300)))["power_watts"]
    assert power["verdict"] == "within noise"
    assert power["b"]["p25"] > 280 and power["b"]["mean"] == pytest.approx(300.0, rel=0.01)
    assert power["plus_minus"] < 5


def test_short_runs_are_not_judged() -> None:
    """Their differences are told."""
    power = by_name(compared(run(300.0, length=4), run(200.0, length=4, seed=2)))["power_watts"]
    assert (power["verdict"], power["plus_minus"]) == ("not known", None)
    assert power["delta"] is not None


def slowed(records: list[Record]) -> list[Record]:
    """The same every third second."""
    return [record(3 * number, one.snapshot.metrics, gpus=1, run_id="slow") for number, one in enumerate(records)]


def with_driver(records: list[Record], version: str) -> list[Record]:
    for one in records:
        places = [place._replace(identity=place.identity._replace(driver_version=version)) for place in one.snapshot.identities]
        one.snapshot.identities = tuple(places)
    return records


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda records: with_driver(records, "580.1"), "different drivers: 1 × unknown against 1 × 580.1"),
        (slowed, "different intervals: a reading every 1 s against every 3 s"),
        (slowed, "B has no steps: it is compared from its first reading to its last"),
        (lambda records: [*records, *[record(second, {}, gpus=2) for second in range(3)]], "different devices"),
    ],
    ids=["driver", "interval", "steps", "devices"],
)
def test_what_makes_runs_hard_to_compare_is_told(change: Callable[[list[Record]], list[Record]], words: str) -> None:
    """In words, with both sides."""
    warnings = compared(run(300.0, length=40), change(run(300.0, seed=2, length=40))).warnings
    assert any(words in warning for warning in warnings), warnings


def test_runs_of_the_same_name_are_told() -> None:
    """A copy is no other run."""
    assert "both are of the same run" in compared(run(300.0, length=30), run(300.0, length=30)).warnings


def test_the_command_compares_in_every_form(tmp_path: Path) -> None:
    """Text, Markdown, JSON; a file on both sides cannot be meant."""
    a, b = write(tmp_path / "a.jsonl", run(300.0)), write(tmp_path / "b.jsonl", run(270.0, seed=2))
    text = call("report", a, "--compare", b)
    assert (text.returncode, text.stderr) == (0, "")
    (power,) = [line for line in text.stdout.splitlines() if line.strip().startswith("power, W") and line.endswith("differs")]
    assert "-10." in power and all(len(line) <= 80 for line in text.stdout.splitlines())
    table = call("report", a, "--compare", b, "--format", "markdown").stdout
    assert "| power, W | " in table and "| differs |" in table
    document = json.loads(call("report", a, "--compare", b, "--format", "json").stdout)
    assert {one["name"]: one["verdict"] for one in document["differences"]}["power_watts"] == "differs"
    assert document["a"]["readings"] == 400
    done = call("report", a, "--compare", str(tmp_path / "." / "a.jsonl"))
    assert (done.returncode, done.stdout) == (2, "") and "on both sides" in done.stderr
