"""Histograms and summaries as Prometheus reads them."""

from __future__ import annotations

import time
from math import inf, nan
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from accelmetrics.dialects.contract import Distribution, Point
from accelmetrics.exporters.scrape_cache import Exposition, ScrapeCache
from accelmetrics.schemas.record import Record, Step
from tests.dialects.scenes import GPU_0, nvidia, record, step
from tests.exporters.prometheus_server import check_metrics

DURATION = Point("step_seconds", 0.5, {"rank": "0"}, "histogram", "s", "Duration.", Distribution(4, 2.0, ((0.1, 1), (1.0, 3))))
MEMORY = Point("allocation_bytes", 10.0, {}, "summary", "By", "Memory.", Distribution(2, 20.0))


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_distribution_is_one_metric_with_its_series(openmetrics: bool) -> None:
    """Of its own type, with cumulative buckets up to infinity, number and sum; other labels stay."""
    text = Exposition([DURATION, Point("plain", 1, {}), MEMORY]).text(openmetrics).decode()
    parse: Any = openmetrics_families if openmetrics else plain_families
    families = {family.name: family for family in parse(text)}
    assert (families["step_seconds"].type, families["allocation_bytes"].type) == ("histogram", "summary")
    found = {(sample.name, sample.labels.get("le", "")): sample.value for sample in families["step_seconds"].samples}
    assert found == {
        ("step_seconds_bucket", "0.1"): 1,
        ("step_seconds_bucket", "1.0"): 3,
        ("step_seconds_bucket", "+Inf"): 4,
        ("step_seconds_count", ""): 4,
        ("step_seconds_sum", ""): 2.0,
    }
    assert all(sample.labels["rank"] == "0" for sample in families["step_seconds"].samples)
    assert [(sample.name, sample.value) for sample in families["allocation_bytes"].samples] == [
        ("allocation_bytes_count", 2),
        ("allocation_bytes_sum", 20.0),
    ]


@pytest.mark.servers
def test_promtool_finds_nothing_wrong() -> None:
    """With the form of a histogram and a summary."""
    assert check_metrics(Exposition([DURATION, MEMORY]).text()) == ""


def test_every_record_counts_whether_it_is_scraped_or_not() -> None:
    """Three records between two scrapes, then the same cache read twice: three steps."""
    cache = ScrapeCache("training")
    for number in range(3):
        cache.take(
            record({nvidia(0): GPU_0}, {"torch.0.memoryAllocatedBytes": 2**20}, (step(number, step_seconds=0.2),), time_ns=time.time_ns())
        )
    for _ in range(2):
        text = cache.metrics().decode()
        assert "training_steps_total 3.0" in text
        assert "training_step_duration_seconds_count 3.0" in text
        assert 'memory_allocation_mb_sum{gpu_index="0"} 3.0' in text


def test_our_own_names_have_steps_durations_and_what_was_not_finite_of_each_process() -> None:
    """Counted over records, by the steps' own numbers; a record that is offered again counts nothing."""
    cache = ScrapeCache("prometheus")
    shown = [
        _reading(Step(1, 10, {"loss": 0.5, "tokens": 8}, 0, "n1"), Step(1, None, {"lr": 0.1}, 1, "n1")),
        _reading(Step(2, 12, {"loss": nan, "step_seconds": 0.2, "nonFinite": 1}, 0, "n1")),
        _reading(Step(3, 13, {"loss": inf, "eval/loss": 1.0, "step_seconds": 700.0, "tokens_per_second": 1.0}, 0, "n1")),
    ]
    for one in shown:
        cache.take(one)
        cache.take(one)
    for openmetrics in (False, True):
        parse: Any = openmetrics_families if openmetrics else plain_families
        samples = [sample for family in parse(cache.metrics(openmetrics).decode()) for sample in family.samples]
        of_rank = {
            rank: {(s.name, s.labels.get("le", s.labels.get("name", ""))): s.value for s in samples if s.labels.get("rank") == rank}
            for rank in ("0", "1")
        }
        first, second = of_rank["0"], of_rank["1"]
        assert (first["training_steps_total", ""], second["training_steps_total", ""]) == (4, 1)
        buckets = {le: first["training_step_duration_seconds_bucket", le] for le in ("0.1", "0.25", "600.0", "+Inf")}
        assert buckets == {"0.1": 0, "0.25": 2, "600.0": 2, "+Inf": 3}
        assert first["training_step_duration_seconds_sum", ""] == pytest.approx(700.4)
        assert ("training_step_duration_seconds_sum", "") not in second, "of one step no duration is known"
        counts = {name: value for (metric, name), value in first.items() if metric == "training_nonfinite_total"}
        assert counts == {"loss": 2, "tokens": 0, "eval/loss": 0}
        assert second["training_nonfinite_total", "lr"] == 0


def test_a_number_that_a_program_logs_keeps_its_series_beside_the_count_of_steps() -> None:
    """``training_steps`` is a gauge of the program's: the counter of that family gives way, and is counted as left out."""
    cache = ScrapeCache("prometheus")
    cache.take(_reading(Step(1, 10, {"steps": 99})))
    text = cache.metrics().decode()
    assert "training_steps 99.0" in text
    assert "training_steps_total" not in text
    assert "accelmetrics_series_dropped_total 1.0" in text


@pytest.mark.servers
def test_promtool_finds_nothing_wrong_with_what_is_counted_of_steps() -> None:
    """In the page that is scraped."""
    cache = ScrapeCache("prometheus")
    for number in range(3):
        cache.take(_reading(Step(number, number, {"loss": 0.5, "step_seconds": 0.2}, 0, "n1")))
    assert check_metrics(cache.metrics()) == ""


def _reading(*steps: Step) -> Record:
    return record({nvidia(0): GPU_0}, {}, steps, time_ns=time.time_ns())
