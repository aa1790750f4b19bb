from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from accelmetrics.schemas import metrics_models
from accelmetrics.schemas.catalogue import CATALOGUE, SECTIONS, coverage_of, given_by
from accelmetrics.schemas.coverage import KINDS
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.metrics_models import KINDS as MODELLED, CommonMetrics, ProcessMetrics, device_model
from accelmetrics.schemas.metrics_models.host import HostMetrics
from accelmetrics.schemas.typed_views import device_metrics
from accelmetrics.schemas.view_model import Model
from accelmetrics.schemas.vitals import EXPECTED_NAMES
from scripts import generate
from tests.schemas.samples import some_value


def test_the_files_in_the_repository_are_current() -> None:
    assert generate.stale() == []
    assert generate.main(["--check"]) == 0


def test_a_file_that_is_missing_or_changed_is_stale(tmp_path: Path) -> None:
    assert generate.stale(tmp_path) == list(generate.OUTPUTS)
    generate.write(tmp_path)
    assert generate.stale(tmp_path) == []
    with (tmp_path / generate.REFERENCE).open("a", encoding="utf-8") as file:
        file.write("By hand.\n")
    assert generate.stale(tmp_path) == [generate.REFERENCE]


def test_the_check_fails_and_says_which(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(generate.OUTPUTS, generate.REFERENCE, lambda: "other")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/metrics.md is not current: run 'make generate'\n"


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.key)
def test_the_reference_has_a_line_for_each_row(row: Metric) -> None:
    text = (generate.ROOT / generate.REFERENCE).read_text("utf-8")
    meanings, _, reading = text.partition("## Sources")
    (line,) = [line for line in meanings.splitlines() if line.startswith(f"| `{row.key}` |")]
    assert row.meaning in line
    for part in (*given_by().get(row.key, ()), *row.aliases, row.prometheus, row.otel):
        assert part.replace("|", r"\|") in line
    for backend, words in given_by().get(row.key, {}).items():
        assert words.replace("|", r"\|") in reading.partition(f"### {backend}\n")[2]


DEVICE_MODELS = {kind: device_model(kind) for kind in MODELLED}
HOST = {row.key for section in SECTIONS if section.family == "Host" for row in section.rows}
SHOWN = [row for row in CATALOGUE if not row.templated and (row.device_part or row.key in HOST)]


def models_of(row: Metric) -> list[type[Model]]:
    """Where a row has its attribute: for what every kind of device may say, in the models of all kinds."""
    if row.of_process:
        return [ProcessMetrics]
    kind = row.device_part.partition(".")[0]
    return [HostMetrics] if not kind else [CommonMetrics, *DEVICE_MODELS.values()] if kind == "{kind}" else [DEVICE_MODELS[kind]]


plain = pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.key)


@plain
def test_each_row_has_its_attribute(row: Metric) -> None:
    for model in models_of(row):
        field = model.model_fields[row.field]
        assert field.alias == row.name
        assert field.annotation == ((int if row.integer else float) | None)
        assert row.meaning in (field.description or "")
        value = some_value(row)
        assert getattr(model.model_validate({row.name: value}), row.field) == value
        assert getattr(model.model_validate({row.field: value}), row.field) == value
        assert getattr(model(), row.field) is None


@plain
def test_models_refuse_what_the_row_excludes(row: Metric) -> None:
    refused: list[float] = [float("nan"), float("inf")]
    refused += [] if row.minimum is None else [row.minimum - 1]
    refused += [] if row.maximum is None else [row.maximum + 1]
    refused += [0.5] if row.integer else []
    for value in refused:
        with pytest.raises(ValidationError):
            models_of(row)[0].model_validate({row.name: value})


def test_aliases_are_no_attributes_of_their_own() -> None:
    models: list[type[Model]] = [CommonMetrics, ProcessMetrics, HostMetrics, *DEVICE_MODELS.values()]
    for model in models:
        views = {"cpus", "filesystems", "disks"} if model is HostMetrics else set()
        views |= set(EXPECTED_NAMES) if issubclass(model, CommonMetrics) else set()
        assert set(model.model_fields) == {row.field for row in SHOWN if model in models_of(row)} | views


def test_each_kind_of_device_has_its_model() -> None:
    kinds = {row.device_part.partition(".")[0] for row in CATALOGUE if row.device_part} - {"{kind}"}
    assert set(DEVICE_MODELS) == kinds
    assert all(issubclass(model, metrics_models.DeviceMetrics) for model in DEVICE_MODELS.values())


@pytest.mark.parametrize("backend", [name for name, kind in KINDS.items() if kind])
@pytest.mark.parametrize("number", [1, 1.0])
def test_a_view_is_what_its_model_makes_of_the_values(backend: str, number: float) -> None:
    """Though it is not validated: types, what is set, text and dumps are those of a validated one."""
    values = dict.fromkeys(coverage_of(backend)["devices"], number)
    shown = device_metrics(KINDS[backend], values)
    checked = device_model(KINDS[backend]).model_validate(values)
    assert shown == checked
    assert shown.model_fields_set == checked.model_fields_set
    assert (repr(shown), shown.model_dump_json(by_alias=True)) == (repr(checked), checked.model_dump_json(by_alias=True))
