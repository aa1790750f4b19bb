"""The source ``rocm-smi``: see :mod:`~accelmetrics.backends.amd.rounds` for when the command is run.

Cards are matched by their numbers. When a number turns out to be another card, or a new one is there, the driver is to be
opened again: devices keep their keys by identity, not by place.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelmetrics.backends.amd.fields import read_card
from accelmetrics.backends.amd.identity import identify, pci_bus_id, unique_id
from accelmetrics.backends.amd.rocm_smi_command import Tool
from accelmetrics.backends.amd.rocm_smi_json import Output
from accelmetrics.backends.amd.rounds import INTERVAL, CommandDriver, CommandReader, differs
from accelmetrics.backends.amd.table import Record, Values
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

RocmSmiReader = CommandReader


class RocmSmi:
    """The command as a source. What it printed for the list of cards is the first round: it is not run twice for that."""

    name = "rocm-smi"

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._first: Output | None = None

    def identify(self) -> Sequence[DeviceIdentity]:
        output = self._tool.read()
        if not output.complete:
            raise SourceError(Reason.PARSE_ERROR, "rocm-smi's output was cut: how many cards there are is unknown")
        self._first = output
        return identify(dict(output.cards), output.system)

    def read(self) -> Output:
        first, self._first = self._first, None
        return first or self._tool.read()

    def values(self, card: Record, device: DeviceIdentity) -> Values:
        return read_card(card, device.unified)

    def moved(self, card: Record, device: DeviceIdentity) -> bool:
        return differs(device.uuid, unique_id(card)) or differs(device.pci_bus_id, pci_bus_id(card))


class RocmSmiDriver(CommandDriver):
    """The open source.

    Args:
        clock: Where the age of a round is taken from.
        interval: Seconds between two runs.
        tool: The command.

    Raises:
        SourceError: The command is missing, fails, hangs, or lists no cards.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, tool: Tool | None = None) -> None:
        super().__init__(RocmSmi(tool or Tool()), clock, interval)
