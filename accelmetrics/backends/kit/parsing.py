"""What vendors' tools print, as records: JSON with noise around it, CSV, tables drawn with bars, indented sections, XML.

Names come from what is printed: a heading, a key, a tag. No record depends on the order of devices, rows or columns.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from accelmetrics.backends.contract import MOST_DEVICES
from accelmetrics.backends.kit.fields import convert, quoted
from accelmetrics.schemas.errors import Reason, SourceError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

T = TypeVar("T")

MOST = MOST_DEVICES + 1
"""Rows, sections, and attempts to find a document: more is noise, and more than all devices is enough to refuse them."""

_START = re.compile(r"[\[{]")
_UNIT = re.compile(r"(.*?)\s*[(\[]([^()\[\]]*)[)\]]")
_RULE = re.compile(r"\s*(?=\S*[-=_\u2500-\u257f]{3})[-=_|+*:.\u2500-\u257f]+\s*")
"""A line of a table that only separates others."""
_CELL = re.compile(r"[^|\u2502\u2503\u2506\u2507\u250a\u250b\u2551]+")
_SIDE = r"(n/?a|-+|\[[^\]]*\]|[+-]?[\d.]+ ?[a-z%\u00b0\u2103]*)"
_PAIR = re.compile(rf"{_SIDE}\s*(?:/\s*{_SIDE}|\(\s*{_SIDE}\s*\))", re.IGNORECASE)
_UNIT_AT_END = re.compile(r"[+-]?[\d.]+ ?([^\d\s.]+)")
_LONGEST = 120
"""Characters: no value is longer."""
_HEADING, _WORD = re.compile(r"\S+(?: \S+)*"), re.compile(r"\S+")
_Span = tuple[int, int, str]
"""A heading, and where in the line it begins and ends."""


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


def parsed(name: str, parse: Callable[[str], Iterable[T]], text: str) -> Iterator[T]:
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


def with_units(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put units that names have in brackets beside the values: ``{"Power (W)": "30"}`` becomes ``{"Power": "30 W"}``."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name, unit = _unit_of(key)
        is_bare = isinstance(value, (int, float)) or (isinstance(value, str) and value[-1:].isdigit())
        found.setdefault(name, f"{value} {unit}" if unit and is_bare else value)
    return found


def _unit_of(name: str) -> tuple[str, str]:
    """Return a heading or a key without the unit that stands in brackets at its end, and that unit."""
    found = _UNIT.fullmatch(name)
    return (found[1], found[2]) if found and not found[2][:1].isdigit() and convert(1, found[2], found[2]) is not None else (name, "")


def rows(text: str, names: Sequence[str] = ()) -> list[dict[str, str]]:
    """Parse the rows of a table whose cells are separated by commas, by column; lines with another number of cells are passed over.

    Args:
        text: The table.
        names: The columns; taken from the first row of several cells when left out. A unit in brackets there (``power.draw [W]``) is put
            beside each value.

    Raises:
        SourceError: It is no table (``parse_error``).
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
    """Parse a table that is drawn with bars, one device in as many lines as there are lines of headings.

    A cell may have several headings beside one another: each word belongs to the heading that it stands under. A cell with two values
    (``75W / 350W``, ``0MiB(81920MiB)``) gives ``<heading>.0`` and ``<heading>.1`` too. A unit of a heading is put beside each value.

    Args:
        text: The text. What does not belong to the table is passed over.
        heading: A regular expression that the first line of headings contains; case makes no difference.
        wrapped: Whether a device has one line, and further lines of headings only continue the first.

    Yields:
        Of each device the texts by heading.

    Raises:
        SourceError: After the devices that are whole, that the table ends within one (``parse_error``).
    """
    blocks: list[list[list[tuple[int, str]]]] = [[]]
    ruled = False
    for line in text.expandtabs().splitlines():
        rule = _RULE.fullmatch(line) is not None
        if any(blocks[1:]) and (not line.strip() or (rule and ruled)):
            break  # another table follows
        if rule and blocks[-1]:
            blocks.append([])
        elif not rule and (blocks[0] or re.search(heading, line, re.IGNORECASE)):
            blocks[-1].append(_cells(line))
        ruled = rule
    columns = _columns(blocks[0], wrapped)
    shape, count = [len(line) for line in columns], 0
    for number, block in enumerate(blocks[1:], 2):
        while block and shape and count < MOST:
            taken = block[: len(shape)]
            if [len(line) for line in taken] == shape:
                del block[: len(shape)]
                count += 1
                yield _record(columns, taken)
            elif len(taken) < len(shape) and number == len(blocks) and len(taken[0]) == shape[0]:
                raise SourceError(Reason.PARSE_ERROR, "the table ends within a device")
            else:
                del block[0]  # a message in the place of a device


def _cells(line: str) -> list[tuple[int, str]]:
    """Return the cells of a line between bars, each with the place where it begins."""
    cells = [(found.start(), found[0]) for found in _CELL.finditer(line)]
    inner = slice(int(not cells[0][1].strip()), len(cells) - (not cells[-1][1].strip())) if cells else slice(0)
    return cells[inner]


def _columns(heads: list[list[tuple[int, str]]], wrapped: bool) -> list[list[list[_Span]]]:
    """Return the headings of each cell of each line of a device."""
    lines = [[[(at + each.start(), at + each.end(), each[0]) for each in _HEADING.finditer(cell)] for at, cell in line] for line in heads]
    if not wrapped:
        return lines
    for further in lines[1:]:
        for above, below in zip(lines[0], further, strict=False):
            for start, end, name in below:
                place = next((place for place, each in enumerate(above) if each[0] < end and start < each[1]), len(above))
                before = above[place : place + 1] or [(start, end, "")]
                above[place : place + 1] = [(min(start, before[0][0]), max(end, before[0][1]), f"{before[0][2]} {name}".strip())]
    return lines[:1]


def _record(columns: list[list[list[_Span]]], block: list[list[tuple[int, str]]]) -> dict[str, str]:
    """Return what stands under each heading."""
    found: dict[str, str] = {}
    cells = [cell for line in block for cell in line]
    for heads, (at, cell) in zip((heads for line in columns for heads in line), cells, strict=True):
        words: list[list[str]] = [[] for _ in heads]
        column, end = 0, -1
        for word in _WORD.finditer(cell) if heads else ():
            start = at + word.start()
            shared = [min(each[1], at + word.end()) - max(each[0], start) for each in heads]  # below 0: how far away
            if max(shared) > 0 or start != end + 1:
                column = shared.index(max(shared))
            end = at + word.end()
            words[column].append(word[0])
        for (_, _, heading), said in zip(heads, map(" ".join, words), strict=True):
            name, unit = _unit_of(heading)
            found.setdefault(name, _beside(said, unit))
            pair = _PAIR.fullmatch(said) if len(said) <= _LONGEST else None
            sides = [side.strip() for side in pair.groups() if side] if pair else []
            unit = unit or next((last[1] for side in sides if (last := _UNIT_AT_END.fullmatch(side))), "")
            for number, side in enumerate(sides):
                found.setdefault(f"{name}.{number}", _beside(side, unit))
    return found


def _beside(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit and value[-1:].isdigit() else value


def xml_records(text: str, tag: str) -> Iterator[dict[str, Any]]:
    """Parse the elements of one name in an XML document, with noise before and after it.

    An element is an object of what is in it: attributes as ``@name``, elements by their tag, those that repeat as a list. What the document
    says before a device and of none, such as ``driver_version``, is part of each.

    Args:
        text: The text.
        tag: The name of a device's element.

    Yields:
        The elements, in their order.

    Raises:
        SourceError: There is no XML; after the elements that are whole, that it is cut or malformed (``parse_error``).
    """
    from xml.etree.ElementTree import ParseError, XMLPullParser  # only where a vendor prints XML

    # The standard library's parser, since the core does not depend on defusedxml. It fetches nothing from outside. What remains to be
    # refused are entities, which a document declares by itself and which may grow without bound. Real tools name a DTD and declare none.
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
                said = _element(element)
                yield {**of_none, **(said if isinstance(said, dict) else {})}
                element.clear()
            elif event == "end" and depth == 1 and not len(element):
                of_none[element.tag] = (element.text or "").strip()
            elif depth == 0:
                return  # what follows is noise
    except ParseError as error:
        failure = str(error).partition(":")[0]  # without the place, which differs at each reading
    raise SourceError(Reason.PARSE_ERROR, f"XML that is not whole: {failure}")


def _element(element: Element) -> dict[str, Any] | str:
    """Return an element as an object; as text where it has nothing but that."""
    found: dict[str, Any] = {f"@{name}": value for name, value in element.attrib.items()}
    for child in element:
        before = found.get(child.tag, [])
        found[child.tag] = [*(before if isinstance(before, list) else [before]), _element(child)] if child.tag in found else _element(child)
    said = (element.text or "").strip()
    return {**found, "value": said} if found and said else found or said


def blocks(text: str, begins: str = "", ends: str = "") -> list[tuple[dict[str, str], str]]:
    """Divide a text into the blocks of its devices, each with the named groups of the lines that begin and end it.

    Args:
        text: The text.
        begins: A regular expression for the line that begins a block. When left out, a block begins where the one before ends.
        ends: One for the line that closes a block, where it tells whose the lines before it are; what is not closed is then left out.
    """
    found: list[tuple[dict[str, str], list[str]]] = []
    closed = True
    for line in text.splitlines():
        start = re.match(begins, line) if begins else None
        if len(found) < MOST and (start is not None or (closed and not begins)):
            found.append((_groups(start), []))
            closed = False
        if closed:
            continue
        if start is None:
            found[-1][1].append(line)
        end = re.match(ends, line) if ends else None
        if end is not None:
            found[-1][0].update(_groups(end))
            closed = True
    if ends and not closed:
        found.pop()
    return [(groups, "\n".join(block)) for groups, block in found]


def _groups(found: re.Match[str] | None) -> dict[str, str]:
    return {name: value.strip() for name, value in found.groupdict().items() if value is not None} if found is not None else {}


def sections(text: str, begins: str = "", ends: str = "") -> list[dict[str, str]]:
    """Parse the devices of an indented text, as ``-q`` of many tools prints it: lines ``key : value`` below headings.

    Args:
        text: The text.
        begins: A regular expression for the line that begins a device; its named groups are part of the record.
        ends: One for the line that closes it, as in :func:`blocks`.

    Returns:
        Of each device, values by the path of headings above them: ``memory usage.total``. Where a key repeats, ``.1`` and so on stands
        behind the second and further ones.
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
    """Return the first group of a pattern's first match, in any case, for what is printed once: the driver's version. Empty without one."""
    found = re.search(pattern, text, re.IGNORECASE)
    return found[1].strip() if found is not None and found[1] else ""


def figure(value: object) -> object:
    """Take the one number out of a text, as a field's ``convert``: ``x16``, ``16x``, ``Gen4``, ``P0``. Others stay what they are."""
    found = re.findall(r"\d+", value) if isinstance(value, str) and len(value) <= _LONGEST else ()
    return found[0] if len(found) == 1 else value


def grouped(records: Iterable[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """Group records by the text of one of their values: processes by the device that they are on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(str(record.get(key)).strip(), []).append(record)
    return found
