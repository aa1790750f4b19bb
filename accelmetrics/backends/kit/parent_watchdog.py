"""Small process between ours and one that we start, run as a script. It ends that process on request, or when ours is gone.

It notices that our process is gone, for any cause and on every POSIX system, in three ways:

- The kernel closes our end of the socket between us.
- A fork of our program may hold a copy of our end, so every ``LOOK`` milliseconds it checks that its parent is still the same.
- A service manager, or a batch system that ends a job, signals each process of it to end. That means the same here.

It then kills the process, its group and, given a mark, every descendant that left the group. It waits for them to be gone and
removes their directory, as it does after an end in time. Unlike the kernel's parent-death signal, this does not depend on the
thread that started it, and it needs no code between fork and exec. It cannot act if it is killed itself.

Usage: ``parent_watchdog.py PARENT CONTROL SIZE MARK DIRECTORY COMMAND [ARGUMENT…]``. On the socket CONTROL it receives SIZE bytes,
the files of the directory as ``marshal`` writes a dict. It sends back the exit status (negative for a signal), ``!errno`` if the
command cannot be started, or ``?errno`` if its files cannot be written. Then it receives a byte that allows the command's left-over
processes to live. The command inherits our standard streams. MARK and DIRECTORY may be empty.

A command waits for this interpreter to start, so this file imports only modules that load fast.
"""

import _signal as signal  # type: ignore[import-not-found]  # without its enumerations, which take as long as the interpreter
import _thread
import os
import sys
import time
from errno import EAGAIN
from select import POLLIN, poll

LOOK = 500
"""Milliseconds between two checks of the parent."""


def main(parent: int, control: int, size: int, mark: str, directory: str, argv: list[str]) -> None:
    """Start the command, report its end, and wait for the final byte or for the end of our process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(control, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # our program may block or ignore signals, and children inherit that
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.dup2(nothing, control, False))  # every reader of the socket sees its end
    files = b""
    while len(files) < size:
        piece = _read(control, size - len(files))
        if not piece:
            return
        files += piece
    try:
        if _prepare(directory, files, control):
            pid = os.posix_spawn(argv[0], argv, os.environ, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
            for stream in range(3):  # only the command keeps them: the reader sees their end once the command closes them
                os.dup2(nothing, stream)
            _thread.start_new_thread(lambda: _send(control, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), ())
    except (OSError, RuntimeError) as error:
        _send(control, b"!%d" % (getattr(error, "errno", None) or EAGAIN))
    if _await_release(parent, control) != b".":
        _kill(mark)
        _remove(directory)
        os.killpg(0, signal.SIGKILL)
    _remove(directory)
    os._exit(0)


def _read(control: int, size: int) -> bytes:
    try:
        return os.read(control, size)
    except OSError:  # our end was closed with data unread
        return b""


def _send(control: int, message: bytes) -> None:
    try:
        os.write(control, message)
    except OSError:  # our process is gone
        return


def _prepare(directory: str, files: bytes, control: int) -> bool:
    """Make the directory with its files, and enter it. If it cannot be made, a command without files starts without it."""
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
            _send(control, b"?%d" % (error.errno or 0))
            return False
    return True


def _await_release(parent: int, control: int) -> bytes:
    """Wait for the final byte; empty if it will not come."""
    poller = poll()
    poller.register(control, POLLIN)
    while not poller.poll(LOOK):
        if os.getppid() != parent:
            return b""
    return _read(control, 1)


def _kill(mark: str) -> None:
    """Kill until no process is left, because one that is being killed may have started another.

    A process that the kernel holds on to is given up after the last pause.
    """
    pause = 0.001
    while pause < 0.3:  # half a second in all
        members = _members(mark)
        if not members:
            try:  # the command is reaped too: in a container whose first process reaps none it would stay a zombie
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
    """List the living processes of this group. With a mark, add descendants and marked processes that left the group."""
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
    """List the same from ``ps``, on systems without ``/proc``."""
    import subprocess

    with subprocess.Popen(["/bin/ps", "-axo", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE, text=True) as listing:
        rows = [line.split() for line in listing.communicate(timeout=5)[0].splitlines()]
    alive = (row for row in rows if len(row) > 3 and not row[3].startswith("Z") and row[0] != str(listing.pid))
    return [(int(pid), int(parent), int(group)) for pid, parent, group, *_ in alive]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark.encode() in file.read()
    except OSError:  # it ended, or is another user's
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
