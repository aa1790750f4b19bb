"""Full validation of a snapshot: what the tests switch on with ``ACCELMETRICS_VALIDATE=1`` and a reading never waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from pydantic import ValidationError

from accelmetrics.schemas.catalogue import expected_keys, expected_names, resolve
from accelmetrics.schemas.catalogue.host import INSTANCES
from accelmetrics.schemas.catalogue.sources import KINDS
from accelmetrics.schemas.document import Document, describe
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.metric import Metric, device_key
from accelmetrics.schemas.metrics_models import HostMetrics
from accelmetrics.schemas.published import published
from accelmetrics.schemas.snapshot import Device, Snapshot
from accelmetrics.schemas.typed_views import Model


def validate(snapshot: Snapshot) -> None:
    """Hold a snapshot to every rule of the schema.

    Raises:
        DocumentError: It breaks some; the message lists all findings.
    """
    found = list(findings(snapshot))
    if found:
        raise DocumentError("the snapshot breaks its schema:\n" + "\n".join(f"- {finding}" for finding in found))


def findings(snapshot: Snapshot) -> Iterator[str]:
    """Each broken rule, in words; what the published schema says only where none of ours is broken."""
    broken = False
    for finding in _our_findings(snapshot):
        broken = True
        yield finding
    if not broken:
        yield from _schema_findings(snapshot)


def _our_findings(snapshot: Snapshot) -> Iterator[str]:
    for key, value in snapshot.metrics.items():
        yield from _value_findings(key, value)
    yield from _place_findings(snapshot)
    yield from _owed_findings(snapshot)
    yield from _alias_findings(snapshot.metrics)
    yield from _view_findings(snapshot)
    yield from _document_findings(snapshot)


def _value_findings(key: str, value: object) -> Iterator[str]:
    # Exact types: a bool, or a number of NumPy's, is written and compared in ways of its own.
    if type(value) is not int and type(value) is not float:
        yield f"{key} = {value!r} is neither int nor float"
    elif isinstance(value, float) and not isfinite(value):
        yield f"{key} = {value!r} is not finite"
    elif found := resolve(key):
        yield from _row_findings(key, value, found.row)


def _row_findings(key: str, value: int | float, row: Metric) -> Iterator[str]:
    if row.integer and not isinstance(value, int):
        yield f"{key} = {value!r} is not an int"
    if row.minimum is not None and value < row.minimum:
        yield f"{key} = {value!r} is below {row.minimum:g}"
    if row.maximum is not None and value > row.maximum:
        yield f"{key} = {value!r} is above {row.maximum:g}"


def _place_findings(snapshot: Snapshot) -> Iterator[str]:
    """Keys that name a device which is not listed."""
    listed = {place.key for place in snapshot.identities}
    kinds = {*KINDS.values(), *(place.identity.kind for place in snapshot.identities)}
    for key in (*snapshot.metrics, *snapshot.unavailable):
        found = device_key(key)
        if found is not None and found.kind in kinds and found.device not in listed:
            yield f"{key} names a device that is not listed"


def _owed_findings(snapshot: Snapshot) -> Iterator[str]:
    """Each key that a source owes is in exactly one of ``metrics`` and ``unavailable``."""
    for key in snapshot.metrics.keys() & snapshot.unavailable.keys():
        yield f"{key} is in both metrics and unavailable"
    for key in _owed(snapshot):
        if key not in snapshot.metrics and key not in snapshot.unavailable:
            yield f"{key} is in neither metrics nor unavailable"
    for key, why in snapshot.unavailable.items():
        if not why.reason:
            yield f"{key} is unavailable without a reason"


def _owed(snapshot: Snapshot) -> Iterator[str]:
    for place in snapshot.identities:
        for name in expected_names(place.backend, bool(place.identity.parent)):
            yield f"{place.key}.{name}"
    for status in snapshot.backends:
        if status.status != "absent" and (status.name == "host" or status.status in {"ok", "degraded"}):
            yield from expected_keys(status.name)


def _alias_findings(metrics: Mapping[str, int | float]) -> Iterator[str]:
    for key, value in metrics.items():
        found = resolve(key)
        if found and found.alias:
            own = f"{found.device}.{found.row.name}" if found.row.device_part else found.row.key
            if metrics.get(own) != value:
                yield f"{key} = {value!r} differs from {own} = {metrics.get(own)!r}"


def _view_findings(snapshot: Snapshot) -> Iterator[str]:
    """The typed views hold what the flat dict holds."""
    for device in snapshot.devices:
        yield from _compare(f"the typed view of {device.key}", _shown(device.metrics), _own_names(device))
        process = device.process_metrics
        part = f"{device.kind}.process.{device.index}"
        if process is not None:
            yield from _compare(f"the typed view of {part}", _shown(process), snapshot.values_of(part))
    yield from _compare("the typed view of the host", _host_shown(snapshot), _host_flat(snapshot.metrics))


def _compare(what: str, shown: Mapping[str, Any], flat: Mapping[str, Any]) -> Iterator[str]:
    if shown != flat:
        names = sorted(name for name in {*shown, *flat} if shown.get(name) != flat.get(name))
        yield f"{what} differs from metrics in {', '.join(names)}"


def _shown(view: Model) -> dict[str, Any]:
    return view.model_dump(by_alias=True, exclude_none=True, warnings=False)


def _own_names(device: Device) -> dict[str, int | float]:
    """A device's values under the catalogue's own spellings that have an attribute; links and a plug-in's own metrics have none."""
    shown = {field.alias for field in type(device.metrics).model_fields.values()}
    return {name: value for name, value in device.values.items() if name in shown}


def _host_flat(metrics: Mapping[str, int | float]) -> dict[str, int | float]:
    shown = {field.alias for field in HostMetrics.model_fields.values()}
    return {key: value for key, value in metrics.items() if key in shown or ((found := resolve(key)) and _of_instance(found.row))}


def _of_instance(row: Metric) -> bool:
    return row.key.rpartition(".")[0] in INSTANCES


def _host_shown(snapshot: Snapshot) -> dict[str, Any]:
    shown = _shown(snapshot.host)
    for attribute, word in (("cpus", "cpu"), ("filesystems", "disk"), ("disks", "disk")):
        for instance, values in shown.pop(attribute).items():
            shown.update({f"{word}.{instance}.{name}": value for name, value in values.items()})
    return shown


def _document_findings(snapshot: Snapshot) -> Iterator[str]:
    """The document holds to its models, and reading it back gives an equal snapshot."""
    try:
        again = Document.model_validate(snapshot.to_dict()).snapshot()
        text = snapshot.to_json()
    except ValidationError as error:
        yield f"the document is not valid: {describe(error)}"
    except DocumentError as error:
        yield error.message
    else:
        if again != snapshot or Snapshot.from_json(text) != snapshot:
            yield "the document does not read back to an equal snapshot"


def _schema_findings(snapshot: Snapshot) -> Iterator[str]:
    """The document holds to the published schema, where its validator is installed."""
    schema = published()
    if schema is not None:
        yield from schema.findings(json.loads(snapshot.to_json()))
