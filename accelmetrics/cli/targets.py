"""``accelmetrics targets``: the nodes of a cluster in the format of Prometheus' file-based service discovery."""

from __future__ import annotations

import json
from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout, writing_to
from accelmetrics.monitor.settings import count, path, text
from accelmetrics.visibility.nodes import PORT, node_labels, read_hosts, service_discovery, slurm_nodes

EXAMPLES = """\
  accelmetrics targets --hosts nodes.txt --output /etc/prometheus/nodes.json
      for file_sd_configs
  accelmetrics targets --slurm --partition gpu --label cluster=a
  accelmetrics targets --slurm "$SLURM_JOB_NODELIST"
      in a job: its nodes

A file of hosts has one host per line, with an optional port and labels:
`node-2:9400 rack=a17`.

Exit status: 0; 1 when Slurm does not answer or the file cannot be written; 2
for arguments that cannot be used."""
OPTIONS: arguments.Groups = {
    "": {
        "--hosts": {"type": path.parse, "metavar": "FILE", "help": "file of the nodes, one host per line"},
        "--slurm": {"nargs": "?", "const": "", "metavar": "NODES", "help": "all nodes of Slurm, or those of a host list"},
        "--partition": {"default": "", "metavar": "NAME", "help": "only Slurm's nodes of this partition"},
        "--port": {"type": count.parse, "default": PORT, "metavar": "N", "help": f"port of nodes that have none (default: {PORT})"},
        "--label": {"type": text.parse, "action": "append", "metavar": "NAME=VALUE", "help": "label of every node, repeatable"},
        "--output": {"type": path.parse, "metavar": "FILE", "help": "replace this file instead of printing"},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the nodes, or replace the output file."""
    arguments.refuse(
        ((options.hosts is None) == (options.slurm is None), "say where the nodes are from: --hosts FILE or --slurm"),
        (options.partition and options.slurm != "", "--partition chooses among the nodes that Slurm has: give it with --slurm alone"),
    )
    nodes = read_hosts(options.hosts, options.port) if options.hosts else slurm_nodes(options.slurm or "", options.partition, options.port)
    common = node_labels(options.label or (), "--label")
    found = service_discovery(node._replace(labels={**common, **node.labels}) for node in nodes)
    with writing_to(options.output, out) as write:
        write(json.dumps(found, indent=None if options.output else 2) + "\n")
    return 0
