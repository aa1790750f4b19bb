"""Renders the table of rules in ``docs/findings.md``; the rest of the page is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from accelmetrics.monitor.rules import RULES, Rule
from accelmetrics.monitor.step_measures import ANY

FILE = Path(__file__).parents[1] / "docs" / "findings.md"
BEGIN, END = "<!-- The table is generated: make generate -->\n", "<!-- End of the table -->\n"


def render() -> str:
    """The page, with the table between its marks as the rules are now."""
    before, _, rest = FILE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{''.join(_table())}{END}{rest.partition(END)[2]}"


def _table() -> Iterator[str]:
    yield "| rule | severity | there is a finding when | for | reads |\n|---|---|---|---|---|\n"
    for rule in RULES:
        words = rule.when.format_map({**rule.options, "limit": rule.limit})
        yield f"| `{rule.name}` | {rule.severity} | {words} | {_seconds(rule.seconds)} | {_read(rule)} |\n"
    yield "\n| rule | over when | for | options | what to do |\n|---|---|---|---|---|\n"
    for rule in RULES:
        clear = rule.limit if rule.clear is None else rule.clear
        calm = f"at most {clear:g}" if rule.below is None else f"at least {clear:g}"
        yield f"| `{rule.name}` | {calm} | {_seconds(rule.clear_seconds)} | {_options(rule)} | {rule.advice} |\n"


def _options(rule: Rule) -> str:
    """What may be set of it beside limits and times."""
    numbers = {name: value for name, value in rule.options.items() if type(value) in (int, float)}
    return ", ".join(f"`{name}={value:g}`" for name, value in numbers.items())


def _seconds(seconds: float) -> str:
    if seconds == 0:
        return ""
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _read(rule: Rule) -> str:
    read = [f"`{names[0]}`" for names in rule.needs]
    logged = [f"logged `{rule.logged[0]}`" if rule.logged != ANY else "logged steps"] if rule.logged else []
    vendor = " (NVIDIA)" if rule.vendor == "nvidia" else ""
    return ", ".join((*read, *logged)) + vendor or "which devices answer"
