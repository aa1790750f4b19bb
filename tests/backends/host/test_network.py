"""Bytes over the network and TCP segments sent again."""

import pytest

from accelmetrics.backends.host.disks_network import parse_net_dev, parse_retransmits
from tests.backends.host.tree import NET_HEAD, SNMP, HostTree

KEYS = ("network.sent", "network.recv", "network.sentBps", "network.recvBps")


def test_names_touch_their_numbers_and_may_hold_colons() -> None:
    text = NET_HEAD + "  eth0:1:366068781123    9647 0 0 0 0 0 0 18446744073709551615 6115 0 0 0 0 0 0\n"
    assert parse_net_dev(text.encode()) == {"eth0:1": (366068781123, 18446744073709551615)}


def test_bytes_count_from_the_first_reading_without_loopback(tree: HostTree) -> None:
    watch = tree.reader()
    assert not watch.read().keys() & set(KEYS)
    assert {watch.reason(key) for key in KEYS} == {"needs_interval"}
    tree.network({"lo": (10**9, 10**9), "eth0": (1500, 2200)})
    values = watch.read(2.0)
    assert [values[key] for key in KEYS] == [200, 500, 100.0, 250.0]
    assert isinstance(values["network.sent"], int)
    values = watch.read(1.0)
    assert [values[key] for key in KEYS] == [200, 500, 0.0, 0.0]


def test_loopback_is_known_by_its_flag_too(tree: HostTree) -> None:
    tree.write("/sys/class/net/dummy0/flags", "0x8\n")
    tree.write("/sys/class/net/eth0/flags", "0x1003\n")
    tree.network({"dummy0": (0, 0), "eth0": (0, 0)})
    watch = tree.reader()
    watch.read()
    tree.network({"dummy0": (7, 7), "eth0": (3, 2)})
    assert watch.read(1.0)["network.recv"] == 3


def test_the_ports_of_a_bond_stand_in_the_bonds_own_numbers(tree: HostTree) -> None:
    tree.write("/sys/class/net/eth0/master/ifindex", "4\n")
    tree.network({"bond0": (0, 0), "eth0": (0, 0)})
    watch = tree.reader()
    watch.read()
    tree.network({"bond0": (100, 50), "eth0": (100, 50)})
    values = watch.read(1.0)
    assert (values["network.recv"], values["network.sent"]) == (100, 50)


def test_an_interface_that_comes_later_counts_from_then_on(tree: HostTree) -> None:
    watch = tree.reader()
    watch.read()
    tree.network({"eth0": (1000, 2000), "wg0": (10**12, 10**12)})
    assert watch.read(1.0)["network.recv"] == 0
    tree.network({"eth0": (1000, 2000), "wg0": (10**12 + 5, 10**12)})
    assert watch.read(1.0)["network.recv"] == 5


def test_a_counter_that_falls_neither_goes_back_nor_jumps(tree: HostTree) -> None:
    watch = tree.reader()
    watch.read()
    tree.network({"eth0": (1010, 2010)})
    watch.read(1.0)
    tree.network({"eth0": (3, 4)})
    values = watch.read(1.0)
    assert [values.get(key) for key in KEYS] == [10, 10, None, None]
    assert watch.reason("network.recvBps") == "needs_interval"
    tree.network({"eth0": (5, 4)})
    assert watch.read(1.0)["network.recv"] == 12


def test_an_interface_that_goes_leaves_what_it_gave(tree: HostTree) -> None:
    watch = tree.reader()
    watch.read()
    tree.network({"eth0": (1010, 2010)})
    watch.read(1.0)
    tree.network({"lo": (5, 5)})
    assert watch.read(1.0)["network.sent"] == 10


@pytest.mark.parametrize("text", ["eth0: 1 2 3\n", "eth0: a 0 0 0 0 0 0 0 1 0\n", "eth0: -1 0 0 0 0 0 0 0 1 0\n"])
def test_a_line_that_makes_no_sense_is_a_parse_error(tree: HostTree, text: str) -> None:
    tree.write("/proc/net/dev", NET_HEAD + text)
    watch = tree.reader()
    watch.read()
    assert {watch.reason(key) for key in KEYS} == {"parse_error"}


def test_segments_sent_again_count_from_the_first_reading(tree: HostTree) -> None:
    watch = tree.reader()
    assert "network.tcpRetransmits" not in watch.read()
    assert watch.reason("network.tcpRetransmits") == "needs_interval"
    tree.write("/proc/net/snmp", SNMP.format(retransmits=12))
    assert watch.read(1.0)["network.tcpRetransmits"] == 5
    tree.write("/proc/net/snmp", SNMP.format(retransmits=2))
    assert watch.read(1.0)["network.tcpRetransmits"] == 5


@pytest.mark.parametrize("text", [b"", b"Tcp: A B\nTcp: 1 2\n", b"Tcp: A RetransSegs\nTcp: 1\n", b"Tcp: RetransSegs\nTcp: x\n"])
def test_what_holds_no_such_number_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"missing|fewer|number"):
        parse_retransmits(text)


def test_from_the_third_reading_on_disks_and_network_keep_a_pace_of_their_own(tree: HostTree) -> None:
    watch = tree.reader()
    watch.read()
    tree.network({"eth0": (1100, 2000)})
    assert watch.read(0.05)["network.recv"] == 100, "the second reading has an interval, however short"
    tree.network({"eth0": (1300, 2000)})
    assert watch.read(0.2)["network.recv"] == 100
    values = watch.read(0.8)
    assert values["network.recv"] == 300
    assert values["network.recvBps"] == pytest.approx(200 / 1.0), "the rate is over the interval that was really taken"
