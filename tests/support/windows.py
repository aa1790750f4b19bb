"""Make this interpreter look to our package as one on Windows does: no module, function, flag or signal of POSIX alone.

Python's own modules and psutil keep what they need: psutil's Linux half stands for its half on Windows. It is imported before anything of
the package, in a process of its own.
"""

from __future__ import annotations

# What Python and psutil import of POSIX.
import asyncio  # noqa: F401
import concurrent.futures  # noqa: F401
import ctypes.util  # noqa: F401
import http.server  # noqa: F401
import importlib.abc
import importlib.metadata
import logging.handlers  # noqa: F401
import multiprocessing.util  # noqa: F401
import os
import pathlib  # noqa: F401
import select
import shutil  # noqa: F401
import signal
import socket
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import time
import types
import uuid  # noqa: F401
from collections.abc import Sequence

import psutil

MODULES = frozenset(
    {"fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "posix", "syslog", "curses", "readline", "_posixsubprocess"}
)
MISSING = {
    os: """
        chown chroot ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty fstatvfs get_blocking getegid geteuid getgid getgroups
        getloadavg getpgid getpgrp getpriority getresgid getresuid getsid getuid getxattr initgroups killpg lchown lockf memfd_create mkfifo
        mknod nice openpty pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev
        register_at_fork
        sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking setegid seteuid setgid setgroups setpgid setpriority setsid
        setuid setxattr splice statvfs sync sysconf sysconf_names tcgetpgrp ttyname uname wait wait3 wait4 waitid
        O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC
        RTLD_GLOBAL RTLD_LAZY RTLD_LOCAL RTLD_NOW WNOHANG WUNTRACED WIFEXITED WTERMSIG
    """,
    signal: """
        SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2
        SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm pidfd_send_signal pthread_kill pthread_sigmask setitimer
        siginterrupt sigpending sigtimedwait sigwait
    """,
    select: "epoll poll EPOLLIN POLLIN",
    socket: "AF_NETLINK AF_UNIX SCM_RIGHTS SO_PEERCRED",
    time: "clock_gettime clock_gettime_ns tzset",
}


class Blocked(importlib.abc.MetaPathFinder):
    """Finds no module of POSIX alone."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become_windows() -> None:
    """Leave what is imported as it is, and take from what comes what Windows has not."""
    assert not [name for name in sys.modules if name.startswith("accelmetrics")]
    psutil.cpu_percent()
    sysconfig.get_config_vars()  # kept from here on: they are found by the platform's name
    for module, names in MISSING.items():
        stripped = types.ModuleType(module.__name__, module.__doc__)
        stripped.__dict__.update({name: value for name, value in module.__dict__.items() if name not in names.split()})
        sys.modules[module.__name__] = stripped  # what is imported already keeps the whole one
    for name in MODULES & set(sys.modules):
        del sys.modules[name]
    sys.meta_path.insert(0, Blocked())
    sys.platform, sys.modules["os"].name = "win32", "nt"  # type: ignore[attr-defined]
