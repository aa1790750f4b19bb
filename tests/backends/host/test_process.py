"""The watched process alone."""

import pytest

from accelmetrics.backends.host.process import SHARES, Cpus, parse_allowed, parse_process
from tests.backends.host.tree import PAGE, PID, TICK, HostTree

STAT = b"77 (%s) S 1 77 77 0 -1 4194560 100 0 0 0 %d %d 30 4 20 0 12 0 8812345 1234567 2048 18446744073709551615 1 1 0\n"
KEYS = ("cpu", "proc.cpu.threads", "proc.memory.rssMB", "proc.memory.percent")


@pytest.mark.parametrize("name", [b"python", b"a b", b"((", b") S 1 (x", b"tmux: server", b"\xff\xfe", b"line\nbreak"])
def test_names_may_hold_anything(name: bytes) -> None:
    process = parse_process(STAT % (name, 10, 5), 10_000_000, 4096)
    assert (process.pid, process.parent, process.start, process.threads, process.rss) == (77, 1, 8812345, 12, 2048 * 4096)
    assert process.own == (150_000_000, 100_000_000, 50_000_000)
    assert process.waited == (340_000_000, 300_000_000, 40_000_000)


def test_counters_beyond_32_bits_are_read() -> None:
    assert parse_process(STAT % (b"x", 2**40, 0), 1, 1).own == (2**40, 2**40, 0)


def test_a_finer_clock_takes_the_place_of_ticks() -> None:
    assert parse_process(STAT % (b"x", 10, 5), 10_000_000, 4096, own=123).own == (123, 100_000_000, 50_000_000)


@pytest.mark.parametrize("text", [b"", b"77 (x)", b"77 (x) S 1 2 3", STAT.replace(b"%d", b"-1") % b"x"])
def test_what_is_no_entry_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"fields|number"):
        parse_process(text, 1, 1)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        (b"Name:\tx\nCpus_allowed_list:\t0-3,6\n", ((0, 3), (6, 6))),
        (b"Cpus_allowed_list:\t5\n", ((5, 5),)),
        (b"Cpus_allowed:\tff\nCpus_allowed_list:\t0-99999999999\n", ((0, 99999999999),)),
    ],
)
def test_allowed_cpus(text: bytes, ranges: Cpus) -> None:
    assert parse_allowed(text) == ranges


def test_cpu_is_time_over_the_interval_and_the_cpus(tree: HostTree) -> None:
    watch = tree.reader()
    assert "cpu" not in watch.read()
    assert watch.reason("cpu") == "needs_interval"
    tree.process(PID, ticks=TICK)
    assert watch.read(2.0)["cpu"] == pytest.approx(25.0)  # 1 s of CPU in 2 s on the 2 CPUs that are on, of 8 allowed


def test_user_and_system_time_add_up(tree: HostTree) -> None:
    """Of the interval and the CPUs as the whole is, and kept for a while: ticks of 10 ms are coarse."""
    watch = tree.watch()
    assert watch.reason(SHARES[1]) == watch.reason(SHARES[2]) == "needs_interval"
    tree.process(PID, ticks=TICK, system=TICK // 2)
    values = watch.read(2.0)
    assert [values[mode] for mode in SHARES[1:]] == pytest.approx([25.0, 12.5])
    assert values["cpu"] == pytest.approx(37.5)
    tree.process(PID, ticks=TICK, system=TICK // 2 + TICK // 20)
    soon = watch.read(0.1)
    assert soon["cpu"] > 0.0
    assert [soon[mode] for mode in SHARES[1:]] == [values[mode] for mode in SHARES[1:]]
    tree.process(PID, ticks=TICK, system=TICK)
    later = watch.read(0.9)
    assert [later[mode] for mode in SHARES[1:]] == pytest.approx([0.0, 25.0])


def test_modes_of_a_process_that_has_ended_are_not_in_use(tree: HostTree) -> None:
    watch = tree.watch()
    tree.process(PID, state="Z")
    watch.read(1.0)
    assert {watch.reason(key) for key in (*KEYS, *SHARES)} == {"not_in_use"}


def test_modes_say_why_the_process_cannot_be_read(tree: HostTree) -> None:
    tree.write(f"/proc/{PID}/stat", "nonsense")
    watch = tree.watch()
    assert {watch.reason(key) for key in (*KEYS, *SHARES)} == {"parse_error"}


@pytest.mark.parametrize(("used", "percent"), [({}, 0.0), ({"waited": TICK}, 0.0), ({"ticks": 2 * TICK + 3}, 100.0)])
def test_what_counts_of_what_was_used(tree: HostTree, used: dict[str, int], percent: float) -> None:
    """An idle process says 0, what children handed to it counts with children alone, and rounding above the whole is cut off."""
    watch = tree.watch()
    tree.process(PID, **used)  # type: ignore[arg-type]
    assert watch.read(1.0)["cpu"] == percent


@pytest.mark.parametrize(("status", "ticks"), [("Cpus_allowed_list:\t1\n", TICK // 2), ("", TICK)])
def test_affinity_is_what_divides(tree: HostTree, status: str, ticks: int) -> None:
    """Where it is not known, the CPUs that are on do."""
    tree.write(f"/proc/{PID}/status", status)
    watch = tree.watch()
    tree.process(PID, ticks=ticks)
    tree.write(f"/proc/{PID}/status", status)
    assert watch.read(1.0)["cpu"] == pytest.approx(50.0)


def test_more_time_than_there_was_is_invalid_and_not_100(tree: HostTree) -> None:
    watch = tree.watch()
    tree.process(PID, ticks=20 * TICK)
    assert "cpu" not in watch.read(1.0)
    assert watch.reason("cpu") == "invalid_value"


def test_a_reading_without_time_in_between_is_no_division_by_zero(tree: HostTree) -> None:
    watch = tree.watch()
    assert "cpu" not in watch.read(0.0)
    assert watch.reason("cpu") == "needs_interval"


def test_a_zombie_at_the_first_reading_has_ended_too(tree: HostTree) -> None:
    tree.process(PID, state="Z", pages=0)
    watch = tree.watch()
    assert watch.detail("cpu") == f"process {PID} has ended"


def test_a_process_whose_first_thread_ended_lives_on(tree: HostTree) -> None:
    tree.process(PID, state="Z", threads=3)
    assert tree.reader().read()["proc.cpu.threads"] == 3


def test_an_entry_that_makes_no_sense_is_a_parse_error_for_one_reading(tree: HostTree) -> None:
    watch = tree.watch()
    tree.write(f"/proc/{PID}/stat", "what?")
    watch.read(1.0)
    assert {watch.reason(key) for key in KEYS} == {"parse_error"}
    tree.process(PID, ticks=TICK)
    values = watch.read(1.0)
    assert values["cpu"] == pytest.approx(25.0)  # over the two seconds since it was last read
    assert values["proc.memory.rssMB"] == pytest.approx(100 * PAGE / 2**20)
