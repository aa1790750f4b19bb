"""Histograms and summaries as Prometheus reads them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from accelmetrics.dialects.contract import Distribution, Point
from accelmetrics.exporters.scrape_cache import Exposition, ScrapeCache
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
        cache.take(record({nvidia(0): GPU_0}, {"torch.0.memoryAllocatedBytes": 2**20}, (step(number, step_seconds=0.2),), time_ns=_now()))
    for _ in range(2):
        text = cache.metrics().decode()
        assert "training_steps_total 3.0" in text
        assert "training_step_duration_seconds_count 3.0" in text
        assert 'memory_allocation_mb_sum{gpu_index="0"} 3.0' in text


def _now() -> int:
    import time

    return time.time_ns()
