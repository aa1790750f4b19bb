"""Block devices, file systems, bytes over the network and TCP segments sent again."""

import os
from pathlib import Path

import pytest

from accelmetrics.backends.host.disks_network import parse_diskstats, parse_net_dev, parse_retransmits
from tests.backends.host.tree import NET_HEAD, SNMP, HostTree

SECTORS_PER_MIB = 2048
DISK_KEYS = ("disk.in", "disk.out", "disk.sda.in", "disk.sda.out", "disk.sda.readBps", "disk.sda.writeBps")
REAL = b"""   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 12164 7698 23680580000000 8434 4015 22409 994944 2178 0 3072 10857 3726 46 44872 228 403 16
 259       1 nvme0n1p1 1 1 1 1 1 1 1 1 1 1 1
   8       0 sda 1 0 5000000000 0 0 0 9223372036854775807 0 0 0 0
"""


def names(tree: HostTree) -> set[str]:
    """Devices that a reading has keys for."""
    watch = tree.watch()
    return {key[5:-8] for key in watch.reading.unavailable if key.startswith("disk.") and key.endswith(".readBps")}


def test_lines_of_every_age_and_counters_beyond_32_bits_are_read() -> None:
    stats = parse_diskstats(REAL)
    assert stats["nvme0n1"][0] == 23680580000000 * 512
    assert stats["sda"][1] == 9223372036854775807 * 512
    assert stats["nvme0n1p1"][2] == (259, 1)


def test_totals_count_from_the_first_reading_which_needs_an_interval(tree: HostTree) -> None:
    watch = tree.reader()
    assert not watch.read().keys() & set(DISK_KEYS)
    assert {watch.reason(key) for key in DISK_KEYS} == {"needs_interval"}
    tree.disks({"sda": (1000 + 4 * SECTORS_PER_MIB, 2000 + 2 * SECTORS_PER_MIB)})
    values = watch.read(2.0)
    assert values["disk.sda.in"] == values["disk.in"] == pytest.approx(4.0)
    assert values["disk.sda.out"] == values["disk.out"] == pytest.approx(2.0)
    assert values["disk.sda.readBps"] == pytest.approx(2 * 2**20)
    assert values["disk.sda.writeBps"] == pytest.approx(2**20)
    values = watch.read(1.0)
    assert values["disk.sda.in"] == pytest.approx(4.0)
    assert values["disk.sda.readBps"] == 0.0


def test_loop_devices_and_memory_are_no_disks(tree: HostTree) -> None:
    tree.disks({"loop0": (1, 1), "ram0": (1, 1), "zram0": (1, 1), "sda": (1, 1), "vda": (1, 1)})
    assert names(tree) == {"sda", "vda"}


def test_partitions_are_told_by_their_names_without_sysfs(tree: HostTree) -> None:
    whole = {"sda", "nvme0n1", "mmcblk0", "xvda", "vdb", "dm-0", "md127", "sdaa", "sr0"}
    parts = {"sda1", "nvme0n1p1", "mmcblk0p2", "mmcblk0boot0", "xvda1", "vdb15", "md127p1", "sdaa3"}
    tree.disks(dict.fromkeys(sorted(whole | parts), (1, 1)))
    assert names(tree) == whole


def test_sysfs_knows_better_than_names(tree: HostTree) -> None:
    tree.block("xvda1")
    tree.block("cciss!c0d0")
    tree.block("nvme0c0n1", hidden=1)
    tree.disks({"xvda1": (1, 1), "cciss/c0d0": (1, 1), "cciss/c0d0p1": (1, 1), "nvme0c0n1": (1, 1)})
    assert names(tree) == {"xvda1", "cciss/c0d0"}


@pytest.mark.parametrize("sysfs", [True, False])
def test_the_sum_counts_no_byte_twice(tree: HostTree, sysfs: bool) -> None:
    if sysfs:
        for name, slaves in {"nvme0n1": (), "nvme1n1": (), "dm-0": ("nvme0n1p2",), "md0": ("nvme0n1", "nvme1n1")}.items():
            tree.block(name, *slaves)
    devices = ("nvme0n1", "nvme0n1p2", "nvme1n1", "dm-0", "md0")
    tree.disks(dict.fromkeys(devices, (0, 0)))
    watch = tree.watch()
    tree.disks(dict.fromkeys(devices, (SECTORS_PER_MIB, 0)))
    values = watch.read(1.0)
    assert values["disk.in"] == pytest.approx(2.0)
    assert values["disk.dm-0.in"] == values["disk.md0.in"] == pytest.approx(1.0)


def test_the_device_below_a_watched_path_is_named_though_it_is_a_partition(tree: HostTree) -> None:
    device = tree.root.stat().st_dev
    line = f"{os.major(device)} {os.minor(device)} sda1 1 0 0 0 0 0 {{}} 0 0 0 0\n"
    tree.write("/proc/diskstats", "8 0 sda 1 0 0 0 0 0 0 0 0 0 0\n" + line.format(0) + "8 99 sda2 1 0 0 0 0 0 0 0 0 0 0\n")
    watch = tree.watch(disk_paths=(str(tree.root),))
    tree.write("/proc/diskstats", "8 0 sda 1 0 0 0 0 0 2048 0 0 0 0\n" + line.format(2048) + "8 99 sda2 1 0 0 0 0 0 0 0 0 0 0\n")
    values = watch.read(1.0)
    assert values["disk.sda1.out"] == values["disk.sda.out"] == values["disk.out"] == pytest.approx(1.0)
    assert "disk.sda2.out" not in values


def test_a_disks_counter_that_falls_neither_goes_back_nor_jumps(tree: HostTree) -> None:
    watch = tree.watch()
    tree.disks({"sda": (1000 + SECTORS_PER_MIB, 2000)})
    watch.read(1.0)
    tree.disks({"sda": (5, 2000)})
    values = watch.read(1.0)
    assert values["disk.sda.in"] == values["disk.in"] == pytest.approx(1.0)
    assert "disk.sda.readBps" not in values
    assert watch.reason("disk.sda.readBps") == "needs_interval"
    tree.disks({"sda": (5 + SECTORS_PER_MIB, 2000)})
    assert watch.read(1.0)["disk.sda.in"] == pytest.approx(2.0)


def test_a_device_that_comes_back_is_counted_anew(tree: HostTree) -> None:
    tree.disks({"sda": (0, 0), "sdb": (0, 0)})
    watch = tree.watch()
    tree.disks({"sda": (0, 0)})
    values = watch.read(1.0)
    assert "disk.sdb.in" not in values
    assert "disk.sdb.in" not in watch.reading.unavailable
    tree.disks({"sda": (0, 0), "sdb": (10**9, 0)})
    assert watch.read(1.0)["disk.in"] == 0.0
    assert watch.reason("disk.sdb.in") == "needs_interval"
    tree.disks({"sda": (0, 0), "sdb": (10**9 + SECTORS_PER_MIB, 0)})
    values = watch.read(1.0)
    assert values["disk.sdb.in"] == values["disk.in"] == pytest.approx(1.0)


def test_without_devices_or_file_the_totals_say_so(tree: HostTree) -> None:
    tree.disks({"loop0": (1, 1)})
    watch = tree.watch()
    assert watch.reason("disk.in") == watch.reason("disk.out") == "not_supported"
    tree.remove("/proc/diskstats")
    watch = tree.watch()
    assert watch.reason("disk.in") == "not_supported"
    tree.write("/proc/diskstats", "8 0 sda 1 2\n")
    watch.read()
    assert watch.reason("disk.out") == "parse_error"


def test_file_systems_are_measured_as_df_does(tree: HostTree, tmp_path: Path) -> None:
    stat = os.statvfs(tmp_path)
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    values = tree.reader(disk_paths=(str(tmp_path),)).read()
    assert values[f"disk.{tmp_path}.usageGB"] == pytest.approx(used / 2**30, rel=0.05)
    assert values[f"disk.{tmp_path}.usagePercent"] == pytest.approx(100 * used / (used + stat.f_bavail * stat.f_frsize), abs=2)


def test_a_path_that_is_not_there_costs_its_own_keys(tree: HostTree, tmp_path: Path) -> None:
    watch = tree.reader(disk_paths=("/no/such/place", "bad\0path", str(tmp_path)))
    values = watch.read()
    assert watch.reason("disk./no/such/place.usageGB") == watch.reason("disk./no/such/place.usagePercent") == "not_supported"
    assert watch.reason("disk.bad\0path.usageGB") == "parse_error"
    assert f"disk.{tmp_path}.usageGB" in values


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="platform: needs a file system without a size")
def test_a_file_system_without_a_size_is_not_zero_percent_full(tree: HostTree) -> None:
    watch = tree.reader(disk_paths=("/proc",))
    assert "disk./proc.usagePercent" not in watch.read()
    assert watch.reason("disk./proc.usagePercent") == "not_supported"


NETWORK_KEYS = ("network.sent", "network.recv", "network.sentBps", "network.recvBps")


def test_names_touch_their_numbers_and_may_hold_colons() -> None:
    text = NET_HEAD + "  eth0:1:366068781123    9647 0 0 0 0 0 0 18446744073709551615 6115 0 0 0 0 0 0\n"
    assert parse_net_dev(text.encode()) == {"eth0:1": (366068781123, 18446744073709551615)}


def test_bytes_count_from_the_first_reading_without_loopback(tree: HostTree) -> None:
    watch = tree.reader()
    assert not watch.read().keys() & set(NETWORK_KEYS)
    assert {watch.reason(key) for key in NETWORK_KEYS} == {"needs_interval"}
    tree.network({"lo": (10**9, 10**9), "eth0": (1500, 2200)})
    values = watch.read(2.0)
    assert [values[key] for key in NETWORK_KEYS] == [200, 500, 100.0, 250.0]
    assert isinstance(values["network.sent"], int)
    values = watch.read(1.0)
    assert [values[key] for key in NETWORK_KEYS] == [200, 500, 0.0, 0.0]


def test_loopback_is_known_by_its_flag_too(tree: HostTree) -> None:
    tree.write("/sys/class/net/dummy0/flags", "0x8\n")
    tree.write("/sys/class/net/eth0/flags", "0x1003\n")
    tree.network({"dummy0": (0, 0), "eth0": (0, 0)})
    watch = tree.watch()
    tree.network({"dummy0": (7, 7), "eth0": (3, 2)})
    assert watch.read(1.0)["network.recv"] == 3


@pytest.mark.parametrize("late", [False, True])
def test_the_ports_of_a_bond_stand_in_the_bonds_own_numbers(tree: HostTree, late: bool) -> None:
    """An interface that becomes a port later is left out ten seconds later at most."""
    tree.network({"bond0": (0, 0), "eth0": (0, 0)})
    watch = tree.watch() if late else tree.reader()
    tree.write("/sys/class/net/eth0/master/ifindex", "4\n")
    watch.read(10.0)
    tree.network({"bond0": (100, 50), "eth0": (100, 50)})
    values = watch.read(1.0)
    assert (values["network.recv"], values["network.sent"]) == (100, 50)


def test_an_interface_that_comes_later_counts_from_then_on(tree: HostTree) -> None:
    watch = tree.watch()
    tree.network({"eth0": (1000, 2000), "wg0": (10**12, 10**12)})
    assert watch.read(1.0)["network.recv"] == 0
    tree.network({"eth0": (1000, 2000), "wg0": (10**12 + 5, 10**12)})
    assert watch.read(1.0)["network.recv"] == 5


def test_an_interfaces_counter_that_falls_neither_goes_back_nor_jumps(tree: HostTree) -> None:
    watch = tree.watch()
    tree.network({"eth0": (1010, 2010)})
    watch.read(1.0)
    tree.network({"eth0": (3, 4)})
    values = watch.read(1.0)
    assert [values.get(key) for key in NETWORK_KEYS] == [10, 10, None, None]
    assert watch.reason("network.recvBps") == "needs_interval"
    tree.network({"eth0": (5, 4)})
    assert watch.read(1.0)["network.recv"] == 12


def test_a_machine_without_a_network(tree: HostTree) -> None:
    """No interface but loopback is no traffic of 0 bytes; one that comes later is counted from then on."""
    tree.network({"lo": (5, 5)})
    watch = tree.reader()
    for _ in range(2):
        values = watch.read(1.0)
        assert not [name for name in values if name.startswith("network.") and name != "network.tcpRetransmits"]
    assert watch.detail("network.recv") == "loopback is the only network interface"
    tree.network({"lo": (5, 5), "eth0": (1000, 2000)})
    watch.read(1.0)
    tree.network({"lo": (5, 5), "eth0": (1010, 2020)})
    assert watch.read(1.0)["network.recv"] == 10


def test_an_interface_that_goes_leaves_what_it_gave(tree: HostTree) -> None:
    watch = tree.watch()
    tree.network({"eth0": (1010, 2010)})
    watch.read(1.0)
    tree.network({"lo": (5, 5)})
    assert watch.read(1.0)["network.sent"] == 10


@pytest.mark.parametrize("text", ["eth0: 1 2 3\n", "eth0: a 0 0 0 0 0 0 0 1 0\n", "eth0: -1 0 0 0 0 0 0 0 1 0\n"])
def test_a_line_that_makes_no_sense_is_a_parse_error(tree: HostTree, text: str) -> None:
    tree.write("/proc/net/dev", NET_HEAD + text)
    watch = tree.watch()
    assert {watch.reason(key) for key in NETWORK_KEYS} == {"parse_error"}


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
    watch = tree.watch()
    tree.network({"eth0": (1100, 2000)})
    assert watch.read(0.05)["network.recv"] == 100, "the second reading has an interval, however short"
    tree.network({"eth0": (1300, 2000)})
    assert watch.read(0.2)["network.recv"] == 100
    values = watch.read(0.8)
    assert values["network.recv"] == 300
    assert values["network.recvBps"] == pytest.approx(200 / 1.0), "the rate is over the interval that was really taken"
