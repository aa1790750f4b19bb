"""verl: rows of the devices in the values that ``verl.utils.tracking.Tracking`` logs, without a change to verl.

verl 0.9 and later finds this module by the entry point ``verl.plugins``, 0.6 to 0.8 by its name in ``VERL_USE_EXTERNAL_MODULES``. With
earlier releases the program imports it, or Ray does in each worker (:func:`load`). The configuration enables it::

    python -m verl.trainer.main_ppo … +trainer.enable_gpu_monitoring=true +trainer.gpu_monitor_interval=2.0

So does ``accelmetrics`` in ``trainer.logger``, a keyword of ``Tracking``, or the variable ``ACCELMETRICS_VERL``. Otherwise nothing is read.
``gpu_monitor_metrics`` and the variable select the metrics of rows. The value ``verl`` selects the names of the dialect ``verl``.
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

# Every verl process loads this module. The rest of the package is imported only in the process that reads.
if TYPE_CHECKING:
    from accelmetrics.integrations.ray import Fleet
    from accelmetrics.integrations.training import RunHook

NAME = "accelmetrics"
"""The name in ``trainer.logger``."""
ENABLE, INTERVAL, METRICS = "enable_gpu_monitoring", "gpu_monitor_interval", "gpu_monitor_metrics"
"""Names in the trainer's configuration, and keywords of ``Tracking``."""
VARIABLE = "ACCELMETRICS_VERL"
"""The variable that enables monitoring in all processes: ``1``, or a value for ``gpu_monitor_metrics``."""
DIALECT = "verl"
"""The dialect with the metric names of monitors made for verl."""
ATTRIBUTE = "_accelmetrics"
"""The attribute of a ``Tracking`` with its hook, its fleet or None, and whether its rows have the dialect's names."""
NOT_MONITORED = None, None, False
LOGGED = {"actor/pg_loss": "loss", "actor/grad_norm": "grad_norm", "actor/lr": "lr", "perf/total_num_tokens": "tokens"}
"""The name in a step for each number of verl."""


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
    """Create the trainer's ``Tracking``, and start a training run if monitoring is enabled.

    Raises:
        InvalidOptionError: The interval or the metrics are invalid.
    """
    keywords = {name: options.pop(name) for name in (ENABLE, INTERVAL, METRICS) if name in options}
    trainer: Any = {}
    with suppress(LookupError, AttributeError, TypeError, ValueError):  # the configuration may be a dict, of OmegaConf, or missing
        trainer = config["trainer"] if hasattr(config["trainer"], "get") else {}
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    variable = os.environ.get(VARIABLE, "").strip()
    interval = keywords.get(INTERVAL, trainer.get(INTERVAL))
    metrics = keywords.get(METRICS, trainer.get(METRICS))
    if metrics is None and variable.lower() not in ("", "0", "1", "false", "true"):
        metrics = variable
    enabled = keywords.get(ENABLE, trainer.get(ENABLE))
    wanted = NAME in names or metrics is not None or variable.lower() in ("1", "true") if enabled is None else enabled
    if not wanted:
        if enabled is None and interval is not None:
            from accelmetrics.backends.guard import warn_user

            warn_user(f"verl: {INTERVAL} is set but monitoring is off: add +trainer.{ENABLE}=true")
        _init(self, project_name, experiment_name, default_backend, config, *arguments, **options)
        return
    from accelmetrics.backends.guard import guarded, warn_user
    from accelmetrics.integrations.training import RunHook

    # This runs in an actor that uses no device, so Ray may hide all of them from it. All devices of the node belong to the job.
    hook = RunHook(visible=False, keys=_keys(metrics), **({} if interval is None else {"interval": interval}))
    _init(self, project_name, experiment_name, default_backend, config, *arguments, **options)
    hook.begin()
    outcome = guarded(_all_nodes, hook)
    setattr(self, ATTRIBUTE, (hook, outcome.value, metrics == DIALECT))
    if outcome.value is not None:
        weakref.finalize(self, outcome.value.close)
    if outcome.failure is not None:
        warn_user(f"verl: rows have only the devices of this node: {outcome.failure.detail}")


@functools.wraps(_log)
def _log_with_row(self: Any, data: Mapping[str, Any], step: int, *arguments: Any, **options: Any) -> None:
    """Log the trainer's numbers with the devices' values since the previous row. ``data`` is not changed."""
    hook, fleet, named_for_verl = getattr(self, ATTRIBUTE, NOT_MONITORED)
    if hook is not None:
        from accelmetrics.backends.guard import guarded

        found = guarded(lambda: {ours: data[theirs] for theirs, ours in LOGGED.items() if theirs in data}).value
        hook.run.step(step, **(found or {}))
        row = None if fleet is None else fleet.row()
        if named_for_verl:
            # The dialect's names have no part for a node. So this node has the dialect's names, and other nodes have ours.
            row = {name: value for name, value in (row or {}).items() if name.count("/") > 1}
            row.update(guarded(_named_for_verl, hook).value or {})
        data = hook.with_row(data, row)
    _log(self, data, step, *arguments, **options)


def _keys(metrics: Any) -> Any:
    """Return the metrics of a row, by default the brief ones.

    Raises:
        InvalidOptionError: The metrics are invalid.
    """
    from accelmetrics.integrations.training import BRIEF
    from accelmetrics.schemas.selection import MetricSelection

    if metrics is None or metrics in (DIALECT, BRIEF):
        return BRIEF
    keys = metrics if isinstance(metrics, str) else [str(one) for one in metrics]
    MetricSelection(keys)  # raises before verl starts its loggers
    return keys


def _named_for_verl(hook: RunHook) -> dict[str, float]:
    """Return the latest reading with the dialect's names. Empty before the first reading."""
    from accelmetrics.dialects.registry import dialect
    from accelmetrics.schemas.record import Record

    latest = hook.run.monitor.latest
    return {} if latest is None else dict(dialect(DIALECT).flat(Record(latest)))


def _all_nodes(hook: RunHook) -> Fleet | None:
    """Return the rows of Ray's nodes, if the program is connected to a cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from accelmetrics.integrations.ray import Fleet

    return Fleet(hook.run.monitor.interval, run=hook.run).start()


def _end(self: Any, *arguments: Any, **options: Any) -> None:
    """End the training run with the trainer's ``Tracking``."""
    # verl also finishes a Tracking whose creation failed. It has no run.
    hook, fleet, _ = getattr(self, ATTRIBUTE, NOT_MONITORED)
    if fleet is not None:
        fleet.close()
    if hook is not None:
        hook.end()
    if _finish is not None:
        _finish(self, *arguments, **options)


def load() -> None:
    """Do nothing. As Ray's ``worker_process_setup_hook``, this function makes each worker import this module."""


if not hasattr(Tracking, "_accelmetrics_replaced"):
    known = Tracking.supported_backend  # a list, or a tuple
    Tracking.supported_backend = known if NAME in known else type(known)([*known, NAME])
    Tracking.__init__, Tracking.log, Tracking._accelmetrics_replaced = _begin, _log_with_row, True
    if _finish is not None:
        Tracking.finish = functools.wraps(_finish)(_end)
