"""Numbers of the program in every sink: those that are not finite, and those of several ranks."""

from __future__ import annotations

import csv
import json
import time
from math import inf, isnan, nan
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from accelmetrics.exporters.influx import PointWriter
from accelmetrics.exporters.otlp import RequestBuilder
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.exporters.statsd import logged
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.recording import recordings
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.test_tensorboard import reader
from tests.support.exporting import export

NOW = time.time_ns() // 1_000_000_000 * 1_000_000_000
STEPS = (
    Step(NOW, 1, {"loss": 0.5, "tokens_per_second": 100.0}, 0, "node-1"),
    Step(NOW + 1000, 1, {"loss": 9.5, "tokens_per_second": 300.0}, 1, "node-1"),
    Step(NOW + 2000, 2, {"loss": nan, "grad_norm": inf, "least": -inf, "lr": 0.25, "nonFinite": 3}, 0, "node-1"),
    Step(NOW + 3000, 2, {"loss": 8.5}, 1, "node-2"),
)
RECORD = Record(Snapshot(NOW + 5000, "node-1", {"cpu": 1.0}), {"hostname": "node-1", "rank": "0"}, STEPS)


def written(spec: str) -> None:
    """Export the record."""
    export(spec, RECORD)


def test_a_recording_has_all_of_it(tmp_path: Path) -> None:
    """JSON has texts for what is not finite; they are read back as numbers, with rank and node."""
    written(f"jsonl:{tmp_path / 'run.jsonl'}")
    line = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[1], parse_constant=pytest.fail)
    assert line["training"][2]["values"] == {"loss": "NaN", "grad_norm": "Infinity", "least": "-Infinity", "lr": 0.25, "nonFinite": 3}
    assert [(entry["rank"], entry["node"]) for entry in line["training"]] == [(0, "node-1"), (1, "node-1"), (0, "node-1"), (1, "node-2")]
    (recording,) = recordings(tmp_path / "run.jsonl")
    (record,) = recording
    assert repr(record.steps) == repr(STEPS)  # NaN equals nothing


def test_only_these_texts_are_numbers(tmp_path: Path) -> None:
    """A line with another one is no record."""
    written(f"jsonl:{tmp_path / 'run.jsonl'}")
    text = (tmp_path / "run.jsonl").read_text()
    (tmp_path / "run.jsonl").write_text(text + text.splitlines()[1].replace('"NaN"', '"nan"') + "\n")
    (recording,) = recordings(tmp_path / "run.jsonl")
    assert (len(list(recording)), recording.skipped) == (1, 1)


def test_a_table_has_the_own_ranks(tmp_path: Path) -> None:
    """A column is one series."""
    written(f"csv:{tmp_path / 'run.csv'}")
    (row,) = csv.DictReader((tmp_path / "run.csv").read_text().splitlines())
    assert (row["loss"], row["grad_norm"], row["least"], row["nonFinite"], row["tokens_per_second"]) == ("nan", "inf", "-inf", "3", "100.0")


def test_home_grown_files_have_the_own_ranks(tmp_path: Path) -> None:
    """A line a step, as JSON."""
    written(f"training-files:{tmp_path}")
    (file,) = tmp_path.glob("training_metrics_*")
    found = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    assert [(line["step"], line["loss"], line["gradient_norm"]) for line in found] == [(1, 0.5, None), (2, "NaN", "Infinity")]
    assert [line["learning_rate"] for line in found] == [None, 0.25]


def test_statsd_has_the_count_of_what_it_cannot_carry() -> None:
    """Without tags there is one series a name; with them each rank has its own."""
    plain = [(name, value) for name, value, _ in logged(RECORD, tagged=False)]
    assert plain == [
        ("training.loss", 0.5),
        ("training.tokens_per_second", 100.0),
        ("training.step", 1),
        ("training.lr", 0.25),
        ("training.nonFinite", 3),
        ("training.step", 2),
    ]
    tagged = {(name, tags["rank"], tags["host"]): value for name, value, tags in logged(RECORD, tagged=True) if name == "training.loss"}
    assert tagged == {
        ("training.loss", "0", "node-1"): 0.5,
        ("training.loss", "1", "node-1"): 9.5,
        ("training.loss", "1", "node-2"): 8.5,
    }


def test_influx_has_the_count_of_what_it_cannot_carry() -> None:
    """A point of each step, tagged with its rank and node."""
    found = [line.rsplit(" ", 1)[0] for line in PointWriter().text(RECORD).splitlines() if line.startswith("training")]
    assert found == [
        "training,host=node-1,hostname=node-1,rank=0 loss=0.5,tokens_per_second=100.0,step=1i",
        "training,host=node-1,hostname=node-1,rank=1 loss=9.5,tokens_per_second=300.0,step=1i",
        "training,host=node-1,hostname=node-1,rank=0 lr=0.25,nonFinite=3.0,step=2i",
        "training,host=node-2,hostname=node-1,rank=1 loss=8.5,step=2i",
    ]


def test_prometheus_has_each_rank_beside_the_other() -> None:
    """What each logged last, NaN and infinity too: the sum over ranks is the job's throughput."""
    cache = ScrapeCache("prometheus", max_age=3600)  # the record is as old as this file's import
    cache.take(RECORD)
    found = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in cache.metrics().decode().splitlines() if line.startswith("training")
    }
    assert found['training_loss{node="node-1",rank="0"}'] == "NaN"
    assert found['training_grad_norm{node="node-1",rank="0"}'] == "+Inf"
    assert found['training_least{node="node-1",rank="0"}'] == "-Inf"
    assert found['training_nonFinite{node="node-1",rank="0"}'] == "3.0"
    assert found['training_loss{node="node-1",rank="1"}'] == "9.5"
    assert found['training_loss{node="node-2",rank="1"}'] == "8.5"
    assert sum(float(value) for name, value in found.items() if name.startswith("training_tokens_per_second{")) == 400.0


def test_opentelemetry_has_each_rank_beside_the_other() -> None:
    """A point a step, with the rank as an attribute."""
    (resource,) = RequestBuilder().build(RECORD).resource_metrics
    found: dict[str, list[NumberDataPoint]] = {one.name: list(one.gauge.data_points) for one in resource.scope_metrics[0].metrics}
    losses = found["accel.training.loss"]
    assert [(point.attributes[0].key, point.attributes[0].value.string_value) for point in losses] == [
        ("accelmetrics.rank", rank) for rank in "0101"
    ]
    assert isnan(losses[2].as_double)
    assert [found[f"accel.training.{name}"][0].as_double for name in ("grad_norm", "least", "nonFinite")] == [inf, -inf, 3.0]


def test_tensorboard_has_the_own_ranks(tmp_path: Path) -> None:
    """At the program's own steps."""
    written(f"tensorboard:{tmp_path}?run=hw")
    found = reader(tmp_path / "hw").Scalars("loss")
    assert [(event.step, repr(event.value)) for event in found] == [(1, "0.5"), (2, "nan")]
