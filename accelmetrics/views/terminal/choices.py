"""What a person has chosen to see: the state of the interactive program that pictures are made of. It is changed by ``replace``."""

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
"""What devices can be put in order by; numbers from the largest, states from the worst."""
PROCESS_ORDERS = ("gpu%", "mem", "cpu%", "time", "pid", "user", "device")
NODE_ORDERS = ("state", "name", "util", "power", "findings")
ASCENDING = frozenset({"device", "state", "pid", "user", "name"})
"""Orders that begin with the least, or the worst; all others begin with the largest number."""
Graphs = Literal["chosen", "lines", "band"]
GRAPHS: tuple[Graphs, ...] = ("chosen", "lines", "band")
Form = Literal["auto", "list", "map"]
HIDDEN = "-"
"""In place of a program: no training is shown."""
ThemeChoice = Literal["auto", "dark", "light"]


@dataclass(frozen=True)
class InputLine:
    """A line that is being typed, in place of the foot.

    Attributes:
        label: What is asked for: ``filter``.
        text: What has been typed.
        at: How many characters stand before the place where the next one goes.
        problem: What is wrong with it, in words; empty when nothing is.
    """

    label: str
    text: str
    at: int
    problem: str = ""


@dataclass(frozen=True)
class Choices:
    """What is to be seen.

    Attributes:
        pane: Which list the keys move in; ``nodes`` in a fleet, which has no other.
        device: The key of the chosen device, or the name of a source that has a row; empty: the first, and in the map all.
        process: The number of the chosen process; 0: the first.
        node: The name of the chosen node in a fleet; empty: the first.
        device_order: One of ``DEVICE_ORDERS``.
        device_reverse: Whether it is turned round.
        process_order: One of ``PROCESS_ORDERS``.
        process_reverse: Whether it is turned round.
        device_hidden: The headings of columns of the devices that are left out.
        process_hidden: Those of the processes.
        device_filter: Which devices are shown, in the words that :func:`parse_filter` reads.
        process_filter: Which processes are.
        node_order: One of ``NODE_ORDERS``.
        node_reverse: Whether it is turned round.
        node_filter: Which nodes of a fleet are.
        metric: What the first graph shows: a name that ``metric_row`` knows.
        beside: Further metrics in the same graph, in the order in which they were added.
        scale: The stretch of time that graphs show: a name of ``SPANS``.
        until_ns: Where graphs end, in nanoseconds since 1970; 0: now.
        graphs: What graphs show: the chosen device, a line for each of several devices, or the least, median and greatest of all.
        theme: The background that colours are chosen for; ``auto``: the terminal is asked.
        training: The program whose training is shown; empty: the first that logs; ``HIDDEN``: none.
        form: Whether devices are a list or a map; ``auto``: as there is room.
        paused: Whether what is shown stands still.
        overlay: What is shown in place of the lists.
        menu: What is chosen from at the foot.
        dialog: A question that is open, line by line: what it is about; what will be done, and to what; what answers it, such as
            ``y sends it, any other key does not``. Empty for none.
        input: A line that is being typed; None for none.
        message: What is said at the foot; empty for the keys.
        device_top: How many rows of the devices are scrolled away.
        process_top: How many of the processes.
        process_left: How many columns of the processes are scrolled away sideways.
        tagged: The numbers of the processes that are tagged: a signal is sent to all of them.
        overlay_top: How many of the overlay.
        node_top: How many of the nodes.
        label: Where the readings come from, if they are not live: ``replay of run.jsonl``.
        signals: Whether signals may be sent: the help names their key.
        replay: Whether it is a recording, through whose time keys go.
        summary: The lines of the summary, for that overlay.
        unfolded: Whether the rest of an opened row is shown: a process's environment, a device's keys in full digits.
        details: What the system says of the opened process; None where that is not known.
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
        """What the active list is in order by, and whether that is turned round."""
        return {
            "devices": (self.device_order, self.device_reverse),
            "processes": (self.process_order, self.process_reverse),
            "nodes": (self.node_order, self.node_reverse),
        }[self.pane]

    @property
    def stretch(self) -> str:
        """The stretch of time that graphs show, in words."""
        if not self.until_ns:
            return self.scale
        return f"{self.scale} to {time.strftime('%H:%M:%S', time.localtime(self.until_ns / 1e9))}"


USUAL_CHOICES = Choices()


def order_letters(pane: Pane) -> dict[str, str]:
    """Return the orders of a list by the letter that chooses each: the first one, which differs within a list."""
    orders: Mapping[Pane, tuple[str, ...]] = {"devices": DEVICE_ORDERS, "processes": PROCESS_ORDERS, "nodes": NODE_ORDERS}
    return {order[0]: order for order in orders[pane]}


@dataclass(frozen=True)
class KeyHelp:
    """One key and what it does.

    Attributes:
        keys: The keys: ``q``, ``up down``.
        short: In a word, for the foot; empty: it stands in the help alone.
        long: In a sentence.
        signals: Whether it is there only where signals may be sent.
        fleet: Whether it is there in the picture of a fleet too.
        replay: Whether it is there for recordings alone.
    """

    keys: str
    short: str
    long: str
    signals: bool = False
    fleet: bool = False
    replay: bool = False

    def offered(self, choices: Choices, fleet: bool) -> bool:
        """Return whether it is there."""
        allowed = (choices.signals or not self.signals) and (choices.replay or not self.replay)
        return allowed and (self.fleet or not fleet)


KEYS: tuple[KeyHelp, ...] = (
    KeyHelp("q", "quit", "quit", fleet=True),
    KeyHelp("?", "help", "show or leave this help", fleet=True),
    KeyHelp("left right", "seek", "go back or on in the recording, by half of what graphs show", replay=True),
    KeyHelp("> <", "speed", "play faster or slower: 0.1 to 3600 recorded seconds a second", replay=True),
    KeyHelp("home end", "", "go to the recording's beginning, or to its end and follow what is added", replay=True),
    KeyHelp("n", "", "show the next host or rank of the recording", replay=True),
    KeyHelp("/", "filter", "filter the list: words, or conditions such as user=ann gpu%>0 state!=ok", fleet=True),
    KeyHelp("o", "order", "order the list by the next column; O turns it round", fleet=True),
    KeyHelp("z", "", "choose the order from a list, by a letter: the same letter again turns it round (F6 too)", fleet=True),
    KeyHelp("c", "", "choose the columns of the list, by their letters; capitals are shown"),
    KeyHelp("m", "metric", "show the next metric in the graph, of the devices or of the host; M the one before"),
    KeyHelp("tab", "pane", "go to the other list"),
    KeyHelp("enter", "details", "show all that is known of the chosen device or process, and what to do", fleet=True),
    KeyHelp("e", "", "of a device that enter has opened: all of its keys in full digits, and why others are missing"),
    KeyHelp("e", "", "of a process that enter has opened: its environment, which may hold secrets", signals=True),
    KeyHelp("f", "findings", "show what rules have found"),
    KeyHelp("t", "time", "show the next stretch of time: 1 min, 5 min, 1 h, 24 h"),
    KeyHelp("+ -", "zoom", "show a shorter or a longer stretch of time: 15 s to 24 h"),
    KeyHelp("[ ]", "", "go back or on in time, by half of what graphs show; left and right too in a list of devices. 0 returns to now"),
    KeyHelp("b", "", "show one more metric in the same graph, which m then chooses; B takes it away"),
    KeyHelp("l", "", "training: loss, step time and others that a program logs; of the next program; hidden"),
    KeyHelp("p", "pause", "let the picture stand still, and go on; space too, but in the list of processes", fleet=True),
    KeyHelp("space", "", "in the list of processes: tag the chosen one, so that x sends a signal to all that are tagged", signals=True),
    KeyHelp("a", "all", "graphs of the chosen device; of several devices, a line each; of all, the least, median and greatest"),
    KeyHelp("v", "view", "show the devices as a list or as a map"),
    KeyHelp("s", "summary", "show what the devices did since the start or the last reset; s again saves that"),
    KeyHelp("r", "reset", "forget the history, and begin the summary anew"),
    KeyHelp("S", "", "save the latest reading as a document"),
    KeyHelp("W", "", "save orders, columns, graphs and the theme for the next start", fleet=True),
    KeyHelp("up down", "", "choose another row (k and j too); left and right too in the map, page up and down, home, end", fleet=True),
    KeyHelp("left right", "", "in the list of processes: move its columns sideways, to read long commands to the end"),
    KeyHelp("escape", "", "leave what is shown, or drop tags, or the filter", fleet=True),
    KeyHelp("x", "signal", "send a signal to the chosen process, or to those that are tagged, after a question", signals=True),
)
"""The keys, those that matter most first."""


# What is typed to filter a list: ``user=ann gpu%>0 train``. All conditions must hold. A word by itself must be part of any text of a row.
# A condition is a field, an operator and a value: ``=`` and ``!=`` compare texts without regard to case, and numbers; ``~`` asks for a part
# of a text; ``>``, ``>=``, ``<``, ``<=`` compare numbers. A row without that number holds no condition on it.

Fields = Mapping[str, str | float | None]
"""What a row has, by field."""
_CONDITION = re.compile(r"([a-z%]+)(!=|>=|<=|=|>|<|~)(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:%|W|C|GiB|G)?", re.IGNORECASE)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    **{"=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge},
    **{"<": operator.lt, "<=": operator.le},
}
DEVICE_FIELDS = ("device", "name", "vendor", "kind", "state", "note", "holder", "uuid", "util", "gpu%", "mem", "mem%", "power", "temp")
"""Of a device: the memory in GiB and in percent, the power in watts."""
PROCESS_FIELDS = ("pid", "user", "program", "command", "device", "holder", "type", "gpu%", "mem", "cpu%", "time")
"""Of a process: the memory in GiB, the time in seconds."""
NODE_FIELDS = ("node", "state", "kind", "note", "devices", "util", "power", "lost", "hot", "findings")
"""Of a node: its power in kW, and how many devices are lost and hot."""
Condition = Callable[[Fields], bool]
T = TypeVar("T")


@lru_cache(maxsize=16)
def parse_filter(text: str, known: tuple[str, ...]) -> tuple[Condition, ...]:
    """Read what was typed.

    Args:
        text: The words.
        known: Fields that there are: ``DEVICE_FIELDS`` or ``PROCESS_FIELDS``.

    Raises:
        UnknownNameError: There is no such field.
        InvalidOptionError: A value is no number where one is compared.
    """
    return tuple(_condition(word, known) for word in text.split())


def filtered(rows: Iterable[T], text: str, known: tuple[str, ...], fields: Callable[[T], Fields]) -> list[T]:
    """Return the rows that hold all conditions of a filter, by the fields of each; see :func:`parse_filter`."""
    conditions = parse_filter(text, known)
    return [row for row in rows if all(condition(fields(row)) for condition in conditions)]


def by_number(rows: Iterable[T], number: Callable[[T], str | float | None], reverse: bool) -> list[T]:
    """Return rows in order of a number, from the largest unless that is turned round; those without one come last."""
    sign = 1 if reverse else -1
    return sorted(rows, key=lambda row: inf if (value := number(row)) is None else sign * float(value))


def _condition(word: str, known: tuple[str, ...]) -> Condition:
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
        raise InvalidOptionError(f"{word}: {value!r} is no number")
    compare = _COMPARE[sign]

    def holds(fields: Fields) -> bool:
        have = fields.get(name)
        if isinstance(have, str) or have is None:
            return sign in ("=", "!=") and (value in (have or "").casefold().split(",")) == (sign == "=")
        return number is not None and compare(float(have), float(number[1]))

    return holds
