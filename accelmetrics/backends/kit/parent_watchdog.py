"""A small process between us and one that we start, run as a script: it ends that one when we ask for it, or are gone.

How it knows that we are gone, in whatever way, and on every POSIX system:

- the socket between us: the kernel closes our end;
- a fork of our program may hold a copy of our end, so every ``LOOK`` milliseconds it looks whether its parent is still the same;
- a service manager, or a batch system that ends a job, tells each process of it to end: that means the same here.

It then kills the process, its group and, given a mark, every descendant that left the group, waits for them to be gone, and removes
their directory, as it does after an end in time. None of this depends on which thread started it, as the kernel's parent-death signal
does, nor needs code between fork and exec. It cannot act when it is killed itself.

Usage: ``parent_watchdog.py PARENT CONTROL SIZE MARK DIRECTORY COMMAND [ARGUMENT…]``. On the socket CONTROL it receives SIZE bytes, the
files of the directory as ``marshal`` writes a dict. There it tells the exit status (negative by a signal), ``!errno`` when the command
cannot be started and ``?errno`` when its files cannot be written; then it receives a byte that says that what the command left behind
may live. The command has our standard streams; MARK and DIRECTORY may be empty.

A command waits for this interpreter to start, so only modules are imported that take no time.
"""

import _signal as signal  # type: ignore[import-not-found]  # without its enumerations, which take as long as the interpreter
import _thread
import os
import sys
import time
from errno import EAGAIN
from select import POLLIN, poll

LOOK = 500
"""Milliseconds between two looks at the parent."""
FIRST_PAUSE, LAST_PAUSE = 0.001, 0.3
"""Seconds between two looks for what is to be killed, doubled from the first to the last: 0.5 in all."""


def main(parent: int, control: int, size: int, mark: str, directory: str, argv: list[str]) -> None:
    """Start the command, report its end, and wait for the word or for the end of the process that started us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(control, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a program may block or ignore signals, for what it starts too
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.dup2(nothing, control, False))  # whatever reads the socket finds its end
    files = b""
    while len(files) < size:
        piece = _read(control, size - len(files))
        if not piece:
            return
        files += piece
    try:
        if _prepare(directory, files, control):
            pid = os.posix_spawn(argv[0], argv, os.environ, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
            for stream in range(3):  # only the command has them from here on: when it closes them, they are closed
                os.dup2(nothing, stream)
            _thread.start_new_thread(lambda: _tell(control, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), ())
    except (OSError, RuntimeError) as error:
        _tell(control, b"!%d" % (getattr(error, "errno", None) or EAGAIN))
    if _told(parent, control) != b".":
        _kill(mark)
        _remove(directory)
        os.killpg(0, signal.SIGKILL)
    _remove(directory)
    os._exit(0)


def _read(control: int, size: int) -> bytes:
    try:
        return os.read(control, size)
    except OSError:  # our end was closed before all that was told there was read
        return b""


def _tell(control: int, what: bytes) -> None:
    try:
        os.write(control, what)
    except OSError:  # we are gone
        return


def _prepare(directory: str, files: bytes, control: int) -> bool:
    """Make the directory with its files, and enter it. Where there can be none, a command without files starts without."""
    try:
        if directory:
            os.mkdir(directory, 0o700)  # noqa: PTH102  pathlib is slow to import
            os.chdir(directory)
        if files:
            import marshal

            for name, text in marshal.loads(files).items():
                with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(text)
    except OSError as error:
        if files:
            _tell(control, b"?%d" % (error.errno or 0))
            return False
    return True


def _told(parent: int, control: int) -> bytes:
    """Wait for the word; empty when there will be none."""
    heard = poll()
    heard.register(control, POLLIN)
    while not heard.poll(LOOK):
        if os.getppid() != parent:
            return b""
    return _read(control, 1)


def _kill(mark: str) -> None:
    """Kill until none is left: one that is being killed may have started another. One that the kernel holds on to is left to it."""
    pause = FIRST_PAUSE
    while pause < LAST_PAUSE:
        members = _members(mark)
        if not members:
            try:  # nor is the command a zombie, which it would stay in a container whose first process reaps none
                if os.waitpid(-1, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except OSError:  # it has just ended, or is another user's
                continue
        time.sleep(pause)
        pause *= 2


def _remove(directory: str) -> None:
    if directory:
        os.chdir("/")
        try:
            os.rmdir(directory)  # noqa: PTH106
        except OSError:
            import shutil  # only where files were left in it

            shutil.rmtree(directory, ignore_errors=True)


def _members(mark: str) -> set[int]:
    """List living processes of this group; with a mark, also those below this one, and those that carry it in their environment."""
    parents, members = {}, set()
    for pid, parent, group in _proc() if os.path.isdir("/proc/self") else _ps():  # noqa: PTH112
        parents[pid] = parent
        if group == os.getpgrp() or (mark and _is_marked(pid, mark)):
            members.add(pid)
    newest = {*members, os.getpid()} if mark else set()
    while newest:
        newest = {pid for pid, parent in parents.items() if parent in newest} - members
        members |= newest
    return members - {os.getpid()}


def _proc() -> list[tuple[int, int, int]]:
    """List every process, its parent and its group."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:  # it has just ended
                continue
            if state != b"Z":
                found.append((int(name), int(parent), int(group)))
    return found


def _ps() -> list[tuple[int, int, int]]:
    """List the same where there is no ``/proc``."""
    import subprocess

    with subprocess.Popen(["/bin/ps", "-axo", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE, text=True) as listing:
        rows = [line.split() for line in listing.communicate(timeout=5)[0].splitlines()]
    living = [tuple(map(int, row[:3])) for row in rows if len(row) > 3 and not row[3].startswith("Z")]
    return [(pid, parent, group) for pid, parent, group in living if pid != listing.pid]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark.encode() in file.read()
    except OSError:  # it ended, or is another user's
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
