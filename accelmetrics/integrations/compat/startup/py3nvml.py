"""Becomes the program's own ``py3nvml`` in processes of ``multiprocessing``, which have this folder in ``sys.path`` and no hook yet."""

import _accelmetrics_hook

_accelmetrics_hook.become(__name__)
