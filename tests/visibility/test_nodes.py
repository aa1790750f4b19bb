"""Files of hosts, what Slurm lists, and service discovery as Prometheus takes it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from accelmetrics.schemas.errors import InvalidOptionError, SourceError
from accelmetrics.visibility.nodes import Node, hosts_file, parse_hosts, read_hosts, service_discovery, slurm_nodes

HOSTS = """\
# the rack by the door
node-1
node-2:9400  rack=a17 partition=gpu   # with a comment

https://node-3.example/ rack=a17
[fe80::1]:9000
10.0.0.7
"""


def test_a_file_of_hosts() -> None:
    """Ports and labels where a line has any; comments and empty lines are passed over."""
    assert parse_hosts(HOSTS, 22235) == [
        Node("node-1:22235", {}),
        Node("node-2:9400", {"rack": "a17", "partition": "gpu"}),
        Node("node-3.example:22235", {"rack": "a17"}, "https"),
        Node("[fe80::1]:9000", {}),
        Node("10.0.0.7:22235", {}),
    ]


def test_what_is_written_is_read() -> None:
    """Targets by their labels; a file of service discovery is a file of hosts too, and keeps scheme and path."""
    nodes = parse_hosts(HOSTS, 22235)
    found = service_discovery(nodes)
    assert {"targets": ["node-1:22235", "[fe80::1]:9000", "10.0.0.7:22235"], "labels": {}} in found
    assert {"targets": ["node-3.example:22235"], "labels": {"__scheme__": "https", "rack": "a17"}} in found
    assert {node.target: (node.labels, node.scheme) for node in parse_hosts(json.dumps(found))} == {
        node.target: (node.labels, node.scheme) for node in nodes
    }
    (node,) = parse_hosts('[{"targets": ["a:1"], "labels": {"__metrics_path__": "/m", "rack": "x"}}]')
    assert (node.url, node.labels["rack"], node.address("/api/record")) == ("http://a:1/m", "x", "http://a:1/api/record")
    assert parse_hosts("") == parse_hosts("[]") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node-1\nnode 2", "line 2: '2' is no label"),
        ("node a=1 a=2", "line 1: the label a appears twice"),
        ("node:port", "line 1: 'node:port' is not a host"),
        ("node:70000", "line 1: 'node:70000' is not a host"),
        ("ftp://node", "line 1: 'ftp://node' is not a host"),
        ("node/metrics", "line 1"),
        ("node -x=1", "'-x=1' is no label"),
        ("node\nnode:22235", "node:22235 appears twice"),
        ("[{", "not JSON"),
        ('[{"labels": {}}]', "group 1 has no list of targets"),
        ('[{"targets": [1]}]', "group 1 has no list of targets"),
        ('[{"targets": ["a"], "labels": {"x": 1}}]', "group 1: its labels"),
        ('[{"targets": ["a"], "labels": {"__scheme__": "gopher"}}]', "group 1: the scheme 'gopher'"),
        ("node __scheme__=gopher", "line 1: the scheme 'gopher'"),
        ("node __metrics_path__=@elsewhere/metrics", "line 1: __metrics_path__ must begin with /"),
    ],
)
def test_what_is_no_host(text: str, said: str) -> None:
    """The line, or the group, is named."""
    with pytest.raises(InvalidOptionError, match=said):
        parse_hosts(text)


@given(st.text() | st.text('[]{}":,abclrsgt 1').map(lambda text: f"[{text}"))
def test_any_text_is_hosts_or_refused(text: str) -> None:
    """Nothing else is thrown."""
    try:
        found = parse_hosts(text)
    except InvalidOptionError:
        return
    assert len({node.target for node in found}) == len(found)


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read again; one that cannot be read is told once, and the nodes of before count."""
    path = tmp_path / "nodes"
    path.write_text("a\n")
    hosts = hosts_file(str(path))
    assert [node.target for node in hosts()] == ["a:22235"]
    path.write_text("a\nbb\n")
    assert [node.target for node in hosts()] == ["a:22235", "bb:22235"]
    path.write_text("a b c d\n")
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        for _ in range(3):
            assert len(hosts()) == 2
        path.unlink()
        assert len(hosts()) == 2
    assert len(caplog.records) == 2
    path.write_text("c\n")
    assert [node.target for node in hosts()] == ["c:22235"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"x" * (4 * 1024 * 1024 + 1)])
def test_a_file_that_is_none(content: bytes | None, tmp_path: Path) -> None:
    """Its name is in the words."""
    path = tmp_path / "nodes"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidOptionError, match=str(path)):
        read_hosts(str(path))


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Stand-ins for Slurm's commands: shell scripts, before all others."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nodes_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node in several partitions counts once; a host list is Slurm's to read; the configuration that is named reaches the commands."""
    monkeypatch.setenv("SLURM_CONF", "/etc/{odd}/slurm.conf")
    commands(
        tmp_path / "bin",
        monkeypatch,
        sinfo='[ "$*" = "--noheader --Node --format=%N --partition=gpu" ] && echo "-$SLURM_CONF" && exit; printf "a\\nb\\na\\n"',
        scontrol='[ "$1 $2 $3" = "show hostnames gpu[1-2]" ] && printf "gpu1\\ngpu2\\n"',
    )
    assert [node.target for node in slurm_nodes()] == ["a:22235", "b:22235"]
    assert [node.target for node in slurm_nodes("gpu[1-2]", port=9)] == ["gpu1:9", "gpu2:9"]
    with pytest.raises(InvalidOptionError, match=r"sinfo: '-/etc/\{odd\}/slurm\.conf' is not a host"):
        slurm_nodes(partition="gpu")


def test_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are told."""
    commands(tmp_path / "bin", monkeypatch, sinfo='echo "sinfo: error: no controller" >&2; exit 1')
    with pytest.raises(SourceError, match=r"sinfo failed \(exit status 1\): sinfo: error: no controller"):
        slurm_nodes()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="scontrol was not found"):
        slurm_nodes("a[1-2]")
