"""The package's logger. Its messages appear only in programs that set up logging."""

import logging

log = logging.getLogger("accelmetrics")
log.addHandler(logging.NullHandler())
