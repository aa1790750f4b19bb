"""verl: rows of the devices in what ``verl.utils.tracking.Tracking`` logs, without a line changed in verl.

Releases from 0.9 find this module by their entry point ``verl.plugins``, 0.6 to 0.8 by its name in ``VERL_USE_EXTERNAL_MODULES``, earlier
ones where the program imports it, or Ray does in each worker (:func:`load`). It is switched on by the configuration::

    python -m verl.trainer.main_ppo … +trainer.enable_gpu_monitoring=true +trainer.gpu_monitor_interval=2.0

by ``accelmetrics`` among ``trainer.logger``, by keywords of ``Tracking``, or by the variable ``ACCELMETRICS_VERL``. Without one of them
nothing is read. ``gpu_monitor_metrics`` and the variable say which names rows have: ``verl`` for those of the dialect of that name.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from verl.utils.tracking import Tracking

# Every verl process loads this module: the rest of the package is loaded where readings are asked for.
if TYPE_CHECKING:
    from accelmetrics.integrations.training import RunHook

NAME = "accelmetrics"
"""Among the loggers."""
ENABLE, INTERVAL, METRICS = "enable_gpu_monitoring", "gpu_monitor_interval", "gpu_monitor_metrics"
"""Of the trainer's configuration, and keywords of ``Tracking``."""
VARIABLE = "ACCELMETRICS_VERL"
"""Switches it on in all processes: ``1``, or what ``gpu_monitor_metrics`` would be."""
DIALECT = "verl"
"""The metrics whose names are those that monitors made for verl log."""
ATTRIBUTE, FLEET, NAMES = "_accelmetrics", "_accelmetrics_fleet", "_accelmetrics_names"
LOGGED = {"actor/pg_loss": "loss", "actor/grad_norm": "grad_norm", "actor/lr": "lr", "perf/total_num_tokens": "tokens"}
"""What of verl's numbers is which of a step's."""


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
        InvalidOptionError: The interval or the metrics cannot be used.
    """
    asked = {name: options.pop(name) for name in (ENABLE, INTERVAL, METRICS) if name in options}
    trainer: Any = {}
    with suppress(LookupError, AttributeError, TypeError, ValueError):  # of a dictionary, or OmegaConf's
        trainer = config["trainer"] if hasattr(config["trainer"], "get") else {}
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    variable = os.environ.get(VARIABLE, "").strip()
    interval = asked.get(INTERVAL, trainer.get(INTERVAL))
    metrics = asked.get(METRICS, trainer.get(METRICS))
    if metrics is None and variable.lower() not in ("", "0", "1", "false", "true"):
        metrics = variable
    enabled = asked.get(ENABLE, trainer.get(ENABLE))
    wanted = NAME in names or metrics is not None or variable.lower() in ("1", "true") if enabled is None else enabled
    if not wanted:
        if enabled is None and interval is not None:
            from accelmetrics.backends.guard import warn_user

            warn_user(f"verl: {INTERVAL} is set and nothing is read: add +trainer.{ENABLE}=true")
        _init(self, project_name, experiment_name, default_backend, config, *arguments, **options)
        return
    from accelmetrics.backends.guard import guarded, warn_user
    from accelmetrics.integrations.training import RunHook

    # Ray may hide the devices from the actor in which this runs: it uses none itself, and the node's are the job's.
    hook = RunHook(visible=False, keys=_keys(metrics), **({} if interval is None else {"interval": interval}))
    _init(self, project_name, experiment_name, default_backend, config, *arguments, **options)
    setattr(self, ATTRIBUTE, hook)
    setattr(self, NAMES, metrics == DIALECT)
    hook.begin()
    outcome = guarded(_all_nodes, self, hook)
    if outcome.failure is not None:
        warn_user(f"verl: rows are of this node alone: {outcome.failure.detail}")


@functools.wraps(_log)
def _log_with_row(self: Any, data: Mapping[str, Any], step: int, *arguments: Any, **options: Any) -> None:
    """Log what the devices did since the row before beside the trainer's numbers, whose dictionary stays as it is."""
    hook: RunHook | None = getattr(self, ATTRIBUTE, None)
    if hook is not None:
        from accelmetrics.backends.guard import guarded

        found = guarded(lambda: {ours: data[theirs] for theirs, ours in LOGGED.items() if theirs in data}).value
        hook.run.step(step, **(found or {}))
        fleet = getattr(self, FLEET, None)
        row = None if fleet is None else fleet.row()
        if getattr(self, NAMES, False):
            # Of this node by the dialect's names, which have no place for a node; of the others by ours.
            row = {name: value for name, value in (row or {}).items() if name.count("/") > 1}
            row.update(guarded(_named_for_verl, hook).value or {})
        data = hook.beside(data, row)
    _log(self, data, step, *arguments, **options)


def _keys(metrics: Any) -> Any:
    """Return the metrics that a row is to have, the brief ones where none are named.

    Raises:
        InvalidOptionError: They cannot be used.
    """
    from accelmetrics.integrations.training import BRIEF
    from accelmetrics.schemas.selection import MetricSelection

    if metrics is None or metrics in (DIALECT, BRIEF):
        return BRIEF
    keys = metrics if isinstance(metrics, str) else [str(one) for one in metrics]
    MetricSelection(keys)  # what cannot be used is told before verl begins
    return keys


def _named_for_verl(hook: RunHook) -> dict[str, float]:
    """Return the latest reading under the names of the dialect; nothing before the first one."""
    from accelmetrics.dialects.registry import dialect
    from accelmetrics.schemas.record import Record

    latest = hook.run.monitor.latest
    return {} if latest is None else dict(dialect(DIALECT).flat(Record(latest)))


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


def load() -> None:
    """Do nothing: as ``worker_process_setup_hook`` of Ray its name has each worker import this module, which is all that it takes."""


if not hasattr(Tracking, "_accelmetrics_replaced"):
    known = Tracking.supported_backend  # a list, or a tuple
    Tracking.supported_backend = known if NAME in known else type(known)([*known, NAME])
    Tracking.__init__, Tracking.log, Tracking._accelmetrics_replaced = _begin, _log_with_row, True
    if _finish is not None:
        Tracking.finish = functools.wraps(_finish)(_end)
