"""``accelmetrics ps``: the processes that use the devices."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime

from accelmetrics.cli import options as arguments
from accelmetrics.cli.list import say_what_is_missing
from accelmetrics.cli.output import PLAIN_WIDTH, Stdout
from accelmetrics.schemas.text import aligned, clipped, hanging, quantity, wrapped
from accelmetrics.visibility.processes import NOT_REPORTED, ProcessInfo, ProcessListing, processes

HEAD = ("DEVICE", "PID", "USER", "STARTED", "MEMORY", "UTIL", "IN", "COMMAND")
SHORT_ID = 12
"""Digits of a container's id, as the tools of the container runtimes show it."""
MOST_REASONS = 10
"""Maximum number of lines on why facts about processes are unknown. ``--json`` has all of them."""
EXAMPLES = """\
  accelmetrics ps
  accelmetrics ps --tree
      with the processes above them: shells, launchers, job steps
  accelmetrics ps --gpus 0-3 --json \\
      | jq -r '.processes[] | select(.user == "anna") | .pid'

The order is by device, then by memory. A MIG instance is a separate device. IN
is the container, the Kubernetes pod and the Slurm job and step in the process's
cgroup. ? is unreadable, with the reason below the table; - is none, or not
reported by the driver. Command lines are shown by this command only, and not by
dump, serve and exporters.

Exit status: 0; 2 for invalid arguments."""
OPTIONS: arguments.Groups = {
    "": {
        "--tree": {"action": "store_true", "help": "also show their parent processes, as a tree"},
        "--json": {"action": "store_true", "help": "print it as one JSON object"},
    },
    arguments.READ: arguments.only("--backends", "--gpus", "--visible", "--amd-source", "--timeout"),
}
Tree = dict[int, "Tree"]
"""The children of each process, by its id."""


def run(options: Namespace, out: Stdout) -> int:
    """Print the processes, and the reasons for unknown facts."""
    from accelmetrics.sampling.sampler import Sampler

    with Sampler(**arguments.reading(options)) as sampler:
        snapshot = sampler.sample()
    found = processes(snapshot, parents=options.tree)
    if options.json:
        out.write(found.to_json(2 if out.terminal else None) + "\n")
    elif snapshot.identities:
        out.write(render(found, options.tree, out.width if out.terminal else None))
    say_what_is_missing(snapshot, bool(options.visible), out.width)
    return 0


def render(found: ProcessListing, tree: bool = False, width: int | None = None) -> str:
    """Return one line per process and device, then the devices without a process, then the reasons for unknown facts.

    Args:
        found: The processes.
        tree: Whether to order the lines as a tree of processes.
        width: Columns of the screen; None to cut nothing.
    """
    rows = [HEAD, *(_tree_rows(found) if tree else (_row(process, process.command or "?") for process in found.processes))]
    table = aligned(rows) if found.processes else []
    reasons = []
    for why in dict.fromkeys(found.unlisted.values()):
        keys = ", ".join(key for key, other in found.unlisted.items() if other == why)
        reasons.append(f"- the processes that use {keys} are unknown: {why.detail or why.reason}")
    missing = dict.fromkeys(why for one in (*found.processes, *found.parents) for why in one.unavailable.values() if why != NOT_REPORTED)
    more = len(missing) - MOST_REASONS
    reasons += [f"- {why}" for why in list(missing)[:MOST_REASONS]] + [f"- and {more} more, which --json has"] * (more > 0)
    idle = wrapped(f"No process uses {', '.join(found.idle)}.", width or PLAIN_WIDTH, "") if found.idle else []
    reasons = [line for why in reasons for line in hanging(why, width or PLAIN_WIDTH)]
    table = [line if width is None else clipped(line, width) for line in table]
    parts = ("\n".join(part) for part in (table, idle, reasons) if part)
    return "\n\n".join(parts) + "\n"


def _tree_rows(found: ProcessListing) -> Iterator[tuple[str, ...]]:
    """Yield the rows in the order of the process tree, branches as in the table. A process on several devices has its command once."""
    rows: dict[int, list[ProcessInfo]] = {}
    whole: Tree = {}
    for process in (*found.processes, *found.parents):
        rows.setdefault(_place_in_tree(process), []).append(process)
    for process in found.processes:
        below = whole
        for pid in (*reversed(process.parents), _place_in_tree(process)):
            below = below.setdefault(pid, {})
    for pid, branch in _branches(whole):
        first, *others = rows[pid]
        yield _row(first, branch + (first.command or "?"))
        yield from (_row(process, "") for process in others)


def _place_in_tree(process: ProcessInfo) -> int:
    """Return the id of a process in the tree. It is negative for a process on a device that was not found in /proc."""
    # The driver's id may belong to another pid namespace, where the same number here is an unrelated process in the tree.
    return -process.pid if process.device and process.user is None else process.pid


def _branches(tree: Tree, indent: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield each process of a tree with the line drawing before its command, which is empty at the first level."""
    for pid, below in tree.items():
        last = pid == next(reversed(tree))
        yield pid, "" if indent is None else indent + ("└─ " if last else "├─ ")
        yield from _branches(below, "" if indent is None else indent + ("   " if last else "│  "))


def _row(process: ProcessInfo, command: str) -> tuple[str, ...]:
    started = process.started and datetime.fromisoformat(process.started.replace("Z", "+00:00")).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    memory = "-" if process.memory_bytes is None else quantity(process.memory_bytes, "By")
    busy = "-" if process.utilization is None else quantity(process.utilization, "%")
    user = "?" if process.user is None else process.user
    words = []
    if process.container:
        words.append(f"{process.runtime or 'container'} {process.container[:SHORT_ID]}")
    if process.pod:
        words.append(f"pod {process.pod}")
    if process.slurm_job:
        words.append(f"slurm {'.'.join(filter(None, (process.slurm_job, process.slurm_step)))}")
    place = ", ".join(words) or ("?" if "container" in process.unavailable else "-")
    return process.device or "-", str(process.pid), user, started or "?", memory, busy, place, command
