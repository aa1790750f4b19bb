"""A report as one HTML page that opens from disk: tables, and plots with crosshair and zoom.

If matplotlib is installed, each plot has a static picture behind it, for readers without scripts and for paper.

The page loads nothing. Its content security policy allows its own scripts by their digests, so that injected scripts do not run. All texts
are escaped, and the numbers for the scripts are in a block of JSON without ``<``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from itertools import chain
from xml.etree.ElementTree import Element, tostring

from accelmetrics._version import __version__
from accelmetrics.schemas.record import SEVERITIES
from accelmetrics.schemas.text import SEVERITY_MARKS, counted, in_words, printable
from accelmetrics.views.device_view import throttle_words
from accelmetrics.views.report import drawing, texts
from accelmetrics.views.report.comparison import Comparison
from accelmetrics.views.report.plots import ALIGNED, Axis, Clock, Pictures, aligned, lacking, lasting, places_of, plain, shown_unit, utc
from accelmetrics.views.report.run_report import Plain, ReducedSeries, RunReport
from accelmetrics.views.report.series import BUCKETS
from accelmetrics.views.report.stream import AROUND, DETAILS, KEPT
from accelmetrics.views.summaries import COLUMNS, NONE, cell_text, energy_column, named

PARTS = ("mean", "max", "p95")
FEW = 6
"""Number of metric names that a cell shows. More are folded."""
MOST_OPEN = 8
"""Number of devices from which on a comparison folds the tables of the two runs' devices."""
SCRIPTS = (("assets", "uPlot.iife.min.js"), ("report/templates", "report.js"))
STYLES = (("assets", "uPlot.min.css"), ("report/templates", "report.css"))
DETAILED = ("utilization_percent", "power_watts", "temperature_celsius", "smClock")
"""Metrics whose original readings are shown around a finding."""

REDUCTION = (
    f"Least, mean and largest reading in at most {BUCKETS} buckets of equal time; around the first {DETAILS} findings of a recording "
    f"also every reading of {AROUND / 60:.0f} minutes before and after their beginning, {KEPT} at most."
)
"""Description of the reduction of series."""
NOT_JUDGED = "Rules that could not be judged, and why"
CHANCE = "Chance: how large the difference of two runs of the same program is in 95 % of all cases, by how much each run varied in itself."
QUANTILES = ("count", "mean", "min", "p50", "p95", "p99", "max")
Child = Element | str | None
Cells = Sequence[Element | str]


def page(report: RunReport, found: Pictures, axis: Axis = "time") -> str:
    """Return the page of a run.

    Args:
        report: The run.
        found: Its plots over time.
        axis: The initial axis.

    Raises:
        InvalidOptionError: The program logged no values for that axis.
    """
    title, runs = texts.title(report), [("", report)]
    drawn = found if axis == "time" else aligned(found, axis)
    header = element("header", element("h1", title), _line_about(report), *_notes(report.warnings))
    sections = [_verdict(report), _summary(report), *_plots(drawn, found), _logged(runs, drawn), _periods(report), _energy(runs)]
    return _document(title, header, [*sections, _distributions(found), _missing(runs), _provenance(runs)], found, drawn.axis)


def comparison_page(comparison: Comparison, found: Pictures, axis: Axis = "time") -> str:
    """Return the page of two runs: differences, common plots, and each run alone. The arguments are as for :func:`page`."""
    runs = [("A", comparison.a), ("B", comparison.b)]
    title = " compared with ".join(texts.title(report) for _, report in runs)
    drawn = found if axis == "time" else aligned(found, axis)
    header = element("header", element("h1", title), *(_line_about(report, f"{letter}: ") for letter, report in runs))
    sections = [_differences(comparison), *_plots(drawn, found), _logged(runs, drawn), _distributions(found), _energy(runs)]
    for letter, report in runs:
        sections += [_verdict(report, letter), _summary(report, letter)]
    return _document(title, header, [*sections, _missing(runs), _provenance(runs)], found, drawn.axis)


# Elements


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an HTML element. Texts are escaped.

    Args:
        tag: Its tag name.
        children: Elements and texts, in order; None is left out.
        attributes: Its attributes, ``stroke_width`` for ``stroke-width`` and ``class_`` for ``class``; None is left out.
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    found = Element(tag, {name: _coordinate(value) if isinstance(value, float) else printable(str(value)) for name, value in named.items()})
    add(found, *children)
    return found


def add(parent: Element, *children: Child) -> None:
    """Append elements and texts."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child and len(parent):
            parent[-1].tail = (parent[-1].tail or "") + printable(child)
        elif child:
            parent.text = (parent.text or "") + printable(child)


def _coordinate(value: float) -> str:
    """Return a coordinate with one decimal, the most that can be seen."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _raw(tag: str, content: str, **attributes: object) -> Element:
    """Return a script or style element. Its content is not escaped, so it must not contain an end tag."""
    if "</" + tag in content.lower() or "<!--" in content:
        raise ValueError(f"the {tag} would end early")
    found = element(tag, **attributes)
    found.text = content
    return found


def _document(title: str, header: Element, sections: Sequence[Element | None], found: Pictures, axis: Axis) -> str:
    scripts, styles = (
        [(files("accelmetrics.views") / folder / name).read_text(encoding="utf-8") for folder, name in paths] for paths in (SCRIPTS, STYLES)
    )
    # These scripts and styles, and no request at all.
    scripted, styled = (
        " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in contents) for contents in (scripts, styles)
    )
    sources = f"script-src {scripted}; style-src {styled}; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title}: accelmetrics report"),
        *(_raw("style", style) for style in styles),
    )
    body = element(
        "body",
        element("a", "To the report", href="#main", class_="skip"),
        header,
        element("main", *sections, id="main"),
        _raw("script", _data(found, axis), type="application/json", id="data"),
        *(_raw("script", script) for script in scripts),
    )
    return "<!DOCTYPE html>\n" + tostring(element("html", head, body, lang="en"), encoding="unicode", method="html") + "\n"


def _data(found: Pictures, chosen: Axis) -> str:
    """Return the data for the script as JSON: each point on every axis, with times from the begin."""
    others = [axis for axis in ALIGNED if (found.plots or found.logged) and not lacking(found, axis)]
    places: dict[tuple[int, tuple[float, ...]], int] = {}

    def since(at: float) -> float:
        return round(at - found.begin, 3)

    def on_all(begin: float, end: float, clock: int) -> list[list[float] | None]:
        ends = [found.clocks[clock].get(axis, Clock((), ())).span(begin, max(begin, end)) for axis in others]
        return [[since(begin), since(end)], *(None if one is None else [round(place, 4) for place in one] for one in ends)]

    plots = []
    for plot in (*found.plots, *found.logged):
        lines = []
        for line in plot.lines:
            drawn: Plain = {"label": printable(line.label), "color": line.color, "dashed": line.dashed, "mean": _numbers(line.mean)}
            drawn["x"] = places.setdefault((line.clock, tuple(line.x)), len(places))
            if line.low != line.mean or line.high != line.mean:  # values that equal the means are not repeated
                drawn |= {"low": _numbers(line.low), "high": _numbers(line.high)}
            lines.append(drawn)
        plots.append(
            {"name": plot.name, "title": printable(plot.title), "unit": plot.unit, "top": plot.top, "zero": plot.from_zero, "lines": lines}
        )
    document = {
        "axes": [found.axis, *others],
        "chosen": [found.axis, *others].index(chosen),
        "spans": [[one.begin, one.end] for one in (found, *(aligned(found, axis) for axis in others))],
        "places": [
            [
                [since(at) for at in x],
                *([None if at is None else round(at, 4) for at in places_of(found, clock, x, axis)] for axis in others),
            ]
            for clock, x in places
        ],
        "plots": plots,
        "marks": [[mark.kind, mark.label, on_all(mark.begin, mark.end, mark.clock), mark.plots] for mark in found.marks],
        "strip": [
            [label, kind, [[share, on_all(begin, end, clock)] for begin, end, share, clock in stretches]]
            for label, kind, stretches in found.strip
        ],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return [int(value) if value is not None and value == int(value) else value for value in values]


# Parts


def _line_about(report: RunReport, letter: str = "") -> Element:
    """Return a line that describes a run."""
    begin, end = min(one.begin for one in report.streams), max(one.end for one in report.streams)
    read = f"{report.document['readings']} readings over {lasting(report.document['duration_seconds'])}, {utc(begin)} to {utc(end)}"
    names = dict.fromkeys(filter(None, (identity.name or identity.vendor for identity in report.devices.values())))
    devices = f"{counted(len(report.devices), 'device')}: {', '.join(names)}" if names else "no devices"
    return element("p", f"{letter}{texts.hosts(report.document)}, {read}; {devices}.")


def _notes(warnings: Iterable[str]) -> Iterator[Element]:
    return (element("p", f"Note: {warning}", class_="note") for warning in warnings)


def _section(name: str, title: str, *children: Child, letter: str = "") -> Element:
    """Return a section with its heading, and with the run's letter if there are two runs."""
    place = f"{name}-{letter.lower()}" if letter else name
    return element(
        "section",
        element("h2", f"{title}: run {letter}" if letter else title, id=f"{place}-title"),
        *children,
        id=place,
        class_=name,
        aria_labelledby=f"{place}-title",
    )


def table(caption: str, heads: Sequence[str], rows: Sequence[Cells], groups: Sequence[tuple[str, int]] = ()) -> Element:
    """Return a table whose first column names the rows, in an area that scrolls on narrow screens.

    Args:
        caption: Its caption.
        heads: Headings of its columns.
        rows: Cells of each row, or their content.
        groups: Headings over several columns with their column counts; empty for none.
    """
    head, body, titles = element("thead"), element("tbody"), element("tr")
    if groups:
        wide = (element("th", name, scope="colgroup", colspan=many) if name else element("td", colspan=many) for name, many in groups)
        add(head, element("tr", *wide))
    for column, name in enumerate(heads):
        cells = [row[column] for row in rows]
        numbers = cells and all(isinstance(cell, Element) and cell.get("class") == "number" for cell in cells)
        add(titles, element("th", name, scope="col", class_="number" if numbers else None))
    add(head, titles)
    for first, *others in rows:
        data = (one if isinstance(one, Element) else element("td", one) for one in others)
        add(body, element("tr", element("th", first, scope="row"), *data))
    return element(
        "div", element("table", element("caption", caption), head, body), class_="wide", tabindex="0", role="group", aria_label=caption
    )


def _folded(summary: str, *children: Child) -> Element:
    """Return content that a click on its summary shows."""
    return element("details", element("summary", summary), *children)


def _cell(shown: str, exact: float | None) -> Element:
    """Return a cell with a number, and with the exact number as an attribute for programs."""
    return element("td", shown if exact is None else element("data", shown, value=repr(exact)), class_="number")


def _value(value: float | None, factor: float = 1.0, write: Callable[[float], str] = plain) -> Element:
    """Return a cell with a number in another unit; a dash for None."""
    return _cell(NONE if value is None else write(value / factor), value)


def _differences(comparison: Comparison) -> Element:
    """Return the table of differences with their uncertainty."""
    named = {name: f"{words}{unit}" if unit.startswith("/") else words for name, (words, unit, _) in texts.TITLES.items()}
    differ = [named[one["name"]] for one in comparison.differences if one["verdict"] == "differs"]
    verdict = f"Differs: {', '.join(differ)}." if differ else "No difference is larger than chance can make it."
    sides = ("mean", "p95", "p25", "p75")
    rows: list[Cells] = []
    for one in comparison.differences:
        values = [side and side[part] for side in (one["a"], one["b"]) for part in sides]
        unit, factor = shown_unit(one["unit"], max((abs(side["mean"]) for side in (one["a"], one["b"]) if side), default=0.0))
        cells = [*(_value(value, factor) for value in (*values, one["delta"])), _value(one["percent"]), _value(one["plus_minus"], factor)]
        name = f"{texts.TITLES[one['name']][0]}, {unit}".rstrip(", ")
        rows.append([name, *cells, element("td", one["verdict"], class_="verdict-cell", data_verdict=one["verdict"])])
    return _section(
        "differences",
        "Differences",
        element("p", verdict, class_="verdict"),
        *_notes(comparison.warnings),
        table(
            "From the first step to the last",
            ("quantity", *sides, *sides, "B - A", "%", "chance", "verdict"),
            rows,
            (("", 1), ("A", len(sides)), ("B", len(sides)), ("difference", 4)),
        ),
        element("p", CHANCE, class_="note"),
    )


def _verdict(report: RunReport, letter: str = "") -> Element:
    found = texts.findings(report.document)
    counts = Counter(one["severity"] for one in report.document["findings"])
    severities = ", ".join(f"{counts[name]} {name}" for name in SEVERITIES if counts[name])
    verdict = f"{counted(sum(counts.values()), 'finding')}: {severities}." if found else "No findings in this recording."
    section = _section("findings", "Findings", element("p", verdict, class_="verdict"), letter=letter)
    entries = element("ul", class_="findings")
    for one in sorted(found, key=lambda one: [*SEVERITIES, one["severity"]].index(one["severity"])):
        about = f"{named(one['keys'])}: " if one["keys"] else ""
        until = f"to {one['until'][:19]}Z" if one["until"] else "to the end"
        add(
            entries,
            element(
                "li",
                element("span", mark, class_="mark", aria_hidden="true") if (mark := SEVERITY_MARKS.get(one["severity"])) else None,
                element("strong", f"{one['severity']}: {one['rule']}"),
                f" {about}{one['message']} ",
                element("small", f"{one['since'][:19]}Z {until}. {one['advice']}"),
                data_severity=one["severity"],
            ),
        )
    if found:
        around = list(_around(report))
        add(section, entries, *([_folded(f"Every reading around {len(around)} findings", *around)] if len(around) > 1 else around))
    if not_judged := texts.not_judged(report.document):
        rows = [[", ".join(rules), about, why] for rules, about, why in not_judged]
        number = len({rule for rules, *_ in not_judged for rule in rules})
        add(section, _folded(f"Not judged: {counted(number, 'rule')}", table(NOT_JUDGED, ("rules", "of", "why"), rows)))
    return section


def _around(report: RunReport) -> Iterator[Element]:
    """Yield the original readings around findings, as a table and as plots."""
    for stream in report.streams:
        series_of = {one.key: one for one in stream.series if (one.measure or one.name) in DETAILED}
        for finding, times, columns in stream.details:
            pictures, drawn = [], []
            for key, values in columns.items():
                known = [value for value in values if value is not None]
                if key in series_of and known:
                    pictures.append(
                        _picture(
                            partial(drawing.draw_detail, series_of[key], times, values, finding), f"{key} around {finding.rule}", "kept"
                        )
                    )
                    unit, factor = shown_unit(series_of[key].unit, max(known))
                    drawn.append((f"{key}, {unit}".removesuffix(", "), values, factor))
            if drawn:
                title = f"Every reading around {finding.rule} {' '.join(filter(None, (stream.label, finding.key)))}".rstrip()
                rows: list[Cells] = [
                    [utc(at), *(_value(values[place], factor) for _, values, factor in drawn)] for place, at in enumerate(times)
                ]
                yield _folded(
                    title,
                    (element("div", *pictures, class_="grid") if drawing.is_installed() else None),
                    table(title, ("when", *(name for name, _, _ in drawn)), rows),
                )


def _summary(report: RunReport, letter: str = "") -> Element:
    devices = report.document["devices"]
    if not devices:
        return _section("summary", "Summary", element("p", "The recording has no devices."), letter=letter)
    lines = {(series.device, series.measure): series for stream in report.streams for series in stream.series if series.measure}
    joules = [device["energy"] and device["energy"]["joules"] for device in devices.values()]
    unit, energies = energy_column(joules)
    rows: list[Cells] = []
    for (label, device), used, shown in zip(devices.items(), joules, energies, strict=True):
        spans = (f"{throttle_words(reason)} {lasting(seconds)}" for reason, seconds in device["throttled_seconds"].items())
        cells: list[Element | str] = [label, ", ".join(spans) or NONE]
        for title, name, _, scale in COLUMNS:
            series, measured = lines.get((label, name)), device[name]
            cells += [_cell(cell_text(measured, part, "", scale), measured and measured[part]) for part in PARTS]
            cells.append(element("td", None if series is None else _sparkline(series, f"{title} of {label} over time")))
        rows.append([*cells, _cell(shown, used), element("td", str(device["samples"]), class_="number")])
    whole = table(
        "Every device over the whole recording",
        ["device", "throttled", *(word for _ in COLUMNS for word in (*PARTS, "over time")), f"energy, {unit}", "samples"],
        rows,
        [("", 2), *((f"{title}, {unit.strip()}", len(PARTS) + 1) for title, _, unit, _ in COLUMNS), ("", 2)],
    )
    many = letter and len(rows) > MOST_OPEN
    return _section("summary", "Summary", _folded(counted(len(rows), "device"), whole) if many else whole, letter=letter)


def _sparkline(series: ReducedSeries, text: str) -> Element:
    """Return a metric as a small picture: a line through the lowest and highest value of each bucket, broken at gaps."""
    width, height = 90, 24
    by = max(1, -(-len(series.mean) // width))
    parts = [
        [value for value in (*series.low[at : at + by], *series.high[at : at + by]) if value is not None]
        for at in range(0, len(series.mean), by)
    ]
    lowest, highest = (fold(chain.from_iterable(parts), default=0.0) for fold in (min, max))
    step, scale = width / max(len(parts), 1), (height - 4) / ((highest - lowest) or 1.0)

    def y(value: float) -> float:
        return height - 2 - (value - lowest) * scale

    strokes, pen = [], "M"
    for place, values in enumerate(parts):
        if values:
            strokes.append(
                f"{pen}{_coordinate((place + 0.5) * step)} {_coordinate(y(min(values)) + 0.5)}V{_coordinate(y(max(values)) - 0.5)}"
            )
        pen = "L" if values else "M"
    return element(
        "svg",
        element("title", text),
        element("path", d="".join(strokes), fill="none", stroke_width=1.5, class_="s1"),
        viewBox=f"0 0 {width} {height}",
        class_="spark",
        role="img",
    )


def _picture(draw: drawing.Draw, words: str, kind: str) -> Element | None:
    """Return a static picture; None if nothing can be drawn. A script replaces it with a live plot, unless it is to stay."""
    if not drawing.is_installed():
        return None
    return element(
        "div",
        element("img", src=f"data:image/png;base64,{b64encode(drawing.render(draw, 'png', dpi=drawing.PAGE_DPI)).decode()}", alt=words),
        class_=kind,
    )


def _figure(draw: drawing.Draw, title: str, place: str = "", about: str = "", below: Element | None = None) -> Element:
    """Return a picture with its heading. With a ``place``, a script puts a live plot there."""
    caption = element("figcaption", element("h3", title), element("small", about, title=about) if about else None)
    return element("figure", caption, _picture(draw, title, "static" if place else "kept"), below, data_plot=place or None)


def _plots(found: Pictures, timed: Pictures) -> Iterator[Element]:
    """Yield the plots of metrics and of logged numbers, and the strip, which always uses the time axis."""
    span = (found.begin, found.end)
    grid = element("div", class_="grid")
    draws = [partial(drawing.draw_plot, plot, found.marks, span) for plot in found.plots]
    draws += [partial(drawing.draw_logged, plot, found) for plot in found.logged]
    for number, (plot, draw) in enumerate(zip((*found.plots, *found.logged), draws, strict=True)):
        add(grid, _figure(draw, plot.heading, f"plots-{number}", plot.about))
    constant = element("p", f"Did not change, and is not drawn: {'; '.join(found.constant)}.", class_="note") if found.constant else None
    if draws:
        words = "The pictures are static: with" if drawing.is_installed() else "Plots need scripts, or pictures of the extra plots. With"
        hint = element("p", f"{words} scripts they have a crosshair and zoom.", class_="note", id="static-note")
        yield _section("plots", "Over time", element("div", class_="tools", id="tools", hidden="hidden"), hint, grid, constant)
    elif constant is not None:
        yield _section("plots", "Over time", constant)
    if found.strip:
        title = "Throttling, gaps and events"
        rows = [[label, lasting(sum(end - begin for begin, end, *_ in spans)), str(len(spans))] for label, _, spans in timed.strip]
        when = utc if timed.axis == "time" else lasting
        events = [[when(mark.begin), mark.label] for mark in timed.marks if mark.kind == "event"]
        yield _section(
            "strip",
            title,
            _figure(partial(drawing.draw_strip, found.strip, found.axis, span), title, "strip-0"),
            _folded("In numbers", table("The same in numbers", ("what", "lasted", "times"), rows)),
            table("Events", ("when", "what"), events) if events else None,
        )


def _logged(runs: Sequence[tuple[str, RunReport]], found: Pictures) -> Element | None:
    """Return the section about step durations; None if they are unknown."""
    rows: list[Cells] = [
        [f"{letter} {one['source']}".strip() or "all", *(_value(one[part]) for part in QUANTILES)]
        for letter, report in runs
        for stream in report.streams
        for one in stream.step_times
    ]
    if not rows:
        return None
    grid = element("div", class_="grid")
    for histogram in found.step_times if drawing.is_installed() else ():
        add(grid, _figure(partial(drawing.draw_histogram, histogram, page=True), f"{histogram[1]}, s"))
    return _section("training", "Steps", table("Step time, s", ("process", *QUANTILES), rows), grid)


def _periods(report: RunReport) -> Element | None:
    periods = report.document.get("periods")
    if not periods:
        return None

    def column(name: str, write: Callable[[float], str] = plain, of: str = "") -> list[Element]:
        return [_value(one[of].get(name) if of else one[name], write=write) for one in periods]

    unit, energies = energy_column([one["energy_joules"] for one in periods])
    currency = (report.document["energy"]["price"] or {}).get("currency", "")
    columns = {
        "times": column("times", "{:.0f}".format),
        "lasted": column("seconds", lasting),
        "util mean": column("utilization_mean", "{:.1f}%".format),
        "power mean of all": column("power_watts_mean", "{:.1f} W".format),
        "power max of one": column("power_watts_max", "{:.1f} W".format),
        f"energy, {unit}": [_cell(shown, one["energy_joules"]) for shown, one in zip(energies, periods, strict=True)],
        "steps": column("steps", "{:.0f}".format),
    }
    for kind in dict.fromkeys(kind for one in periods for kind in one["work"]):
        columns |= {f"{kind}/s": column(kind, of="per_second"), f"{kind}/J": column(kind, of="per_joule")}
    for name, heading in (("cost", f"cost, {currency}".removesuffix(", ")), ("rent_cost", "by the hour"), ("carbon_grams", "g CO2e")):
        if any(one[name] is not None for one in periods):
            columns[heading] = column(name)
    return _section(
        "periods",
        "Period by period",
        table(
            "What the run came to in each",
            ["period", *columns],
            [[one["name"], *cells] for one, *cells in zip(periods, *columns.values(), strict=True)],
        ),
    )


def _energy(runs: Sequence[tuple[str, RunReport]]) -> Element:
    """Return the table of energy, costs and work: one row for each quantity, one column for each run."""
    joules = [report.document["energy"]["joules"] for _, report in runs]
    unit, energies = energy_column(joules)
    columns = [
        {f"energy of all devices, {unit}": _cell(shown, used), **_energy_cells(report)}
        for (_, report), used, shown in zip(runs, joules, energies, strict=True)
    ]
    # A price or a doubt that only one run has is a row for both.
    rows: list[Cells] = [
        [name, *(column.get(name, _value(None)) for column in columns)]
        for name in dict.fromkeys(name for column in columns for name in column)
    ]
    return _section(
        "energy",
        "Energy and cost",
        table("Energy, cost and work", ("what", *(f"run {letter}" if letter else "value" for letter, _ in runs)), rows),
    )


def _energy_cells(report: RunReport) -> dict[str, Element]:
    """Return the cells of a run by the names of their rows."""
    used, rent, cells = report.document["energy"], report.document["rent"], {}
    if doubts := texts.doubts(report.document):
        about, _, why = " ".join(map(str.strip, doubts)).partition(": ")
        cells[about] = element("td", why)
    if used["silent"]:
        cells["devices of unknown energy"] = _cell(str(used["silent"]), used["silent"])
    if used["cost"] is not None:
        amount, currency = used["price"]["amount"], used["price"]["currency"]
        cells[f"cost, at {amount:g} {currency} per kWh"] = _cell(texts.cost_text(used["cost"], currency), used["cost"])
    if rent["cost"] is not None:
        amount, currency = rent["price"]["amount"], rent["price"]["currency"]
        about = f"{rent['device_hours']:.4g} device hours, at {amount:g} {currency}".rstrip()
        cells[f"{about} per hour"] = _cell(texts.cost_text(rent["cost"], currency), rent["cost"])
    if used["carbon_grams"] is not None:
        about = f"carbon, at {used['carbon_intensity']:g} g CO2e per kWh"
        cells[about] = _cell(f"{texts.grams_text(used['carbon_grams'])} CO2e", used["carbon_grams"])
    if used["per_step"] is not None:
        cells["energy of a step, J"] = _value(used["per_step"])
    for name, rate in report.document["work"].items():
        cells |= {f"{name} per second": _value(rate["per_second"]), f"{name} per joule": _value(rate["per_joule"])}
        cells[f"{name} per joule, by the mean power of one device"] = _value(rate["per_joule_of_mean_device"])
    return cells


def _distributions(found: Pictures) -> Element | None:
    if not found.distributions:
        return None
    grid = element("div", class_="grid")
    for one in found.distributions:
        rows: list[Cells] = [
            [label, _cell(str(held.count), held.count), *(_value(getattr(held, part), one.factor) for part in QUANTILES[1:])]
            for label, held in one.rows
        ]
        add(
            grid,
            _figure(
                partial(drawing.draw_spread, one, page=True),
                one.heading,
                below=_folded(f"{one.heading} in numbers", table(one.heading, ("device", *QUANTILES), rows)),
            ),
        )
    return _section("distribution", "Distribution", _legend() if drawing.is_installed() else None, grid)


def _legend() -> Element:
    """Return the legend of distributions."""
    _, blue, _, _, orange, _, _, gray = drawing.PALETTE
    keys: list[Child] = []
    for words, mark in (
        ("least to largest", element("path", d="M0 6H26", stroke=gray, stroke_width=1)),
        ("median to p99", element("path", d="M2 6H24", stroke=blue, stroke_width=8, opacity="0.45")),
        ("p95", element("path", d="M13 1V11", stroke=blue, stroke_width=2)),
        ("mean over time", element("circle", cx=13, cy=6, r=3, fill=orange)),
    ):
        keys.append(element("span", element("svg", mark, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true"), f" {words}"))
    return element("p", *keys, class_="legend")


def _missing(runs: Sequence[tuple[str, RunReport]]) -> Element | None:
    """Return the section about missing values, folded by reason; None if nothing is missing."""
    reasons: dict[str, dict[tuple[tuple[str, ...], str], list[tuple[str, str]]]] = {}
    gaps: list[Cells] = []
    for letter, report in runs:
        for stream in report.streams:
            for device, names, reason, detail, begin, end in stream.missing:
                always = begin <= stream.begin + stream.interval and end >= stream.end
                when = "all the time" if always else f"{utc(begin)} to {utc(end)}"
                subject = f"{letter} {device or stream.label or 'machine'}".strip()
                reasons.setdefault(reason, {}).setdefault((names, when), []).append((subject, in_words(detail)))
        gaps += [[f"{letter} {gap['after'][:19]}Z".strip(), f"{gap['seconds']:.1f} s"] for gap in report.document["gaps"]]
    folded = []
    if gaps:
        folded.append(_folded(f"{counted(len(gaps), 'gap')} without readings", table("Gaps", ("after", "lasted"), gaps)))
    for reason, groups in sorted(reasons.items()):
        rows: list[Cells] = []
        for (names, when), of in sorted(groups.items()):
            metrics: Element | str = ", ".join(names)
            if len(names) > FEW:
                metrics = element("td", _folded(counted(len(names), "metric"), metrics))
            details = list(dict.fromkeys(detail for _, detail in of))
            more = f" (and {len(details) - 1} more like it)" if len(details) > 1 else ""
            rows.append([named([subject for subject, _ in of]), metrics, details[0] + more, when])
        words = reason.replace("_", " ")
        number = counted(len({name for names, _ in groups for name in names}), "metric")
        subjects = named(list(dict.fromkeys(subject for of in groups.values() for subject, _ in of)))
        folded.append(_folded(f"{words}: {number} of {subjects}", table(f"Missing: {words}", ("of", "metrics", "detail", "when"), rows)))
    if not folded:
        return None
    return _section("missing", "Missing values, and why", *folded)


def _provenance(runs: Sequence[tuple[str, RunReport]]) -> Element:
    """Return the section about files, sources and the reduction of the numbers."""
    section = _section("provenance", "Where this is from", element("p", f"Made by accelmetrics {__version__}. {REDUCTION} Times are UTC."))
    for letter, report in runs:
        read = [[path, str(size), str(readings), str(skipped), digest or NONE] for path, size, readings, skipped, digest in report.files]
        streams = [
            [
                one.label or one.host or "unknown host",
                f"{one.interval:g} s",
                str(one.readings),
                ", ".join(f"{name}={value}" for name, value in one.labels.items()),
            ]
            for one in report.streams
        ]
        devices = [
            [label, identity.name, identity.vendor, identity.uuid or NONE, identity.driver_version or NONE]
            for label, identity in report.devices.items()
        ]
        sources = [[name, text] for stream in report.streams for name, text in stream.sources.items()]
        add(
            section,
            _folded(
                f"Files, recordings, devices and sources{f' of run {letter}' if letter else ''}",
                table("Files", ("file", "bytes", "readings", "unreadable lines", "SHA-256"), read) if read else None,
                table("Recordings", ("process", "interval", "readings", "labels"), streams),
                table("Devices", ("device", "name", "vendor", "UUID", "driver"), devices) if devices else None,
                table("Sources", ("source", "read from"), sources) if sources else None,
            ),
        )
    return section
