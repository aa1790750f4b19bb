"""What :func:`~accelmetrics.visibility.allocation.allocation` gives."""

from __future__ import annotations

from typing import Any, NamedTuple

from accelmetrics.backends.visible_lists import VisibleList

SHARED, SHARED_UNASKED, OUTSIDE, UNUSED = "shared_device", "shared_unasked", "outside_list", "unused_device"
NO_LIST, NO_DEVICE, LIST_PROBLEM, UNREADABLE = "no_list", "no_device", "list_problem", "unreadable"
GONE, STRANGER, USE_UNKNOWN, SOURCE = "gone", "stranger", "use_unknown", "source"
POOL_DIFFERS, POOL_UNCLEAR = "pool_differs", "pool_unclear"
FAILING = frozenset({POOL_DIFFERS, POOL_UNCLEAR, GONE})
"""Findings after which the answer to what was asked is no, or none."""


class Use(NamedTuple):
    """A device that a worker uses.

    Attributes:
        device: The device's key.
        memory_bytes: What the worker holds of its memory; None where the driver does not say.
    """

    device: str
    memory_bytes: int | None


class Worker(NamedTuple):
    """One process of the job.

    Attributes:
        pid: Its number.
        name: Its command, or what a framework made of that.
        role: What it was said to be, else its ``ACCELMETRICS_ROLE``; empty when nobody said.
        rank: Its rank in the job, if a launcher gave it one.
        local_rank: Its rank on this machine, if a launcher gave it one.
        lists: The variables that choose its devices, as set when it was started.
        visible: The devices that they leave it, in its order; None where that cannot be told.
        used: The devices that it, or a process below it that is no worker itself, really uses.
        notes: Why something is not known, or what to know about it.
    """

    pid: int
    name: str = ""
    role: str = ""
    rank: int | None = None
    local_rank: int | None = None
    lists: tuple[VisibleList, ...] = ()
    visible: tuple[str, ...] | None = None
    used: tuple[Use, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What findings call it: ``actor rank 3 (PID 4711)``."""
        rank = f"rank {self.rank}" if self.rank is not None else f"local rank {self.local_rank}" if self.local_rank is not None else ""
        named = " ".join(filter(None, (self.role, rank)))
        return f"{named} (PID {self.pid})" if named else f"PID {self.pid}"

    @property
    def uses(self) -> frozenset[str]:
        """The keys of the devices that it uses."""
        return frozenset(use.device for use in self.used)


class UsedDevice(NamedTuple):
    """One device of the machine.

    Attributes:
        key: Its key.
        name: The product name.
        uuid: The vendor's unique id.
        pids: The processes that use it, as the driver numbers them; None where the source cannot say.
    """

    key: str
    name: str
    uuid: str
    pids: tuple[int, ...] | None


class Pool(NamedTuple):
    """What was expected of one role, and what is.

    Attributes:
        role: The role.
        expected: The devices that it was given.
        used: Those that its workers use.
    """

    role: str
    expected: tuple[str, ...]
    used: tuple[str, ...]


class Finding(NamedTuple):
    """Something to know, in words.

    Attributes:
        kind: In one word, for programs: ``shared_device``, ``pool_differs`` …
        text: In words, for people.
        pids: The processes concerned.
        devices: The devices concerned.
    """

    kind: str
    text: str
    pids: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()


class Allocation(NamedTuple):
    """Who has which device.

    Attributes:
        timestamp: When the devices were read (RFC 3339, UTC).
        hostname: The machine.
        workers: The processes of the job.
        devices: The machine's devices.
        pools: What was expected, by role.
        findings: What to know.
    """

    timestamp: str
    hostname: str
    workers: tuple[Worker, ...]
    devices: tuple[UsedDevice, ...]
    pools: tuple[Pool, ...]
    findings: tuple[Finding, ...]

    @property
    def as_expected(self) -> bool:
        """Whether every process that was named is there, and every pool is what was expected."""
        return not any(finding.kind in FAILING for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The whole in new plain containers, ready for ``json``."""
        plain: dict[str, Any] = _plain(self)
        return {**plain, "as_expected": self.as_expected}

    def to_json(self, indent: int | None = None) -> str:
        """The whole as text, on one line unless ``indent`` is given."""
        import json

        return json.dumps(self.to_dict(), indent=indent)


def _plain(record: Any) -> Any:
    if hasattr(record, "_asdict"):
        return {name: _plain(value) for name, value in record._asdict().items()}
    return [_plain(part) for part in record] if isinstance(record, tuple) else record
