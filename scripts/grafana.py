"""Builders for Grafana dashboards in the classic JSON that Grafana 10 and later import.

Plain dictionaries, where Grafana publishes a library: that one wants Python 3.11 while this package is built on 3.10, and it takes any
name of a panel or a unit. What it would catch, tests hold against Grafana's own types (``@grafana/schema``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accelmetrics.dialects.prometheus import SHARED
from accelmetrics.schemas.catalogue import rows
from accelmetrics.schemas.metric import BASE_UNITS, split_series

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
UNITS = {"W": "watt", "By": "bytes", "Cel": "celsius", "s": "s", "Hz": "hertz", "J": "joule", "By/s": "Bps"}
"""Grafana's names for base units."""
OK, WARN, HOT, MUTED = "#0072B2", "#E69F00", "#D55E00", "text"
"""Colours that stay apart for the colour-blind."""
MISSING = {"type": "value", "options": {"-1": {"text": "n/a", "color": MUTED, "index": 9}}}
"""What queries of tables give where a device says nothing."""

LEGEND = "{{instance}} {{accelerator}}"
"""Tells the first GPU of each node from those of others."""
NODE = 'job=~"$job",instance=~"$instance"'
DEVICE = f'{NODE},accelerator=~"$accelerator"'


def _catalogue() -> dict[str, tuple[str, str]]:
    """Return unit and meaning by the name of each metric in Prometheus."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows():
        name, _ = split_series(row.prometheus)
        base = BASE_UNITS[row.unit].unit if row.unit in BASE_UNITS else ""
        unit = "percentunit" if name.endswith("_ratio") else UNITS.get(base, "none")
        found.setdefault(name, (unit, SHARED.get(name, row.meaning)))
    return found


CATALOGUE = _catalogue()
OWN = (
    *("accel_up", "accel_info", "accel_job_info", "accel_pod_info", "accel_finding", "accel_throttle_seconds_total"),
    *("accel_processes", "accel_process_info", "accel_process_memory_bytes", "accel_process_utilization_ratio"),
)
"""Metrics of devices that are no row of the catalogue."""


def of(metric: str, *matchers: str, node: bool = False) -> str:
    """Return the series of a metric, of the chosen devices or nodes.

    Raises:
        KeyError: The catalogue has no metric of that name.
    """
    if metric.startswith("accel_") and metric not in OWN and metric not in CATALOGUE:
        raise KeyError(metric)
    return f"{metric}{{{','.join((*matchers, NODE if node else DEVICE))}}}"


class Target(NamedTuple):
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: With labels in double braces.
        instant: Whether the latest value alone is asked for.
        form: How the answer is laid out: ``time_series``, ``table`` or ``heatmap``.
    """

    expr: str
    legend: str = LEGEND
    instant: bool = False
    form: str = "time_series"

    def json(self, number: int) -> Json:
        """Return it as Grafana has it."""
        return {
            "refId": chr(ord("A") + number),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "legendFormat": self.legend,
            "format": self.form,
            "instant": self.instant,
            "range": not self.instant,
        }


class Column(NamedTuple):
    """One column of numbers in a table.

    Attributes:
        title: Its head; empty for one that is not shown.
        expr: PromQL; each series is a row's value.
        unit: Grafana's.
        steps: Values from which on it is coloured, rising.
        words: By value, what is shown instead.
        decimals: Behind the point.
    """

    title: str
    expr: str
    unit: str = "none"
    steps: tuple[tuple[float, str], ...] = ()
    words: Mapping[str, tuple[str, str]] = {}
    decimals: int | None = None


def mappings(words: Mapping[str, tuple[str, str]]) -> list[Json]:
    """Return value mappings: by value, text and colour; missing is told in each."""
    options = {value: {"text": text, "color": color, "index": index} for index, (value, (text, color)) in enumerate(words.items())}
    return [{"type": "value", "options": options}, MISSING] if options else [MISSING]


def thresholds(steps: Sequence[tuple[float, str]], first: str = OK) -> Json:
    """Return thresholds; the first step holds for everything below."""
    return {"mode": "absolute", "steps": [{"color": first, "value": None}, *({"color": color, "value": value} for value, color in steps)]}


class Panel(NamedTuple):
    """A panel but for its place.

    Attributes:
        width: Of 24.
        height: In units of the grid.
        body: As Grafana has it.
    """

    width: int
    height: int
    body: Json


def _panel(
    kind: str, title: str, description: str, targets: Sequence[Target], defaults: Json, options: Json, size: tuple[int, int]
) -> Panel:
    body = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "pluginVersion": "10.0.0",
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [target.json(number) for number, target in enumerate(targets)],
    }
    return Panel(*size, body)


def about(metric: str, more: str = "") -> str:
    """Return what the catalogue says of a metric, and a sentence more."""
    return f"{CATALOGUE[metric][1]} {more}".strip()


def graph(title: str, description: str, *targets: Target, unit: str, size: tuple[int, int] = (12, 8), **defaults: Any) -> Panel:
    """Return lines over time."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False}
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    field = {"unit": unit, "color": {"mode": "palette-classic"}, "custom": custom, "thresholds": thresholds(()), **defaults}
    return _panel("timeseries", title, description, targets, field, options, size)


def gauges(
    title: str, description: str, *targets: Target, unit: str, steps: Sequence[tuple[float, str]], top: float, size: tuple[int, int]
) -> Panel:
    """Return a gauge for each series."""
    options = {"reduceOptions": _latest(), "orientation": "auto", "showThresholdLabels": False, "showThresholdMarkers": True}
    field = {"unit": unit, "min": 0, "max": top, "color": {"mode": "thresholds"}, "thresholds": thresholds(steps)}
    return _panel("gauge", title, description, targets, field, options, size)


def bars(
    title: str, description: str, target: Target, *, unit: str, steps: Sequence[tuple[float, str]] = (), size: tuple[int, int] = (12, 9)
) -> Panel:
    """Return a bar for each series, as it stands now."""
    options = {
        "reduceOptions": _latest(),
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "showUnfilled": True,
        "minVizWidth": 8,
        "minVizHeight": 16,
    }
    field = {"unit": unit, "min": 0, "color": {"mode": "thresholds"}, "thresholds": thresholds(steps)}
    return _panel("bargauge", title, description, [target], field, options, size)


def stat(
    title: str,
    description: str,
    *targets: Target,
    unit: str = "none",
    steps: Sequence[tuple[float, str]] = (),
    width: int = 3,
    **defaults: Any,
) -> Panel:
    """Return one number, or a few."""
    options = {
        "reduceOptions": _latest(),
        "orientation": "auto",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "value_and_name" if len(targets) > 1 else "value",
    }
    field = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": thresholds(steps), **defaults}
    named = [target._replace(legend=title) if target.legend == LEGEND else target for target in targets]
    return _panel("stat", title, description, named, field, options, (width, 4))


def heatmap(title: str, description: str, expr: str, *, unit: str, size: tuple[int, int]) -> Panel:
    """Return a histogram's buckets over time."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": False},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"unit": unit, "axisPlacement": "left", "reverse": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }
    field = {"unit": unit, "custom": {"hideFrom": {"legend": False, "tooltip": False, "viz": False}}}
    return _panel("heatmap", title, description, [Target(expr, "{{le}}", form="heatmap")], field, options, size)


def timeline(
    title: str, description: str, target: Target, words: Mapping[str, tuple[str, str]], *, size: tuple[int, int] = (24, 8)
) -> Panel:
    """Return states over time, a line for each series."""
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    field = {"unit": "none", "color": {"mode": "thresholds"}, "custom": {"fillOpacity": 80, "lineWidth": 0}}
    return _panel("state-timeline", title, description, [target], {**field, "mappings": mappings(words)[:1]}, options, size)


def table(
    title: str,
    description: str,
    columns: Sequence[Column],
    labels: Mapping[str, str],
    *,
    sort: Sequence[tuple[str, bool]] = (),
    links: Mapping[str, Json] | None = None,
    size: tuple[int, int] = (24, 10),
) -> Panel:
    """Return rows of labels and numbers: series of equal labels are one row.

    Args:
        title: Of the panel.
        description: Of the panel.
        columns: Its numbers, each one query.
        labels: By label, the head of its column, in their order; other labels are hidden.
        sort: Columns to sort by, and whether downwards.
        links: By column, a link from its cells.
        size: Width and height.
    """
    targets = [Target(column.expr, "", instant=True, form="table") for column in columns]
    values = {"Value" if len(columns) == 1 else f"Value #{chr(ord('A') + number)}": column for number, column in enumerate(columns)}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": name, "desc": desc} for name, desc in sort]}
    panel = _panel("table", title, description, targets, {"custom": {"align": "auto", "filterable": True}}, options, size)
    heads = {**labels, **{value: column.title for value, column in values.items() if column.title}}
    panel.body["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(heads)}}},
        {"id": "organize", "options": {"indexByName": {name: index for index, name in enumerate(heads)}, "renameByName": heads}},
    ]
    overrides = [_column(column) for column in columns if column.title]
    overrides += [
        {"matcher": {"id": "byName", "options": head}, "properties": [{"id": "links", "value": [link]}]}
        for head, link in (links or {}).items()
    ]
    panel.body["fieldConfig"]["overrides"] = overrides
    return panel


def _column(column: Column) -> Json:
    properties: list[Json] = [{"id": "unit", "value": column.unit}, {"id": "mappings", "value": mappings(column.words)}]
    if column.decimals is not None:
        properties.append({"id": "decimals", "value": column.decimals})
    if column.steps or column.words:
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        properties.append({"id": "thresholds", "value": thresholds(column.steps, MUTED)})
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


def _latest() -> Json:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


class Row(NamedTuple):
    """Panels under one head, from left to right and on.

    Attributes:
        title: Empty for panels without a head.
        panels: In their order.
        collapsed: Whether they are shown, and asked for, on a click only.
    """

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def variable(name: str, label: str, query: str, *, many: bool = True, regex: str = "", hide: bool = False) -> Json:
    """Return a variable whose values a query gives."""
    every = {"text": ["All"], "value": ["$__all"], "selected": True}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "regex": regex,
        "refresh": 2,
        "sort": 1,
        "hide": 2 if hide else 0,
        "multi": many,
        "includeAll": many,
        **({"allValue": ".+", "current": every} if many else {"current": {}}),
    }


def dashboard(uid: str, title: str, description: str, content: Sequence[Row], variables: Sequence[Json], links: Sequence[Json] = ()) -> str:
    """Return a dashboard's JSON."""
    panels: list[Json] = []
    down, number = 0, 0
    for row in content:
        inside: list[Json] = []
        number += 1
        if row.title:
            panels.append(
                {
                    "type": "row",
                    "id": number,
                    "title": row.title,
                    "collapsed": row.collapsed,
                    "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": down},
                    "panels": inside if row.collapsed else [],
                }
            )
            down += 1
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                left, down, tallest = 0, down + tallest, 0
            number += 1
            place = {"h": panel.height, "w": panel.width, "x": left, "y": down}
            (inside if row.collapsed else panels).append({"id": number, "gridPos": place, **panel.body})
            left, tallest = left + panel.width, max(tallest, panel.height)
        down += tallest
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0, "refresh": 1}
    found: Json = {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["accelmetrics"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "fiscalYearStartMonth": 0,
        "annotations": {"list": []},
        "templating": {"list": [{**source, "multi": False, "includeAll": False, "regex": "", "current": {}}, *variables]},
        "links": list(links),
        "panels": panels,
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
