"""The source ``amd-smi``: see :mod:`~accelmetrics.backends.amd.rounds` for when the command is run.

``amd-smi static`` is run once, for who the cards are and their limits; ``amd-smi metric`` for every round.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from accelmetrics.backends.amd.amd_smi_fields import identify, read_card
from accelmetrics.backends.amd.amd_smi_json import Output, parse
from accelmetrics.backends.amd.rounds import INTERVAL, CommandDriver
from accelmetrics.backends.amd.table import Record, Values
from accelmetrics.backends.amd.values import quoted
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.kit import commands
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Reason

NAME = "amd-smi"
DIRECTORIES = ("/opt/rocm/bin",)
STATIC, METRIC = ("static", "--json"), ("metric", "--json")
TIMEOUT = 10.0
"""Seconds: it takes one to two on a loaded machine with eight cards."""
INSTALL = "install ROCm's amd-smi-lib"


class AmdSmi:
    """The command as a source.

    Args:
        timeout: Seconds after which a run is killed.
    """

    name = NAME

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._static: dict[int, Record] = {}
        self._first: Output | None = None

    def identify(self) -> Sequence[DeviceIdentity]:
        self._first = self._run(METRIC)
        if not self._first.complete:
            raise SourceError(Reason.PARSE_ERROR, "amd-smi's output was cut: how many cards there are is unknown")
        self._static = self._run(STATIC).cards
        return [identify(number, self._whole(number, card)) for number, card in sorted(self._first.cards.items())]

    def read(self) -> Output:
        first, self._first = self._first, None
        output = first or self._run(METRIC)
        return Output({number: self._whole(number, card) for number, card in output.cards.items()}, output.complete)

    def values(self, card: Record, device: DeviceIdentity) -> Values:
        return read_card(card, device.unified)

    def moved(self, card: Record, device: DeviceIdentity) -> bool:
        """Never known: ``metric`` prints numbers alone."""
        del card, device
        return False

    def _whole(self, number: int, card: Record) -> Record:
        return {**self._static.get(number, {}), **card}

    def _run(self, arguments: Sequence[str]) -> Output:
        completed = commands.run([find(), *arguments], timeout=self._timeout)
        output = parse(completed.stdout)
        if not output.cards:
            raise _failure(completed)
        return output


class AmdSmiDriver(CommandDriver):
    """The open source.

    Args:
        clock: Where the age of a round is taken from.
        interval: Seconds between two runs.
        tool: The command.

    Raises:
        SourceError: The command is missing, fails, hangs, or lists no cards.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, interval: float = INTERVAL, tool: AmdSmi | None = None) -> None:
        super().__init__(tool or AmdSmi(), clock, interval)


def find() -> str:
    """The absolute path of the tool.

    Raises:
        SourceError: It is not installed.
    """
    path = commands.find(NAME, (f"{os.environ.get('ROCM_PATH', '')}/bin", *DIRECTORIES))
    if path is None:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, "amd-smi was found neither on PATH nor in /opt/rocm/bin", advice=INSTALL)
    return path


def _failure(completed: commands.Completed) -> SourceError:
    status = f"exit status {completed.returncode}"
    lines = [line.strip() for line in (completed.stderr or completed.stdout).splitlines() if line.strip()]
    if completed.truncated:
        return SourceError(Reason.PARSE_ERROR, f"amd-smi printed more than {commands.MAX_OUTPUT} bytes and was killed")
    if '"gpu"' in completed.stdout:
        return SourceError(Reason.PARSE_ERROR, f"amd-smi's output was cut or holds no card ({status})")
    if not lines:
        return SourceError(Reason.PARSE_ERROR, f"amd-smi printed nothing ({status})")
    reason = Reason.NO_PERMISSION if "permission" in lines[-1].lower() else Reason.DRIVER_ERROR
    return SourceError(reason, f"amd-smi printed no card ({status}): {quoted(lines[-1])}")
