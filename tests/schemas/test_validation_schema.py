"""Documents that tests produce, held to the published JSON Schema where they are taken."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from accelmetrics import DocumentError, Sampler
from accelmetrics.schemas.document import json_schema
from accelmetrics.schemas.snapshot import Snapshot
from tests.schemas.samples import complete
from tests.schemas.test_document import BAD, Change, changed
from tests.schemas.test_json_schema import BEYOND_A_SCHEMA
from tests.support import published_schema as module
from tests.support.published_schema import PublishedSchema, published

VALIDATOR = Draft202012Validator(json_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)


@pytest.fixture
def anew() -> Generator[None, None, None]:
    """No document was seen in this process yet, and none is remembered from here."""
    published.cache_clear()
    yield
    published.cache_clear()


def plain(snapshot: Snapshot) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(snapshot.to_json())
    return found


def test_a_sound_document_has_no_findings_the_first_time_and_later() -> None:
    held = PublishedSchema(VALIDATOR)
    assert [list(held.findings(plain(complete()))) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("change", [change for name, change, _ in BAD if name not in BEYOND_A_SCHEMA])
@pytest.mark.parametrize("first", [True, False], ids=["the first", "after a sound one"])
def test_what_the_schema_refuses_is_found(change: Change, first: bool) -> None:
    """Though all else of the document was met before; and every time, not once."""
    held = PublishedSchema(VALIDATOR)
    if not first:
        assert list(held.findings(plain(complete()))) == []
    document = json.loads(json.dumps(changed(change)))
    for _ in range(2):
        assert any("breaks docs/schema.json at $" in finding for finding in held.findings(document))


@pytest.mark.usefixtures("anew")
def test_what_a_sampler_gives_is_held_to_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``ACCELMETRICS_VALIDATE``, and without the documents of a user ever waiting for it."""
    strict = {**json_schema(), "required": ["a field that no document has"]}
    monkeypatch.setattr(module, "json_schema", lambda: strict)
    with Sampler(["host"]) as sampler, pytest.raises(DocumentError, match=r"breaks docs/schema.json at \$: 'a field that"):
        sampler.sample()
    monkeypatch.delenv("ACCELMETRICS_VALIDATE")
    with Sampler(["host"]) as sampler:
        sampler.sample()
