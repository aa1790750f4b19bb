"""``python -m accelmetrics`` is the command ``accelmetrics``."""

import sys

from accelmetrics.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
