"""The nodes of a cluster that serve metrics, from a hosts file or from Slurm, and as Prometheus' service discovery."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.backends.kit.commands import Command
from accelmetrics.schemas.errors import InvalidOptionError, Reason, SourceError
from accelmetrics.schemas.log import log
from accelmetrics.schemas.permissions import file_state

PORT = 22235
"""The default port of ``accelmetrics serve``."""
METRICS = "/metrics"
MOST_NODES = 4096
LARGEST_FILE = 4 * 1024 * 1024
INSTALL = "run this where Slurm's commands are installed"
SLURM_TIMEOUT = 30.0

_TARGET = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z_](?:[0-9A-Za-z._-]{0,252}))(?::(\d{1,5}))?/?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


class Node(NamedTuple):
    """A node that serves its metrics.

    Attributes:
        target: Its host and port.
        labels: Further labels that Prometheus adds to its series.
        scheme: ``http`` or ``https``.
    """

    target: str
    labels: Mapping[str, str] = {}
    scheme: str = "http"

    @property
    def url(self) -> str:
        """The address of its metrics page."""
        return f"{self.scheme}://{self.target}{self.labels.get('__metrics_path__', METRICS)}"

    def address(self, path: str) -> str:
        """Return the address of another path of the node, with the same prefix as ``/metrics`` if a proxy adds one."""
        return self.url.removesuffix(METRICS) + path if self.url.endswith(METRICS) else f"{self.scheme}://{self.target}{path}"


def parse_hosts(text: str, port: int = PORT) -> list[Node]:
    """Parse a hosts file: one host a line with an optional port and labels, or the JSON of :func:`service_discovery`.

    ::

        node-1
        node-2:9400  rack=a17 partition=gpu   # a comment
        https://node-3.example

    Args:
        text: The text of the file.
        port: The port of hosts without one.

    Raises:
        InvalidOptionError: A line is no host, or a host appears twice. The message names the line or the host.
    """
    nodes = []
    if not text.lstrip().startswith("["):
        for number, line in enumerate(text.splitlines(), 1):
            target, *pairs = line.partition("#")[0].split() or [""]
            if target:
                nodes.append(_node(target, node_labels(pairs, f"line {number}"), port, f"line {number}"))
        return _unique(nodes)
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(f"it is not JSON: {error}") from None
    for number, group in enumerate(groups, 1):
        match group:
            case {"targets": list(targets), **rest} if all(isinstance(target, str) for target in targets):
                labels = rest.get("labels") or {}
            case _:
                raise InvalidOptionError(f"group {number} has no list of targets")
        if not isinstance(labels, dict) or not all(_LABEL.fullmatch(name) and isinstance(value, str) for name, value in labels.items()):
            raise InvalidOptionError(f"group {number}: its labels are not texts by name")
        nodes += [_node(target, labels, port, f"group {number}") for target in targets]
    return _unique(nodes)


def read_hosts(path: str, port: int = PORT) -> list[Node]:
    """Read and parse a hosts file (see :func:`parse_hosts`).

    Raises:
        InvalidOptionError: The file cannot be read, or a line is no host. The message names the file.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise InvalidOptionError(f"it has more than {LARGEST_FILE >> 20} MiB")
        return parse_hosts(text, port)
    except OSError as error:
        raise InvalidOptionError(f"the hosts file {path} cannot be read: {error.strerror}") from error
    except (InvalidOptionError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"the hosts file {path}: {error}") from error


def hosts_file(path: str) -> Callable[[], list[Node]]:
    """Return a function that returns the nodes of a hosts file and reads the file again when it has changed.

    If a changed file cannot be read, the function logs that once and returns the previous nodes.

    Raises:
        InvalidOptionError: The file cannot be read now.
    """
    seen, nodes = file_state(Path(path)), read_hosts(path)

    def latest() -> list[Node]:
        nonlocal seen, nodes
        now = file_state(Path(path))
        if now != seen:
            seen = now  # also before a failure, so that a broken file is logged once and not at each call
            try:
                nodes = read_hosts(path)
            except InvalidOptionError as error:
                log.warning("the previous nodes are used: %s", error)
        return nodes

    return latest


def slurm_nodes(listed: str = "", partition: str = "", port: int = PORT) -> list[Node]:
    """Return the nodes of a Slurm host list (``scontrol``), or all nodes of the cluster in any state (``sinfo``).

    Args:
        listed: The host list: ``gpu[001-064]``, or a job's ``SLURM_JOB_NODELIST``. Empty for all nodes.
        partition: Only nodes of this partition. Empty for all. Not used with a host list.
        port: The port on which each node serves.

    Raises:
        SourceError: The command is missing, fails, or times out.
        InvalidOptionError: The command prints a word that is no host.
    """
    # A Command fills in braces in its environment, so braces in the path are doubled.
    config = os.environ.get("SLURM_CONF", "").replace("{", "{{").replace("}", "}}")
    environment = {"SLURM_CONF": config} if config else {}
    if listed:
        command, words = "scontrol", ["show", "hostnames", listed]
    else:
        command, words = "sinfo", ["--noheader", "--Node", "--format=%N", *([f"--partition={partition}"] if partition else [])]
    done = Command(command, environment=environment, install=INSTALL, timeout=SLURM_TIMEOUT).run(*words)
    if done.returncode:
        raise SourceError(Reason.DRIVER_ERROR, f"{command} failed (exit status {done.returncode}): {done.words}")
    return _unique(_node(name, {}, port, command) for name in dict.fromkeys(done.stdout.split()))


def service_discovery(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Return the nodes as target groups for Prometheus' ``file_sd`` and ``http_sd``, one group for each set of labels."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node in nodes:
        labels = {**node.labels, **({} if node.scheme == "http" else {"__scheme__": node.scheme})}
        groups.setdefault(tuple(sorted(labels.items())), []).append(node.target)
    return [{"targets": targets, "labels": dict(labels)} for labels, targets in groups.items()]


def _node(text: str, labels: Mapping[str, str], port: int, where: str) -> Node:
    found = _TARGET.fullmatch(text)
    if not labels.get("__metrics_path__", "/").startswith("/"):  # behind a port it could name another host
        raise InvalidOptionError(f"{where}: __metrics_path__ must begin with /")
    if found is None or int(found[3] or port) > 65535:
        raise InvalidOptionError(f"{where}: {text[:200]!r} is not a host: write node-1, node-1:{PORT} or https://node-1")
    scheme = found[1] or labels.get("__scheme__") or "http"
    if scheme not in {"http", "https"}:
        raise InvalidOptionError(f"{where}: the scheme {scheme!r} is neither http nor https")
    kept = {name: value for name, value in labels.items() if name != "__scheme__"}
    return Node(f"{found[2]}:{int(found[3] or port)}", kept, scheme)


def node_labels(pairs: Iterable[str], where: str) -> dict[str, str]:
    """Parse labels of Prometheus, each ``NAME=VALUE``.

    Args:
        pairs: The labels.
        where: Their place, for error messages.

    Raises:
        InvalidOptionError: A word is no label, or a name appears twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _LABEL.fullmatch(name):
            raise InvalidOptionError(f"{where}: {pair[:200]!r} is no label: write NAME=VALUE, such as rack=a17")
        if name in found:
            raise InvalidOptionError(f"{where}: the label {name} appears twice")
        found[name] = value
    return found


def _unique(nodes: Iterable[Node]) -> list[Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        if node.target in found:
            raise InvalidOptionError(f"{node.target} appears twice")
        found[node.target] = node
        if len(found) > MOST_NODES:
            raise InvalidOptionError(f"there are more than {MOST_NODES} nodes")
    return list(found.values())
