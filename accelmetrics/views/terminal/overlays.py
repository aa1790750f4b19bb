"""Overlays that replace the lists on the screen: help, details of devices and processes, findings, summary, dialog."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.record import Finding
from accelmetrics.schemas.text import cells, duration, energy, memory, percent, printable, quantity, watts
from accelmetrics.views.device_view import BY_NAME, GONE, GROUPS, STATE_OF, VALUES, DeviceView, MissingValue
from accelmetrics.views.node_view import NodeView, ProcessRow, SourceRow, equal_findings
from accelmetrics.views.terminal.choices import DEVICE_FIELDS, KEYS, NODE_FIELDS, PROCESS_FIELDS, Choices
from accelmetrics.views.terminal.graphs import Series, history_graph, line_graph, line_marks, points_across, series_role, top_of
from accelmetrics.views.terminal.style import Drawn, Line, Role, ScreenStyle, beside, padded, role_of, rule, shares
from accelmetrics.views.terminal.tables import LEVEL_WORDS, device_words, process_lines
from accelmetrics.views.trails import PROCESS_VALUES, SPANS, Trails, process_key

MOST_KEYS = 24
"""Largest width of the devices of a finding. If their list is wider, only the first is named, with the number of others."""
GRAPHS_BESIDE = 38
"""Smallest width of graphs of a process that are drawn side by side."""
GROUP_BESIDE, GROUP_ROWS = 58, 8
"""Smallest width of value groups that are drawn side by side, and height of their graphs."""
LEAST_GRAPH, MOST_GRAPH = 4, 9
"""Smallest and largest height of a graph of a process."""
ABSENT_NAME = 12
"""Width of the name of a backend without devices."""
LABEL = 22
"""Width of the names of values."""
IDENTITY = (
    *("vendor", "uuid", "pci_bus_id", "serial", "part_number", "architecture", "driver_version", "runtime_version", "firmware"),
    *("compute_capability", "numa_node", "cpu_affinity", "fabric", "chassis_serial", "chassis_slot", "tray_index", "host_id", "module_id"),
)
"""Fields of the identity that the details of a device show, in this order."""
Fact = tuple[str, str, Role]
"""A name, a value in words, and the role of the value."""
# Shown in the help.
MARKS_MEAN = (
    ("!", "warning"),
    ("X", "critical: lost, not answering, or a critical finding"),
    ("-", "nothing to read and nothing wrong: unused or asleep; in a column: no such value"),
    ("hot full", "after a number: above its warning level (! on a screen below 100 columns)"),
    ("?", "after a number: older than two intervals"),
    ("x", "in a graph: no reading at this time"),
)


class Pages:
    """A text of lines with equal width, built from top to bottom.

    Args:
        width: Columns of the lines.
        style: Capabilities of the terminal.
    """

    def __init__(self, width: int, style: ScreenStyle) -> None:
        self._width, self._style = width, style
        self.lines: list[Drawn] = []

    def title(self, left: str, right: str = "") -> None:
        """Add the title of a section."""
        self.lines.append(rule(left, right, self._width, self._style))

    def text(self, words: str, role: Role = "plain", name: str | None = None) -> None:
        """Add a text, wrapped to as many lines as it needs, with an optional name before it."""
        label = 0 if name is None else min(LABEL, max(6, self._width // 3)) + 1
        room = max(8, self._width - label - 2)
        for number, part in enumerate(textwrap.wrap(self._style.text(words), room, break_on_hyphens=False) or [""]):
            line = Line(self._style, self._width).add("", width=2)
            if name is not None:
                line.add("" if number else name, "dim", label - 1).add(" ")
            self.lines.append(line.add(part, role).parts())

    def pairs(self, found: Sequence[Fact], label: int = LABEL) -> None:
        """Add names with values, in up to three columns that are read from top to bottom.

        Args:
            found: The values with their names.
            label: Width of the names.
        """
        side = max(1, min(3, self._width // max(50, label + 20)))
        height = -(-len(found) // side)
        columns = self._width // side
        for number in range(height):
            line = Line(self._style, self._width)
            for name, words, role in found[number::height]:
                line.add("", width=2).add(name, "dim", min(label, columns // 2)).add(" ")
                line.add(words, role, max(0, columns - 3 - min(label, columns // 2)))
            self.lines.append(line.parts())

    def flow(self, found: Sequence[Fact], marks: str) -> None:
        """Add names with values, as many on each line as fit.

        Args:
            found: The values with their names.
            marks: Marks of the first values. They make these values the legend of a graph.
        """
        line = Line(self._style, self._width)
        for number, (name, words, role) in enumerate(found):
            mark = f"{marks[number]} " if number < len(marks) else ""
            if not line.fits(f"  {mark}{name} {words}") and line.left < self._width:
                self.lines.append(line.parts())
                line = Line(self._style, self._width)
            line.add("", width=2).add(mark, series_role(number)).add(f"{name} ", "dim").add(words, role)
        if found:
            self.lines.append(line.parts())


def help_lines(choices: Choices, width: int, style: ScreenStyle, fleet: bool = False) -> list[Drawn]:
    """Return the help: available keys, marks, and the fields of filters."""
    pages = Pages(width, style)
    pages.title("keys", "escape leaves")
    for key in KEYS:
        if key.offered(choices, fleet):
            pages.text(key.long, name=key.keys)
    pages.title("marks")
    for mark, words in MARKS_MEAN:
        pages.text(words, name=mark)
    pages.title("filters")
    pages.text("Words in a row, and conditions with = != ~ > >= < <=, separated by spaces: user=ann gpu%>0. A row must match all.")
    pages.text("~ means contains. mem is in GiB, power in W, temp in degrees Celsius, time in seconds." if not fleet else "power is in kW.")
    for what, fields in (("of nodes", NODE_FIELDS),) if fleet else (("of devices", DEVICE_FIELDS), ("of processes", PROCESS_FIELDS)):
        pages.text(" ".join(fields), name=what)
    return pages.lines


def detail_lines(
    view: NodeView, row: DeviceView | SourceRow, trails: Trails | None, choices: Choices, width: int, style: ScreenStyle
) -> list[Drawn]:
    """Return all details of a device, or of a source that does not answer. Problems and advice come first.

    Args:
        view: The node.
        row: The device or the source.
        trails: The history, for a graph in each group of values; None for no graphs.
        choices: The user's choices.
        width: Columns of the screen.
        style: Capabilities of the terminal.
    """
    pages = Pages(width, style)
    if isinstance(row, SourceRow):
        pages.title(row.name, "escape leaves")
        _source(pages, row)
        return pages.lines
    pages.title(f"{row.label}  {row.name}", "e all keys  escape leaves" if trails is not None else "")
    for note in row.notes:
        pages.text(note, role_of(row.state))
    if not row.notes:
        pages.text("no problems", "ok")
    for advice in row.advice:
        pages.text(advice, "title", "what to do")
    pages.text(", ".join(row.holders) or "no known job or pod", name="held by")
    for number, finding in enumerate(row.findings):
        if number == 0:
            pages.title(f"findings {len(row.findings)}")
        _finding(pages, finding, view)
    if row.silent is not None and row.last:
        pages.text("values are the last ones before the device stopped answering", "dim")
    _groups(pages, row, trails, choices, width, style)
    pages.title("processes")
    processes = [process for process in view.processes if row.key in process.devices]
    if processes:
        heading, lines, _ = process_lines(processes, replace(choices, process_left=0), width, style, view.time_ns)
        pages.lines += [heading, *lines]
    else:
        pages.text(view.unlisted.get(row.key, "no process uses the device"), "dim")
    _missing(pages, row)
    pages.title("identity")
    for name, word in ((name, getattr(row.identity, name)) for name in IDENTITY):
        if word not in ("", None):
            pages.text(printable(str(word)), name=name.replace("_", " "))
    source = next((source for source in view.sources if source.name == row.identity.backend), None)
    if source is not None:
        pages.title(f"source {source.name}")
        _source(pages, source)
    pages.title(f"all keys: {len(row.metrics)}, {len(row.gaps)} missing", "e hides them" if choices.unfolded else "e shows them")
    if choices.unfolded:
        pages.pairs([(name, repr(value), "plain") for name, value in sorted(row.metrics.items())], max(map(len, row.metrics), default=0))
        reasons: dict[Unavailable, list[str]] = {}
        for name, why in sorted(row.gaps.items()):
            reasons.setdefault(why, []).append(name)
        for why, names in reasons.items():
            about = ": ".join(filter(None, (", ".join(names), why.detail)))
            pages.text(printable(about), "dim", str(why.reason).replace("_", " "))
    return pages.lines


def absent_lines(view: NodeView, width: int, style: ScreenStyle) -> list[Drawn]:
    """Return lines that say why no accelerator was found, one for each backend."""
    pages = Pages(width, style)
    if view.absent:
        pages.title("no accelerator was found", "enter shows more  accelmetrics doctor")
    else:
        pages.title("no accelerator is read", "see --backends")
    for name, why in view.absent.items():
        pages.lines.append(Line(style, width).add("", width=2).add(name, "dim", ABSENT_NAME).add(" ").add(why).parts())
    return pages.lines


def process_detail_lines(view: NodeView, trails: Trails, choices: Choices, size: tuple[int, int], style: ScreenStyle) -> list[Drawn]:
    """Return all details of the selected process: command, graphs, process tree, and its environment on request."""
    pages = Pages(size[0], style)
    # An opened process stays on the screen when it ends.
    row = next((one for one in view.processes if one.pid == choices.process), None)
    if row is None:
        pages.title(f"process {choices.process}", "escape leaves")
        pages.text("the process has ended, or no longer uses a device", "warn")
        return pages.lines
    pages.title(f"process {row.pid}  {row.program}".rstrip(), "e environment  escape leaves" if choices.signals else "escape leaves")
    old = "?" if row.aged else ""
    facts = (
        ("user", row.user),
        ("on", ", ".join(row.devices)),
        ("belongs to", row.holder),
        ("runs for", "" if row.seconds is None else duration(row.seconds)),
        ("GPU", "" if row.utilization is None else percent(row.utilization) + old),
        ("GPU memory", "" if row.memory_bytes is None else quantity(row.memory_bytes, "By") + old),
        ("CPU", "" if row.cpu_percent is None else percent(row.cpu_percent)),
        ("host memory", "" if row.host_memory_bytes is None else quantity(row.host_memory_bytes, "By")),
        ("kind", row.type),
    )
    pages.pairs([(name, words, "plain") for name, words in facts if words])
    for key, seen_ns in row.last_seen.items():
        pages.text(f"{key}: last seen {duration((view.time_ns - seen_ns) / 1e9)} ago, before the device stopped answering", "warn")
    pages.text(row.command or row.why or "unknown", "plain" if row.command else "dim", "command")
    if len(row.uses) > 1:
        for key, use in row.uses.items():
            parts = (
                "" if use.memory_bytes is None else quantity(use.memory_bytes, "By"),
                "" if use.utilization is None else percent(use.utilization),
            )
            pages.text(
                ", ".join(filter(None, parts)) or "not reported by the driver",
                "dim" if key in row.last_seen else "plain",
                key + ("?" if key in row.last_seen else ""),
            )
    _process_graphs(pages, row, trails, choices, size, style)
    details = choices.details
    pages.title("process tree")
    if details is None:
        pages.text("the system has not answered yet" if choices.signals else "known only on the process's own machine", "dim")
        return pages.lines
    for depth, one in details.tree:
        words = f"{'  ' * depth}{one.pid}  {one.user or '?'}  {printable(one.command or '?')}"
        pages.lines.append(Line(style, size[0]).add("", width=2).add(words, "title" if one.pid == details.here else "plain").parts())
    if details.why:
        pages.text(details.why, "dim")
    if choices.unfolded:
        pages.title("environment", "e hides it")
        for word in details.environment:
            pages.text(printable(word))
        if not details.environment and not details.why:
            pages.text("empty", "dim")
    return pages.lines


def _process_graphs(pages: Pages, row: ProcessRow, trails: Trails, choices: Choices, size: tuple[int, int], style: ScreenStyle) -> None:
    """Add the graphs of a process: one, two or four side by side."""
    width, height = size
    across = 4 if width >= GRAPHS_BESIDE * 4 else 2 if width >= GRAPHS_BESIDE * 2 else 1
    rows = min(MOST_GRAPH, max(LEAST_GRAPH, height // 6))
    metrics = list(PROCESS_VALUES.values())
    for start in range(0, len(metrics), across):
        shown = zip(metrics[start : start + across], shares(width, across), strict=True)
        pages.lines += beside(
            [history_graph(trails, process_key(row.pid), metric, choices, (columns, rows), style) for metric, columns in shown]
        )


def _groups(pages: Pages, device: DeviceView, trails: Trails | None, choices: Choices, width: int, style: ScreenStyle) -> None:
    """Add the value groups of a device, each with a graph: up to three groups side by side."""
    across = max(1, min(3, width // GROUP_BESIDE))
    widths = shares(width, across)
    more = {
        "Links": device.links,
        "Clocks": (f"throttled by: {', '.join(device.throttled)}",) if device.throttled else (),
        "Errors": device.errors,
    }
    blocks: list[list[Drawn]] = []
    for title, (drawn, names) in GROUPS.items():
        values = {name: value for name in names if (value := device.values.get(name, device.last.get(name))) is not None}
        if not values and not more.get(title):
            continue
        lines = [name for name in names[:drawn] if name in values] if trails is not None else []
        columns = widths[len(blocks) % across]
        part = Pages(columns, style)
        part.title(title, choices.stretch if lines else "")
        marks = ""
        if trails is not None and lines:
            rows = [BY_NAME[name] for name in lines]
            wanted = points_across(columns, style)
            series = [
                Series(row.label, trails.points(device.key, row.name, choices.scale, wanted), row.unit, top_of(row, [device]))
                for row in rows
            ]
            # The graph's own title is dropped: the group has a title, and its values below form the legend.
            size, seconds = (columns, GROUP_ROWS), SPANS[choices.scale]
            part.lines += line_graph(title, series, rows[0].unit, None, seconds, size, style, choices.until_ns)[1:]
            marks = line_marks(len(lines), style)
        # Values with a line come first, because ``flow`` gives the marks of the lines to the first values.
        ordered = {name: values[name] for name in (*lines, *values)}
        part.flow(
            [(BY_NAME[name].label, _in_words(device, name, value), role_of(device.levels.get(name))) for name, value in ordered.items()],
            marks,
        )
        if more.get(title):
            part.text(", ".join(more[title]))
        blocks.append(part.lines)
    blocks += [[]] * (-len(blocks) % across)
    for start in range(0, len(blocks), across):
        shown = blocks[start : start + across]
        height = max(map(len, shown))
        pages.lines += beside([padded(lines, height, columns) for lines, columns in zip(shown, widths, strict=True)])


def _in_words(device: DeviceView, name: str, value: float) -> str:
    """Return a value with its unit, and with its limit if there is one. An old value ends with ``?``."""
    known = {**device.last, **device.values}
    if name == "memory_used_bytes":
        words = memory(value, known.get("memory_total_bytes"))
    elif name == "power_watts":
        words = watts(value, known.get("power_limit_watts"))
    elif name == "energy_joules":
        words = energy(value)
    else:
        words = quantity(round(value, 1), BY_NAME[name].unit)
    old = "?" if device.aged or name not in device.values else ""
    return f"{words}{old}, {LEVEL_WORDS[name]}" if name in device.levels else words + old


def _missing(pages: Pages, device: DeviceView) -> None:
    """Add the missing values, grouped by reason."""
    if device.missing:
        pages.title("missing values")
    labels: dict[MissingValue, list[str]] = {}
    for row in VALUES:
        if row.name in device.missing:
            labels.setdefault(device.missing[row.name], []).append(row.label)
    for value, names in labels.items():
        about = ": ".join(filter(None, (", ".join(names), value.detail)))
        pages.text("; ".join(filter(None, (about, value.advice))), name=value.word)


def finding_lines(view: NodeView, width: int, style: ScreenStyle) -> list[Drawn]:
    """Return the active findings, the ended ones, and the rules that cannot judge."""
    pages = Pages(width, style)
    found = view.findings
    pages.title(f"findings {len(found)}", "escape leaves")
    for finding in found:
        _finding(pages, finding, view)
    if not found:
        pages.text("no findings", "ok")
    if found.ended:
        pages.title("over")
        for finding in reversed(found.ended):
            _finding(pages, finding, view)
    if view.not_judged or view.not_logged:
        pages.title("not judged")
    for rules, words in view.not_judged:
        pages.text(f"{words} ({', '.join(name.replace('_', ' ') for name in rules)})")
    if view.not_logged:
        pages.text(view.not_logged, "dim")
    return pages.lines


def summary_lines(choices: Choices, width: int, style: ScreenStyle) -> list[Drawn]:
    """Return the summary since the start or the last reset. The caller has made its table; wide lines are cut."""
    head, *rows = choices.summary or ("nothing was read",)
    lines = [rule("summary", "s saves it  r restarts it  escape leaves", width, style), Line(style, width).add(f"  {head}").parts()]
    return lines + [Line(style, width).add(row).parts() for row in rows]


def dialog_lines(dialog: Sequence[str], width: int, style: ScreenStyle) -> list[Drawn]:
    """Return the lines of an open question."""
    title, *lines, keys = dialog
    pages = Pages(width, style)
    pages.title(title)
    for line in lines:
        pages.text(line)
    pages.text(keys, "title")
    return [*pages.lines, Line(style, width).fill("-" if style.ascii else "─", "dim").parts()]


def alike(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with equal ones merged: the same severity, rule and message on several devices.

    The key of a merged finding names its devices: ``gpu.0-3,7``, or ``gpu.0 and 23 more`` if the list is too wide.
    """
    merged = []
    for found in equal_findings(findings):
        keys = [one.key for one in found]
        words = device_words(keys)
        if cells(words) > MOST_KEYS:
            words = f"{keys[0]} and {len(keys) - 1} more"
        elif words[:1].isdecimal():
            words = f"gpu.{words}"
        merged.append(found[0] if len(found) == 1 else found[0]._replace(key=words))
    return merged


def finding_line(finding: Finding, width: int, style: ScreenStyle) -> Drawn:
    """Return a finding on one line."""
    state = STATE_OF[finding.severity]
    line = Line(style, width).add("X" if state == "bad" else "!" if state == "warn" else " ", role_of(state), 2)
    line.add(printable(finding.key or "the run"), role_of(state)).add("  ").add(finding.rule.replace("_", " "), "title").add("  ")
    return line.add(finding.message, role_of(state)).parts()


def _finding(pages: Pages, finding: Finding, view: NodeView) -> None:
    """Add a finding with its duration, and its advice while it is active."""
    role, now_ns = role_of(STATE_OF[finding.severity]), view.time_ns
    until = finding.until_ns
    lasted = duration(((now_ns if until is None else until) - finding.since_ns) / 1e9)
    when = f"for {lasted}" if until is None else f"{duration((now_ns - until) / 1e9)} ago, lasted {lasted}"
    device = view.device(finding.key)
    # A silent device gives no values to judge, so an active finding about it describes its last readings.
    if until is None and device is not None and device.silent is not None and finding.rule not in GONE:
        when = f"{when}, as last seen"
    about = f"{finding.key}: " if finding.key else ""
    pages.text(f"{finding.severity}  {finding.rule.replace('_', ' ')}  {about}{finding.message} ({when})", role if until is None else "dim")
    if until is None:
        pages.text(finding.advice, name="  what to do")


def _source(pages: Pages, source: SourceRow) -> None:
    """Add the status of a source."""
    role = role_of(source.state)
    pages.text(f"{source.status.replace('_', ' ')}{f': {source.detail}' if source.detail else ''}", role, "status")
    if source.advice:
        pages.text(source.advice, "title", "what to do")
    if source.source:
        pages.text(source.source, name="read from")
    if source.age_seconds is not None:
        pages.text(f"{duration(source.age_seconds)} ago", name="read")
