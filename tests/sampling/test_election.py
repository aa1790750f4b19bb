"""Who of a job's processes reads: real processes that are killed, stopped, forked, and that lose what they hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from accelmetrics.sampling.election import BELL, DEPUTY, LOCK, RING, Bell, Lock, job_files, lease_of, ring_bell, sweep, with_end
from accelmetrics.sampling.slot_file import NotSharedError
from tests.support.programs import Program
from tests.support.waiting import wait_for

MEMBER = """
    import os, sys, threading
    from pathlib import Path
    from accelmetrics.sampling.election import lease_of
    lease = lease_of(Path(sys.argv[1]))
    elected = threading.Event()
    def lead():
        tell("leads", os.getpid())
        elected.set()
    lease.join(lead)
    tell("joined", lease.leader is not None)
"""
"""The beginning of a program that would read for others."""


@contextmanager
def member(files: Path, text: str = "wait_to_go_on()") -> Iterator[Program]:
    """A process that has joined."""
    with Program(MEMBER + "    " + text, str(files)) as program:
        yield program


def leads(program: Program) -> int:
    """Wait until a process reads; which it is."""
    while (told := program.told())[0] != "leads":
        pass
    return int(told[1])


def waits(program: Program) -> bool:
    """Whether a process waits for a lock in the kernel: one that does not yet would find the next file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {program.pid} " in line for line in lines)


def is_free(files: Path) -> bool:
    """Whether another process could lock the job's lock now."""
    code = f"import fcntl; fcntl.lockf(open({str(with_end(files, LOCK))!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("how", ["kill", "stop and kill", "leave"])
def test_when_the_one_that_reads_ends_another_one_does(tmp_path: Path, how: str) -> None:
    files = tmp_path / "job"
    with ExitStack() as stack:
        first = stack.enter_context(member(files, "wait_to_go_on(); lease.leave(lead); wait_to_go_on()"))
        assert leads(first) == first.pid
        others = [stack.enter_context(member(files)) for _ in range(3)]
        assert [program.told() for program in others] == [["joined", False]] * 3
        if how == "leave":
            first.go_on()
        else:
            if how == "stop and kill":
                os.kill(first.pid, signal.SIGSTOP)
            first.process.kill()
        wait_for(lambda: any(program.has_told() for program in others))
        assert sum(program.has_told() for program in others) == 1


FORKS = {
    "os.fork": "child = os.fork()",
    "C fork": "import ctypes; child = ctypes.PyDLL(None).fork()",
    "spawn": "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).pid",
    "posix_spawn without closing": """import subprocess
    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, close_fds=False).pid""",
}


@pytest.mark.parametrize("how", FORKS)
def test_children_keep_nothing_of_the_lock(tmp_path: Path, how: str) -> None:
    """A child that lives on does not keep the job without a reader; one that ends does not take the lock from its parent."""
    files = tmp_path / "job"
    text = f"""
    elected.wait()
    {FORKS[how]}
    if child == 0:
        import signal
        signal.pause()
    tell("child", child)
    wait_to_go_on()
    """
    with Program(MEMBER + text, str(files)) as first:
        leads(first)
        while (told := first.told())[0] != "child":
            pass
        assert not is_free(files)
        first.process.kill()
        first.process.wait()
        try:
            assert Path(f"/proc/{told[1]}").exists()
            with member(files) as second:
                assert leads(second) == second.pid
        finally:
            os.kill(told[1], signal.SIGKILL)


@pytest.mark.parametrize("how", ["os.fork", "C fork"])
def test_a_child_that_ends_leaves_its_parent_the_lock(tmp_path: Path, how: str) -> None:
    text = f"""
    elected.wait()
    {FORKS[how]}
    if child == 0:
        os.closerange(3, 100)
        os._exit(0)
    os.waitpid(child, 0)
    tell("waited")
    wait_to_go_on()
    """
    files = tmp_path / "job"
    with Program(MEMBER + text, str(files)) as first:
        while first.told() != ["waited"]:
            pass
        assert not is_free(files)


def test_a_child_joins_for_itself(tmp_path: Path) -> None:
    text = """
    elected.wait()
    if os.fork() == 0:
        lease = lease_of(Path(sys.argv[1]))
        lease.join(lambda: tell("leads", os.getpid()))
        tell("child", lease.leader is not None)
        import signal
        signal.pause()
    wait_to_go_on()
    """
    with Program(MEMBER + text, str(tmp_path / "job")) as first:
        leads(first)
        while (told := first.told())[0] != "child":
            pass
        assert told == ["child", False]
        first.process.kill()
        child = leads(first)
        assert child != first.pid
        os.kill(child, signal.SIGKILL)


def test_a_process_that_closes_all_descriptors_does_not_read_with_another_one(tmp_path: Path) -> None:
    """It has lost the lock without a word. It can see so, and gets in line again."""
    text = """
    elected.wait()
    for number in range(3, 100):
        if os.path.exists(path := f"/proc/self/fd/{number}") and "job" in os.readlink(path):
            os.close(number)
    others = [open(os.devnull) for _ in range(5)]
    tell("holds", lease.lock.is_current)
    wait_to_go_on()
    lease.leave(lead)
    lease.join(lambda: tell("leads", os.getpid()))
    wait_to_go_on()
    """
    files = tmp_path / "job"
    with Program(MEMBER + text, str(files)) as first:
        while (told := first.told())[0] != "holds":
            pass
        assert told == ["holds", False]
        with member(files) as second:
            assert leads(second) == second.pid
            first.go_on()
            second.process.kill()
            assert leads(first) == first.pid


def test_candidates_of_one_process_read_one_after_the_other(tmp_path: Path) -> None:
    lease, turns = lease_of(tmp_path / "job"), [threading.Event() for _ in range(3)]
    for turn in turns:
        lease.join(turn.set)
    for number, turn in enumerate(turns):
        assert turn.wait(60)
        assert not any(later.is_set() for later in turns[number + 1 :])
        assert not is_free(tmp_path / "job")
        lease.leave(turn.set)
    wait_for(lambda: is_free(tmp_path / "job"))


def test_a_deputy_reads_for_a_process_that_is_stopped(tmp_path: Path) -> None:
    """One of all, and one candidate of that process; it ends when that one resigns."""
    files = tmp_path / "job"
    with member(files) as first, ExitStack() as stack:
        leads(first)
        os.kill(first.pid, signal.SIGSTOP)
        second = stack.enter_context(member(files, "tell(lease.deputize(), lease.deputize()); wait_to_go_on()"))
        while (told := second.told())[0] == "joined":
            pass
        assert told == [True, False]
        lease = lease_of(files)
        assert not lease.deputize()
        second.process.kill()
        assert wait_for(lease.deputize)
        lease.resign()
        assert lease.deputize()
        lease.resign()


def test_a_lock_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    """Who waited for it then has the new one."""
    files = tmp_path / "job"
    with member(files) as first, ExitStack() as stack:
        leads(first)
        second = stack.enter_context(member(files))
        assert second.told() == ["joined", False]
        wait_for(lambda: waits(second))
        with_end(files, LOCK).unlink()
        with member(files) as third:
            assert leads(third) == third.pid
            first.process.kill()
            third.process.kill()
            assert leads(second) == second.pid


def test_two_processes_that_wait_for_each_other_both_get_their_turn(tmp_path: Path) -> None:
    """For the kernel that is a deadlock: each has what the other waits for."""
    text = """
    elected.wait()
    wait_to_go_on()
    other = lease_of(Path(sys.argv[2]))
    def lead_other():
        tell("leads", "other")
    other.join(lead_other)
    tell("waits")
    wait_to_go_on()
    """
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    with Program(MEMBER + text, one, two) as first, Program(MEMBER + text, two, one) as second:
        leads(first), leads(second)
        for program in (first, second):
            program.go_on()
            while program.told() != ["waits"]:
                pass
        first.process.kill()
        assert second.told() == ["leads", "other"]


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with_end(tmp_path / "job", LOCK).mkdir()
    with pytest.raises(NotSharedError, match="cannot be locked: Is a directory"):
        lease_of(tmp_path / "job").join(lambda: None)


def test_processes_of_several_pid_namespaces_share_one_lock(tmp_path: Path) -> None:
    """In containers each of them may be process 1."""
    inside = f"""
import os, threading
from pathlib import Path
from accelmetrics.sampling.election import lease_of
elected = threading.Event()
lease_of(Path({str(tmp_path / "job")!r})).join(elected.set)
print(elected.wait(3600), os.getpid(), flush=True)
threading.Event().wait()
"""
    with ExitStack() as stack:
        first = stack.enter_context(member(tmp_path / "job"))
        leads(first)
        command = ["unshare", "-rpf", "--kill-child", sys.executable, "-c", inside]
        contained = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(contained.communicate)
        stack.callback(contained.kill)
        assert contained.stdout is not None
        if contained.poll() is not None:
            pytest.skip("privilege: no namespace may be made here")
        first.process.kill()
        line = contained.stdout.readline()
        if not line:
            pytest.skip("privilege: no namespace may be made here")
        assert line == "True 1\n"


# The directory, and what is left there


def test_only_a_directory_of_ones_own_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = job_files("SLURM_JOB_ID=7")
    assert files.parent == tmp_path / "accelmetrics"
    assert files.parent.stat().st_mode & 0o777 == 0o700
    assert files == job_files("SLURM_JOB_ID=7")
    assert len({files, job_files("SLURM_JOB_ID=8"), job_files("SLURM_JOB_ID=7", "2.0"), job_files("SLURM_JOB_ID=7", ("nvidia",))}) == 4
    files.parent.chmod(0o770)
    with pytest.raises(NotSharedError, match="is open to other users"):
        job_files("SLURM_JOB_ID=7")
    files.parent.rmdir()
    files.parent.symlink_to(tmp_path)
    with pytest.raises(NotSharedError, match="is open to other users"):
        job_files("SLURM_JOB_ID=7")


def test_the_temporary_directory_has_one_for_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert job_files("job").parent == tmp_path / f"accelmetrics-{os.geteuid()}"


def test_what_killed_jobs_left_behind_is_removed(tmp_path: Path) -> None:
    """Not that of a job that goes on, nor of one that has only begun."""
    names = ("dead", "going", "new", "ours")
    for name in names:
        for end in (LOCK, RING, BELL, DEPUTY, ".1-a.rank"):
            with_end(tmp_path / name, end).touch()
        if name != "new":
            os.utime(with_end(tmp_path / name, LOCK), (0, 0))
    with member(tmp_path / "going") as going:
        leads(going)
        lease = lease_of(tmp_path / "ours")
        lease.join(names[-1].upper)
        sweep(tmp_path)
        assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"going", "new", "ours"}
        assert not is_free(tmp_path / "ours")
        lease.leave(names[-1].upper)


# The bell


def test_who_rings_is_heard_and_waits_for_nobody(tmp_path: Path) -> None:
    ring_bell(tmp_path / "bell")  # there is none
    rung = threading.Semaphore(0)
    bell = Bell(tmp_path / "bell", rung.release)
    ring_bell(tmp_path / "bell")
    assert rung.acquire(timeout=60)
    bell.close()
    wait_for(lambda: "accelmetrics-bell" not in [thread.name for thread in threading.enumerate()])
    for _ in range(70_000):
        ring_bell(tmp_path / "bell")


def test_a_lock_of_this_process_is_not_lost_by_looking_at_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a")
    assert lock.take(False)
    assert lock.take(False)
    assert lock.is_current
    lock.give()
