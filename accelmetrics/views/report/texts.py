"""A report as text and Markdown, made from its document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from accelmetrics.schemas.record import NOT_LOGGED, WORK
from accelmetrics.schemas.text import GIB, counted, printable
from accelmetrics.views.device_view import throttle_words
from accelmetrics.views.report.comparison import EFFICIENCY, ENERGY, STEP_TIME, THROUGHPUT, Comparison
from accelmetrics.views.report.plots import plain
from accelmetrics.views.report.run_report import Plain, RunReport
from accelmetrics.views.summaries import (
    NONE,
    cell_text,
    device_table,
    doubt_lines,
    energy_column,
    energy_text,
    folded,
    host_table,
    named,
    table_lines,
    work_text,
)

TITLES = {
    "utilization_percent": ("utilisation", "%", 1.0),
    "memory_percent": ("memory", "%", 1.0),
    "memory_used_bytes": ("memory", "GiB", GIB),
    "power_watts": ("power", "W", 1.0),
    "temperature_celsius": ("temperature", "°C", 1.0),
    STEP_TIME: ("step", "s", 1.0),
    ENERGY: ("energy of a step", "J", 1.0),
    THROUGHPUT: ("tokens", "/s", 1.0),
    EFFICIENCY: ("tokens", "/J", 1.0),
}
"""Compared quantities: title, unit in texts, and the size of that unit."""

MOST_NAMES = 3
"""Largest number of names in a title. Further names are counted."""


def hosts(report: Plain) -> str:
    """Return the host names of a report."""
    return ", ".join(host or "unknown host" for host in report["hosts"])


def title(report: RunReport) -> str:
    """Return the run's name: its label ``run_name``, or its file names, or the host names for records without files."""
    names = dict.fromkeys(stream.labels.get("run_name", "") for stream in report.streams)
    found = [*names] if all(names) else list(dict.fromkeys(PurePath(path).name.partition(".")[0] for path, *_ in report.files))
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(found[:MOST_NAMES]) + more or hosts(report.document)


def text(report: Plain) -> str:
    """Return a report as text for a terminal."""
    devices = report["devices"]
    lines = folded(f"{hosts(report)}: {report['readings']} readings over {report['duration_seconds']:.1f} s, {_period(report)}")
    if devices:
        lines += device_table([(key, device, device["energy"] and device["energy"]["joules"]) for key, device in devices.items()])
    remarks = []
    fewer = [f"{device['samples']} of {key}" for key, device in devices.items() if device["samples"] < report["readings"]]
    if fewer and len(report["hosts"]) == 1:
        remarks.append(f"fewer readings: {', '.join(fewer)}")
    throttled: dict[str, list[str]] = {}
    for key, device in devices.items():
        for reason, seconds in device["throttled_seconds"].items():
            throttled.setdefault(throttle_words(reason), []).append(f"{key} for {seconds:.1f} s")
    remarks += [f"throttled, {reason}: {', '.join(spans)}" for reason, spans in throttled.items()]
    for gap in report["gaps"]:
        what = f"{gap['seconds']:.1f} s" if gap["seconds"] >= 0 else f"the clock was set back by {-gap['seconds']:.1f} s"
        remarks.append(f"gap: {what} after {_moment(gap['after'])}")
    for key, device in devices.items():
        remarks += [f"gap of {key}: {gap['seconds']:.1f} s after {_moment(gap['after'])}" for gap in device["gaps"]]
    remarks += [*_findings(report), *map(_step_time, report["step_times"])]
    remarks += [work_text(name, work) for name, work in report["work"].items()]
    lines += [*_folded(remarks), *doubts(report), *_folded(energy_lines(report))]
    if "periods" in report:
        lines += ["", *table_lines(_period_rows(report))]
    return _text([*lines, *([] if devices else host_table(report["host"], ("mean", "max", "p95")))])


def findings(report: Plain) -> list[Plain]:
    """Return the findings of a report. Equal findings of several devices are merged into one with all their ``keys``."""
    found: dict[tuple[str, ...], list[Plain]] = {}
    for one in report["findings"]:
        found.setdefault((one["rule"], one["severity"], one["message"], one["advice"]), []).append(one)
    return [
        {
            **alike[0],
            "since": min(one["since"] for one in alike),
            "until": max(one["until"] for one in alike) if all(one["until"] for one in alike) else None,
            "keys": list(dict.fromkeys(one["key"] for one in alike if one["key"])),
        }
        for alike in found.values()
    ]


def not_judged(report: Plain) -> list[tuple[list[str], str, str]]:
    """Return the rules that could not be judged, grouped by reason, with the subjects and the reason.

    Subjects of findings are left out: lost devices, and devices about which the rule has a finding.
    """
    found = {(one["rule"], one["key"]) for one in report["findings"]}
    keys: dict[tuple[str, str], list[str]] = {}
    for one in report["cannot_tell"]:
        labels = [" ".join(filter(None, (one["stream"], key))) for key in one["keys"]] or [one["stream"]]
        left = [label for label in labels if not {("device_lost", label), (one["rule"], label)} & found]
        detail = f" ({one['detail']})" if one["detail"] else ""
        why = one["detail"] if one["reason"] == NOT_LOGGED else f"{one['reason'].replace('_', ' ')}{detail}"
        if left:
            keys.setdefault((one["rule"], why), []).extend(left)
    rules: dict[tuple[str, str], list[str]] = {}
    for (rule, why), labels in keys.items():
        rules.setdefault((named(labels), why), []).append(rule)
    return [(names, about, why) for (about, why), names in rules.items()]


def _findings(report: Plain) -> list[str]:
    """Return a line for each finding, and a line for each reason why rules could not be judged."""
    lines = []
    for one in findings(report):
        about = f"{named(one['keys'])}, " if one["keys"] else ""
        until = f"to {_moment(one['until'])}" if one["until"] else "to the end"
        lines.append(f"{one['severity']}: {one['rule']}, {about}{_moment(one['since'])} {until}: {one['message']}")
    for rules, about, why in not_judged(report):
        lines.append(f"not judged: {', '.join(rules)}{f' of {about}' if about else ''}: {why}")
    return lines


def markdown(report: Plain) -> str:
    """Return a report as Markdown: a table with a column for each device and their mean, and the cost of the work."""
    devices = report["devices"].values()
    parts = [f"# {hosts(report)}", "", f"{report['readings']} readings, {_period(report)}.", ""]
    rows = [["Metric", *report["devices"], "Mean"]]
    for title, name, part, scale in (
        ("Mean utilisation (%)", "utilization_percent", "mean", 1.0),
        ("Mean memory used (GiB)", "memory_used_bytes", "mean", GIB),
        ("Mean power (W)", "power_watts", "mean", 1.0),
        ("Maximum temperature (°C)", "temperature_celsius", "max", 1.0),
    ):
        known = [device[name][part] / scale for device in devices if device[name]]  # a device without a value is no zero
        mean = f"{sum(known) / len(known):.1f}" if known else NONE
        rows.append([title, *(cell_text(device[name], part, "", scale) for device in devices), mean])
    parts += _markdown_table(rows) if devices else ["No devices."]
    if found := _findings(report):
        parts += ["", "## Findings", "", *(f"- {line}" for line in found)]
    if report["step_times"]:
        parts += ["", "## Steps", "", *(f"- {_step_time(times)}" for times in report["step_times"])]
    if report["work"]:
        parts += ["", "## Power efficiency", "", *(f"- {work_text(name, work)}" for name, work in report["work"].items())]
    if found := [*(" ".join(map(str.strip, doubts(report))),) * bool(doubts(report)), *energy_lines(report)]:
        parts += ["", "## Energy", "", *(f"- {line}" for line in found)]
    if "periods" in report:
        parts += ["", f"## By {report['by']}", "", *_markdown_table(_period_rows(report))]
    return _text(parts)


def gpu_stats(report: Plain) -> Plain:
    """Return flat statistics of each GPU in percent, GiB, watts and degrees Celsius; None if nothing was measured."""
    found = {}
    for key, device in report["devices"].items():
        total = device["memory_total_bytes"]
        stats: Plain = {"name": device["name"] or None}
        for title, name, scale, further in (
            ("utilization", "utilization_percent", 1.0, {}),
            ("memory_used", "memory_used_bytes", GIB, {"memory_total": None if total is None else total / GIB}),
            ("power", "power_watts", 1.0, {"power_limit": device["power_limit_watts"]}),
            ("temperature", "temperature_celsius", 1.0, {"sample_count": device["samples"]}),
        ):
            held = device[name]
            stats |= {f"avg_{title}": held and held["mean"] / scale, f"max_{title}": held and held["max"] / scale, **further}
        found[key.replace(".mig.", "_mig_").replace(".", "_").replace(" ", "_")] = stats
    return found


def _moment(timestamp: str) -> str:
    return timestamp[:19] + "Z"


def _period(report: Plain) -> str:
    return f"{_moment(report['begin'])} to {_moment(report['end'])}"


def _folded(lines: Iterable[str]) -> list[str]:
    return [part for line in lines for part in folded(line)]


def _step_time(times: Plain) -> str:
    """Return the step durations of a process in words."""
    about = " ".join(filter(None, (times["stream"], times["source"])))
    quantiles = ", ".join(f"{words} {times[name]:.4g} s" for words, name in (("median", "p50"), ("p95", "p95"), ("max", "max")))
    return f"steps{f' of {about}' if about else ''}: {times['count']}, {times['mean']:.4g} s each ({quantiles})"


def doubts(report: Plain) -> list[str]:
    """Return a remark on rejected energy counters; empty if there are none."""
    used = {key: one["energy"] for key, one in report["devices"].items() if one["energy"]}
    return doubt_lines({key: one["reason"] for key, one in used.items() if "reason" in one})


def energy_lines(report: Plain) -> list[str]:
    """Return lines about the cost and the carbon of the energy of all devices, if they were requested."""
    energy, rent, found = report["energy"], report["rent"], []
    used = f"energy of {counted(energy['devices'], 'device')}: {energy_text(energy['joules'])}"
    unknown = f"; unknown for {counted(energy['silent'], 'device')}" if energy["silent"] else ""
    if energy["price"] is not None:
        cost = NONE if energy["cost"] is None else cost_text(energy["cost"], energy["price"]["currency"])
        found.append(f"{used}, {cost} at {_price_text(energy['price'])} per kWh{unknown}")
    if energy["carbon_intensity"] is not None:
        grams = NONE if energy["carbon_grams"] is None else grams_text(energy["carbon_grams"])
        found.append(f"{used}, {grams} CO2e at {energy['carbon_intensity']:g} g per kWh{unknown}")
    if rent["price"] is not None:
        hours = f"{rent['device_hours']:.4g} device hours of {counted(rent['devices'], 'device')}"
        found.append(f"{hours}: {cost_text(rent['cost'], rent['price']['currency'])} at {_price_text(rent['price'])} per hour")
    return found


def _price_text(price: Plain) -> str:
    return f"{price['amount']:g} {price['currency']}".rstrip()


def cost_text(cost: float, currency: str) -> str:
    """Return an amount of money with two decimals, or with two digits if it is below 1."""
    shown = f"{cost:.2f}" if cost >= 0.01 or not cost else f"{cost:.2g}"
    return f"{shown} {currency}".rstrip()


def grams_text(grams: float) -> str:
    """Return a mass in grams or kilograms."""
    return f"{grams:.3g} g" if grams < 1000 else f"{grams / 1000:.3g} kg"


def _period_rows(report: Plain) -> list[tuple[str, ...]]:
    """Return the table of epochs or windows, without empty columns."""
    rows = report["periods"]
    currency = (report["energy"]["price"] or {}).get("currency") or "cost"
    rented = (report["rent"]["price"] or {}).get("currency") or ""
    unit, energies = energy_column([row["energy_joules"] for row in rows])

    def column(name: str, form: str, unit: str = "", of: str = "") -> list[str]:
        return [NONE if value is None else f"{value:{form}}{unit}" for value in [row[of].get(name) if of else row[name] for row in rows]]

    columns = [
        ("times", column("times", "d") if any(row["times"] != 1 for row in rows) else []),
        ("seconds", column("seconds", ".1f")),
        ("util mean", column("utilization_mean", ".1f", "%")),
        ("max", column("utilization_max", ".1f", "%")),
        ("power mean", column("power_watts_mean", ".1f", " W")),
        (f"energy, {unit}", energies),
        ("steps", [str(row["steps"] or NONE) for row in rows]),
        *((f"{kind}/s", column(kind, ".1f", of="per_second")) for kind in WORK),
        *((f"{kind}/J", column(kind, ".3g", of="per_joule")) for kind in WORK),
        (currency, column("cost", ".4g")),
        ("by the hour", [NONE if row["rent_cost"] is None else cost_text(row["rent_cost"], rented) for row in rows]),
        ("g CO2e", column("carbon_grams", ".3g")),
    ]
    kept = [(heading, cells) for heading, cells in columns if set(cells) - {NONE}]
    return [("", *(heading for heading, _ in kept)), *zip((row["name"] for row in rows), *(cells for _, cells in kept), strict=True)]


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "| --- |" + " ---: |" * (len(rows[0]) - 1), *body]


def _text(lines: Iterable[str]) -> str:
    """Return lines as one text without control characters, since recordings of other machines may contain any."""
    return "\n".join(map(printable, lines)) + "\n"


# Of two runs


def comparison_text(found: Comparison) -> str:
    """Return a comparison as text for a terminal."""
    return _text(
        [
            *_folded((*_runs(found), *(f"note: {warning}" for warning in found.warnings))),
            *table_lines(_difference_rows(found)),
            "",
            *table_lines(_spread_rows(found)),
        ]
    )


def comparison_markdown(found: Comparison) -> str:
    """Return a comparison as Markdown."""
    return _text(
        [
            "# Comparison",
            "",
            *[f"- {line}" for line in (*_runs(found), *(f"Note: {warning}" for warning in found.warnings))],
            "",
            *_markdown_table(_difference_rows(found)),
            "",
            *_markdown_table(_spread_rows(found)),
        ]
    )


def _runs(found: Comparison) -> list[str]:
    """Return one line for each run."""
    return [
        f"{name}: {hosts(one)}, {_moment(one['begin'])}, {one['readings']} readings"
        for name, one in (("A", found.a.document), ("B", found.b.document))
    ]


def _difference_rows(found: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "A", "B", "change", "", "±", "")]
    for one in found.differences:
        word, unit, scale = TITLES[one["name"]]
        means = [NONE if side is None else plain(side["mean"] / scale) for side in (one["a"], one["b"])]
        change = NONE if one["delta"] is None else f"{'+' if one['delta'] >= 0 else ''}{plain(_figures(one['delta'] / scale, 3))}"
        percent = NONE if one["percent"] is None else f"{one['percent']:+.1f}%"
        noise = NONE if one["plus_minus"] is None else plain(_figures(one["plus_minus"] / scale, 2))
        rows.append((f"{word}, {unit}", *means, change, percent, noise, one["verdict"]))
    return rows


def _spread_rows(found: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "A p25-p75", "A p95", "B p25-p75", "B p95")]
    for one in found.differences:
        word, unit, scale = TITLES[one["name"]]
        cells = []
        for side in (one["a"], one["b"]):
            p25, p75, p95 = ("" if side is None else plain(side[part] / scale) for part in ("p25", "p75", "p95"))
            cells += [f"{p25}-{p75}", p95 or NONE]
        rows.append((f"{word}, {unit}", *cells))
    return rows


def _figures(value: float, figures: int) -> float:
    return float(f"{value:.{figures}g}")
