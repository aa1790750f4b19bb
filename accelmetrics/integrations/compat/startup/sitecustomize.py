"""Startup code that each Python program under ``accelmetrics run --as-nvml`` runs first, as its folder leads ``PYTHONPATH``.

It removes the folder from ``PYTHONPATH``, so that programs started by the program are not affected. Then it runs the ``sitecustomize`` that
Python would have run without this one. Any version of Python can parse this file.
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
