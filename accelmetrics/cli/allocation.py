"""``accelmetrics allocation``: the devices that each process of a job was given, and the devices that it uses."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout
from accelmetrics.monitor import settings
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.text import aligned, clipped, consecutive, quantity, wrapped
from accelmetrics.visibility.allocation import Allocation, AllocationFinding, allocation

if TYPE_CHECKING:
    from accelmetrics.integrations.ray_allocation import RayAllocation

RAY_HEAD = ("ACTOR", "GROUP", "NODE", "PID", "ASKED", "SEES", "USES")
PROBE_HEAD = ("PROBE", "NODE", "PID", "LIST")
HEAD = ("ROLE", "RANK", "LOCAL", "PID", "COMMAND", "LIST", "SEES", "USES")
EXAMPLES = """\
  accelmetrics allocation
      every process that uses a device
  accelmetrics allocation --pid 4711 --children
      the ranks below a launcher, such as torchrun
  accelmetrics allocation --role actor=101,102,rollout=103 \\
      --expect actor=0-1,rollout=2-3
  accelmetrics allocation --ray --pool actor=8x2,rollout=4
      the actors of a Ray cluster: 8 GPUs on each of 2 nodes, 4 on one
  accelmetrics allocation --ray --pool actor=2-3,rollout=0-1
      devices of one node by number
  accelmetrics allocation --ray --probe
      start an actor on each free GPU and print the list that it sees
  accelmetrics allocation --json | jq -r '.findings[].text'

The role of a process comes from --role, or from ACCELMETRICS_ROLE in its
environment. Its rank comes from its environment too (RANK, LOCAL_RANK, and the
variables of Open MPI, PMI, Slurm and Ray). Device lists are the ones with which
the process was started.

With --ray, the devices of the actors and tasks of all nodes come from Ray's own
tables. Nothing runs in the actors. An actor belongs to a pool if its name,
class or placement group begins with the pool's name, or matches it as a pattern
('*Worker*').

Exit status: 0 if all is as expected. 1 if a role uses other devices than
--expect, another process uses its devices, the use is unknown, or a named
process does not exist. With --ray, 1 if a pool differs from --pool, actors
share a device without --shared, an actor of this machine uses another device
than Ray gave it, or a probe failed or saw several devices. 2 for invalid
arguments."""


def pids(text: str) -> list[int]:
    """Parse process ids, separated by commas."""
    return [settings.process_id.parse(word.strip()) for word in text.split(",")]


def _by_role(text: str, read: Callable[[str], Sequence[Any]]) -> list[tuple[str, Any]]:
    """Parse ``NAME=LIST,…`` into pairs of name and value. An item without a name belongs to the name before it.

    Args:
        text: The value of the option.
        read: Parses one item of a list into values.

    Raises:
        ArgumentTypeError: The first item has no name.
    """
    pairs: list[tuple[str, Any]] = []
    name = ""
    for word in text.split(","):
        # Commas separate roles and items alike: in actor=101,102,rollout=103 the name holds until the next one.
        head, sign, rest = word.rpartition("=")
        name = head.strip() if sign else name
        if not name:
            raise argparse.ArgumentTypeError(f"{word!r} has no name: write NAME=LIST, such as actor=0-1")
        pairs += [(name, value) for value in read(rest)]
    return pairs


roles = partial(_by_role, read=pids)
pools = partial(_by_role, read=settings.devices.parse)


def counts(text: str) -> list[int] | list[str]:
    """Parse a pool of a Ray cluster: devices per node and nodes (``8x2``), or a range of device numbers of one node (``2-3``).

    Returns:
        The number of devices on each node, or the device numbers as text.

    Raises:
        ArgumentTypeError: The text is neither.
    """
    numbers = re.fullmatch(r"\s*(\d{1,4})-(\d{1,4})\s*", text)
    if numbers is not None and int(numbers[1]) <= int(numbers[2]):
        return [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    found = re.fullmatch(r"\s*([1-9]\d*)(?:x([1-9]\d*))?\s*", text)
    if found is None:
        words = "write 8, or 8x2 for 8 on each of 2 nodes, or a range of device numbers: 0-0 for device 0 alone, 2-3 for two devices"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices: {words}")
    return [int(found[1])] * int(found[2] or 1)


ray_pools = partial(_by_role, read=counts)
OPTIONS: arguments.Groups = {
    "": {
        "--pid": {
            "type": pids,
            "action": "extend",
            "dest": "pids",
            "metavar": "PID,…",
            "help": "the processes (default: all that use a device)",
        },
        "--children": {"action": "store_true", "dest": "launchers", "help": "--pid names launchers: include all processes below them"},
        "--role": {"type": roles, "action": "extend", "metavar": "NAME=PID,…", "help": "processes by role: actor=101,102,rollout=103"},
        "--expect": {
            "type": pools,
            "action": "extend",
            "metavar": "NAME=LIST,…",
            "help": "devices by role: rollout=0-1,actor=2-3,teacher=4-7",
        },
        "--ray": {
            "nargs": "?",
            "const": "auto",
            "metavar": "ADDRESS",
            "help": "the actors of a Ray cluster, HOST:PORT; this machine's when no address is given",
        },
        "--pool": {
            "type": ray_pools,
            "action": "extend",
            "metavar": "NAME=NxNODES,…",
            "help": "with --ray, devices by role: actor=8x2,rollout=4; or the numbers on each node: actor=2-3",
        },
        "--shared": {"action": "store_true", "help": "with --ray: several actors on one device are intended"},
        "--probe": {
            "action": "store_true",
            "help": "with --ray: start a short-lived actor on each free device, to report the list that it sees",
        },
        "--json": {"action": "store_true", "help": "print it as one JSON object"},
    },
    arguments.READ: arguments.only("--backends", "--timeout"),
}


def run(options: argparse.Namespace, out: Stdout) -> int:
    """Print the processes or actors, the pools and the findings. Return 1 if something differs from the expectation."""
    arguments.refuse(
        (options.launchers and not options.pids, "--children needs the launcher whose children are meant: give it with --pid"),
        (
            options.pool and options.ray is None,
            "--pool is of the actors of a Ray cluster: give --ray too, or --expect for processes of this machine",
        ),
        ((options.shared or options.probe) and options.ray is None, "--shared and --probe are of a Ray cluster: give --ray too"),
        (
            options.ray is not None and (options.pids or options.role or options.expect),
            "--pid, --role and --expect are of processes of this machine, and --ray is of a cluster's actors",
        ),
    )
    found: Allocation | RayAllocation
    if options.ray is None:
        roles, expect = _grouped(options.role), _grouped(options.expect)
        found = allocation(options.pids or (), children=options.launchers, roles=roles, expect=expect, **arguments.reading(options))
        text = render(found, out.width, out.terminal)
    else:
        if find_spec("ray") is None:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, "Ray is not installed in this environment: use the one of the job")
        from accelmetrics.integrations.ray_allocation import allocation_at

        found = allocation_at(options.ray, _grouped(options.pool), shared=options.shared, probe=options.probe)
        text = render_ray(found, out.width, out.terminal)
    out.write(found.to_json(2 if out.terminal else None) + "\n" if options.json else text)
    return 0 if found.as_expected else 1


def _grouped(pairs: Sequence[tuple[str, Any]] | None) -> dict[str, list[Any]]:
    given = pairs or ()
    return {name: [value for other, value in given if other == name] for name, _ in given}


def render(found: Allocation, width: int, cut: bool) -> str:
    """Return one line per process, then the pools and the findings.

    Args:
        found: The allocation of this machine's processes.
        width: Columns of the output.
        cut: Whether lines of the table are cut to the width.
    """
    rows = []
    for worker in found.workers:
        lists = " ".join(f"{listed.variable}={listed.value}" for listed in worker.lists)
        sees = "?" if worker.visible is None else _keys(worker.visible)
        numbers = ("-" if number is None else str(number) for number in (worker.rank, worker.local_rank))
        uses = (use.device if use.memory_bytes is None else f"{use.device} ({quantity(use.memory_bytes, 'By')})" for use in worker.used)
        names = (worker.role or "-", *numbers, str(worker.pid), worker.name or "-")
        rows.append((*names, lists or "-", sees, ", ".join(uses) or "-"))
    expected = [f"{pool.role}: expected {_keys(pool.expected)}; uses {_keys(pool.used)}" for pool in found.pools]
    return _laid_out([HEAD, *rows] if rows else [], "No process that uses a device was found.", expected, found.findings, width, cut)


def render_ray(found: RayAllocation, width: int, cut: bool) -> str:
    """Return one line per actor, then the probes, the pools and the findings. Arguments as in :func:`render`."""
    rows = []
    for actor in found.actors:
        place = (actor.group or "-", actor.node or "-", str(actor.pid or "-"), f"{actor.wanted:g}")
        sees = "?" if actor.sees is None else ", ".join(actor.sees) or "none"
        rows.append((actor.title, *place, sees, "-" if actor.uses is None else ", ".join(actor.uses) or "none"))
    seen = []
    for probe in found.probes:
        lists = ", ".join(f"{name}={value}" for name, value in probe.lists.items())
        seen.append((probe.device, probe.node, str(probe.pid), lists or "none"))
    expected = []
    for pool in found.pools:
        meant = f"devices {', '.join(pool.devices)}" if pool.devices else f"{', '.join(map(str, pool.expected))} a node"
        held = (f"{', '.join(devices) if pool.devices else len(devices)} on {node}" for node, devices in pool.held.items())
        expected.append(f"{pool.role}: expected {meant}; holds {', '.join(held) or 'none'}")
    none = "No actor that has to do with devices was found."
    probes = [PROBE_HEAD, *seen] if seen else []
    return _laid_out([RAY_HEAD, *rows] if rows else [], none, expected, found.findings, width, cut, probes)


def _laid_out(
    rows: Sequence[Sequence[str]],
    none: str,
    pools: Sequence[str],
    findings: Sequence[AllocationFinding],
    width: int,
    cut: bool,
    more: Sequence[Sequence[str]] = (),
) -> str:
    table, probes = ([clipped(line, width) if cut else line for line in aligned(each)] if each else [] for each in (rows, more))
    expected = [line for pool in pools for line in wrapped(pool, width, "")]
    words = []
    for finding in findings:
        first, *rest = wrapped(finding.text, width, "  ")
        words += [f"- {first[2:]}", *rest]
    return "\n\n".join("\n".join(part) for part in (table or [none], probes, expected, words or ["Nothing to remark."]) if part) + "\n"


def _keys(keys: Sequence[str]) -> str:
    """Return device keys in the program's order, three or more consecutive ones as a range: ``gpu.0-3,gpu.6``."""
    runs = consecutive(keys)
    return ",".join(f"{run[0]}-{run[-1].rpartition('.')[2]}" if len(run) > 2 else ",".join(run) for run in runs) or "none"
