"""Commands that are asked in more than one way: for a list of fields, and once for each device.

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
"""Runs of one command at the same time."""


class Query:
    """Connects a polled backend to a command that is asked for named fields and prints a row of commas for each device.

    One field that a release does not know makes such tools refuse the whole query. It is found, left out until the tool changes, and stands
    in each record as its reason. Permission that is refused for a field is asked for again when the backend is opened anew.

    Args:
        command: The command.
        fields: The fields. The first two are those that every release knows, which identify a device: what is not answered for these alone
            is no refusal of a field but a failure of the tool.
        arguments: What it is called with; ``{fields}`` stands for the fields, joined by commas. Where no argument has ``noheader``, the
            names are those of the heading that is printed.
        sample: From the texts of a row, by field, to the device.
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
        self._refused = {name: why for name, why in self._refused.items() if why.reason == Reason.NOT_SUPPORTED}
        return self._poll

    def _poll(self) -> Iterator[DeviceSample]:
        tool = tool_state(self._command.find())
        if tool != self._tool:
            self._tool, self._refused = tool, {}
        asked = [name for name in self._fields if name not in self._refused]
        for row in self._ask(asked)[0] or self._without_refused(asked):
            yield self._sample({**self._refused, **row})

    def _ask(self, fields: Sequence[str]) -> tuple[list[dict[str, str]], Completed]:
        """Ask for some fields. No rows: it was refused, or there is no device."""
        completed = self._command.run(*(each.replace("{fields}", ",".join(fields)) for each in self._arguments))
        found = rows(completed.stdout, () if self._has_heading else fields)
        return [row for row in found if row.get(fields[1]) != fields[1]], completed  # not the names themselves: an error that repeats them

    def _without_refused(self, asked: Sequence[str]) -> list[dict[str, str]]:
        """Find out which fields are refused, by the tool's words or by asking for fewer, and return the rows of the others.

        Raises:
            SourceError: The tool does not answer for the fields that every release knows either.
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
            said = f"{completed.stdout}\n{completed.stderr}"
            named = [name for name in part if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", said)]
            if len(part) > 1 and len(named) in (0, len(part)):  # it does not say, or it repeats the query
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            denied = self._command.failure(completed).reason == Reason.NO_PERMISSION
            for name in named or part:
                words = f'{self._command.names[0]} refuses the field "{name}": {quoted(completed.words)}'
                self._refused[name] = Unavailable(Reason.NO_PERMISSION if denied else Reason.NOT_SUPPORTED, words)
            pending += [left] if (left := [name for name in part if name not in self._refused]) else []
        return found


class _Unread(DeviceRecord):
    """A device of which only the identity is known, and why that is."""

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
    """Connect a polled backend to a command that is run once for each device, several at a time.

    All runs of one poll together have the command's timeout. A run that fails is the reason for all values of its device, and of no other.

    Args:
        command: The command.
        find: Lists the devices at each poll: what is known of each, which is part of its record.
        arguments: What it is called with; ``{name}`` stands for that part of what is known.
        parse: From the text of one run to its record, or several where one run tells of several devices.
    """

    def ask(known: Mapping[str, object], until: float) -> list[DeviceSample]:
        left = until - time.monotonic()
        if left <= 0:
            raise SourceError(Reason.TIMED_OUT, f"{command.names[0]} was not run for this device: the others took {command.timeout:g} s")
        completed = command.run(*(each.format_map(known) for each in arguments), timeout=left)
        try:
            found = [DeviceSample({**known, **record}) for record in parsed(command.names[0], parse, completed.stdout)]
        except SourceError as error:
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
                asked = guarded(ask, devices[place], until)
            why = asked.failure
            answers[place] = [DeviceSample(_Unread(devices[place], why))] if why is not None else asked.value or []

        # No pool of the standard library: at its end the interpreter waits for their threads.
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
