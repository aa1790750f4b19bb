"""The options of ``Monitor`` and of commands that watch: one table for flags, environment variables and the configuration file.

An option gets its value from the first of these that has one: a flag (or an argument of ``Monitor.from_config``), the environment
variable, the command's table in the file, the top of the file, the default. A file is read only if it is named.
"""

from __future__ import annotations

import math
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError, require
from accelmetrics.schemas.limits import LONGEST_INTERVAL, MAX_SECONDS, SHORTEST_INTERVAL
from accelmetrics.schemas.named_tuple import NamedTuple

COMMANDS = ("serve", "record", "watch", "run")
MONITOR = "monitor"
TAKERS = (*COMMANDS, MONITOR)
"""Commands, and ``Monitor``, that take options from a file and the environment. Each may have a table in the file."""
WATCH = ("watch",)
VIEWS = ("replay", "url", "fleet")
"""Options that make ``watch`` show something other than this machine. Only a flag or the table of ``watch`` may set them, because the
environment and the top of a file apply to all commands."""
PREFIX = "ACCELMETRICS_"
CONFIG = f"{PREFIX}CONFIG"
OTHER_VARIABLES = {
    CONFIG: "the configuration file, if no `--config` names one",
    f"{PREFIX}SYSROOT": "prefix of `/sys`, `/proc` and `/dev`: the host's root mounted into a container",
    f"{PREFIX}DISABLE": "sources that no program looks for, loads or opens, by name: `amd,tpu`",
    f"{PREFIX}VALIDATE": "`1`: every snapshot is validated against the whole schema; for tests",
    f"{PREFIX}ROLE": "the role of a process, for `accelmetrics allocation`",
    f"{PREFIX}LIGHTNING": "`1`: each Lightning `Trainer` gets a callback that logs device metrics",
    f"{PREFIX}VERL": "verl logs device metrics: `1`, or the names of the logged metrics: `verl`, `brief`, a selection",
    f"{PREFIX}COMMAND": "set for vendors' commands that accelmetrics starts, to recognise them; not for users",
    f"{PREFIX}AS_NVML": "set for the command of `accelmetrics run --as-nvml`: the directory of its readings; not for users",
    f"{PREFIX}LINE": "set for the command of `accelmetrics run`, to recognise its terminal; not for users",
}
"""Variables that belong to no option."""
DEFAULT, FILE, ENVIRONMENT, FLAG, ARGUMENT = "default", "file", "environment", "flag", "argument"
LARGEST_FILE = 1 << 20
"""Maximum size of a configuration file in bytes. A device like /dev/zero has no end."""

MAX_PID = 2**31 - 1
JOBS, SUMMARIES = "/run/accelmetrics/jobs", "/run/accelmetrics/summaries"
SHARED_READINGS = "/run/accelmetrics"
"""Directory for the daemon of a machine that shares its readings. Only root can create it."""
KUBELET = "/var/lib/kubelet/pod-resources/kubelet.sock"
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)
_NUMBER = re.compile(r"-\d+|\d{10,}", re.ASCII)
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
SHORTEST_HISTORY, LONGEST_HISTORY = 60.0, 7 * 86_400.0
"""Shortest and longest history of the page, in seconds."""
# Kubernetes sets variables with these names for a Service called accelmetrics.
_SERVICE = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT\w*)", re.ASCII)


class ValueKind(NamedTuple):
    """The kind of an option's values.

    Attributes:
        words: Description of the accepted values.
        parse: Function that converts a flag's text to a value; raises an ``ArgumentTypeError`` that quotes the text and names the accepted
            values.
        types: Types of its values in a file.
        collect: For an option that may be repeated: function that combines the repeated values.
        choices: All values, if there are few.
        example: A value as in a file; None if the option's ``metavar`` serves as an example.
    """

    words: str
    parse: Callable[[str], Any]
    types: tuple[type, ...] = (str,)
    collect: Callable[[Iterable[Any]], Any] | None = None
    choices: tuple[str, ...] = ()
    example: Any = None

    def of_variable(self, text: str) -> Any:
        """Return the value of an environment variable. Several items are separated by spaces and quoted as in a shell."""
        if self.collect is None:
            return self.parse(text)
        import shlex

        try:
            return self.collect([self.parse(word) for word in shlex.split(text)])
        except ValueError as error:
            raise ArgumentTypeError(f"it cannot be split into words: {error}") from None  # no text in the message: it may be a password

    def of_file(self, value: Any) -> Any:
        """Return the value of an option for a value in a file."""
        if type(value) not in self.types:
            raise ArgumentTypeError(f"{value!r} must be {self.words}")
        if isinstance(value, bool):
            return value
        if isinstance(value, list) and (wrong := [item for item in value if type(item) not in (str, int)]):
            raise ArgumentTypeError(f"{wrong[0]!r} in a list: its items must be strings")
        if self.collect is None:
            return self.parse(",".join(map(str, value)) if isinstance(value, list) else str(value))
        if isinstance(value, dict):
            if wrong := [name for name, text in value.items() if type(text) not in (str, int, float)]:
                raise ArgumentTypeError(f"{wrong[0]} is {value[wrong[0]]!r}: it must be a string")
            return {name: str(text) for name, text in value.items()}
        return self.collect([self.parse(str(item)) for item in (value if isinstance(value, list) else [value])])


def _number(words: str, allowed: Callable[[float], bool], kind: Callable[[str], float] = float) -> ValueKind:
    """Return the kind of numbers that ``allowed`` accepts."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise ArgumentTypeError(f"{text!r} must be {words}")
        return value

    return ValueKind(words, parse, (int, float), example=60)


def _parse(words: str, values: Mapping[str, Any], text: str) -> Any:
    """Return the value of a word from a table."""
    if text not in values:
        raise ArgumentTypeError(f"{text!r} must be {words}")
    return values[text]


def _choice(*choices: str) -> ValueKind:
    words = " or ".join(choices)
    return ValueKind(words, partial(_parse, words, {word: word for word in choices}), choices=choices, example=choices[0])


def _switch(*others: str) -> ValueKind:
    """Return the kind of true and false, in upper or lower case, and of further words."""
    words = " or ".join(("true", "false", *others))
    values = {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False), **{word: word for word in others}}

    def parse(text: str) -> Any:
        return _parse(words, values, text.lower() if text.lower() in values else text)

    return ValueKind(words, parse, (bool, str) if others else (bool,))


def _path(text: str) -> str:
    if not text:
        raise ArgumentTypeError("the path is empty: name a file or a directory")
    return text


def _devices(text: str) -> list[int | str]:
    chosen: list[int | str] = []
    for word in map(str.strip, text.split(",")):
        if found := _RANGE.fullmatch(word):
            first, last = int(found[1]), int(found[2])
            if last < first:
                raise ArgumentTypeError(f"the range {word} runs backwards: write {last}-{first}")
            chosen += range(first, last + 1)
        elif not word or _NUMBER.fullmatch(word):
            raise ArgumentTypeError(f"{word!r} is not a device: write numbers, ranges, keys or UUIDs, such as 0,2-3 or gpu.1")
        else:
            chosen.append(int(word) if word.isascii() and word.isdecimal() else word)
    return list(dict.fromkeys(chosen))


def _time(text: str) -> float:
    found = _TIME.fullmatch(text)
    seconds = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not SHORTEST_HISTORY <= seconds <= LONGEST_HISTORY:
        raise ArgumentTypeError(f"{text!r} must be a time from 1m to 7d, such as 90m or 24h")
    return seconds


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{text!r} is not a label: write NAME=VALUE, such as team=vision")
    return name, value


number = _number("a number", math.isfinite)
span = _number(f"a number of seconds from 0 to {MAX_SECONDS:,.0f}", lambda seconds: 0 <= seconds <= MAX_SECONDS)
pause = _number(f"a number of seconds above 0, and at most {MAX_SECONDS:,.0f}", lambda seconds: 0 < seconds <= MAX_SECONDS)
count = _number("a whole number above 0", lambda number: number > 0, int)
amount = _number("a whole number from 0", lambda number: number >= 0, int)
process_id = _number(f"a process id, a whole number from 1 to {MAX_PID}", lambda pid: 0 < pid <= MAX_PID, int)
text = ValueKind("a text", str)
switch = _switch()
path = ValueKind("a path", _path)
names = ValueKind("a list of names", str, (list, str))
devices = ValueKind("a list of device numbers, ranges, keys and UUIDs, such as 0,2-3 or gpu.1", _devices, (list, str, int), example="0,2-3")
texts = ValueKind("a list of texts", str, (list, str), list, example=["NAME"])


class Option(NamedTuple):
    """An option of ``Monitor`` or of commands that watch.

    Attributes:
        name: Name in a file and of the argument of ``Monitor``; in capitals, of the environment variable. The flag is derived from it.
        kind: Kind of its values.
        meaning: Help text.
        default: Default value.
        metavar: Placeholder of the value in the help.
        takers: The entries of ``TAKERS`` that take it.
        flag: The flag, if it differs from the name, for example the singular of an option that may be repeated.
        usual: The default in words, if the value does not describe it.
    """

    name: str
    kind: ValueKind
    meaning: str
    default: Any = None
    metavar: str = ""
    takers: tuple[str, ...] = TAKERS
    flag: str = ""
    usual: str = ""

    @property
    def variable(self) -> str:
        """Its environment variable; empty if it has none."""
        return PREFIX + self.name.upper() if self.is_shared else ""

    @property
    def is_shared(self) -> bool:
        """Whether the environment and the top of a file may set it."""
        return self.name not in VIEWS

    @property
    def long_flag(self) -> str:
        """Its flag; empty if no command takes it."""
        return "" if self.takers == (MONITOR,) else self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def example(self) -> Any:
        """An example value as in a file: the default, if there is one."""
        return self.default if self.default not in (None, [], {}) else self.kind.example or self.metavar

    @property
    def default_words(self) -> str:
        """The default in words; empty if there is none or it is an empty value."""
        if self.usual or self.default in (None, False, [], {}):
            return self.usual
        if isinstance(self.default, list):
            return ",".join(self.default)
        return "yes" if self.default is True else str(self.default)


NOT_RUN = tuple(taker for taker in TAKERS if taker != "run")
"""All except ``run``, which watches the process of its command."""
SERVE, RECORD = ("serve",), ("record",)

READINGS = (
    Option(
        "interval",
        _number(
            f"a number of seconds from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:,}",
            lambda seconds: SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL,
        ),
        "seconds between two readings",
        1.0,
        "S",
        usual="1",
    ),
    Option(
        "labels",
        ValueKind("a table of names and texts", _label, (dict,), dict, example={"team": "vision"}),
        "label of every record, repeatable",
        {},
        "NAME=VALUE",
        flag="--label",
    ),
    Option(
        "log_format",
        _choice("text", "json", "journal"),
        "format of messages on standard error; journal: with the level in the form of systemd's journal",
        "text",
        takers=COMMANDS,
    ),
    Option(
        "log_level",
        _choice("debug", "info", "warning", "error"),
        "lowest level of messages to write",
        None,
        takers=COMMANDS,
        usual="info for serve and for json, else warning",
    ),
    Option(
        "rules",
        names,
        "rules of findings: default, none, names, settings: default,-throttled,hot.above=75 (docs/findings.md)",
        "default",
        "LIST",
    ),
    Option("share", _choice("node"), "share readings with the job's other processes on this machine (docs/sharing.md)", takers=(MONITOR,)),
    Option("history", amount, "number of readings to store", 300, takers=(MONITOR,)),
)
EXPORTING = (
    Option(
        "exporters",
        texts._replace(example=["jsonl:run.jsonl"]),
        "exporter of records, repeatable: jsonl:run.jsonl, prometheus, otlp:http://host:4317, … (docs/exporters.md)",
        [],
        "NAME[:TARGET]",
        ("serve", "record", "run", MONITOR),
        "--exporter",
    ),
    Option(
        "notify",
        texts._replace(example=["https://hooks.example.org/gpu"]),
        "address for messages about findings, repeatable: https://… (JSON POST), ntfy://… (apprise) (docs/findings.md#messages)",
        [],
        "URL",
        ("serve", "record", "run", MONITOR),
    ),
    Option("wandb_project", text, "log to this project of Weights & Biases", None, "NAME", ("record", "run")),
    Option("wandb_run_name", text, "name of the run at Weights & Biases", None, "NAME", ("record", "run")),
)
READING = (
    Option(
        "backends",
        ValueKind("a list of names", lambda given: [name.strip() for name in given.split(",")], (list, str), example=["nvidia", "host"]),
        "sources, by name (opened even if not detected), accelerators, or all except some: nvidia,host; -amd",
        None,
        "LIST",
        usual="all",
    ),
    Option(
        "metrics", names, "metrics: core, wandb, standard, all, names, keys, patterns; a minus excludes: standard,-nvlink*", "all", "LIST"
    ),
    Option("gpus", devices, "devices, by number, range, key or UUID: 0,2-3", None, "LIST", usual="all"),
    Option(
        "visible",
        _switch("renumber"),
        "only the devices that the watched process sees by its *_VISIBLE_DEVICES; =renumber: with its numbers",
        False,
    ),
    Option("pid", process_id, "process to watch", None, "PID", NOT_RUN, usual="this one"),
    Option("children", switch, "also watch its descendants", False, takers=NOT_RUN),
    Option(
        "disk_paths",
        ValueKind("a list of paths", _path, (list, str), list),
        "mount point to report, repeatable",
        ["/"],
        "PATH",
        flag="--disk-path",
    ),
    Option("amd_source", text, "only source to read AMD's GPUs from: sysfs, amdsmi, amd-smi or rocm-smi", None, "NAME"),
    Option("timeout", pause, "seconds to wait for an answer", 1.0, "S", usual="1"),
    Option("open_timeout", pause, "seconds to wait for sources to open", 10.0, "S", usual="the timeout if one is given, else 10"),
    Option("isolation", _choice("thread", "process"), "call drivers in this process, or in a child process", "thread"),
)
ENDPOINT = (
    Option("listen", text, "address to listen on; port 0: any", "127.0.0.1:22235", "HOST:PORT", SERVE),
    Option("tls_cert", path, "certificate and chain (PEM); serve only over TLS", None, "FILE", SERVE),
    Option("tls_key", path, "private key of the certificate, if it is in a separate file", None, "FILE", SERVE),
    Option("tls_client_ca", path, "accept only clients with a certificate of these authorities", None, "FILE", SERVE),
    Option("tls_client_names", names, "accept only client certificates with one of these names, separated by commas", None, "LIST", SERVE),
    Option("auth", path, "accept only clients with one of these passwords", None, "FILE", SERVE),
    Option("bearer_token_file", path, "accept clients with this token", None, "FILE", SERVE),
    Option("allowed_hosts", texts, "also answer to this host name, repeatable", [], "NAME", SERVE, "--allowed-host"),
    Option("keys", text, "dialect of the metrics' names", "prometheus", "NAME", SERVE),
    Option("per_link", switch, "also serve each link of NVLink and xGMI: more than twice the series", False, takers=SERVE),
    Option("processes", amount, "also serve the N processes with the most device memory", 0, "N", SERVE, usual="none"),
    Option("process_labels", names, "labels of these processes: user, pod, container, slurm_job", None, "LIST", SERVE),
    Option("max_series", count, "maximum number of series", 20_000, "N", SERVE),
    Option("state", path, "keep running jobs, findings and Xid counts in this file across restarts", None, "FILE", SERVE),
    Option("max_age", pause, "serve no reading older than this", None, "S", SERVE, usual="two intervals and 1 s, at least 5 s"),
    Option(
        "share_directory",
        path,
        f"also share readings with other processes of the machine, in this directory; without DIRECTORY: {SHARED_READINGS}",
        None,
        "DIRECTORY",
        SERVE,
        "--share",
    ),
    Option("share_group", text, "let processes of this group read them too", None, "NAME", SERVE, usual="only this user's and root's"),
)
PAGE = (
    Option("ui", switch, "also serve a web page, at /", False, takers=SERVE),
    Option(
        "page_history",
        ValueKind("a time from 1m to 7d, such as 90m or 24h", _time, (str, int, float), example="24h"),
        "time span of its graphs",
        3600.0,
        "TIME",
        SERVE,
        "--history",
        "1h",
    ),
    Option("show_commands", switch, "show command lines of processes on it, which may contain secrets", False, takers=SERVE),
)
ELSEWHERE = (
    Option("url", text, "show the readings of `accelmetrics serve` elsewhere: http://node:22235", None, "URL", WATCH),
    Option("fleet", path, "show a line for each node of a Prometheus, http://prometheus:9090, or of a file", None, "URL|FILE", WATCH),
    Option("fleet_token_file", path, "send this token to --url or --fleet", None, "FILE", WATCH),
    Option("fleet_ca", path, "trust only certificates of these authorities for https://", None, "FILE", WATCH),
    Option("replay", path, "show a recording, including its rotated and compressed files", None, "FILE", WATCH),
    Option("host", text, "host or rank to show first, of a recording with several", None, "NAME[:RANK]", WATCH),
    Option(
        "speed",
        _number("a number from 0.1 to 3600", lambda times: 0.1 <= times <= 3600),
        "recorded seconds per second",
        1.0,
        "N",
        WATCH,
        usual="1",
    ),
)
HOLDERS = (
    Option(
        "attribution",
        _choice("auto", "slurm", "kubernetes", "none"),
        "source of the jobs and pods that hold the devices; auto: all that are present",
        "auto",
        takers=(*SERVE, *WATCH),
    ),
    Option("jobs", path, "directory in which `accelmetrics job begin` records jobs", JOBS, "DIR", (*SERVE, *WATCH)),
    Option("summaries", path, "directory for summaries of jobs", SUMMARIES, "DIR", SERVE),
    Option("dcgm_jobs", path, "directory of dcgm-exporter with a file of jobs per GPU", None, "DIR", (*SERVE, *WATCH)),
    Option("kubelet", path, "socket of the kubelet for pod resources", KUBELET, "SOCKET", (*SERVE, *WATCH)),
)
LINES = (
    Option("console", switch, "print a line per reading, and summaries", True, takers=RECORD),
    Option("summary_interval", span, "seconds between two summaries; 0: only at the end", 30.0, "S", RECORD, usual="30"),
    Option("duration", pause, "stop after this number of seconds", None, "S", RECORD),
)
SCREEN = (
    Option(
        "hot_temperature",
        number,
        "temperature in degrees Celsius above which a device is shown as hot",
        None,
        "C",
        WATCH,
        usual="a little below the device's limit, 80 if it reports none",
    ),
    Option("hot_memory", number, "percentage of memory above which it is shown as hot", 90.0, "PERCENT", WATCH, usual="90"),
    Option("plain", switch, "print a line for each change, and a summary on Enter: for screen readers", False, takers=WATCH),
    Option("ascii", switch, "draw only with ASCII characters", False, takers=WATCH),
    Option("colour", switch, "draw in colour; NO_COLOR in the environment switches it off too", True, takers=WATCH),
    Option(
        "theme",
        _choice("auto", "dark", "light"),
        "background that colours are chosen for; auto: ask the terminal",
        "auto",
        takers=WATCH,
    ),
    Option("read_only", switch, "never send signals to processes: refuse the key for it", False, takers=WATCH),
    Option("mouse", switch, "use the mouse; without it the terminal selects text", True, takers=WATCH),
    Option("save_dir", path, "directory for saved summaries and readings", ".", "DIRECTORY", WATCH, usual="the working directory"),
)
TABLE: dict[str, tuple[Option, ...]] = {
    "the readings": READINGS,
    "where they go": EXPORTING,
    "what is read, and how": READING,
    "the endpoint of serve": ENDPOINT,
    "the page of serve": PAGE,
    "who holds the devices": HOLDERS,
    "the lines of record": LINES,
    "the screen of watch": SCREEN,
    "what watch shows in place of this machine": ELSEWHERE,
}
OPTIONS = {option.name: option for options in TABLE.values() for option in options}


def taken_by(taker: str) -> list[Option]:
    """Return the options of a command or of ``Monitor``."""
    return [option for option in OPTIONS.values() if taker in option.takers]


class Setting(NamedTuple):
    """The value of an option, and its source.

    Attributes:
        value: The value.
        source: ``default``, ``file``, ``environment``, ``flag`` or ``argument``.
        where: Name of the key, variable, flag or argument.
    """

    value: Any
    source: str = DEFAULT
    where: str = ""


ConfigFile = Mapping[str, Mapping[str, Setting]]
"""A parsed and checked configuration file: settings by table. The top of the file has an empty name."""


def read_file(path: str | os.PathLike[str] | None = None) -> ConfigFile:
    """Read a configuration file and check all of it. Without a path and ``ACCELMETRICS_CONFIG``, the result is empty.

    Raises:
        InvalidOptionError: The file cannot be read, is not TOML, or has an invalid value.
        UnknownNameError: The file has a key of no option.
        MissingDependencyError: Python 3.10 needs a package to read TOML.
    """
    path = os.environ.get(CONFIG, "") if path is None else os.fspath(path)
    if not path:
        return {}
    toml = require("tomllib" if sys.version_info >= (3, 11) else "tomli", "config")
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - open() also accepts paths like /dev/stdin
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InvalidOptionError(f"the configuration file {path} has more than {LARGEST_FILE >> 20} MiB")
        content: dict[str, Any] = toml.loads(data.decode())
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidOptionError):
            raise
        why = error.strerror if isinstance(error, OSError) else f"it is not valid TOML: {error}"
        raise InvalidOptionError(f"the configuration file {path} cannot be read: {why}") from error
    tables = {name: content.pop(name) for name in TAKERS if isinstance(content.get(name), dict)}
    return {table: dict(_settings(path, table, found)) for table, found in {"": content, **tables}.items()}


def _settings(path: str, table: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a table by name."""
    place = f"[{table}] of {path}" if table else path
    known = [name for name, option in OPTIONS.items() if (table in option.takers if table else option.is_shared)]
    for key, value in content.items():
        if key in TAKERS and not table:
            raise InvalidOptionError(f"{path}: {key} is {value!r}: it must be a table: [{key}]")
        if key in OPTIONS and not (table or key in known):
            raise InvalidOptionError(f"{place}: {key} belongs to one command: move it to [{OPTIONS[key].takers[0]}]")
        if key in OPTIONS and key not in known:
            raise InvalidOptionError(f"{place}: {table} has no option {key}: it is an option of {', '.join(OPTIONS[key].takers)}")
        if key not in OPTIONS:
            raise UnknownNameError(f"key in {place}:", key, known if table else [*known, *TAKERS])
        try:
            yield key, Setting(OPTIONS[key].kind.of_file(value), FILE, f"{path}: {table and f'{table}.'}{key}")
        except ArgumentTypeError as error:
            raise InvalidOptionError(f"{place}, key {key}: {error}") from None


def resolve(options: Iterable[Option], given: Mapping[str, Any], taker: str, file: ConfigFile, source: str = FLAG) -> dict[str, Setting]:
    """Return the setting of each option by name.

    Args:
        options: The options.
        given: Values that take precedence over the environment and the file.
        taker: The command, or ``monitor``. Commands that are not in ``COMMANDS`` have only flags and defaults.
        file: The configuration file.
        source: Source of the given values: flags or arguments.

    Raises:
        InvalidOptionError: A variable has an invalid value.
    """
    found = {}
    for option in options:
        name, words = option.name, os.environ.get(option.variable, "") if option.variable else ""
        tables = [file.get(taker, {}), file.get("", {}) if option.is_shared else {}]
        if name in given:
            found[name] = Setting(given[name], source, option.long_flag if source == FLAG else name)
        elif taker in TAKERS and words:  # an empty variable counts as not set
            try:
                found[name] = Setting(option.kind.of_variable(words), ENVIRONMENT, option.variable)
            except ArgumentTypeError as error:
                raise InvalidOptionError(f"the environment variable {option.variable}: {error}") from None
        else:
            found[name] = next((table[name] for table in tables if name in table), Setting(option.default))
    # A given timeout also limits the opening of sources, unless that has a setting too.
    timeout = found.get("timeout", Setting(None))
    if timeout.source != DEFAULT and found.get("open_timeout", Setting(None)).source == DEFAULT:
        found["open_timeout"] = timeout
    return found


def unread_variables() -> list[str]:
    """Return the environment variables with our prefix that nothing reads, except the ones that Kubernetes sets."""
    known = {*OTHER_VARIABLES, *(option.variable for option in OPTIONS.values())}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known and not _SERVICE.fullmatch(name))
