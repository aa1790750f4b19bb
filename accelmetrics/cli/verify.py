"""``accelmetrics verify``: a comparison of our values with other sources' values on the same machine."""

from __future__ import annotations

import json
import shlex
import threading
import time
from argparse import REMAINDER, Namespace
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.cli import options as arguments
from accelmetrics.cli.monitoring import checked
from accelmetrics.cli.output import Stdout
from accelmetrics.monitor import settings
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.limits import MAX_SECONDS
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.text import clipped, counted, fitted, hanging, printable, quantity, wrapped
from accelmetrics.visibility.verify import AGREES, DEVICES, DIFFERS, NO_REFERENCE, Comparison, Verification, verify

DEFAULT_SPAN = 5.0
UNBROKEN = 24
"""Columns of the longest word in the table that is never broken."""
HEAD = ("DEVICE", "METRIC", "OURS", "REFERENCE", "BY", "RESULT")
EXAMPLES = """\
  accelmetrics verify
  accelmetrics verify --backends nvidia --gpus 0 --span 30
  accelmetrics verify --json -- python train.py | jq '.counts'
      under load, until the command ends
  accelmetrics verify --metrics core || echo "a value differs"

Each value is compared with a second source: NVIDIA's with nvidia-ml-py and
nvidia-smi, AMD's and AWS's with their other sources, the host's with psutil. A
value agrees if it is between the reference's values before and after it, within
the rounding of both. Rates, energy and traffic are compared over the whole
span. A watched command prints to standard error.

Exit status: 1 if a value differs, else 0; 2 for invalid arguments; 126 and 127
for a command that cannot be started."""
OPTIONS: arguments.Groups = {
    "": {
        "--span": {
            "type": settings.pause.parse,
            "metavar": "S",
            "help": f"number of seconds to compare for (default: {DEFAULT_SPAN:g}; with a command: until it ends)",
        },
        "--json": {"action": "store_true", "help": "print it as one JSON object"},
        "command": {"nargs": REMAINDER, "metavar": "-- COMMAND …", "help": "a command to run during the comparison, and its arguments"},
    },
    arguments.READ: arguments.only("--backends", "--gpus", "--metrics", "--disk-path", "--amd-source", "--timeout", "--open-timeout"),
}


def run(options: Namespace, out: Stdout) -> int:
    """Compare and print the results. Return 1 if a value differs."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    found = _during(command, options) if command else verify(options.span or DEFAULT_SPAN, **arguments.reading(options))
    if options.json:
        out.write(json.dumps(found.to_dict(), indent=2 if out.terminal else None) + "\n")
    else:
        out.write(render(found, shlex.join(command), out.width))
    return int(found.counts[DIFFERS] > 0)


def _during(command: Sequence[str], options: Namespace) -> Verification:
    """Compare while a command runs.

    The comparison runs on a thread: the main thread forwards signals to the command and waits for its end.
    """
    from accelmetrics.cli.run import Signals, attend, start  # here, since it needs a POSIX system

    ended, outcomes = Flag(), SimpleQueue[Outcome[Verification]]()

    def compare() -> None:
        # Without --span the comparison lasts until the command ends.
        outcomes.put(guarded(verify, options.span or MAX_SECONDS, stop=ended, pid=pid, **arguments.reading(options)))

    with checked(options), Signals() as signals:
        pid, began = start(command, signals, {}, {}), time.monotonic()
        threading.Thread(target=compare, name="accelmetrics-verify", daemon=True).start()
        attend(pid, began, signals, lambda: None, lambda: None)
    ended.set()
    outcome = outcomes.get()
    if outcome.value is None:
        assert outcome.error is not None
        raise outcome.error
    return outcome.value


def render(found: Verification, command: str, width: int) -> str:
    """Return the results as text: compared values, values without a reference, the references, and the counts.

    Args:
        found: The comparisons.
        command: The command that ran meanwhile; empty for none.
        width: Columns of the screen.
    """
    rows = [row for result in (AGREES, DIFFERS) for row in _rows([one for one in found.comparisons if one.result == result])]
    asked = (
        f"{one['name']} was asked about {one['backend']}: {one['problem'] or counted(one['answers'], 'answer')}" for one in found.references
    )
    counts = found.counts
    words = f"{counts[AGREES]} agree, {counts[DIFFERS]} differ, {counts[NO_REFERENCE]} have no reference"
    title = f"{words}; compared for {found.seconds:.0f} s" + (f" beside {command}" if command else "")
    missing = [line for words in _without(found.comparisons) for line in wrapped(words, width, "  ")]
    parts = (
        fitted([HEAD, *rows], width, unbroken=UNBROKEN) if rows else [],
        ["no reference:", *missing] if missing else [],
        [line for words in asked for line in hanging(words, width)],
        [clipped(printable(title), width)],
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _without(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """Yield lines about values without a reference. Devices that lack the same values for the same reason share a line."""
    devices: dict[tuple[str, str], list[str]] = {}
    for one in comparisons:
        if one.result == NO_REFERENCE:
            device, name = _place(one.key)
            devices.setdefault((name, one.detail), []).append(device)
    names: dict[tuple[str, str], list[str]] = {}
    for (name, detail), found in devices.items():
        names.setdefault((", ".join(found), detail), []).append(name)
    for (of, detail), listed in names.items():
        yield f"{of}: {', '.join(listed)}" + (f" ({detail})" if detail else "")


def _rows(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table: one per value and reference. References that agree with a value share its row."""
    by_key: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by_key.setdefault(one.key, []).append(one)
    for key, alike in by_key.items():
        # References that differ, or are missing, have different values or reasons, so each has a row.
        for group in [alike] if alike[0].result == AGREES else [[one] for one in alike]:
            first, answer = group[0], "-"
            ours = "-" if first.ours is None else quantity(first.ours, first.unit)
            if first.low is not None and first.high is not None:
                low, high = quantity(first.low, first.unit), quantity(first.high, first.unit)
                answer = low if low == high else f"{low} to {high}"
            result = first.result + (f" ({first.detail})" if first.detail else "")
            yield *_place(key), ours, answer, ", ".join(one.reference for one in group) or "-", result


def _place(key: str) -> tuple[str, str]:
    """Return the device of a key, and the metric's name. A key of the host or of a process has the device ``host``."""
    parts = device_key(key)
    if parts is not None and not parts.process:
        return parts.device, parts.name
    return (key.removesuffix(DEVICES), DEVICES[1:]) if key.endswith(DEVICES) else ("host", key)
