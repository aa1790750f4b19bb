"""torchtune: values of the devices in the rows that a recipe hands to its metric logger.

In the configuration, ``inner`` is the original logger, and its options stay::

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

from accelmetrics.integrations.training import WithRun


class DeviceMetricLogger(WithRun):
    """A metric logger that adds a row of the devices to each row of the recipe and passes it to another logger.

    The training run starts when the recipe creates the logger, on the first rank, and ends with ``close``.

    Args:
        inner: The dotted path of the other logger, as in its ``_component_``.
        monitor: Options of :class:`~accelmetrics.integrations.training.RunHook` and :func:`accelmetrics.training`: ``interval``, ``keys``,
            ``exporters`` …
        options: Options of the other logger.

    Raises:
        InvalidOptionError: An option of ``monitor`` is invalid. Other errors are those of :func:`accelmetrics.training`.
    """

    def __init__(self, inner: str, monitor: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**(monitor or {}))
        self._inner = config.instantiate(OmegaConf.create({"_component_": inner, **options}))
        self._hook.begin()

    def log(self, name: str, data: Any, step: int) -> None:
        """Log a number, also as a step of the training run."""
        self._hook.contain(self._hook.note, step, {name: data})
        self._inner.log(name, data, step)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        """Log a row with the devices' values since the previous row. ``payload`` is not changed."""
        self._hook.contain(self._hook.note, step, payload)
        self._inner.log_dict(self._hook.with_row(payload), step)

    def log_config(self, config: Any) -> None:
        """Log the recipe's configuration."""
        self._inner.log_config(config)

    def close(self) -> None:
        """End the training run and close the other logger."""
        self._hook.end()
        self._inner.close()
