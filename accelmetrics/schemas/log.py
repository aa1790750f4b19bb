"""The package's logger. A program that set up no logging sees none of its lines: they are for programs that ask for them."""

import logging

log = logging.getLogger("accelmetrics")
log.addHandler(logging.NullHandler())
