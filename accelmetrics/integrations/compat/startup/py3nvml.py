"""Replaced by the program's own ``py3nvml`` in processes of ``multiprocessing``, which have this folder in ``sys.path`` but no hook yet."""

import _accelmetrics_hook

_accelmetrics_hook.become(__name__)
