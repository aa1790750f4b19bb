"""Ports of InfiniBand and RoCE, from a tree of files as the kernel's drivers lay it out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from accelmetrics.backends.host.collector import PORT_FILES
from accelmetrics.dialects.prometheus import PROMETHEUS
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from tests.backends.host.tree import HostTree

CLASS = "/sys/class/infiniband"


def port(tree: HostTree, adapter: str, number: int = 1, **files: str) -> None:
    """A port; a file's folder stands before two underscores."""
    usual = {
        "state": "4: ACTIVE",
        "rate": "200 Gb/sec (4X HDR)",
        "counters__port_rcv_data": "250",
        "counters__port_xmit_data": "1000",
        "counters__port_rcv_packets": "7",
        "counters__symbol_error": "0",
    }
    for name, text in {**usual, **files}.items():
        tree.write(f"{CLASS}/{adapter}/ports/{number}/{name.replace('__', '/')}", f"{text}\n")


def test_words_of_four_bytes_become_bytes_and_rates(tree: HostTree) -> None:
    """Totals are the port's own from the first reading on; a rate needs two."""
    port(tree, "mlx5_0")
    watch = tree.reader()
    first = watch.read()
    assert first["ib.mlx5_0.1.rxBytesTotal"] == 1000
    assert first["ib.mlx5_0.1.txBytesTotal"] == 4000
    assert watch.reason("ib.mlx5_0.1.rxBps") == "needs_interval"
    port(tree, "mlx5_0", counters__port_rcv_data="750")
    second = watch.read(2.0)
    assert second["ib.mlx5_0.1.rxBps"] == pytest.approx(1000.0)
    assert second["ib.mlx5_0.1.txBps"] == 0.0
    assert second["ib.mlx5_0.1.rxPacketsTotal"] == 7


@pytest.mark.parametrize(
    ("state", "rate", "active", "megabits"),
    [
        ("4: ACTIVE", "200 Gb/sec (4X HDR)", 1, 200_000),
        ("1: DOWN", "2.5 Gb/sec (1X SDR)", 0, 2_500),
        ("2: INIT", "400 Gb/sec (4X NDR)", 0, 400_000),
        ("5: ACTIVE_DEFER", "800 Gb/sec (8X NDR)", 0, 800_000),
    ],
)
def test_links(state: str, rate: str, active: int, megabits: float, tree: HostTree) -> None:
    """Only an active link carries data."""
    port(tree, "mlx5_0", state=state, rate=rate)
    values = tree.reader().read()
    assert (values["ib.mlx5_0.1.linkActive"], values["ib.mlx5_0.1.linkRate"]) == (active, megabits)


def test_every_file_has_its_value(tree: HostTree) -> None:
    """Each counter under its own key, those of the hardware among them; two adapters, one with two ports."""
    files = {file.replace("/", "__"): str(10 + place) for place, file in enumerate(PORT_FILES.values()) if "/" in file}
    port(tree, "rocep1s0", 1, **files)
    port(tree, "mlx5_0", 1)
    port(tree, "mlx5_0", 2)
    values = tree.reader().read()
    for place, (name, file) in enumerate(PORT_FILES.items()):
        if "/" in file:
            assert values[f"ib.rocep1s0.1.{name}"] == (10 + place) * (4 if "Bytes" in name else 1)
    assert "ib.mlx5_0.2.rxBytesTotal" in values


def test_what_an_adapter_does_not_count_has_no_key(tree: HostTree) -> None:
    """Neither a value nor a reason; one that says N/A, or nonsense, has its reason and costs nothing else."""
    port(tree, "mlx5_0", counters__symbol_error="N/A (no PMA)", counters__link_downed=str(1 << 64), state="?", rate="fast")
    watch = tree.reader()
    values = watch.read()
    assert not [key for key in (*values, *watch.reading.unavailable) if "cnp" in key]
    for name in ("symbolErrorsTotal", "linkDownedTotal", "linkActive", "linkRate"):
        assert watch.reason(f"ib.mlx5_0.1.{name}") == "parse_error"
    assert values["ib.mlx5_0.1.rxBytesTotal"] == 1000


def test_counters_that_are_reset(tree: HostTree) -> None:
    """The rate says so once; the total is the port's own again."""
    port(tree, "mlx5_0")
    watch = tree.watch()
    port(tree, "mlx5_0", counters__port_rcv_data="1")
    values = watch.read(1.0)
    assert values["ib.mlx5_0.1.rxBytesTotal"] == 4
    assert watch.reason("ib.mlx5_0.1.rxBps") == "needs_interval"


def test_adapters_that_go_and_come(tree: HostTree) -> None:
    """Their keys go with them, and a rate does not span the time between."""
    port(tree, "mlx5_0")
    watch = tree.watch()
    shutil.rmtree(Path(f"{tree.root}{CLASS}"))
    assert not [key for key in watch.read(1.0) if key.startswith("ib.")]
    port(tree, "mlx5_0", counters__port_rcv_data="9999")
    assert "ib.mlx5_0.1.rxBytesTotal" in watch.read(1.0)
    assert watch.reason("ib.mlx5_0.1.rxBps") == "needs_interval"


def test_adapters_are_looked_for_every_ten_seconds(tree: HostTree) -> None:
    """One that is new shows then."""
    port(tree, "mlx5_0")
    watch = tree.watch()
    port(tree, "mlx5_1")
    assert "ib.mlx5_1.1.rxBytesTotal" not in watch.read(1.0)
    assert {"ib.mlx5_0.1.rxBytesTotal", "ib.mlx5_1.1.rxBytesTotal"} <= watch.read(9.0).keys()


def test_names_that_are_none(tree: HostTree) -> None:
    """Files and folders beside adapters and ports are passed over."""
    port(tree, "mlx5_0")
    tree.write(f"{CLASS}/abi_version", "1")
    tree.write(f"{CLASS}/mlx5_0/ports/x.y/state", "4: ACTIVE")
    tree.write(f"{CLASS}/a b/ports/1/state", "4: ACTIVE")
    assert {key.rpartition(".")[0] for key in tree.reader().read() if key.startswith("ib.")} == {"ib.mlx5_0.1"}


def test_only_what_is_wanted_is_read(tree: HostTree) -> None:
    """A rate needs its counter's file, and no other is opened."""
    port(tree, "mlx5_0", state="?")
    watch = tree.watch(metrics="ib.*.rxBps")
    port(tree, "mlx5_0", state="?", counters__port_rcv_data="500")
    assert watch.read(1.0)["ib.mlx5_0.1.rxBps"] == pytest.approx(1000.0)
    assert not [key for key in watch.reading.unavailable if key.endswith(("linkActive", "symbolErrorsTotal"))]


def test_series_name_the_port(tree: HostTree) -> None:
    """In Prometheus, in base units."""
    port(tree, "mlx5_0")
    values = tree.reader().read()
    points = PROMETHEUS.flat(Record(Snapshot(1, "node", dict(values))))
    assert points['accel_infiniband_bytes_total{port="mlx5_0.1",direction="rx"}'] == 1000
    assert points['accel_infiniband_link_bytes_per_second{port="mlx5_0.1"}'] == 25e9
    assert points['accel_infiniband_errors_total{port="mlx5_0.1",error="symbol"}'] == 0
