"""Runs first in each Python program below ``accelmetrics run --as-nvml``, as its folder stands first on ``PYTHONPATH``.

The folder leaves ``PYTHONPATH`` again, so that what the program starts has no part in this, and the ``sitecustomize`` that would have run
without this one is run too. Written so that any Python can read it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
_rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and os.path.abspath(entry) != HERE]
if _rest:
    os.environ["PYTHONPATH"] = os.pathsep.join(_rest)
else:
    os.environ.pop("PYTHONPATH", None)

if sys.version_info >= (3, 6):
    import _accelmetrics_hook

    _accelmetrics_hook.install()
    _accelmetrics_hook.run_next("sitecustomize")
