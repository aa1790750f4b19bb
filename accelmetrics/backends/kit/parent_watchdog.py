"""A small process between us and a long-lived command, run as a script: it ends the command when we are gone.

Its standard input is a pipe that nobody writes to and that the kernel closes when our process ends, in whatever way. The
keeper then kills the command, what that has started, and itself. It shares the command's process group, so one signal to
the group ends them all; the command's outputs are ours directly. This holds on every POSIX system, needs no code between
fork and exec, and does not depend on which thread started the command, as the kernel's parent-death signal does.

Only modules that an interpreter without ``site`` starts quickly with are imported.

Usage: ``parent_watchdog.py <directory to remove> <mark> <absolute path> [arguments]``. Its exit status is the command's, 128 and the
signal's number if one ended it, 126 if it may not be executed and 127 if it is not there, as other launchers have it.
"""

import os
import signal
import sys
import threading

NOT_EXECUTABLE = 126
NOT_FOUND = 127
BY_SIGNAL = 128

ENDING = threading.Lock()
"""Held by whoever ends this process, so that it does not end in the middle of tidying up."""


def main(directory: str, mark: str, argv: list[str]) -> int:
    """Start the command and wait for its end, or for ours."""
    try:
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)])
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    close_outputs()
    threading.Thread(target=watch, args=(directory, mark), daemon=True).start()
    status = os.waitpid(pid, 0)[1]
    ENDING.acquire()
    return BY_SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def close_outputs() -> None:
    """Only the command writes from here on: when it closes its outputs, they are closed."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nothing, output)


def watch(directory: str, mark: str) -> None:
    """Wait for the end of the process that started us, then leave nothing behind."""
    while os.read(0, 4096):
        pass
    ENDING.acquire()
    for pid in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:  # it has just ended
            continue
    if directory:
        import shutil  # only now

        shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """What the command started and what left its group, where there is a ``/proc`` to find them by their environment."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208  pathlib is slow to import
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123  pathlib is slow to import
                    if mark.encode() in file.read():
                        found.append(int(name))
            except OSError:  # it ended, or is another user's
                continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
