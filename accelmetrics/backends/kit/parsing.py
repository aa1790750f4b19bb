"""What vendors' tools print, as records: JSON with noise around it, rows of a table, indented sections."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.contract import MOST_DEVICES
from accelmetrics.backends.kit.fields import quoted
from accelmetrics.schemas.errors import Reason, SourceError

if TYPE_CHECKING:
    from accelmetrics.backends.kit.polled import DeviceSample

MOST = MOST_DEVICES + 1
"""Rows, sections, and attempts to find a document: more is noise, and more than all devices is enough to refuse them."""

_START = re.compile(r"[\[{]")
_UNIT = re.compile(r"(.*?)\s*[(\[]([^()\[\]]*)[)\]]")


def json_documents(text: str) -> Iterator[Any]:
    """Find the objects and lists that stand in a text, whatever stands around them; one that is cut or malformed is passed over."""
    decoder, position = json.JSONDecoder(), 0
    for _ in range(MOST):
        start = _START.search(text, position)
        if start is None:
            return
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):  # no document begins here, or it is cut, or holds a number too long for int()
            position = start.start() + 1
        else:
            yield value


def json_document(text: str) -> Any:
    """Find the first object or list of a text that is not empty.

    Raises:
        SourceError: There is none (``parse_error``).
    """
    documents = [document for document in json_documents(text) if document]
    # A list of words or numbers is noise: "WARNING [2]".
    records = (each for each in documents if isinstance(each, dict) or any(isinstance(item, (dict, list)) for item in each))
    document = next(records, documents[0] if documents else None)
    if document is None:
        raise SourceError(Reason.PARSE_ERROR, f"no JSON: {quoted(text)}")
    return document


def parsed(name: str, parse: Callable[[str], Iterable[DeviceSample]], text: str) -> Iterator[DeviceSample]:
    """Yield what a vendor's parser makes of a text. What it throws at a document of another form is a ``parse_error``.

    Args:
        name: The tool.
        parse: The parser.
        text: What the tool printed.

    Raises:
        SourceError: The text is not understood, from some device on.
    """
    try:
        yield from parse(text)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise SourceError(
            Reason.PARSE_ERROR, f"{name}'s output is not understood ({type(error).__name__}: {error}): {quoted(text)}"
        ) from error


def rows(text: str, names: Sequence[str] = ()) -> list[dict[str, str]]:
    """Parse the rows of a table whose cells are separated by commas, by column; lines with another number of cells are passed over.

    Args:
        text: The table.
        names: The columns; taken from the first row when left out. A unit in brackets there (``power.draw [W]``) is put beside each value.

    Raises:
        SourceError: It is no table (``parse_error``).
    """
    try:
        table = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True) if any(map(str.strip, row))]
    except csv.Error as error:  # a cell that is too long
        raise SourceError(Reason.PARSE_ERROR, f"no table: {error}") from error
    if not names and table:
        names = table.pop(0)
    columns = [(found[1], found[2]) if (found := _UNIT.fullmatch(name)) else (name, "") for name in names]
    return [
        {name: f"{cell} {unit}".strip() if cell[-1:].isdigit() else cell for (name, unit), cell in zip(columns, row, strict=True)}
        for row in table[:MOST]
        if len(row) == len(columns) > 1
    ]


def sections(text: str, begins: str) -> list[dict[str, str]]:
    """Parse the devices of an indented text, as ``-q`` of many tools prints it: lines ``key : value`` below headings.

    Args:
        text: The text.
        begins: A regular expression for the line that begins a device; its named groups are part of the record.

    Returns:
        Of each device, values by the path of headings above them: ``memory usage.total``.
    """
    found: list[dict[str, str]] = []
    headings: list[tuple[int, str]] = []
    for line in text.splitlines():
        start = re.match(begins, line)
        if start is not None and len(found) < MOST:
            found.append({name: value.strip() for name, value in start.groupdict().items() if value is not None})
            headings = []
        elif line.strip() and found:
            depth = len(line) - len(line.lstrip())
            key, colon, value = (part.strip() for part in line.partition(":"))
            headings = [(above, name) for above, name in headings if above < depth]
            if value:
                found[-1].setdefault(".".join((*(name for _, name in headings), key)), value)
            elif colon or key:
                headings.append((depth, key))
    return found


def grouped(records: Iterable[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """Group records by the text of one of their values: processes by the device that they are on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(str(record.get(key)).strip(), []).append(record)
    return found
