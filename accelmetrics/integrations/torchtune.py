"""torchtune: what the devices did, in the rows that a recipe hands to its metric logger.

In the configuration, where ``inner`` is the logger that stood there, whose options stay::

    metric_logger:
      _component_: accelmetrics.integrations.torchtune.DeviceMetricLogger
      inner: torchtune.training.metric_logging.WandBLogger
      project: mine
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from torchtune import config

from accelmetrics.integrations.training import RunHook, TrainingRun


class DeviceMetricLogger:
    """Logs through another metric logger, with a row of the devices in each row of the recipe.

    It begins where the recipe makes it, on the first rank, after the other one has opened its run, and ends with ``close``.

    Args:
        inner: The dotted path of the other logger, as its own ``_component_`` would be.
        monitor: Options of :class:`~accelmetrics.integrations.training.RunHook`, and so of :func:`accelmetrics.training`: ``interval``,
            ``keys``, ``exporters`` …
        options: Those of the other logger.

    Raises:
        InvalidOptionError: An option of ``monitor`` that cannot be used; so do the others that :func:`accelmetrics.training` raises.
    """

    def __init__(self, inner: str, monitor: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._hook = RunHook(**(monitor or {}))
        self._inner = config.instantiate(OmegaConf.create({"_component_": inner, **options}))
        self._hook.begin()

    @property
    def run(self) -> TrainingRun:
        """The training run: its findings, its monitor."""
        return self._hook.run

    def log(self, name: str, data: Any, step: int) -> None:
        """Log one number, which is noted as a step's."""
        self._hook.contain(self._hook.note, step, {name: data})
        self._inner.log(name, data, step)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        """Log a row, with what the devices did since the row before. The recipe's own stays as it is."""
        self._hook.contain(self._hook.note, step, payload)
        self._inner.log_dict(self._hook.beside(payload), step)

    def log_config(self, config: Any) -> None:
        """Log the recipe's configuration."""
        self._inner.log_config(config)

    def close(self) -> None:
        """End, and close the other logger."""
        self._hook.end()
        self._inner.close()
