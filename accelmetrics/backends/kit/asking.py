"""Commands that take a list of fields, or that run once for each device.

::

    connect = Query(COMMAND, ("index", "uuid", "power.draw"), "--query-gpu={fields}", "--format=csv,noheader")
    connect = each_device(COMMAND, found, ("info", "-t", "common", "-i", "{id}"), parse)
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from accelmetrics.backends.guard import guarded, waiting_for
from accelmetrics.backends.kit.commands import Command, Completed, tool_state
from accelmetrics.backends.kit.fields import DeviceRecord, quoted
from accelmetrics.backends.kit.parsing import parsed, rows
from accelmetrics.backends.kit.polled import Connect, DeviceSample, PollOnce
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

SIDE_BY_SIDE = 8
"""Most runs of one command at the same time."""


class Query:
    """Connects a polled backend to a command that takes a list of fields and prints one comma-separated row per device.

    These tools refuse the whole query if a release does not know one of the fields. The query finds that field, leaves it out until
    the tool's file changes, and reports it as missing in each record. A field that was refused for lack of permission is tried
    again when the backend is reopened.

    Args:
        command: The command.
        fields: The fields. The first two identify a device, and every release knows them. If the tool does not answer for these two
            alone, the tool has failed and no field is to blame.
        arguments: The command's arguments. ``{fields}`` is replaced by the fields, joined by commas. If no argument contains
            ``noheader``, the column names come from the printed heading.
        sample: Makes the device from the texts of a row, by field.
    """

    def __init__(
        self, command: Command, fields: Sequence[str], *arguments: str, sample: Callable[[Mapping[str, Any]], DeviceSample] = DeviceSample
    ) -> None:
        self._command = command
        self._fields = tuple(fields)
        self._arguments = arguments
        self._has_heading = not any("noheader" in each for each in arguments)
        self._sample = sample
        self._refused: dict[str, Unavailable] = {}
        self._tool: tuple[object, ...] = ()

    def __call__(self) -> PollOnce:
        """Find the command."""
        self._command.find()
        # Permissions may have been granted since the backend was last opened, so those fields are tried again.
        self._refused = {name: why for name, why in self._refused.items() if why.reason == Reason.NOT_SUPPORTED}
        return self._poll

    def _poll(self) -> Iterator[DeviceSample]:
        # Another release may know the fields that this one refused.
        tool = tool_state(self._command.find())
        if tool != self._tool:
            self._tool, self._refused = tool, {}
        asked = [name for name in self._fields if name not in self._refused]
        for row in self._ask(asked)[0] or self._without_refused(asked):
            yield self._sample({**self._refused, **row})

    def _ask(self, fields: Sequence[str]) -> tuple[list[dict[str, str]], Completed]:
        """Run the query for some fields. Without rows, the query was refused or there is no device."""
        completed = self._command.run(*(each.replace("{fields}", ",".join(fields)) for each in self._arguments))
        found = rows(completed.stdout, () if self._has_heading else fields)
        # A row that contains the field names is an error message that repeats the query.
        return [row for row in found if row.get(fields[1]) != fields[1]], completed

    def _without_refused(self, asked: Sequence[str]) -> list[dict[str, str]]:
        """Find the refused fields, and return the rows of the other fields.

        A refused field is named in the tool's message. If the message names none, or all, the fields are halved until a query fails
        for one field.

        Raises:
            SourceError: The tool does not answer for the first two fields either.
        """
        known, pending = list(asked[:2]), [list(asked[2:])]
        found, completed = self._ask(known)
        if not found:
            raise self._command.failure(completed)
        while pending:
            part = pending.pop()
            answer, completed = self._ask([*known, *part])
            if answer:
                found, known = answer, [*known, *part]
                continue
            output = f"{completed.stdout}\n{completed.stderr}"
            named = [name for name in part if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", output)]
            if len(part) > 1 and len(named) in (0, len(part)):
                # The message names no field, or repeats the whole query: bisect.
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            denied = self._command.failure(completed).reason == Reason.NO_PERMISSION
            for name in named or part:
                words = f'{self._command.names[0]} refuses the field "{name}": {quoted(completed.words)}'
                self._refused[name] = Unavailable(Reason.NO_PERMISSION if denied else Reason.NOT_SUPPORTED, words)
            # The fields that the message does not name may still be known.
            pending += [left] if (left := [name for name in part if name not in self._refused]) else []
        return found


class _Unread(DeviceRecord):
    """A device that could only be identified: every other value is missing, for one reason."""

    def __init__(self, known: Mapping[str, object], why: Unavailable) -> None:
        super().__init__({name.lower(): value for name, value in known.items()})
        self._why = why

    def get(self, place: str) -> object:
        found = super().get(place)
        return self._why if found is None else found


def each_device(
    command: Command,
    find: Callable[[], Iterable[Mapping[str, object]]],
    arguments: Sequence[str],
    parse: Callable[[str], Iterable[Mapping[str, Any]]],
) -> Connect:
    """Connect a polled backend to a command that runs once for each device, up to ``SIDE_BY_SIDE`` at a time.

    All runs of one poll share the command's timeout. If a run fails, the values of its device are missing for that reason; other
    devices are not affected.

    Args:
        command: The command.
        find: Lists the devices at each poll. It returns the known parts of each device, and these become part of its record.
        arguments: The command's arguments; ``{name}`` is replaced by that part of the known parts.
        parse: Makes a record from the output of one run, or several records if one run covers several devices.
    """

    def ask(known: Mapping[str, object], until: float) -> list[DeviceSample]:
        left = until - time.monotonic()
        if left <= 0:
            raise SourceError(Reason.TIMED_OUT, f"{command.names[0]} was not run for this device: the others took {command.timeout:g} s")
        completed = command.run(*(each.format_map(known) for each in arguments), timeout=left)
        try:
            found = [DeviceSample({**known, **record}) for record in parsed(command.names[0], parse, completed.stdout)]
        except SourceError as error:
            # The vendor's known messages explain more than a parser's error.
            raise command.said(completed) or error from error
        if not found:
            raise command.failure(completed)
        return found

    def poll() -> Iterator[DeviceSample]:
        devices = list(find())
        answers: list[list[DeviceSample]] = [[] for _ in devices]
        until, gate = time.monotonic() + command.timeout, threading.Semaphore(SIDE_BY_SIDE)

        def work(place: int) -> None:
            with gate:
                outcome = guarded(ask, devices[place], until)
            why = outcome.failure
            answers[place] = [DeviceSample(_Unread(devices[place], why))] if why is not None else outcome.value or []

        # ThreadPoolExecutor is no option: the interpreter waits for its threads at exit, and one of these may hang in a tool.
        name = f"accelmetrics {command.names[0]}"
        workers = [threading.Thread(target=work, args=(place,), name=name, daemon=True) for place in range(len(devices))]
        with waiting_for(command.find()):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        for samples in answers:
            yield from samples

    def connect() -> PollOnce:
        command.find()
        return poll

    return connect
