"""What processes of a job tell each other in files of their own."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from accelmetrics.sampling.channel import WRITE_DELAY, NodeChannel
from accelmetrics.sampling.rank_file import LONGEST, MESSAGES, SIZES, STEPS, RankFile, Ranks
from accelmetrics.sampling.slot_file import PAGE
from tests.support.programs import Program
from tests.support.waiting import wait_for

MEMBER = """
    import os, sys
    from pathlib import Path
    from accelmetrics.sampling.rank_file import RankFile
    file = RankFile(Path(sys.argv[1]), {"pid": os.getpid()})
    tell("made")
"""
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
LOGGED = st.tuples(
    st.integers(0, 2**62), st.none() | st.integers(-(2**62), 2**62), st.dictionaries(st.text(max_size=9), NUMBERS, max_size=70)
)


def looked(files: Path) -> Ranks:
    """What looks for the first time."""
    ranks = Ranks(files)
    ranks.look()
    return ranks


def pids(ranks: Ranks) -> set[int]:
    ranks.look()
    return {rank.wishes.get("pid", 0) for rank in ranks.alive.values()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LOGGED, max_size=5))
def test_steps_come_as_they_were_logged(tmp_path: Path, steps: list[tuple[int, int | None, dict[str, int | float]]]) -> None:
    """One that does not fit into a slot of steps comes as a message, unless it is longer than those."""
    ranks, file = looked(tmp_path / "job"), RankFile(tmp_path / "job", {})
    file.steps([(time_ns, step, 1.5, values) for time_ns, step, values in steps])
    ranks.look()
    (rank,) = ranks.alive.values()
    numbers = [(time_ns, step, values) for told in rank.received(STEPS) for time_ns, step, _, values in told]
    others = [(time_ns, step, values) for told in rank.received(MESSAGES) for time_ns, step, _, values in told]
    assert sorted(map(repr, numbers + others)) == sorted(repr(one) for one in steps if len(json.dumps(one)) < 3500)
    assert all(len(json.dumps(one)) > 400 for one in others)
    file.close()
    ranks.look()
    assert not ranks.alive
    ranks.close()


def test_numbers_that_are_not_finite_and_large_ones_come_too(tmp_path: Path) -> None:
    ranks, file = looked(tmp_path / "job"), RankFile(tmp_path / "job", {})
    file.steps([(5, 3, 1.0, {"loss": math.nan, "norm": -math.inf, "tokens": 2**63 - 1}), (6, None, 1.0, {"n": 2**64})])
    ranks.look()
    (rank,) = ranks.alive.values()
    ((first, second),) = rank.received(STEPS)
    assert repr(first) == "[5, 3, 1.0, {'loss': nan, 'norm': -inf, 'tokens': 9223372036854775807}]"
    assert repr(second) == f"[6, None, 1.0, {{'n': {2**64}}}]"
    file.close()


def test_messages_are_what_json_has_and_short(tmp_path: Path) -> None:
    ranks, file = looked(tmp_path / "job"), RankFile(tmp_path / "job", {})
    assert file.message({"text": "ä" * 600})
    assert not file.message({"text": "a" * LONGEST})
    assert not file.message({"number": math.nan})
    assert not file.message({"object": object()})
    ranks.look()
    (rank,) = ranks.alive.values()
    assert list(rank.received(MESSAGES)) == [{"text": "ä" * 600}]
    assert list(rank.received(MESSAGES)) == []
    file.close()


def test_who_comes_later_hears_what_is_told_from_then_on(tmp_path: Path) -> None:
    file = RankFile(tmp_path / "job", {"interval": 1.0})
    file.message({"number": 1})
    ranks = looked(tmp_path / "job")
    (rank,) = ranks.alive.values()
    assert rank.wishes == {"interval": 1.0}
    file.message({"number": 2})
    assert list(rank.received(MESSAGES)) == [{"number": 2}]
    second = RankFile(tmp_path / "job", {"interval": 2.0})
    second.message({"number": 3})
    file.wish({"interval": 0.5})
    ranks.look()
    assert [one.wishes for one in ranks.alive.values() if one is not rank] == [{"interval": 2.0}]
    assert [list(one.received(MESSAGES)) for one in ranks.alive.values() if one is not rank] == [[{"number": 3}]]
    assert rank.wishes == {"interval": 0.5}
    file.close()
    second.close()


def test_what_was_overwritten_before_it_was_read_is_counted(tmp_path: Path) -> None:
    ranks, file = looked(tmp_path / "job"), RankFile(tmp_path / "job", {})
    slots = SIZES[STEPS][1]
    for number in range(slots + 10):
        file.steps([(number, number, 1.0, {"loss": 0.5})])
    ranks.look()
    (rank,) = ranks.alive.values()
    assert [step for ((_, step, _, _),) in rank.received(STEPS)] == list(range(10, slots + 10))
    assert rank.dropped == 10
    file.close()


def test_any_thread_may_log(tmp_path: Path) -> None:
    ranks, file, channel = looked(tmp_path / "job"), RankFile(tmp_path / "job", {}), NodeChannel()
    channel.join(file)

    def log() -> None:
        for number in range(200):
            channel.step(1.0, 1, number, {"loss": 0.5})

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        channel.tell(math.inf)
    channel.tell(math.inf)
    ranks.look()
    (rank,) = ranks.alive.values()
    assert sorted(step for told in rank.received(STEPS) for _, step, _, _ in told) == sorted(4 * list(range(200)))
    file.close()


def test_a_signal_handler_may_log_at_any_point(tmp_path: Path) -> None:
    text = """
    import signal
    from accelmetrics.sampling.channel import NodeChannel
    channel, handled = NodeChannel(), []
    channel.join(file)
    def log(*_):
        handled.append(channel.step(1.0, 2, 2, {"loss": 0.5}))
    signal.signal(signal.SIGALRM, log)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    for number in range(500):
        channel.step(1.0, 1, 1, {"loss": 0.5})
        channel.tell(float("inf") if number % 10 == 0 else 0.0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    channel.tell(float("inf"))
    tell(len(handled))
    wait_to_go_on()
    """
    ranks = looked(tmp_path / "job")
    with Program(MEMBER + text, str(tmp_path / "job")) as program:
        assert program.told() == ["made"]
        (handled,) = program.told()
        ranks.look()
        (rank,) = ranks.alive.values()
        times = [time_ns for told in rank.received(STEPS) for time_ns, _, _, _ in told]
        assert (times.count(1), times.count(2)) == (500, handled)


def test_steps_are_written_together_and_in_time(tmp_path: Path) -> None:
    """Who logs the first one has the thread woken that writes; while steps come, it comes by itself."""
    ranks, file, channel = looked(tmp_path / "job"), RankFile(tmp_path / "job", {}), NodeChannel()
    assert not channel.step(9.0, 0, 0, {})  # nobody takes part
    channel.join(file)
    assert channel.tell(9.0) == math.inf
    assert [channel.step(10.0, number, number, {"loss": 0.5}) for number in range(3)] == [True, False, False]
    ranks.look()
    (rank,) = ranks.alive.values()
    assert channel.tell(10.1) == 10 + WRITE_DELAY
    assert not list(rank.received(STEPS))
    assert channel.tell(11.0) == 11 + WRITE_DELAY
    (told,) = rank.received(STEPS)
    assert [step for _, step, _, _ in told] == [0, 1, 2]
    assert not channel.step(11.5, 3, 3, {"loss": 0.5})
    assert channel.tell(12.5) == 12.5 + WRITE_DELAY
    assert channel.tell(14.0) == math.inf
    assert len(list(rank.received(STEPS))) == 1
    assert channel.step(14.5, 4, 4, {"loss": 0.5})
    channel.join(None)
    assert channel.tell(99.0) == math.inf
    file.close()


def test_what_a_process_told_before_it_ended_is_heard(tmp_path: Path) -> None:
    text = """
    wait_to_go_on()
    file.steps([(1, 7, 1.0, {})])
    tell("told")
    wait_to_go_on()
    """
    ranks = looked(tmp_path / "job")
    with Program(MEMBER + text, str(tmp_path / "job")) as program:
        program.told()
        assert pids(ranks) == {program.pid}
        program.go_on()
        program.told()
        program.process.kill()
        wait_for(lambda: not pids(ranks))
        (rank,) = ranks.ended
        assert list(rank.received(STEPS)) == [[[1, 7, 1.0, {}]]]
        ranks.look()
        assert not ranks.ended


def test_a_process_that_was_killed_is_gone_and_its_file_too(tmp_path: Path) -> None:
    """Not one that is stopped; and a child of a fork that lives on does not count for it."""
    text = """
    child = os.fork()
    if child == 0:
        import signal
        signal.pause()
    tell(child)
    wait_to_go_on()
    """
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(MEMBER + text, str(tmp_path / "job"))) for _ in range(3)]
        children = []
        for program in programs:
            program.told()
            children += program.told()
        ranks = looked(tmp_path / "job")
        assert pids(ranks) == {program.pid for program in programs}
        os.kill(programs[0].pid, signal.SIGSTOP)
        programs[1].process.kill()
        wait_for(lambda: pids(ranks) == {programs[0].pid, programs[2].pid})
        assert len(list(tmp_path.iterdir())) == 2
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_a_file_that_cannot_be_removed_is_heard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the file system is read-only for the process that looks."""

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    ranks = looked(tmp_path / "job")
    text = """
    file.steps([(1, 7, 1.0, {})])
    tell("told")
    wait_to_go_on()
    """
    with Program(MEMBER + text, str(tmp_path / "job")) as program:
        program.told()
        program.told()
        program.process.kill()
    monkeypatch.setattr(Path, "unlink", refused)
    ranks.look()
    assert [list(rank.received(STEPS)) for rank in ranks.ended] == [[[[1, 7, 1.0, {}]]]]
    ranks.look()
    assert not (ranks.alive or ranks.ended)
    ranks.close()


def test_looking_does_not_end_ones_own_lock(tmp_path: Path) -> None:
    """Of two monitors of a process too: a descriptor that is closed would take the lock with it."""
    files = [RankFile(tmp_path / "job", {"pid": number}) for number in (1, 2)]
    ranks = looked(tmp_path / "job")
    assert pids(ranks) == {1, 2}
    ranks.close()
    text = """
    from accelmetrics.sampling.rank_file import Ranks
    ranks = Ranks(Path(sys.argv[1]))
    ranks.look()
    tell(sorted(rank.wishes["pid"] for rank in ranks.alive.values()))
    """
    with Program(MEMBER + text, str(tmp_path / "job")) as program:
        program.told()
        assert program.told() == [[1, 2, program.pid]]
    for file in files:
        file.close()


def test_a_file_whose_descriptor_was_closed_or_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    text = """
    def close():
        for number in range(3, 100):
            if os.path.exists(path := f"/proc/self/fd/{number}") and "job" in os.readlink(path):
                os.close(number)
    for end in (close, lambda: file.path.unlink()):
        wait_to_go_on()
        end()
        others = [open(Path(sys.argv[1]).with_name("other"), "w+b") for _ in range(5)]
        file.steps([(1, 1, 1.0, {"loss": 0.5})])
        tell(others[0].seek(0, 2))
    wait_to_go_on()
    """
    ranks = looked(tmp_path / "job")
    with Program(MEMBER + text, str(tmp_path / "job")) as program:
        program.told()
        for _ in range(2):
            before = pids(ranks) and list(ranks.alive)
            program.go_on()
            assert program.told() == [0]
            assert pids(ranks) == {program.pid}
            assert list(ranks.alive) != before
            (rank,) = ranks.alive.values()
            assert [step for ((_, step, _, _),) in rank.received(STEPS)] == [1]


def test_hostile_contents_are_passed_over(tmp_path: Path) -> None:
    file = RankFile(tmp_path / "job", {"pid": 1})
    for number in range(5):
        file.steps([(number, number, 1.0, {"loss": 0.5})])
        file.message({"number": number})
    whole = bytearray(file.path.read_bytes())
    file.close()
    path = tmp_path / "job.1-hostile.rank"
    begins = [PAGE + sum(slot * slots for slot, slots in SIZES[:part]) for part in range(len(SIZES))]
    for seed in range(150):
        chance, content = random.Random(seed), whole.copy()
        for _ in range(chance.choice((1, 3, 30))):
            begin = chance.choice((0, 128, *[begins[part] + slot * chance.randrange(6) for part, (slot, _) in enumerate(SIZES)]))
            content[begin + chance.randrange(100)] = chance.choice((0, 255, chance.randrange(256)))
        path.write_bytes(content)
        ranks = Ranks(tmp_path / "job")
        ranks._looked = True
        held = path.open("r+b")
        with held, Locked(held.fileno()):
            ranks.look()
            for rank in ranks.alive.values():
                assert all(len(step) == 4 for told in rank.received(STEPS) for step in told)
                assert all(isinstance(message, dict) for message in rank.received(MESSAGES))
            ranks.close()
    path.write_bytes(whole[: len(whole) // 2])
    assert not looked(tmp_path / "job").alive


class Locked:
    """Another process that has a file locked."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._ready, ready = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_EX)
            os.write(ready, b"!")
            signal.pause()
        os.read(self._ready, 1)
        os.close(ready)

    def __exit__(self, *_: object) -> None:
        os.close(self._ready)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
