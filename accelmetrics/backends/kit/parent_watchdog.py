"""A small process between us and a command, run as a script: it ends the command when we ask for it, or are gone.

Its standard input is a pipe that the kernel closes when our process ends, in whatever way. It then kills the command, what that
has started and itself. This holds on every POSIX system, needs no code between fork and exec, and does not depend on which thread
started the command, as the kernel's parent-death signal does.

Usage: ``parent_watchdog.py MARK DIRECTORY STATUS COMMAND [ARGUMENT…]``. The command's outputs are ours directly; its exit status
(negative by a signal, ``!errno`` when it cannot be started) is written to the descriptor STATUS. Then a byte on standard input says
that what the command left behind may live; the end of standard input says that it must not.

Only modules that an interpreter without ``site`` starts quickly with are imported.
"""

import os
import signal
import sys
import threading

SWEEPS = 5
"""How often descendants are looked for: one that is being killed may start another."""


def main(mark: str, directory: str, status: int, argv: list[str]) -> None:
    """Start the command, report its end, and wait for the word or for the end of the process that started us."""
    os.set_inheritable(status, False)
    try:
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)])
    except OSError as error:
        os.write(status, b"!%d" % (error.errno or 0))
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):  # only the command writes from here on: when it closes its outputs, they are closed
        os.dup2(nothing, output)
    threading.Thread(target=report, args=(pid, status), daemon=True).start()
    if os.read(0, 1):
        return
    for _ in range(SWEEPS):
        family = descendants(mark)
        for member in family:
            try:
                os.kill(member, signal.SIGKILL)
            except OSError:  # it has just ended
                continue
        if not family:
            break
    if directory:
        import shutil  # only now

        shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def report(pid: int, status: int) -> None:
    """Write how the command ended."""
    code = os.waitpid(pid, 0)[1]
    os.write(status, b"%d" % (-os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)))
    os.close(status)


def descendants(mark: str) -> list[int]:
    """List living processes below this one, and those that carry its mark in their environment where there is a ``/proc``."""
    parents = dict(_proc() if os.path.isdir("/proc/self") else _ps())  # noqa: PTH112  pathlib is slow to import
    found, newest = set(), {os.getpid(), *(pid for pid in parents if _is_marked(pid, mark))}
    while newest:
        found |= newest
        newest = {pid for pid, parent in parents.items() if parent in newest} - found
    return sorted(found - {os.getpid()})


def _proc() -> list[tuple[int, int]]:
    """Every process and its parent."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:  # it has just ended
                continue
            if state != b"Z":
                found.append((int(name), int(parent)))
    return found


def _ps() -> list[tuple[int, int]]:
    """The same where there is no ``/proc``."""
    import subprocess

    listed = subprocess.run(["/bin/ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, timeout=5, check=False).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if len(row) > 2 and not row[2].startswith("Z")]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark.encode() in file.read()
    except OSError:  # it ended, or is another user's
        return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
