"""The command line: one file per command, which says what options it takes (``configure``) and does it (``run``)."""
