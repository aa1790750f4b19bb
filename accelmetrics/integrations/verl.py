"""verl: rows of the devices in what ``verl.utils.tracking.Tracking`` logs, without a line changed in verl.

Releases from 0.9 find this module by their entry point ``verl.plugins``, 0.6 to 0.8 by its name in ``VERL_USE_EXTERNAL_MODULES``, earlier
ones where the program imports it. It is switched on by the configuration::

    python -m verl.trainer.main_ppo … +trainer.enable_gpu_monitoring=true +trainer.gpu_monitor_interval=2.0

by ``accelmetrics`` among ``trainer.logger``, or by keywords of ``Tracking``. Without one of them nothing is read.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from verl.utils.tracking import Tracking

from accelmetrics.backends.guard import guarded
from accelmetrics.integrations.hook import RunHook

NAME = "accelmetrics"
"""Among the loggers."""
ENABLE, INTERVAL = "enable_gpu_monitoring", "gpu_monitor_interval"
"""Of the trainer's configuration, and keywords of ``Tracking``."""
ATTRIBUTE, FLEET = "_accelmetrics", "_accelmetrics_fleet"
LOGGED = {"actor/pg_loss": "loss", "actor/grad_norm": "grad_norm", "actor/lr": "lr", "perf/total_num_tokens": "tokens"}
"""What of verl's numbers is which of a step's."""

log = logging.getLogger("accelmetrics")

_init, _log = Tracking.__init__, Tracking.log
_finish: Callable[..., None] | None = getattr(Tracking, "finish", None)  # early releases have none


@functools.wraps(_init)
def _begin(
    self: Any,
    project_name: str,
    experiment_name: str,
    default_backend: str | list[str] = "console",
    config: Any = None,
    *arguments: Any,
    **options: Any,
) -> None:
    """Begin with the tracking that the trainer makes, where it is asked for.

    Raises:
        InvalidOptionError: The interval cannot be used.
    """
    asked = {name: options.pop(name) for name in (ENABLE, INTERVAL) if name in options}
    found: Any = guarded(lambda: config["trainer"]).value if config else None  # of a dictionary, or OmegaConf's
    trainer = found if hasattr(found, "get") else {}
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    wanted = asked.get(ENABLE, trainer.get(ENABLE, NAME in names))
    interval = asked.get(INTERVAL, trainer.get(INTERVAL))
    # Ray may hide the devices from the actor in which this runs: it uses none itself, and the node's are the job's.
    hook = RunHook(visible=False, **({} if interval is None else {"interval": interval})) if wanted else None
    _init(self, project_name, experiment_name, default_backend, config, *arguments, **options)
    if hook is not None:
        setattr(self, ATTRIBUTE, hook)
        hook.begin()
        outcome = guarded(_all_nodes, self, hook)
        if outcome.failure is not None:
            guarded(log.warning, "verl: rows are of this node alone: %s", outcome.failure.detail)


@functools.wraps(_log)
def _log_with_row(self: Any, data: Mapping[str, Any], step: int, *arguments: Any, **options: Any) -> None:
    """Log what the devices did since the row before beside the trainer's numbers, whose dictionary stays as it is."""
    hook: RunHook | None = getattr(self, ATTRIBUTE, None)
    if hook is not None:
        found = guarded(lambda: {ours: data[theirs] for theirs, ours in LOGGED.items() if theirs in data}).value
        hook.run.step(step, **(found or {}))
        fleet = getattr(self, FLEET, None)
        data = {**data, **(hook.row() if fleet is None else fleet.row())}
    _log(self, data, step, *arguments, **options)


def _all_nodes(self: Any, hook: RunHook) -> None:
    """Have rows of Ray's other nodes too, where the program is connected to a cluster."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        from accelmetrics.integrations.ray import Fleet

        fleet = Fleet(hook.run.monitor.interval, run=hook.run).start()
        setattr(self, FLEET, fleet)
        weakref.finalize(self, fleet.close)


def _end(self: Any, *arguments: Any, **options: Any) -> None:
    """End with the trainer's tracking, which is also finished where it could not be made."""
    hook: RunHook | None = getattr(self, ATTRIBUTE, None)
    fleet = getattr(self, FLEET, None)
    if fleet is not None:
        fleet.close()
    if hook is not None:
        hook.end()
    if _finish is not None:
        _finish(self, *arguments, **options)


if not hasattr(Tracking, "_accelmetrics_replaced"):
    known = Tracking.supported_backend  # a list, or a tuple
    Tracking.supported_backend = known if NAME in known else type(known)([*known, NAME])
    Tracking.__init__, Tracking.log, Tracking._accelmetrics_replaced = _begin, _log_with_row, True
    if _finish is not None:
        Tracking.finish = functools.wraps(_finish)(_end)
