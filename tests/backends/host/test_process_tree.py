"""The watched process with its descendants."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.host import process
from accelmetrics.backends.host.collector import Process
from accelmetrics.backends.host.process import TreeCpuTime
from tests.backends.host.tree import PAGE, PID, TICK, HostTree, Watch

CHILD, GRANDCHILD = 5001, 5002


@pytest.fixture
def watch(tree: HostTree) -> Watch:
    """A process with one child and one grandchild, read once."""
    tree.process(PID, children=(CHILD,))
    tree.process(CHILD, parent=PID, threads=2, children=(GRANDCHILD,))
    tree.process(GRANDCHILD, parent=CHILD, pages=300)
    found = tree.reader(children=True)
    found.read()
    return found


def end(tree: HostTree, pid: int) -> None:
    """Take a process's entry away."""
    tree.remove(f"/proc/{pid}/stat")
    tree.remove(f"/proc/{pid}/task/{pid}/children")


def test_threads_memory_and_time_are_summed(tree: HostTree, watch: Watch) -> None:
    tree.process(PID, ticks=TICK // 4, children=(CHILD,))
    tree.process(CHILD, ticks=TICK // 4, parent=PID, threads=2, children=(GRANDCHILD,))
    tree.process(GRANDCHILD, ticks=TICK // 2, parent=CHILD, pages=300)
    values = watch.read(1.0)
    assert values["cpu"] == pytest.approx(50.0)
    assert values["proc.cpu.threads"] == 4
    assert values["proc.memory.rssMB"] == pytest.approx(500 * PAGE / 2**20)


def test_modes_are_summed_and_what_ended_children_used_is_kept(tree: HostTree, watch: Watch) -> None:
    """A child that ends hands what it used to its parent, in user time here; what had been counted is not counted again."""
    tree.process(PID, ticks=TICK // 4, system=TICK // 4, children=(CHILD,))
    tree.process(CHILD, ticks=TICK // 2, parent=PID, threads=2, children=())
    end(tree, GRANDCHILD)
    values = watch.read(1.0)
    assert (values["proc.cpu.userPercent"], values["proc.cpu.systemPercent"]) == pytest.approx((37.5, 12.5))
    tree.process(PID, ticks=TICK // 4, system=TICK // 4, waited=TICK, children=())
    end(tree, CHILD)
    values = watch.read(1.0)
    assert (values["proc.cpu.userPercent"], values["proc.cpu.systemPercent"]) == pytest.approx((25.0, 0.0))
    assert values["cpu"] == pytest.approx(25.0)


def test_descendants_count_only_where_they_are_asked_for(tree: HostTree, watch: Watch) -> None:
    assert tree.reader().read()["proc.cpu.threads"] == 1


def test_children_of_every_thread_are_found(tree: HostTree) -> None:
    tree.process(PID, threads=2, children=())
    tree.children(PID, PID + 1, (CHILD,))
    tree.process(CHILD, parent=PID)
    assert tree.reader(children=True).read()["proc.cpu.threads"] == 3


def test_a_child_born_in_the_interval_counts_in_full(tree: HostTree, watch: Watch) -> None:
    tree.process(PID, children=(CHILD, 5003))
    tree.process(5003, ticks=TICK // 2, parent=PID, start=6000)
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_a_child_adopted_with_its_past_counts_from_now_on(tree: HostTree, watch: Watch) -> None:
    tree.process(PID, children=(CHILD, 5003))
    tree.process(5003, ticks=5000 * TICK, parent=PID)
    assert watch.read(1.0)["cpu"] == 0.0
    tree.process(5003, ticks=5000 * TICK + TICK // 2, parent=PID)
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_what_an_ended_child_used_last_is_kept(tree: HostTree, watch: Watch) -> None:
    tree.process(CHILD, ticks=3 * TICK, parent=PID, children=())
    end(tree, GRANDCHILD)
    watch.read(4.0)
    end(tree, CHILD)
    # Half a second more before it ended, and its whole life is handed to the parent that waited for it.
    tree.process(PID, waited=3 * TICK + TICK // 2, children=())
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_a_child_born_and_ended_between_two_readings_counts(tree: HostTree, watch: Watch) -> None:
    tree.process(PID, waited=TICK // 2, children=(CHILD,))
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_an_ended_child_that_was_never_waited_for_does_not_make_it_negative(tree: HostTree, watch: Watch) -> None:
    tree.process(CHILD, ticks=TICK, parent=PID, children=())
    end(tree, GRANDCHILD)
    watch.read(1.0)
    end(tree, CHILD)
    tree.process(PID, ticks=TICK // 2, children=())
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_a_whole_branch_that_ends_is_settled_with_the_nearest_ancestor(tree: HostTree, watch: Watch) -> None:
    tree.process(CHILD, ticks=TICK, parent=PID, threads=2, children=(GRANDCHILD,))
    tree.process(GRANDCHILD, ticks=TICK, parent=CHILD)
    watch.read(2.0)
    end(tree, CHILD)
    end(tree, GRANDCHILD)
    tree.process(PID, waited=2 * TICK + TICK // 2, children=())
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_a_child_that_the_listing_missed_stays_in_the_family(tree: HostTree, watch: Watch) -> None:
    tree.children(PID, PID, ())
    tree.process(CHILD, ticks=TICK // 2, parent=PID, threads=2)
    values = watch.read(1.0)
    assert values["cpu"] == pytest.approx(25.0)
    assert values["proc.cpu.threads"] >= 3


def test_a_child_that_left_for_another_parent_leaves_without_a_trace(tree: HostTree, watch: Watch) -> None:
    tree.process(PID, children=())
    tree.process(CHILD, ticks=TICK, parent=1, threads=2, children=(GRANDCHILD,))
    values = watch.read(1.0)
    assert values["cpu"] == 0.0
    assert values["proc.cpu.threads"] == 1


def test_a_descendant_whose_number_is_given_again_is_another_process(tree: HostTree, watch: Watch) -> None:
    tree.process(CHILD, ticks=TICK, parent=PID, threads=2, children=(GRANDCHILD,))
    watch.read(1.0)
    tree.process(PID, waited=TICK, children=(CHILD,))
    tree.process(CHILD, ticks=TICK // 2, parent=PID, start=9000)
    assert watch.read(1.0)["cpu"] == pytest.approx(25.0)


def test_a_zombie_child_keeps_its_time_and_has_no_thread(tree: HostTree, watch: Watch) -> None:
    tree.process(CHILD, ticks=TICK // 2, parent=PID, state="Z", pages=0, children=(GRANDCHILD,))
    values = watch.read(1.0)
    assert values["cpu"] == pytest.approx(25.0)
    assert values["proc.cpu.threads"] == 2


def test_lists_that_name_each_other_end(tree: HostTree) -> None:
    tree.process(PID, children=(CHILD, CHILD, PID))
    tree.process(CHILD, parent=PID, children=(PID, CHILD))
    assert tree.reader(children=True).read()["proc.cpu.threads"] == 2


def test_without_lists_of_children_the_parents_are_read_in_one_pass(tree: HostTree) -> None:
    tree.process(PID, children=None)
    tree.remove(f"/proc/{PID}/task/{PID}/children")
    tree.process(CHILD, parent=PID, children=None)
    tree.process(GRANDCHILD, parent=CHILD, children=None)
    tree.process(6000, parent=1, children=None)
    tree.write("/proc/5/stat", "broken")
    assert tree.reader(children=True).read()["proc.cpu.threads"] == 3


def opened(watch: Watch, mocker: MockerFixture) -> int:
    """How many files one reading of the family opens."""
    spy = mocker.spy(process, "read_once")
    watch.read(1.0)
    calls = spy.call_count
    mocker.stopall()
    return calls


def test_the_cost_follows_the_family_and_not_the_host(tree: HostTree, watch: Watch, mocker: MockerFixture) -> None:
    watch.read(0.1)
    alone = opened(watch, mocker)
    for pid in range(7000, 7300):
        tree.process(pid)
    assert opened(watch, mocker) == alone
    assert 0 < alone < 12


@pytest.fixture
def usage() -> TreeCpuTime:
    return TreeCpuTime(lambda pid: None)


def test_time_handed_up_is_settled_parent_by_parent(usage: TreeCpuTime) -> None:
    nothing = (0, 0, 0)
    root = Process(1, 0, 0, nothing, nothing, 1, 0, False)
    left = Process(2, 0, 1, nothing, nothing, 1, 0, False)
    lost = Process(3, 0, 1, (1000, 1000, 0), nothing, 1, 0, False)
    ended = Process(4, 0, 2, (50, 20, 30), nothing, 1, 0, False)
    usage.advance([root, left, lost, ended], 1e9)
    # The root never waited for its child; the other branch did, and its ended member had used 5 more.
    used, _ = usage.advance([root, left._replace(waited=(55, 22, 33))], 1e9)
    assert used == (5, 2, 3)


def cpu_clock_of_this_process() -> int:
    clock: Callable[[int], int | None] = process.cpu_clock
    value = clock(os.getpid())
    assert value is not None
    return value


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="platform: reads /proc")
def test_the_cpu_clock_is_finer_than_ticks_and_agrees_with_them() -> None:
    times = os.times()
    assert cpu_clock_of_this_process() / 1e9 == pytest.approx(times.user + times.system, abs=0.05)
    before = cpu_clock_of_this_process()
    sum(range(20_000))
    assert 0 < cpu_clock_of_this_process() - before < 1e9


def test_a_process_that_is_not_there_has_no_clock() -> None:
    assert process.cpu_clock(2**22 + 5) is None
    assert process.cpu_clock(2**40) is None


def test_the_clock_is_left_alone_where_proc_numbers_processes_otherwise(tree: HostTree) -> None:
    assert not process.numbers_are_ours()
    (tree.root / "proc/self").symlink_to("31")
    assert not process.numbers_are_ours()
    (tree.root / "proc/self").unlink()
    (tree.root / "proc/self").symlink_to(str(os.getpid()))
    assert process.numbers_are_ours()
