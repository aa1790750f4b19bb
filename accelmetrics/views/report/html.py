"""A report as one HTML page that opens from disk: tables, and plots with crosshair and zoom.

If matplotlib is installed, each plot has a static picture behind it, for readers without scripts and for paper.

The page loads nothing. Its content security policy allows its own scripts by their digests, so that injected scripts do not run. All texts
are escaped, and the numbers for the scripts are in a block of JSON without ``<``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
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
from accelmetrics.views.report.plots import ALIGNED, Axis, Pictures, aligned, lacking, lasting, places_of, plain, shown_unit, utc
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
    notes = (element("p", f"Note: {warning}", class_="note") for warning in report.warnings)
    title = texts.title(report)
    drawn = found if axis == "time" else aligned(found, axis)
    header = element("header", element("h1", title), _line_about(report), *notes)
    sections = [
        _verdict(report),
        _summary(report),
        *_plots(drawn, found),
        _logged([("", report)], drawn),
        _periods(report),
        _energy([("", report)]),
    ]
    sections += [_distributions(found), _missing([("", report)]), _provenance([("", report)], found)]
    return _document(title, header, sections, found, drawn.axis)


def comparison_page(comparison: Comparison, found: Pictures, axis: Axis = "time") -> str:
    """Return the page of two runs: differences, common plots, and each run alone. The arguments are as for :func:`page`."""
    runs = [("A", comparison.a), ("B", comparison.b)]
    title = " compared with ".join(texts.title(report) for _, report in runs)
    drawn = found if axis == "time" else aligned(found, axis)
    header = element("header", element("h1", title), *(_line_about(report, f"{letter}: ") for letter, report in runs))
    sections = [_differences(comparison), *_plots(drawn, found), _logged(runs, drawn), _distributions(found)]
    sections.append(_energy(runs))
    for letter, report in runs:
        sections += [_verdict(report, letter), _summary(report, letter)]
    sections += [_missing(runs), _provenance(runs, found)]
    return _document(title, header, sections, found, drawn.axis)


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
        " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts_of) for texts_of in (scripts, styles)
    )
    own = f"script-src {scripted}; style-src {styled}; img-src data:"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
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
    spans = [[found.begin, found.end]]
    for axis in others:
        moved = aligned(found, axis)
        spans.append([moved.begin, moved.end])
    places: dict[tuple[int, tuple[float, ...]], int] = {}

    def since(at: float) -> float:
        return round(at - found.begin, 3)

    def on_all(begin: float, end: float, clock: int) -> list[list[float] | None]:
        moved = (found.clocks[clock][axis].span(begin, max(begin, end)) if axis in found.clocks[clock] else None for axis in others)
        return [[since(begin), since(end)], *(None if ends is None else [round(end, 4) for end in ends] for ends in moved)]

    plots = []
    for plot in (*found.plots, *found.logged):
        lines = []
        for line in plot.lines:
            number = places.setdefault((line.clock, tuple(line.x)), len(places))
            told: Plain = {"label": printable(line.label), "color": line.color, "dashed": line.dashed, "x": number}
            told["mean"] = _numbers(line.mean)
            if line.low != line.mean or line.high != line.mean:  # what is equal to the means is not there twice
                told |= {"low": _numbers(line.low), "high": _numbers(line.high)}
            lines.append(told)
        plots.append(
            {"name": plot.name, "title": printable(plot.title), "unit": plot.unit, "top": plot.top, "zero": plot.from_zero, "lines": lines}
        )
    document = {
        "axes": [found.axis, *others],
        "chosen": [found.axis, *others].index(chosen),
        "spans": spans,
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
    read = f"{report.document['readings']} readings over {lasting(report.document['duration_seconds'])}"
    names = dict.fromkeys(filter(None, (identity.name or identity.vendor for identity in report.devices.values())))
    devices = f"{counted(len(report.devices), 'device')}: {', '.join(names)}" if names else "no devices"
    return element("p", f"{letter}{texts.hosts(report.document)}, {read}, {utc(begin)} to {utc(end)}; {devices}.")


def _section(name: str, title: str, *children: Child, letter: str = "") -> Element:
    """Return a section with its heading, and with the run's letter if there are two runs."""
    place = f"{name}-{letter.lower()}" if letter else name
    heading = element("h2", f"{title}: run {letter}" if letter else title, id=f"{place}-title")
    return element("section", heading, *children, id=place, class_=name, aria_labelledby=f"{place}-title")


def table(caption: str, heads: Sequence[str], rows: Sequence[Cells], groups: Sequence[tuple[str, int]] = ()) -> Element:
    """Return a table whose first column names the rows, in an area that scrolls on narrow screens.

    Args:
        caption: Its caption.
        heads: Headings of its columns.
        rows: Cells of each row, or their content.
        groups: Headings over several columns with their column counts; empty for none.
    """
    head = element("thead")
    if groups:
        wide = (element("th", name, scope="colgroup", colspan=many) if name else element("td", colspan=many) for name, many in groups)
        add(head, element("tr", *wide))
    titles = []
    for column, name in enumerate(heads):
        cells = [row[column] for row in rows]
        numbers = bool(cells) and all(isinstance(cell, Element) and cell.get("class") == "number" for cell in cells)
        titles.append(element("th", name, scope="col", class_="number" if numbers else None))
    add(head, element("tr", *titles))
    body = element("tbody")
    for row in rows:
        others = (one if isinstance(one, Element) else element("td", one) for one in row[1:])
        add(body, element("tr", element("th", row[0], scope="row"), *others))
    found = element("table", element("caption", caption), head, body)
    return element("div", found, class_="wide", tabindex="0", role="group", aria_label=caption)


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
    section = _section("differences", "Differences", element("p", verdict, class_="verdict"))
    add(section, *(element("p", f"Note: {warning}", class_="note") for warning in comparison.warnings))
    sides = ("mean", "p95", "p25", "p75")
    rows: list[Cells] = []
    for one in comparison.differences:
        a, b = ([None] * len(sides) if side is None else [side[part] for part in sides] for side in (one["a"], one["b"]))
        unit, factor = shown_unit(one["unit"], max((abs(side["mean"]) for side in (one["a"], one["b"]) if side), default=0.0))
        words = f"{texts.TITLES[one['name']][0]}, {unit}".rstrip(", ")
        cells = [*(_value(value, factor) for value in (*a, *b, one["delta"])), _value(one["percent"]), _value(one["plus_minus"], factor)]
        rows.append([words, *cells, element("td", one["verdict"], class_="verdict-cell", data_verdict=one["verdict"])])
    heads = ("quantity", *sides, *sides, "B - A", "%", "chance", "verdict")
    groups = (("", 1), ("A", len(sides)), ("B", len(sides)), ("difference", 4))
    about = "Chance: what the difference of two runs of the same may be in 95 % of all cases, by how much each run varied in itself."
    add(section, table("From the first step to the last", heads, rows, groups), element("p", about, class_="note"))
    return section


def _verdict(report: RunReport, letter: str = "") -> Element:
    found = texts.findings(report.document)
    counts = {name: sum(1 for one in report.document["findings"] if one["severity"] == name) for name in SEVERITIES}
    told = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    verdict = f"{counted(sum(counts.values()), 'finding')}: {told}." if found else "No findings in this recording."
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
        if len(around) > 1:
            around = [element("details", element("summary", f"Every reading around {len(around)} findings"), *around)]
        add(section, entries, *around)
    if lacking_rules := texts.not_judged(report.document):
        rows = [[", ".join(rules), about, why] for rules, about, why in lacking_rules]
        number = len({rule for rules, *_ in lacking_rules for rule in rules})
        summary = element("summary", f"Not judged: {counted(number, 'rule')}")
        add(section, element("details", summary, table("Rules that could not be judged, and why", ("rules", "of", "why"), rows)))
    return section


def _around(report: RunReport) -> Iterator[Element]:
    """Yield the original readings around findings, as a table and as plots."""
    for stream in report.streams:
        series_of = {series.key: series for series in stream.series}
        for finding, times, columns in stream.details:
            pictures, drawn = [], []
            for key, values in columns.items():
                series = series_of.get(key)
                if series is None or (series.measure or series.name) not in DETAILED or not any(value is not None for value in values):
                    continue
                draw = partial(drawing.draw_detail, series, times, values, finding)
                pictures.append(_picture(draw, f"{key} around {finding.rule}", "kept"))
                unit, factor = shown_unit(series.unit, max(value for value in values if value is not None))
                drawn.append((f"{key}, {unit}".removesuffix(", "), values, factor))
            if drawn:
                title = f"Every reading around {finding.rule} {' '.join(filter(None, (stream.label, finding.key)))}".rstrip()
                rows: list[Cells] = [
                    [utc(at), *(_value(values[place], factor) for _, values, factor in drawn)] for place, at in enumerate(times)
                ]
                grid = element("div", *pictures, class_="grid") if drawing.is_installed() else None
                yield element("details", element("summary", title), grid, table(title, ("when", *(name for name, _, _ in drawn)), rows))


def _summary(report: RunReport, letter: str = "") -> Element:
    devices = report.document["devices"]
    lines = {(series.device, series.measure): series for stream in report.streams for series in stream.series if series.measure}
    joules = [device["energy"] and device["energy"]["joules"] for device in devices.values()]
    unit, energies = energy_column(joules)
    heads = ["device", "throttled", *(word for _ in COLUMNS for word in (*PARTS, "over time")), f"energy, {unit}", "samples"]
    groups = [("", 2), *((f"{title}, {unit.strip()}", len(PARTS) + 1) for title, _, unit, _ in COLUMNS), ("", 2)]
    rows: list[list[Element | str]] = []
    for (label, device), used, shown in zip(devices.items(), joules, energies, strict=True):
        spans = (f"{throttle_words(reason)} {lasting(seconds)}" for reason, seconds in device["throttled_seconds"].items())
        row: list[Element | str] = [label, ", ".join(spans) or NONE]
        for title, name, _, scale in COLUMNS:
            series, held = lines.get((label, name)), device[name]
            spark = None if series is None else _sparkline(series, f"{title} of {label} over time")
            row += [_cell(cell_text(held, part, "", scale), None if held is None else held[part]) for part in PARTS]
            row.append(element("td", spark))
        row += [_cell(shown, used), element("td", str(device["samples"]), class_="number")]
        rows.append(row)
    if not rows:
        return _section("summary", "Summary", element("p", "The recording has no devices."), letter=letter)
    whole = table("Every device over the whole recording", heads, rows, groups)
    if letter and len(rows) > MOST_OPEN:
        whole = element("details", element("summary", counted(len(rows), "device")), whole)
    return _section("summary", "Summary", whole, letter=letter)


def _sparkline(series: ReducedSeries, text: str) -> Element:
    """Return a metric as a small picture in a line of text: a stroke from the lowest to the highest value of each bucket."""
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

    drawn = [
        f"M{_coordinate((place + 0.5) * step)} {_coordinate(y(min(held)) + 0.5)}V{_coordinate(y(max(held)) - 0.5)}"
        for place, held in enumerate(parts)
        if held
    ]
    line = element("path", d="".join(drawn), fill="none", stroke_width=max(step, 1.0), class_="s1")
    return element("svg", element("title", text), line, viewBox=f"0 0 {width} {height}", class_="spark", role="img")


def _picture(draw: drawing.Draw, words: str, kind: str) -> Element | None:
    """Return a static picture; None if nothing can be drawn. A script replaces it with a live plot, unless it is to stay."""
    if not drawing.is_installed():
        return None
    data = b64encode(drawing.render(draw, "png", dpi=drawing.PAGE_DPI)).decode()
    return element("div", element("img", src=f"data:image/png;base64,{data}", alt=words), class_=kind)


def _figure(draw: drawing.Draw, title: str, place: str = "", about: str = "", below: Element | None = None) -> Element:
    """Return a picture with its heading. With a ``place``, a script puts a live plot there."""
    caption = element("figcaption", element("h3", title), element("small", about, title=about) if about else None)
    return element("figure", caption, _picture(draw, title, "static" if place else "kept"), below, data_plot=place or None)


def _plots(found: Pictures, timed: Pictures) -> Iterator[Element]:
    """Yield the plots of metrics and of logged numbers, and the strip, which always uses the time axis."""
    span = (found.begin, found.end)
    tools = element("div", class_="tools", id="tools", hidden="hidden")
    grid = element("div", class_="grid")
    for number, plot in enumerate((*found.plots, *found.logged)):
        draw = (
            partial(drawing.draw_plot, plot, found.marks, span) if number < len(found.plots) else partial(drawing.draw_logged, plot, found)
        )
        add(grid, _figure(draw, plot.heading, f"plots-{number}", plot.about))
    constant = element("p", f"Did not change, and is not drawn: {'; '.join(found.constant)}.", class_="note") if found.constant else None
    words = "The pictures are static: with" if drawing.is_installed() else "Plots need scripts, or pictures of the extra plots. With"
    hint = element("p", f"{words} scripts they have a crosshair and zoom.", class_="note", id="static-note")
    if found.plots or found.logged:
        yield _section("plots", "Over time", tools, hint, grid, constant)
    elif found.constant:
        yield _section("plots", "Over time", constant)
    if found.strip:
        title = "Throttling, gaps and events"
        rows = [[label, lasting(sum(end - begin for begin, end, *_ in spans)), str(len(spans))] for label, _, spans in timed.strip]
        numbers = element("details", element("summary", "In numbers"), table("The same in numbers", ("what", "lasted", "times"), rows))
        when = utc if timed.axis == "time" else lasting
        events = [[when(mark.begin), mark.label] for mark in timed.marks if mark.kind == "event"]
        figure = _figure(partial(drawing.draw_strip, found.strip, found.axis, span), title, "strip-0")
        yield _section("strip", title, figure, numbers, table("Events", ("when", "what"), events) if events else None)


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
    kinds = list(dict.fromkeys(kind for period in periods for kind in period["work"]))
    unit, energies = energy_column([one["energy_joules"] for one in periods])
    heads = ["period", "times", "lasted", "util mean", "power mean of all", "power max of one", f"energy, {unit}", "steps"]
    for kind in kinds:
        heads += [f"{kind}/s", f"{kind}/J"]
    priced = any(one["cost"] is not None for one in periods)
    rented = any(one["rent_cost"] is not None for one in periods)
    weighed = any(one["carbon_grams"] is not None for one in periods)
    currency = (report.document["energy"]["price"] or {}).get("currency", "")
    heads += [f"cost, {currency}".removesuffix(", ")] * priced + ["by the hour"] * rented + ["g CO2e"] * weighed
    rows: list[Cells] = []
    for one, energy in zip(periods, energies, strict=True):
        cells: list[Element | str] = [one["name"], _value(one["times"], write="{:.0f}".format), _value(one["seconds"], write=lasting)]
        for name, shown in (("utilization_mean", "{:.1f}%"), ("power_watts_mean", "{:.1f} W"), ("power_watts_max", "{:.1f} W")):
            cells.append(_value(one[name], write=shown.format))
        cells += [_cell(energy, one["energy_joules"]), _value(one["steps"], write="{:.0f}".format)]
        for kind in kinds:
            cells += [_value(one["per_second"].get(kind)), _value(one["per_joule"].get(kind))]
        cells += [_value(one["cost"])] * priced + [_value(one["rent_cost"])] * rented + [_value(one["carbon_grams"])] * weighed
        rows.append(cells)
    return _section("periods", "Period by period", table("What the run came to in each", heads, rows))


def _energy(runs: Sequence[tuple[str, RunReport]]) -> Element:
    """Return the table of energy, costs and work: one row for each quantity, one column for each run."""
    used = [report.document["energy"]["joules"] for _, report in runs]
    unit, energies = energy_column(used)
    columns = [
        {f"energy of all devices, {unit}": _cell(shown, joules), **dict(_energy_rows(report))}
        for (_, report), joules, shown in zip(runs, used, energies, strict=True)
    ]
    # A price or a doubt that only one run has is a row for both.
    names = dict.fromkeys(name for column in columns for name in column)
    rows: list[Cells] = [[name, *(column.get(name, _value(None)) for column in columns)] for name in names]
    heads = ("what", *(f"run {letter}" if letter else "value" for letter, _ in runs))
    return _section("energy", "Energy and cost", table("Energy, cost and work", heads, rows))


def _energy_rows(report: RunReport) -> list[tuple[str, Element]]:
    used = report.document["energy"]
    rows = []
    if doubts := texts.doubts(report.document):
        about, _, why = " ".join(map(str.strip, doubts)).partition(": ")
        rows.append((about, element("td", why)))
    if used["silent"]:
        rows.append(("devices that tell nothing of theirs", _cell(str(used["silent"]), used["silent"])))
    if used["cost"] is not None:
        amount, currency = used["price"]["amount"], used["price"]["currency"]
        rows.append((f"cost, at {amount:g} {currency} per kWh", _cell(texts.cost_text(used["cost"], currency), used["cost"])))
    rent = report.document["rent"]
    if rent["cost"] is not None:
        amount, currency = rent["price"]["amount"], rent["price"]["currency"]
        about = f"{rent['device_hours']:.4g} device hours, at {amount:g} {currency}".rstrip()
        rows.append((f"{about} per hour", _cell(texts.cost_text(rent["cost"], currency), rent["cost"])))
    if used["carbon_grams"] is not None:
        about = f"carbon, at {used['carbon_intensity']:g} g CO2e per kWh"
        rows.append((about, _cell(f"{texts.grams_text(used['carbon_grams'])} CO2e", used["carbon_grams"])))
    if used["per_step"] is not None:
        rows.append(("energy of a step, J", _value(used["per_step"])))
    for name, rate in report.document["work"].items():
        rows += [(f"{name} per second", _value(rate["per_second"])), (f"{name} per joule", _value(rate["per_joule"]))]
        rows.append((f"{name} per joule, by the mean power of one device", _value(rate["per_joule_of_mean_device"])))
    return rows


def _distributions(found: Pictures) -> Element | None:
    if not found.distributions:
        return None
    section, grid = _section("distribution", "Distribution", _legend() if drawing.is_installed() else None), element("div", class_="grid")
    for one in found.distributions:
        rows: list[Cells] = [
            [label, _cell(str(held.count), held.count), *(_value(getattr(held, part), one.factor) for part in QUANTILES[1:])]
            for label, held in one.rows
        ]
        title = f"{one.title}, {one.unit}" if one.unit else one.title
        numbers = element("details", element("summary", f"{title} in numbers"), table(title, ("device", *QUANTILES), rows))
        add(grid, _figure(partial(drawing.draw_spread, one, page=True), title, below=numbers))
    add(section, grid)
    return section


def _legend() -> Element:
    """Return the legend of distributions."""
    _, blue, _, _, orange, _, _, gray = drawing.PALETTE
    marks = (
        ("least to largest", element("path", d="M0 6H26", stroke=gray, stroke_width=1)),
        ("median to p99", element("path", d="M2 6H24", stroke=blue, stroke_width=8, opacity="0.45")),
        ("p95", element("path", d="M13 1V11", stroke=blue, stroke_width=2)),
        ("mean over time", element("circle", cx=13, cy=6, r=3, fill=orange)),
    )
    keys = []
    for words, mark in marks:
        drawn = element("svg", mark, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true")
        keys.append(element("span", drawn, f" {words}"))
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
        folded.append((counted(len(gaps), "gap") + " without readings", table("Gaps", ("after", "lasted"), gaps)))
    for reason, groups in sorted(reasons.items()):
        rows: list[Cells] = []
        for (names, when), of in sorted(groups.items()):
            metrics: Element | str = ", ".join(names)
            if len(names) > FEW:
                metrics = element("td", element("details", element("summary", counted(len(names), "metric")), metrics))
            details = list(dict.fromkeys(detail for _, detail in of))
            more = f" (and {len(details) - 1} more like it)" if len(details) > 1 else ""
            rows.append([named([subject for subject, _ in of]), metrics, details[0] + more, when])
        words = reason.replace("_", " ")
        number = counted(len({name for names, _ in groups for name in names}), "metric")
        subjects = named(list(dict.fromkeys(subject for of in groups.values() for subject, _ in of)))
        folded.append((f"{words}: {number} of {subjects}", table(f"Missing: {words}", ("of", "metrics", "detail", "when"), rows)))
    if not folded:
        return None
    return _section("missing", "Missing values, and why", *(element("details", element("summary", words), rows) for words, rows in folded))


def _provenance(runs: Sequence[tuple[str, RunReport]], found: Pictures) -> Element:
    """Return the section about files, sources and the reduction of the numbers."""
    made = element("p", f"Made by accelmetrics {__version__}. {REDUCTION} Lines have at most {found.points} points. Times are UTC.")
    section = _section("provenance", "Where this is from", made)
    for letter, report in runs:
        read = [[path, str(size), str(readings), str(skipped), digest or NONE] for path, size, readings, skipped, digest in report.files]
        streams = []
        for one in report.streams:
            labels = ", ".join(f"{name}={value}" for name, value in one.labels.items())
            streams.append([one.label or one.host or "unknown host", f"{one.interval:g} s", str(one.readings), labels])
        devices = [
            [label, identity.name, identity.vendor, identity.uuid or NONE, identity.driver_version or NONE]
            for label, identity in report.devices.items()
        ]
        sources = [[name, text] for stream in report.streams for name, text in stream.sources.items()]
        add(
            section,
            element(
                "details",
                element("summary", f"Files, recordings, devices and sources{f' of run {letter}' if letter else ''}"),
                table("Files", ("file", "bytes", "readings", "unreadable lines", "SHA-256"), read) if read else None,
                table("Recordings", ("process", "interval", "readings", "labels"), streams),
                table("Devices", ("device", "name", "vendor", "UUID", "driver"), devices) if devices else None,
                table("Sources", ("source", "read from"), sources) if sources else None,
            ),
        )
    return section
