"""Full validation of a snapshot. Tests enable it by ``ACCELMETRICS_VALIDATE=1``; a normal reading does not pay for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from pydantic import ValidationError

from accelmetrics.schemas.catalogue import expected_keys, expected_names, resolve
from accelmetrics.schemas.coverage import KINDS
from accelmetrics.schemas.document import Document, describe
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot


def validate(snapshot: Snapshot, wanted: MetricSelection = ALL_METRICS) -> None:
    """Check a snapshot of wanted metrics against every rule of the schema.

    Raises:
        DocumentError: It breaks rules. The message lists all findings.
    """
    found = list(findings(snapshot, wanted))
    if found:
        raise DocumentError("the snapshot breaks its schema:\n" + "\n".join(f"- {finding}" for finding in found))


def findings(snapshot: Snapshot, wanted: MetricSelection = ALL_METRICS) -> Iterator[str]:
    """Yield each broken rule, in words."""
    yield from _value_findings(snapshot, wanted)
    yield from _key_findings(snapshot, wanted)
    try:
        Document.model_validate(snapshot.to_dict())
    except ValidationError as error:
        yield f"the document is not valid: {describe(error)}"


def _value_findings(snapshot: Snapshot, wanted: MetricSelection) -> Iterator[str]:
    """Check that each value is a finite number within its row's bounds, and is the same under every spelling."""
    metrics: Mapping[str, object] = snapshot.metrics
    for key, value in metrics.items():
        # Exact types: a bool or a NumPy number is written and compared differently.
        if not isinstance(value, (int, float)) or type(value) not in (int, float):
            yield f"{key} = {value!r} is neither int nor float"
        elif not isfinite(value):
            yield f"{key} = {value!r} is not finite"
        elif found := resolve(key):
            row = found.row
            if row.integer and not isinstance(value, int):
                yield f"{key} = {value!r} is not an int"
            if row.minimum is not None and value < row.minimum:
                yield f"{key} = {value!r} is below {row.minimum:g}"
            if row.maximum is not None and value > row.maximum:
                yield f"{key} = {value!r} is above {row.maximum:g}"
            own = f"{found.device}.{row.name}" if row.device_part else row.key
            if found.alias and wanted.wants(own) and metrics.get(own) != value:
                yield f"{key} = {value!r} differs from {own} = {metrics.get(own)!r}"


def _key_findings(snapshot: Snapshot, wanted: MetricSelection) -> Iterator[str]:
    """Check that each wanted key is in exactly one of ``metrics`` and ``unavailable``, and that named devices are listed."""
    listed = {slot.key for slot in snapshot.identities}
    kinds = {*KINDS.values(), *(slot.identity.kind for slot in snapshot.identities)}
    for key in (*snapshot.metrics, *snapshot.unavailable):
        found = device_key(key)
        if found is not None and found.kind in kinds and found.device not in listed:
            yield f"{key} names a device that is not listed"
    yield from (f"{key} is in both metrics and unavailable" for key in snapshot.metrics.keys() & snapshot.unavailable.keys())
    yield from (f"{key} is in both processes and unlisted" for key in snapshot.processes.keys() & snapshot.unlisted.keys())
    for key, why in snapshot.unavailable.items():
        if not why.reason:
            yield f"{key} is unavailable without a reason"
    expected = [f"{slot.key}.{name}" for slot in snapshot.identities for name in expected_names(slot.backend, bool(slot.identity.parent))]
    for status in snapshot.backends:
        if status.status != "absent" and (status.name == "host" or status.status in {"ok", "degraded"}):
            expected += expected_keys(status.name)
    for key in filter(wanted.wants, expected):
        if key not in snapshot.metrics and key not in snapshot.unavailable:
            yield f"{key} is in neither metrics nor unavailable"
