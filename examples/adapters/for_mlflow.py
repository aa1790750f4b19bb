"""MLflow's system metrics, from any vendor's accelerators: `import for_mlflow` before `mlflow.start_run(log_system_metrics=True)`."""

from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

import accelmetrics


class Accelerators(BaseMetricsMonitor):
    def collect_metrics(self):
        for device in accelmetrics.sample("accelerators", max_age=0.5).devices:
            if device.parent is None:
                now, name = device.metrics, f"{device.kind}_{device.index}"
                for metric, value in (
                    ("utilization_percentage", now.utilization),
                    ("memory_usage_percentage", now.memory_percent),
                    ("memory_usage_megabytes", now.memory_used_bytes and now.memory_used_bytes / 1e6),
                    ("power_usage_watts", now.power_watts),
                ):
                    if value is not None:
                        self._metrics[f"{name}_{metric}"].append(value)

    def aggregate_metrics(self):
        return {name: round(sum(values) / len(values), 1) for name, values in self._metrics.items()}


SystemMetricsMonitor._initialize_gpu_monitor = lambda self: Accelerators() if accelmetrics.devices("accelerators") else None
