"""The state of the interactive terminal program: lists, orders, filters, graphs and overlays that the user chose.

It is immutable. A key press makes a changed copy with ``dataclasses.replace``.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal, TypeVar

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.visibility.processes import ProcessDetails

Pane = Literal["devices", "processes", "nodes"]
Overlay = Literal["", "help", "details", "findings", "summary", "process"]
Menu = Literal["", "order", "columns"]
DEVICE_ORDERS = ("device", "state", "util", "mem", "power", "temp")
"""Sort orders of devices: numbers from the largest, states from the worst."""
PROCESS_ORDERS = ("gpu%", "mem", "cpu%", "time", "pid", "user", "device")
"""Sort orders of processes."""
NODE_ORDERS = ("state", "name", "util", "power", "findings")
"""Sort orders of the nodes of a fleet."""
ASCENDING = frozenset({"device", "state", "pid", "user", "name"})
"""Sort orders from the smallest, or from the worst state. All others start with the largest number."""
Graphs = Literal["chosen", "lines", "band"]
GRAPHS: tuple[Graphs, ...] = ("chosen", "lines", "band")
Form = Literal["auto", "list", "map"]
HIDDEN = "-"
"""Value of ``Choices.training`` that hides the training graphs."""
ThemeChoice = Literal["auto", "dark", "light"]


@dataclass(frozen=True)
class InputLine:
    """A text that the user is typing. It replaces the last line of the screen.

    Attributes:
        label: The prompt: ``filter``.
        text: The text so far.
        at: Position of the cursor, in characters from the start.
        problem: The error in the text, in words; empty if there is none.
    """

    label: str
    text: str
    at: int
    problem: str = ""


@dataclass(frozen=True)
class Choices:
    """Everything that the user can choose on the screen.

    Attributes:
        pane: The active list. It is always ``nodes`` for a fleet.
        device: Key of the selected device, or name of the selected silent source; empty for the first row, or for all devices of the map.
        process: Process id of the selected process; 0 for the first.
        node: Name of the selected node of a fleet; empty for the first.
        device_order: Sort order of devices, one of ``DEVICE_ORDERS``.
        device_reverse: Whether the order of devices is reversed.
        process_order: Sort order of processes, one of ``PROCESS_ORDERS``.
        process_reverse: Whether the order of processes is reversed.
        device_hidden: Headings of the hidden columns in the list of devices.
        process_hidden: Headings of the hidden columns in the list of processes.
        device_filter: Filter of devices, in the syntax of :func:`parse_filter`.
        process_filter: Filter of processes.
        node_order: Sort order of nodes, one of ``NODE_ORDERS``.
        node_reverse: Whether the order of nodes is reversed.
        node_filter: Filter of nodes.
        metric: Metric of the first graph: a name that ``metric_row`` accepts.
        beside: Further metrics in the same graph, in the order in which they were added.
        scale: Time span of graphs: a name in ``SPANS``.
        until_ns: Right edge of graphs, in nanoseconds since 1970; 0 for now.
        graphs: Content of graphs: the selected device, a line for each of several devices, or minimum, median and maximum of all.
        theme: Background that colours are chosen for. ``auto`` asks the terminal.
        training: Program with training graphs; empty for the first that logs, ``HIDDEN`` for none.
        form: Layout of devices, a list or a map. ``auto`` chooses by the size of the screen.
        paused: Whether the picture is frozen.
        overlay: Content that replaces the lists.
        menu: Menu in the last line.
        dialog: Lines of an open question: its subject, the action and its target, the possible answers (for example
            ``y sends it, any other key does not``). Empty for none.
        input: Text that the user is typing; None for none.
        message: Message in the last line; empty to show the keys.
        device_top: Number of devices scrolled out of view at the top.
        process_top: Number of processes scrolled out of view at the top.
        process_left: Number of columns scrolled out of view at the left of the processes.
        tagged: Process ids of the tagged processes. A signal is sent to all of them.
        overlay_top: Number of lines of the overlay scrolled out of view at the top.
        node_top: Number of nodes scrolled out of view at the top.
        label: Origin of readings that are not live: ``replay of run.jsonl``.
        signals: Whether signals may be sent. The help then shows their keys.
        replay: Whether a recording is shown. The help then shows the keys to move through it.
        summary: Lines of the summary overlay.
        unfolded: Whether the details show everything: the environment of a process, or all keys of a device in full digits.
        details: The system's data about the opened process; None if unknown.
    """

    pane: Pane = "devices"
    device: str = ""
    process: int = 0
    node: str = ""
    device_order: str = "device"
    device_reverse: bool = False
    process_order: str = "gpu%"
    process_reverse: bool = False
    device_hidden: frozenset[str] = frozenset()
    process_hidden: frozenset[str] = frozenset()
    device_filter: str = ""
    process_filter: str = ""
    node_order: str = "state"
    node_reverse: bool = False
    node_filter: str = ""
    metric: str = "power_watts"
    beside: tuple[str, ...] = ()
    scale: str = "1 min"
    until_ns: int = 0
    graphs: Graphs = "chosen"
    training: str = ""
    form: Form = "auto"
    theme: ThemeChoice = "auto"
    paused: bool = False
    overlay: Overlay = ""
    menu: Menu = ""
    dialog: tuple[str, ...] = ()
    input: InputLine | None = None
    message: str = ""
    device_top: int = 0
    process_top: int = 0
    process_left: int = 0
    tagged: frozenset[int] = frozenset()
    overlay_top: int = 0
    node_top: int = 0
    label: str = ""
    signals: bool = False
    replay: bool = False
    summary: tuple[str, ...] = ()
    unfolded: bool = False
    details: ProcessDetails | None = None

    @property
    def order(self) -> tuple[str, bool]:
        """Sort order of the active list, and whether it is reversed."""
        return {
            "devices": (self.device_order, self.device_reverse),
            "processes": (self.process_order, self.process_reverse),
            "nodes": (self.node_order, self.node_reverse),
        }[self.pane]

    @property
    def stretch(self) -> str:
        """The time span of graphs in words: ``5 min``, or ``5 min to 12:00:00`` if it does not end now."""
        if not self.until_ns:
            return self.scale
        return f"{self.scale} to {time.strftime('%H:%M:%S', time.localtime(self.until_ns / 1e9))}"


USUAL_CHOICES = Choices()


def order_letters(pane: Pane) -> dict[str, str]:
    """Return the sort orders of a list by the letter that selects each, which is its first letter."""
    return {order[0]: order for order in {"devices": DEVICE_ORDERS, "processes": PROCESS_ORDERS, "nodes": NODE_ORDERS}[pane]}


@dataclass(frozen=True)
class KeyHelp:
    """The help on a key, or on several keys together.

    Attributes:
        keys: Names of the keys: ``q``, ``up down``.
        short: Effect in one word, for the last line; empty if only the help shows the key.
        long: Effect in a sentence.
        signals: Whether the key needs permission to send signals.
        fleet: Whether the key also works for a fleet.
        replay: Whether the key works only for recordings.
    """

    keys: str
    short: str
    long: str
    signals: bool = False
    fleet: bool = False
    replay: bool = False

    def offered(self, choices: Choices, fleet: bool) -> bool:
        """Return whether the key is available."""
        return (choices.signals or not self.signals) and (choices.replay or not self.replay) and (self.fleet or not fleet)


KEYS: tuple[KeyHelp, ...] = (
    KeyHelp("q", "quit", "quit", fleet=True),
    KeyHelp("?", "help", "open or close this help", fleet=True),
    KeyHelp("left right", "seek", "move back or forward in the recording, by half the time of the graphs", replay=True),
    KeyHelp("> <", "speed", "play faster or slower: 0.1 to 3600 recorded seconds per second", replay=True),
    KeyHelp("home end", "", "go to the beginning of the recording, or to its end and follow new readings", replay=True),
    KeyHelp("n", "", "show the next host or rank of the recording", replay=True),
    KeyHelp("/", "filter", "filter the list by words or by conditions such as user=ann gpu%>0 state!=ok", fleet=True),
    KeyHelp("o", "order", "sort the list by the next column; O reverses the order", fleet=True),
    KeyHelp("z", "", "choose the order by a letter; the same letter again reverses it (also F6)", fleet=True),
    KeyHelp("c", "", "choose the columns of the list by their letters; shown columns are in capitals"),
    KeyHelp("m", "metric", "graph the next metric of the devices or of the host; M graphs the previous one"),
    KeyHelp("tab", "pane", "go to the other list"),
    KeyHelp("enter", "details", "open the selected row: all details, and what to do about problems", fleet=True),
    KeyHelp("e", "", "in an opened device: show all keys in full digits, and why others are missing"),
    KeyHelp("e", "", "in an opened process: show its environment, which may contain secrets", signals=True),
    KeyHelp("f", "findings", "show the findings of rules"),
    KeyHelp("t", "time", "change the time of the graphs: 1 min, 5 min, 1 h, 24 h; T goes back"),
    KeyHelp("+ -", "zoom", "zoom the graphs in or out: 15 s to 24 h"),
    KeyHelp("[ ]", "", "move the graphs back or forward by half their time (in a list of devices also left and right); 0 returns to now"),
    KeyHelp("b", "", "add a metric to the graph, which m then changes; B removes it"),
    KeyHelp("l", "", "show the training values (loss, step time, ...) of the next program that logs, or hide them"),
    KeyHelp("p", "pause", "pause or resume the picture (also space, except in the list of processes)", fleet=True),
    KeyHelp("space", "", "in the list of processes: tag or untag the selected one; x sends a signal to all tagged processes", signals=True),
    KeyHelp("a", "all", "graph a metric for the selected device, as a line per device, or as minimum, median and maximum of all"),
    KeyHelp("v", "view", "show the devices as a list or as a map"),
    KeyHelp("s", "summary", "summarise the devices since the start or the last reset; s again saves the summary"),
    KeyHelp("r", "reset", "clear the history and restart the summary"),
    KeyHelp("S", "", "save the latest reading as JSON"),
    KeyHelp("W", "", "save orders, columns, graphs and theme for the next start", fleet=True),
    KeyHelp("up down", "", "select another row (also k and j, page up and down, home, end; in the map left and right)", fleet=True),
    KeyHelp("left right", "", "in the list of processes: scroll sideways, to read long commands"),
    KeyHelp("escape", "", "close the open view, else return to now, drop the tags, or clear the filter", fleet=True),
    KeyHelp("x", "signal", "send a signal to the selected process or to all tagged ones, after a question", signals=True),
)
"""All keys, the most important first."""


# Syntax of a filter: conditions separated by spaces, for example ``user=ann gpu%>0 train``. A row must meet all of them.
# A single word must occur in any field of the row. Any other condition is a field, an operator and a value: ``=`` and ``!=`` compare
# numbers, or texts without regard to case; ``~`` searches within a text; ``>``, ``>=``, ``<``, ``<=`` compare numbers.
# A row without a value for the field meets no condition on numbers.

Fields = Mapping[str, str | float | None]
"""Values of a row, by field of a filter."""
_CONDITION = re.compile(r"([a-z%]+)(!=|>=|<=|=|>|<|~)(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:%|W|C|GiB|G)?", re.IGNORECASE)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    **{"=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge},
    **{"<": operator.lt, "<=": operator.le},
}
DEVICE_FIELDS = (
    *("device", "name", "vendor", "kind", "state", "note", "holder", "user", "uuid"),
    *("util", "gpu%", "mem", "mem%", "power", "temp"),
)
"""Filter fields of devices.

``user`` has the users of its processes. ``mem`` is in GiB, ``mem%`` in percent, ``power`` in watts, ``temp`` in degrees Celsius.
"""
PROCESS_FIELDS = ("pid", "user", "program", "command", "device", "holder", "type", "gpu%", "mem", "cpu%", "time")
"""Filter fields of processes. ``mem`` is in GiB, ``time`` in seconds."""
NODE_FIELDS = ("node", "state", "kind", "note", "devices", "util", "power", "lost", "hot", "findings")
"""Filter fields of nodes. ``power`` is in kW; ``lost`` and ``hot`` count devices."""
Condition = Callable[[Fields], bool]
T = TypeVar("T")


# Cached, because every picture applies the same filters again.
@lru_cache(maxsize=16)
def parse_filter(text: str, known: tuple[str, ...]) -> tuple[Condition, ...]:
    """Return the conditions of a filter.

    Args:
        text: The filter, as typed.
        known: Allowed fields: ``DEVICE_FIELDS``, ``PROCESS_FIELDS`` or ``NODE_FIELDS``.

    Raises:
        UnknownNameError: A field does not exist.
        InvalidOptionError: A comparison of numbers has a value that is no number.
    """
    return tuple(_condition(word, known) for word in text.split())


def filtered(rows: Iterable[T], text: str, known: tuple[str, ...], fields: Callable[[T], Fields]) -> list[T]:
    """Return the rows that meet all conditions of a filter.

    Raises:
        UnknownNameError: A field does not exist.
        InvalidOptionError: A comparison of numbers has a value that is no number.
    """
    conditions = parse_filter(text, known)
    return [row for row in rows if all(condition(fields(row)) for condition in conditions)]


def by_number(rows: Iterable[T], number: Callable[[T], str | float | None], reverse: bool) -> list[T]:
    """Return the rows sorted by a number, the largest first unless reversed. Rows without a number always come last."""
    sign = 1 if reverse else -1
    return sorted(rows, key=lambda row: inf if (value := number(row)) is None else sign * float(value))


def _condition(word: str, known: tuple[str, ...]) -> Condition:
    """Return one condition of a filter as a function of a row's fields."""
    found = _CONDITION.fullmatch(word)
    if found is None:
        wanted = word.casefold()
        return lambda fields: any(wanted in str(value).casefold() for value in fields.values() if value is not None)
    name, sign, value = found[1].lower(), found[2], found[3].casefold()
    if name not in known:
        raise UnknownNameError("field of a filter", name, known)
    if sign == "~":
        return lambda fields: value in str(fields.get(name) or "").casefold()
    number = _NUMBER.fullmatch(value)
    if number is None and sign not in ("=", "!="):
        raise InvalidOptionError(f"{word}: {value!r} is not a number")
    compare = _COMPARE[sign]

    def holds(fields: Fields) -> bool:
        have = fields.get(name)
        if isinstance(have, str) or have is None:
            # A text may be a list, for example of devices: "=" then means that the value is in it.
            return sign in ("=", "!=") and (value in (have or "").casefold().split(",")) == (sign == "=")
        return number is not None and compare(float(have), float(number[1]))

    return holds
