"""``accelmetrics serve --fleet``: the pages of real nodes as one, and nodes that are away, hang, or answer with something else."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelmetrics.exporters.http.fleet import merge
from accelmetrics.exporters.http.node_poller import FleetNode, Page
from tests.backends.test_openmetrics import Endpoint
from tests.cli.shell import call, one_line
from tests.cli.test_serve import get, ready, serving
from tests.exporters.prometheus_server import check_metrics
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import wait_for


@contextmanager
def silent() -> Iterator[str]:
    """A node that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def up(page: str) -> dict[str, float]:
    return {
        instance: float(value) for instance, value in re.findall(r'^accelmetrics_fleet_up\{instance="([^"]+)"\} (\S+)$', page, re.MULTILINE)
    }


def test_the_pages_of_two_nodes_and_of_three_that_have_none(tmp_path: Path) -> None:
    """Series of both stand beside each other, by instance and with the file's labels; each other node costs itself alone."""
    hosts = tmp_path / "hosts"
    with Endpoint() as gone:
        pass
    with NvmlSimulator(2) as simulator, silent() as hanging, Endpoint("<html>") as strange:
        nodes = ("--backends", "nvidia")
        with (
            serving(*nodes, **simulator.environment()) as (_, first),
            serving(*nodes, **simulator.environment()) as (second_process, second),
        ):
            ready(first)
            ready(second)
            names = [
                base.removeprefix("http://")
                for base in (first, second, strange.url.removesuffix("/metrics"), gone.url.removesuffix("/metrics"))
            ]
            hosts.write_text(f"{names[0]} rack=a\n{names[1]} rack=b\n{names[2]}\n{names[3]}\n{hanging}\n")
            with serving("--backends", "host", "--fleet", str(hosts)) as (_, fleet):
                status, page = get(f"{fleet}/fleet/metrics", **{"X-Prometheus-Scrape-Timeout-Seconds": "6"})
                assert status == 200
                assert up(page) == {names[0]: 1.0, names[1]: 1.0, names[2]: 0.0, names[3]: 0.0, hanging: 0.0}
                for name, rack in zip(names, "ab", strict=False):
                    assert re.search(
                        rf'^accel_power_watts\{{accelerator="gpu\.1",instance="{name}",rack="{rack}",uuid="GPU-', page, re.MULTILINE
                    )
                assert page.count("# TYPE accel_power_watts gauge") == 1
                targets = json.loads(get(f"{fleet}/fleet/targets")[1])
                assert {target for group in targets for target in group["targets"]} == {*names, hanging}
                second_process.kill()
                hosts.write_text(f"{names[0]}\n{names[1]}\n")
                wait_for(lambda: up(get(f"{fleet}/fleet/metrics")[1]) == {names[0]: 1.0, names[1]: 0.0})


def test_the_fleet_has_the_password_of_the_endpoint(tmp_path: Path) -> None:
    """Its pages are let in as the others are; the token that nodes want is sent to them."""
    token, hosts = tmp_path / "token", tmp_path / "hosts"
    token.write_text("open-sesame-open-sesame\n")
    with serving("--backends", "host", "--bearer-token-file", str(token)) as (_, node):
        hosts.write_text(node.removeprefix("http://"))
        options = ("--fleet", str(hosts), "--fleet-token-file", str(token), "--bearer-token-file", str(token))
        with serving("--backends", "host", *options) as (_, fleet):
            for path in ("/fleet/metrics", "/fleet/targets"):
                assert get(fleet + path)[0] == 401
            page = get(f"{fleet}/fleet/metrics", Authorization="Bearer open-sesame-open-sesame")[1]
            assert list(up(page).values()) == [1.0]


def test_without_the_option_there_is_no_such_page(tmp_path: Path) -> None:
    """And files that cannot be read are told before anything is served."""
    with serving("--backends", "host") as (_, base):
        assert get(f"{base}/fleet/metrics")[0] == 404
    hosts = tmp_path / "hosts"
    hosts.write_text("a\n")
    for options, said in (
        (("--fleet-token-file", str(hosts)), "are for --fleet"),
        (("--fleet", str(tmp_path / "none")), "the file of hosts"),
        (("--fleet", str(hosts), "--fleet-token-file", str(tmp_path / "none")), "the fleet's token"),
        (("--fleet", str(hosts), "--fleet-ca", str(hosts)), "the fleet's token or authorities"),
    ):
        done = call("serve", "--listen", "127.0.0.1:0", "--backends", "host", *options)
        assert done.returncode == 2 and said in one_line(done.stderr)


def test_scrapes_at_the_same_time_share_a_round(tmp_path: Path) -> None:
    """A node is asked once for all of them."""
    hosts = tmp_path / "hosts"
    release = threading.Event()
    with Endpoint("a 1\n") as node:
        node.before = lambda: release.wait(60)
        hosts.write_text(node.url.removeprefix("http://").removesuffix("/metrics"))
        with serving("--backends", "host", "--fleet", str(hosts)) as (_, fleet):
            pages: list[str] = []
            threads = [threading.Thread(target=lambda: pages.append(get(f"{fleet}/fleet/metrics")[1])) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_for(lambda: node.asked)
            release.set()
            for thread in threads:
                thread.join()
    assert len(node.asked) == 1
    assert [list(up(page).values()) for page in pages] == [[1.0]] * 4


NODES = [FleetNode(f"node-{number}:22235", "", {}) for number in range(3)]


def test_pages_are_merged_as_prometheus_wants_them() -> None:
    """One help and type a metric; an instance that a series has already is kept aside; of two types the first counts."""
    first = '# HELP a Help of a.\n# TYPE a gauge\na{instance="x",b="\\"q\\n"} 1\n# TYPE n_total counter\nn_total 2\n'
    second = '# TYPE a gauge\na 2\n# TYPE n counter\nn 3\n# TYPE h histogram\nh_bucket{le="+Inf"} 1\nh_count 1\nh_sum 1\n'
    third = "# TYPE a summary\na_count 9\na_sum 1\n"
    page = merge([Page(node, text) for node, text in zip(NODES, (first, second, third), strict=True)]).decode()
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert lines == [
        *(f'accelmetrics_fleet_up{{instance="{node.instance}"}} 1.0' for node in NODES),
        'a{b="\\"q\\n",exported_instance="x",instance="node-0:22235"} 1.0',
        'a{instance="node-1:22235"} 2.0',
        'n_total{instance="node-0:22235"} 2.0',
        'h_bucket{instance="node-1:22235",le="+Inf"} 1.0',
        'h_count{instance="node-1:22235"} 1.0',
        'h_sum{instance="node-1:22235"} 1.0',
    ]
    assert page.count("# TYPE a gauge") == 1


@pytest.mark.servers
def test_promtool_accepts_the_page() -> None:
    """Also where a node has nothing."""
    page = merge(
        [Page(NODES[0], "# HELP accel_x_bytes Help.\n# TYPE accel_x_bytes gauge\naccel_x_bytes 1\n"), Page(NODES[1], failure="away")]
    )
    assert check_metrics(page) == ""
