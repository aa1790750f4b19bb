"""The command line: one file per command, which says what options it takes (``OPTIONS``) and does it (``run``)."""

import os

YOUNG = 50_000
"""Objects between two collections: more than starting up makes, none of which is garbage."""


def program() -> None:
    """Be the process: run its command line and end it, without waiting for a driver call that may never return."""
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
        except OSError:  # there is nowhere left to say so
            status = status or FAILED
        os._exit(status)
    except KeyboardInterrupt:
        os._exit(130)  # what a shell shows for a program that Ctrl-C has ended


def outlast_hang_ups() -> None:
    """Have SIGHUP, which would end the process, do nothing until the command handles it: it has read no configuration yet."""
    import signal

    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        # A handler and not SIG_IGN, which says that whoever started the command wants none (`nohup`), and which children inherit.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
