"""Parsers for the output of vendors' tools: JSON with noise around it, CSV, tables drawn with bars, indented sections, XML.

Names come from the output itself: a heading, a key, a tag. No parser relies on the order of devices, rows or columns.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from accelmetrics.backends.contract import MOST_DEVICES
from accelmetrics.backends.kit.fields import LONGEST, convert, quoted
from accelmetrics.schemas.errors import Reason, SourceError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

T = TypeVar("T")

MOST = MOST_DEVICES + 1
"""Most rows, sections, and attempts to find a document. It is one above the most devices, so that a longer list is refused, not cut."""

_UNIT = re.compile(r"(.*?)\s*[(\[]([^()\[\]]*)[)\]]")
_RULE = re.compile(r"\s*(?=\S*[-=_\u2500-\u257f]{3})[-=_|+*:.\u2500-\u257f]+\s*")
"""A line of a table that only separates other lines."""
_CELL = re.compile(r"[^|\u2502\u2503\u2506\u2507\u250a\u250b\u2551]+")
_SIDE = r"(n/?a|-+|\[[^\]]*\]|[+-]?[\d.]+ ?[a-z%\u00b0\u2103]*)"
_PAIR = re.compile(rf"{_SIDE}\s*(?:/\s*{_SIDE}|\(\s*{_SIDE}\s*\))", re.IGNORECASE)
_Span = tuple[int, int, str]
"""A heading: where it begins and ends in the line, and its text."""


def json_documents(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists in a text, ignoring other text around them, and skipping incomplete or malformed ones."""
    decoder, position = json.JSONDecoder(), 0
    for _ in range(MOST):
        start = re.compile(r"[\[{]").search(text, position)
        if start is None:
            return
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):  # no document begins here, or it is incomplete, or has a number too long for int()
            position = start.start() + 1
        else:
            yield value


def json_document(text: str) -> Any:
    """Return the first object or list of a text that is not empty. An object, or a list with objects or lists, is preferred.

    Raises:
        SourceError: There is none (``parse_error``).
    """
    documents = [document for document in json_documents(text) if document]
    # A list of plain words or numbers is noise, as in "WARNING [2]", unless there is nothing else.
    records = (each for each in documents if isinstance(each, dict) or any(isinstance(item, (dict, list)) for item in each))
    document = next(records, documents[0] if documents else None)
    if document is None:
        raise SourceError(Reason.PARSE_ERROR, f"no JSON: {quoted(text)}")
    return document


def parsed(name: str, parse: Callable[[str], Iterable[T]], text: str) -> Iterator[T]:
    """Yield the results of a vendor's parser. Its exceptions on unexpected output become ``parse_error``.

    Args:
        name: The tool.
        parse: The parser.
        text: The tool's output.

    Raises:
        SourceError: The output could not be parsed, possibly after some devices.
    """
    try:
        yield from parse(text)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise SourceError(
            Reason.PARSE_ERROR, f"{name}'s output is not understood ({type(error).__name__}: {error}): {quoted(text)}"
        ) from error


def with_units(record: Mapping[str, Any]) -> dict[str, Any]:
    """Move units from bracketed names to the values: ``{"Power (W)": "30"}`` becomes ``{"Power": "30 W"}``."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name, unit = _unit_of(key)
        is_bare = isinstance(value, (int, float)) or (isinstance(value, str) and value[-1:].isdigit())
        found.setdefault(name, f"{value} {unit}" if unit and is_bare else value)
    return found


def _unit_of(name: str) -> tuple[str, str]:
    """Split the unit in brackets at its end off a heading or a key. The unit is empty if there is none, or an unknown one."""
    found = _UNIT.fullmatch(name)
    return (found[1], found[2]) if found and not found[2][:1].isdigit() and convert(1, found[2], found[2]) is not None else (name, "")


def rows(text: str, names: Sequence[str] = ()) -> list[dict[str, str]]:
    """Parse the rows of a comma-separated table, by column. Lines with another number of cells are skipped.

    Args:
        text: The table.
        names: The columns; by default the first row with several cells. A unit in brackets in that row (``power.draw [W]``) is
            added to each value.

    Raises:
        SourceError: It is not a table (``parse_error``).
    """
    try:
        lines = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True)]
    except csv.Error as error:  # a cell that is too long
        raise SourceError(Reason.PARSE_ERROR, f"no table: {error}") from error
    table = [row for row in lines if len(row) > 1 and any(row)]
    if not names and table:
        names = table.pop(0)
    columns = [(found[1], found[2]) if (found := _UNIT.fullmatch(name)) else (name, "") for name in names]
    return [
        {name: f"{cell} {unit}".strip() if cell[-1:].isdigit() else cell for (name, unit), cell in zip(columns, row, strict=True)}
        for row in table[:MOST]
        if len(row) == len(columns)
    ]


def table(text: str, heading: str, wrapped: bool = False) -> Iterator[dict[str, str]]:
    """Parse a table that is drawn with bars. Each device takes as many lines as the heading has.

    A cell may have several headings side by side: each word belongs to the heading above it. A cell with two values (``75W /
    350W``, ``0MiB(81920MiB)``) gives ``<heading>.0`` and ``<heading>.1`` too. A heading's unit is added to each value.

    Args:
        text: The text. Anything outside the table is skipped.
        heading: A regular expression that the first line of headings contains, ignoring case.
        wrapped: Whether a device takes one line, and further lines of headings only continue the first.

    Yields:
        The texts of each device, by heading.

    Raises:
        SourceError: The table ends within a device; raised after the complete devices (``parse_error``).
    """
    blocks: list[list[list[tuple[int, str]]]] = [[]]
    ruled = False
    for line in text.expandtabs().splitlines():
        rule = _RULE.fullmatch(line) is not None
        if any(blocks[1:]) and (not line.strip() or (rule and ruled)):
            break  # an empty line, or two rules in a row, ends the table
        if rule and blocks[-1]:
            blocks.append([])
        elif not rule and (blocks[0] or re.search(heading, line, re.IGNORECASE)):
            blocks[-1].append(_cells(line))
        ruled = rule
    columns = _columns(blocks[0], wrapped)
    shape, count = [len(line) for line in columns], 0
    for number, block in enumerate(blocks[1:], 2):
        # Tables without rules between devices have several devices in one block.
        while block and shape and count < MOST:
            lines = block[: len(shape)]
            if [len(line) for line in lines] == shape:
                del block[: len(shape)]
                count += 1
                yield _record(columns, lines)
            elif len(lines) < len(shape) and number == len(blocks) and len(lines[0]) == shape[0]:
                raise SourceError(Reason.PARSE_ERROR, "the table ends within a device")
            else:
                del block[0]  # a message in place of a device


def _cells(line: str) -> list[tuple[int, str]]:
    """Return the cells of a line between bars, each with the column where it begins."""
    cells = [(found.start(), found[0]) for found in _CELL.finditer(line)]
    # Some tables draw no bar at the left or right edge, so only an empty first or last cell is outside the table.
    return cells[int(not cells[0][1].strip()) : len(cells) - (not cells[-1][1].strip())] if cells else []


def _columns(heads: list[list[tuple[int, str]]], wrapped: bool) -> list[list[list[_Span]]]:
    """Return the headings of each cell, for each line of a device."""
    lines = [
        [[(at + each.start(), at + each.end(), each[0]) for each in re.finditer(r"\S+(?: \S+)*", cell)] for at, cell in line]
        for line in heads
    ]
    if not wrapped:
        return lines
    for further in lines[1:]:
        for above, below in zip(lines[0], further, strict=False):
            # A continuation belongs to the heading that it overlaps; without one, it is a heading itself.
            for start, end, name in below:
                place = next((place for place, each in enumerate(above) if each[0] < end and start < each[1]), len(above))
                before = above[place : place + 1] or [(start, end, "")]
                above[place : place + 1] = [(min(start, before[0][0]), max(end, before[0][1]), f"{before[0][2]} {name}".strip())]
    return lines[:1]


def _record(columns: list[list[list[_Span]]], block: list[list[tuple[int, str]]]) -> dict[str, str]:
    """Assign the words of a device's cells to the headings above them."""
    found: dict[str, str] = {}
    cells = [cell for line in block for cell in line]
    for heads, (at, cell) in zip((heads for line in columns for heads in line), cells, strict=True):
        words: list[list[str]] = [[] for _ in heads]
        column, end = 0, -1
        for word in re.finditer(r"\S+", cell) if heads else ():
            start = at + word.start()
            # Overlap with each heading; a negative one is a distance.
            overlaps = [min(each[1], at + word.end()) - max(each[0], start) for each in heads]
            # A word right after another, under no heading, continues the value of that word.
            if max(overlaps) > 0 or start != end + 1:
                column = overlaps.index(max(overlaps))
            end = at + word.end()
            words[column].append(word[0])
        for (_, _, heading), value in zip(heads, map(" ".join, words), strict=True):
            name, unit = _unit_of(heading)
            found.setdefault(name, _append_unit(value, unit))
            pair = _PAIR.fullmatch(value) if len(value) <= LONGEST else None
            sides = [side.strip() for side in pair.groups() if side] if pair else []
            unit = unit or next((last[1] for side in sides if (last := re.fullmatch(r"[+-]?[\d.]+ ?([^\d\s.]+)", side))), "")
            for number, side in enumerate(sides):
                found.setdefault(f"{name}.{number}", _append_unit(side, unit))
    return found


def _append_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit and value[-1:].isdigit() else value


def xml_records(text: str, tag: str) -> Iterator[dict[str, Any]]:
    """Parse the elements with one tag in an XML document, ignoring text before and after the document.

    An element becomes a dict: attributes as ``@name``, child elements by tag, repeated ones as a list. Values that the document has
    at its top level before a device, for example ``driver_version``, are added to each device.

    Args:
        text: The text.
        tag: The tag of a device's element.

    Yields:
        The elements in order.

    Raises:
        SourceError: There is no XML, or it is incomplete or malformed; raised after the complete elements (``parse_error``).
    """
    from xml.etree.ElementTree import ParseError, XMLPullParser  # only where a vendor prints XML

    # The core does not depend on defusedxml, so this is the standard library's parser. It fetches nothing from outside. Entities that
    # the document declares may expand without bound, so they are refused. Real tools name a DTD and declare no entities.
    begin = re.search(r"<[?!A-Za-z_]", text)
    if begin is None or "<!ENTITY" in text:
        raise SourceError(Reason.PARSE_ERROR, f"no XML, or XML that declares entities: {quoted(text)}")
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    parser.feed(text[begin.start() :])
    depth, failure = 0, "it is cut"
    of_none: dict[str, str] = {}
    try:
        for event, element in cast("Iterator[tuple[str, Element]]", parser.read_events()):
            depth += 1 if event == "start" else -1
            if event == "end" and element.tag == tag:
                record = _element(element)
                yield {**of_none, **(record if isinstance(record, dict) else {})}
                element.clear()
            elif event == "end" and depth == 1 and not len(element):
                of_none[element.tag] = (element.text or "").strip()
            elif depth == 0:
                return  # the rest is noise
    except ParseError as error:
        failure = str(error).partition(":")[0]  # without the position, which differs at each reading
    raise SourceError(Reason.PARSE_ERROR, f"incomplete XML: {failure}")


def _element(element: Element) -> dict[str, Any] | str:
    """Return an element as a dict; as its text if it has nothing else."""
    found: dict[str, Any] = {f"@{name}": value for name, value in element.attrib.items()}
    for child in element:
        before = found.get(child.tag, [])
        found[child.tag] = [*(before if isinstance(before, list) else [before]), _element(child)] if child.tag in found else _element(child)
    text = (element.text or "").strip()
    return {**found, "value": text} if found and text else found or text


def blocks(text: str, begins: str = "", ends: str = "") -> list[tuple[dict[str, str], str]]:
    """Split a text into the blocks of its devices, each with the named groups of the lines that begin and end it.

    Args:
        text: The text.
        begins: A regular expression for the line that begins a block. By default, a block begins where the one before ends.
        ends: A regular expression for the line that closes a block, if that line names the device. An unclosed block is then left
            out.
    """
    found: list[tuple[dict[str, str], list[str]]] = []
    closed = True
    for line in text.splitlines():
        start = re.match(begins, line) if begins else None
        if len(found) < MOST and (start is not None or (closed and not begins)):
            found.append((_groups(start), []))
            closed = False
        if start is None and not closed:
            found[-1][1].append(line)
        if ends and not closed and (end := re.match(ends, line)) is not None:
            found[-1][0].update(_groups(end))
            closed = True
    if ends and not closed:
        found.pop()
    return [(groups, "\n".join(block)) for groups, block in found]


def _groups(found: re.Match[str] | None) -> dict[str, str]:
    return {name: value.strip() for name, value in found.groupdict().items() if value is not None} if found is not None else {}


def sections(text: str, begins: str = "", ends: str = "") -> list[dict[str, str]]:
    """Parse the devices of an indented text of ``key : value`` lines below headings, as ``-q`` of many tools prints it.

    Args:
        text: The text.
        begins: A regular expression for the line that begins a device; its named groups are part of the record.
        ends: A regular expression for the line that closes a device, as in :func:`blocks`.

    Returns:
        The values of each device by the path of headings above them: ``memory usage.total``. If a key repeats, ``.1`` and so on is
        appended to the second and later ones.
    """
    found = []
    for record, block in blocks(text, begins, ends):
        headings: list[tuple[int, str]] = []
        times: dict[str, int] = {}
        for line in filter(str.strip, block.splitlines()):
            depth = len(line) - len(line.lstrip())
            key, colon, value = (part.strip() for part in line.partition(":"))
            headings = [(above, name) for above, name in headings if above < depth]
            path = ".".join((*(name for _, name in headings), key))
            if value:
                times[path] = times.get(path, -1) + 1
                record.setdefault(f"{path}.{times[path]}" if times[path] else path, value)
            elif colon or key:
                headings.append((depth, key))
        found.append(record)
    return found


def first_match(text: str, pattern: str) -> str:
    """Return the first group of a pattern's first match, ignoring case; empty without a match.

    For values that are printed once, for example the driver's version.
    """
    found = re.search(pattern, text, re.IGNORECASE)
    return found[1].strip() if found is not None and found[1] else ""


def figure(value: object) -> object:
    """Return the only number in a text, as a field's ``convert``: ``x16``, ``16x``, ``Gen4``, ``P0``.

    A text without a number, or with several, is returned unchanged.
    """
    found = re.findall(r"\d+", value) if isinstance(value, str) and len(value) <= LONGEST else ()
    return found[0] if len(found) == 1 else value


def grouped(records: Iterable[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """Group records by the text of one of their values, for example processes by their device."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(str(record.get(key)).strip(), []).append(record)
    return found
