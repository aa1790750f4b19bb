"""``accelmetrics topology``: the connections between devices, and between devices and network cards."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from math import comb

from accelmetrics.cli import options as arguments
from accelmetrics.cli.list import say_what_is_missing
from accelmetrics.cli.output import PLAIN_WIDTH, Stdout
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.snapshot import to_text
from accelmetrics.schemas.text import aligned, wrapped
from accelmetrics.schemas.topology import Connection, Topology

UNKNOWN = "?"
LEGEND = {
    "NV": "NVn   n NVLinks",
    "XGMI": "XGMI  links of AMD's fabric; XGMIn: over n of them",
    "PIX": "PIX   one PCIe switch at most",
    "PXB": "PXB   several PCIe switches, no host bridge",
    "PHB": "PHB   a PCIe host bridge, as a rule the CPU",
    "NODE": "NODE  several host bridges of one NUMA node",
    "SYS": "SYS   the link between NUMA nodes",
    UNKNOWN: "?     unknown, see below; behind a word: whether there are links, too",
}
EXAMPLES = """\
  accelmetrics topology
  accelmetrics topology --gpus 0-3
  accelmetrics topology --json \\
      | jq -c '.topology.connections[] | [.between, .path, .link, .links]'
  accelmetrics dump --json --topology | jq .topology
      the same, with a reading

The PCIe path between two devices comes from the kernel, for every vendor: the
same switch, host bridge or NUMA node. NVLink comes from NVML, XGMI from AMD's
compute driver. Network cards with RDMA are included."""
OPTIONS: arguments.Groups = {
    "": {"--json": {"action": "store_true", "help": "print a JSON object: the parts of dump --json --topology on connections"}},
    arguments.READ: arguments.only("--backends", "--gpus", "--visible", "--amd-source", "--timeout", "--open-timeout", "--isolation"),
}
PARTS = ("schema_version", "timestamp", "hostname", "devices", "topology")


def run(options: Namespace, out: Stdout) -> int:
    """Print the topology. Report missing devices and failing sources on standard error."""
    from accelmetrics.sampling.sampler import Sampler

    with Sampler(**arguments.reading(options)) as sampler:
        snapshot = sampler.sample(topology=True)
    if options.json:
        whole = snapshot.to_dict()
        out.write(to_text({part: whole[part] for part in PARTS}, 2 if out.terminal else None, "topology") + "\n")
    elif snapshot.identities and snapshot.topology is not None:
        out.write(render(snapshot.identities, snapshot.topology, out.width if out.terminal else PLAIN_WIDTH))
    say_what_is_missing(snapshot, bool(options.visible), out.width)
    return 0


def render(slots: Sequence[DeviceSlot], topology: Topology, width: int) -> str:
    """Return the topology as text.

    The parts are the matrix of devices, the matrix of devices and network cards, a list of both with their places, a
    legend, and the unknown connections.

    Args:
        slots: The devices. If there are connections, devices without one are left out.
        topology: The connections.
        width: Columns for sentences.
    """
    found = {connection.between: connection for connection in topology.connections}
    connected = {name for pair in found for name in pair}
    devices = [slot for slot in slots if slot.key in connected or not found]
    keys, nics = [slot.key for slot in devices], [nic.name for nic in topology.nics]

    def cell(one: str, other: str) -> str:
        return "X" if one == other else label(found.get((one, other)) or found[other, one])

    matrices = [[["", *across], *([key, *(cell(key, other) for other in across)] for key in keys)] for across in (keys, nics) if across]
    words = {label(connection) for connection in topology.connections}
    legend = [about for word, about in LEGEND.items() if any(word in each for each in words)]
    if any(connection.switched for connection in topology.connections):
        legend[0] += ", through switches"
    rows: list[Sequence[str]] = [("DEVICE", "NAME", "PCI", "NUMA", "CPUS")]
    rows += [
        _row(slot.key, slot.identity.name, slot.identity.pci_bus_id, slot.identity.numa_node, slot.identity.cpu_affinity)
        for slot in devices
    ]
    rows += [_row(nic.name, "network card", nic.pci_bus_id, nic.numa_node, nic.cpu_affinity) for nic in topology.nics]
    unknown = [line for words in _unknown(topology.connections) for line in wrapped(words, width, "  ")]
    parts = (*map(aligned, matrices), aligned(rows), legend, ["unknown:", *unknown] if unknown else [])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def label(connection: Connection) -> str:
    """Return the word for a connection, as in ``nvidia-smi topo -m``. If there are several paths, it is the fastest."""
    if connection.link == "nvlink":
        return f"NV{connection.links}"
    if connection.link:
        return connection.link.upper() + (str(connection.hops) if (connection.hops or 0) > 1 else "")
    why = connection.unavailable.get("links")
    # A driver that does not support the query has no links. After any other failure there may be some.
    doubtful = connection.path and why is not None and why.reason != Reason.NOT_SUPPORTED
    return (connection.path or UNKNOWN) + (UNKNOWN if doubtful else "")


def _row(key: str, name: str, address: str, node: int | None, cpus: str) -> tuple[str, ...]:
    return (key, name or "-", address or "-", "-" if node is None else str(node), cpus or "-")


def _unknown(connections: Sequence[Connection]) -> Iterator[str]:
    """Yield one line per unknown fact and reason, with the connections that lack it.

    If all of these are connections of one device, only that device is named. If they are all connections among a group
    of devices, the group is named once.
    """
    pairs: dict[tuple[str, Unavailable], list[tuple[str, str]]] = {}
    for connection in connections:
        for what, why in connection.unavailable.items() if not connection.link else ():
            pairs.setdefault((what, why), []).append(connection.between)
    for (what, (reason, detail)), alike in pairs.items():
        shared = [name for name in alike[0] if len(alike) > 1 and all(name in pair for pair in alike)]
        everyone = list(dict.fromkeys(name for pair in alike for name in pair))
        if len(alike) == comb(len(everyone), 2):  # every pair of these devices
            where = f"between {', '.join(everyone[:-1])} and {everyone[-1]}"
        else:
            where = f"of {shared[0]}" if shared else "between " + ", ".join(map(" and ".join, alike))
        yield f"{what} {where}: {reason}" + (f" ({detail})" if detail else "")
