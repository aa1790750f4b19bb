"""One node in a line of a fleet: what is asked of many nodes at once, and read back from what they answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.text import printable
from accelmetrics.views.device_view import STATES, State, duration

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

LONGEST = 1000
"""Characters of a text of another node."""
MOST_DEVICES = 4096


@dataclass(frozen=True)
class DeviceSummary:
    """One device of a node.

    Attributes:
        key: ``gpu.0``.
        state: How it stands.
        utilization: In percent; None where it does not say.
        note: The gravest thing that there is to say of it; empty for none.
        since_ns: Since when it gives nothing, in nanoseconds since 1970; None where it does, or that is not known.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"str_max_length": LONGEST, "allow_inf_nan": False}

    key: str
    state: State
    utilization: float | None = None
    note: str = ""
    since_ns: int | None = None


@dataclass(frozen=True)
class NodeSummary:
    """One node.

    Attributes:
        hostname: The machine's name.
        time_ns: When it was read, in nanoseconds since 1970.
        interval: Seconds between two readings.
        version: Of the accelmetrics that read it.
        devices: Its whole devices.
        kinds: How many of each kind.
        power_watts: What they draw together; None where none says.
        power_limit_watts: What they may draw; None where one does not say.
        utilization: Their mean, in percent; None where none says.
        lost: Devices that give nothing and should.
        hot: Devices that are hot.
        failed: Sources that do not answer.
        findings: Findings that last, by severity.
        silent: What the sources say that do not answer, in words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"str_max_length": LONGEST, "allow_inf_nan": False}

    hostname: str
    time_ns: int
    interval: float = 1.0
    version: str = __version__
    devices: tuple[DeviceSummary, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization: float | None = None
    lost: int = 0
    hot: int = 0
    failed: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    @property
    def worst(self) -> DeviceSummary | None:
        """The device that stands worst; None where none needs a look."""
        found = min(self.devices, key=lambda one: STATES.index(one.state), default=None)
        return None if found is None or found.state == "ok" else found

    @property
    def state(self) -> State:
        """The state of the worst device, or ``bad`` where a source does not answer."""
        if self.failed:
            return "bad"
        return "ok" if self.worst is None else self.worst.state

    @property
    def troubles(self) -> list[str]:
        """What is wrong, in words that are fit for a terminal: silent sources, the worst device, how many findings."""
        said, worst = [printable(words) for words in self.silent], self.worst
        if worst is not None:
            lasting = "" if worst.since_ns is None else f" for {duration(max(0.0, (self.time_ns - worst.since_ns) / 1e9))}"
            words = printable(worst.note)
            said.append(f"{printable(worst.key)} {words}".rstrip() + (lasting if " for " not in words else ""))
        number = sum(self.findings.values())
        return [*said, f"{number} finding{'' if number == 1 else 's'}"] if number else said

    def to_dict(self) -> dict[str, Any]:
        """Return it in new plain containers, ready for ``json``."""
        document = asdict(self)
        return {**document, "devices": list(document["devices"]), "silent": list(document["silent"])}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NodeSummary:
        """Read one that :meth:`to_dict` gave, on another machine perhaps: fields that this release does not know are passed over.

        Raises:
            DocumentError: It is not such a document; the message says where it departs.
        """
        from pydantic import ValidationError

        from accelmetrics.schemas.document import describe

        try:
            summary = _reader().validate_python(document)
        except ValidationError as error:
            raise DocumentError(f"this is no summary of a node: {describe(error)}") from error
        if len(summary.devices) > MOST_DEVICES:
            raise DocumentError(f"this is no summary of a node: it has {len(summary.devices)} devices, at most {MOST_DEVICES} are possible")
        return summary

    @classmethod
    def from_json(cls, text: str) -> NodeSummary:
        """Read one as a node answers it.

        Raises:
            DocumentError: It is not such a document.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:  # the second: brackets in brackets without an end
            raise DocumentError("this is no summary of a node: it is no JSON") from error
        return cls.from_dict(document)


class NodeAnswer(NamedTuple):
    """How one node of a fleet stands.

    Attributes:
        name: What it is called.
        summary: Its numbers; None where there are none.
        failure: Why there are none, in words; empty where there are some, or none are known yet.
        age_seconds: How old what it said is; None where it said nothing.
    """

    name: str
    summary: NodeSummary | None = None
    failure: str = ""
    age_seconds: float | None = None

    @property
    def state(self) -> State:
        """The state of the node; one that does not answer is bad."""
        return "bad" if self.summary is None else self.summary.state


@cache
def _reader() -> TypeAdapter[NodeSummary]:
    from pydantic import TypeAdapter

    return TypeAdapter(NodeSummary)
