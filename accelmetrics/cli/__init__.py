"""The command line. Each command is one file with its options (``OPTIONS``) and the function that runs it (``run``)."""

import os

YOUNG = 50_000
"""Threshold of the garbage collector's first generation. Start-up makes fewer objects, and none of them is garbage."""


def program() -> None:
    """Run the command line and exit the process, without waiting for a driver call that may never return."""
    try:
        import gc
        import sys

        if sys.argv[1:2] == ["serve"]:
            outlast_hang_ups()

        from accelmetrics.cli.main import FAILED, main  # here, since Ctrl-C may come while modules are loaded

        gc.set_threshold(YOUNG)
        status = main()
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except OSError:  # there is nowhere left to report it
            status = status or FAILED
        # A normal exit joins threads, and one of them may be in a driver call that never returns.
        os._exit(status)
    except KeyboardInterrupt:
        os._exit(130)  # a shell reports this status for a program that Ctrl-C ended


def outlast_hang_ups() -> None:
    """Ignore SIGHUP until the command handles it. There is no configuration to reload yet, and the default ends the process."""
    import signal

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        # An empty handler instead of SIG_IGN: SIG_IGN means that the caller wants no hang-ups (`nohup`), and children inherit it.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
