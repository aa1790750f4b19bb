"""The command line: one file per command, which says what options it takes (``OPTIONS``) and does it (``run``)."""
