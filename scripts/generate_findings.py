"""Renders the table of rules in ``docs/findings.md``; the rest of the page is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from accelmetrics.monitor.rules import RULES, Rule

FILE = Path(__file__).parents[1] / "docs" / "findings.md"
BEGIN, END = "<!-- The table is generated: make generate -->\n", "<!-- End of the table -->\n"


def render() -> str:
    """The page, with the table between its marks as the rules are now."""
    before, _, rest = FILE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{''.join(_table())}{END}{rest.partition(END)[2]}"


def _table() -> Iterator[str]:
    yield "| rule | severity | it holds | for | it is over | for | reads |\n|---|---|---|---|---|---|---|\n"
    for rule in RULES:
        comparison, calm = ("above", "at or below") if rule.below is None else ("below", "at or above")
        clear = rule.limit if rule.clear is None else rule.clear
        cells = (
            f"`{rule.name}`",
            rule.severity,
            f"{_measured(rule)} {comparison} {rule.limit:g}",
            _seconds(rule.seconds),
            f"{calm} {clear:g}",
            _seconds(rule.clear_seconds),
            _read(rule),
        )
        yield f"| {' | '.join(cells)} |\n"
    yield "\n| rule | what to do | options |\n|---|---|---|\n"
    for rule in RULES:
        options = ", ".join(f"`{name}={value:g}`" for name, value in rule.options.items() if isinstance(value, (int, float)) and value is not True and value is not False)
        yield f"| `{rule.name}` | {rule.advice} | {options} |\n"


def _measured(rule: Rule) -> str:
    """What its measure gives, in words."""
    words = (rule.measure.__doc__ or "").partition("\n")[0].removeprefix("Gives ").rstrip(".:")
    metric = rule.options.get("metric")
    return f"`{metric[0]}`" if metric else words


def _seconds(seconds: float) -> str:
    if seconds == 0:
        return "at once"
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _read(rule: Rule) -> str:
    read = [f"`{names[0]}`" for names in rule.needs]
    logged = [f"logged `{rule.logged[0]}`" if rule.logged != ("*",) else "logged steps"] if rule.logged else []
    vendor = [f"({rule.vendor.upper()} only)"] if rule.vendor else []
    return ", ".join((*read, *logged, *vendor)) or "which devices answer"
