"""A table with a row for each epoch, value or window: numbers reckoned by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.record import Record, Step, WindowSpan
from accelmetrics.views.report.making import Wanted
from accelmetrics.views.report.run_report import Price
from tests.cli.test_report import START, record
from tests.views.report.test_making import made as report_of

approx: Any = pytest.approx


def made(records: list[Record], wanted: Wanted) -> list[SimpleNamespace]:
    """The rows of the table."""
    return [SimpleNamespace(**row) for row in report_of(records, wanted).document["periods"]]


def run(epoch_of: dict[float, float], seconds: int = 31, **about: str) -> list[Record]:
    """A reading a second: 100 W and 20 %, from second 15 on 300 W and 80 %; steps at their moments, each of 50 tokens."""
    found = []
    for second in range(seconds):
        late = second >= 15
        values = {"gpu.0.powerWatts": 300.0 if late else 100.0, "gpu.0.gpu": 80 if late else 20}
        steps = tuple(
            Step(int((START + moment) * 1e9), None, {"epoch": epoch, "tokens": 50}, int(rank) if (rank := about.get("rank")) else None)
            for moment, epoch in epoch_of.items()
            if second - 1 < moment <= second
        )
        found.append(record(second, values, gpus=1, steps=steps, **about))
    return found


def test_epochs_last_from_the_last_step_of_the_one_before() -> None:
    """To the moment, between readings too; start-up is no part of the first."""
    steps = {2.5: 0.0, 5.0: 0.0, 10.5: 0.0, 11.5: 1.0, 20.0: 1.0}
    first, second = made(run(steps), Wanted(by="epoch", price=Price(0.36, "EUR")))
    assert (first.name, first.times, first.steps, first.work) == ("epoch 0", 1, 3, {"tokens": 150.0})
    assert first.seconds == approx(8.0)
    assert first.energy_joules == approx(800.0)
    assert (first.utilization_mean, first.utilization_max) == (approx(20.0), 20)
    assert first.power_watts_mean == approx(100.0)
    assert first.per_second == {"tokens": approx(150 / 8)} and first.per_joule == {"tokens": approx(150 / 800)}
    assert first.cost == approx(800 / 3.6e6 * 0.36)
    # From 10.5 to 20: 100 W until 14, a second on the way, then 300 W; 20 % until 15.
    assert (second.name, second.seconds, second.energy_joules) == ("epoch 1", approx(9.5), approx(350 + 200 + 1500))
    assert second.utilization_mean == approx((4.5 * 20 + 5 * 80) / 9.5)
    assert (second.utilization_max, second.power_watts_max) == (80, 300.0)


def test_an_epoch_of_one_step_lasts_since_the_beginning() -> None:
    """As where a framework logs at the end of each epoch alone."""
    first, second = made(run({10.0: 1.0, 20.0: 2.0}), Wanted(by="epoch"))
    assert (first.name, first.seconds, first.energy_joules) == ("epoch 1", approx(10.0), approx(1000.0))
    assert (second.name, second.seconds) == ("epoch 2", approx(10.0))


def test_an_epoch_that_is_logged_as_a_fraction() -> None:
    """2.3 is part of the third, and 1.0 the end of the first."""
    names = [one.name for one in made(run({2.0: 0.5, 4.0: 1.0, 6.0: 1.5, 8.0: 2.0, 10.0: 2.3}), Wanted(by="epoch"))]
    assert names == ["epoch 1", "epoch 2", "epoch 3"]


def test_windows_are_told_by_their_names() -> None:
    """Those of one name together, however short; one that is still open until the last reading."""
    records = run({})
    spans: dict[int, list[tuple[str, float, float | None]]] = {
        6: [("eval", 2.0, 5.0)],
        12: [("train", 10.0, None)],
        17: [("eval", 16.25, 16.75)],
        21: [("train", 10.0, 20.0)],
        30: [("train", 29.0, None)],
    }
    for second, found in spans.items():
        told = tuple(
            WindowSpan(name, int((START + begin) * 1e9), None if end is None else int((START + end) * 1e9)) for name, begin, end in found
        )
        records[second] = records[second]._replace(windows=told)
    rows = made(records, Wanted(by="window"))
    evaluation, training = sorted(rows, key=lambda one: one.name)
    assert (evaluation.name, evaluation.times, evaluation.seconds) == ("eval", 2, approx(3.5))
    assert evaluation.energy_joules == approx(300 + 150)
    assert (training.name, training.times, training.seconds) == ("train", 2, approx(11.0))
    assert training.energy_joules == approx(400 + 200 + 1500 + 300)
    assert [one.name for one in made(records, Wanted(by="ev"))] == ["eval"]


def test_ranks_have_their_rows_together_and_runs_apart() -> None:
    """A device that both watch counts once; what each did adds up."""
    steps = {1.0: 0.0, 10.0: 0.0}
    ranks = [one for rank in "01" for one in run(steps, rank=rank)]
    (both,) = made(ranks, Wanted(by="epoch"))
    assert (both.steps, both.work, both.energy_joules) == (2, {"tokens": 200.0}, approx(900.0))
    runs = [one for name in "ab" for one in run(steps, run_id=name)]
    assert [one.name for one in made(runs, Wanted(by="epoch"))] == ["run 1 epoch 0", "run 2 epoch 0"]


def test_what_was_not_logged_is_an_error_that_lists_what_was() -> None:
    """And suggests the nearest."""
    with pytest.raises(UnknownNameError, match="epoch"):
        made(run({1.0: 0.0}), Wanted(by="epcoh"))
