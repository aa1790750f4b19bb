"""The vendor's module ``gcipuinfo``: one object, one call that lists every IPU with its attributes.

Everything that the module does runs behind the guard, since it may throw anything, and its failures get the words that help.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason

BACKEND = "graphcore"
MODULE = "gcipuinfo"

INSTALL = (
    "gcipuinfo comes with Graphcore's Poplar SDK and not from PyPI: enable the SDK in this shell (source <sdk>/enable), or pip install "
    "the gcipuinfo wheel of the SDK for this Python"
)
PASS_DEVICES = "in a container, start it with gc-docker, which passes the IPUs in"
PARTITION = "see whether gc-info --list-devices lists any: on an IPU-Machine a partition must exist (IPUOF_VIPU_API_PARTITION_ID)"

Attributes = Mapping[str, object]
"""One IPU: what Graphcore calls the attribute, and what it says, as text."""


class Library:
    """The module, imported, and the object that lists the IPUs.

    Raises:
        SourceError: The module is not there, or does not start.
    """

    def __init__(self) -> None:
        module = _answer("import gcipuinfo", guarded(importlib.import_module, MODULE))
        self._inventory = _answer("gcipuinfo.gcipuinfo()", guarded(_make, module))

    def devices(self) -> dict[int, Attributes]:
        """Every IPU, by the id that Graphcore gives it.

        Raises:
            SourceError: The call failed, or gave something else.
        """
        return listing(_answer("gcipuinfo.getDevices()", guarded(self._inventory.getDevices)))


def _make(module: Any) -> Any:
    inventory = module.gcipuinfo()
    inventory.setUpdateMode(True)  # or every later call answers what was read at first
    return inventory


def _answer(call: str, outcome: Outcome[Any]) -> Any:
    if outcome.failure is None:
        return outcome.value
    if isinstance(outcome.error, ImportError):
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{call}: {outcome.error}", backend=BACKEND, advice=INSTALL)
    raise SourceError(outcome.failure.reason, f"{call}: {outcome.failure.detail}", backend=BACKEND)


def listing(answer: object) -> dict[int, Attributes]:
    """What ``getDevices`` answered, by id; one without an id counts by its place.

    Raises:
        SourceError: It is no list of dictionaries, or two claim one id.
    """
    if not isinstance(answer, (list, tuple)) or not all(isinstance(item, Mapping) for item in answer):
        raise SourceError(Reason.PARSE_ERROR, f"gcipuinfo.getDevices() answered no list of devices: {str(answer)[:120]}", backend=BACKEND)
    found: dict[int, Attributes] = {_id(item, place): item for place, item in enumerate(answer)}
    if len(found) != len(answer):
        raise SourceError(Reason.PARSE_ERROR, "gcipuinfo.getDevices() lists two devices under one id", backend=BACKEND)
    return found


def _id(attributes: Attributes, place: int) -> int:
    printed = str(attributes.get("id", "")).strip()
    return int(printed) if printed.isascii() and printed.isdecimal() and len(printed) < 10 else place
