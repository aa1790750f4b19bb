"""Stand-ins for a machine with Google TPUs: its PCI bus and processes, the runtime's gRPC server, libtpu's SDK.

machine = TpuMachine(root)                      # ACCELMETRICS_SYSROOT=root
machine.chips("v5e", 4)
runtime = TpuRuntime()                          # TPU_RUNTIME_METRICS_PORTS=runtime.port
runtime.devices(0, 1, 2, 3)
runtime.gauge(DUTY_CYCLE, {0: 99.5})            # while it runs
"""

from tests.simulators.tpu.encode import About, Explicit, Exponential, Histogram, Linear, Quantiles, entry, response, supported
from tests.simulators.tpu.machine import TpuMachine
from tests.simulators.tpu.sdk import LibtpuStandIn
from tests.simulators.tpu.server import DUTY_CYCLE, HBM_UTILIZATION, IDLE, QUEUE, TOTAL, USAGE, RefusalError, TpuRuntime

__all__ = [
    "DUTY_CYCLE",
    "HBM_UTILIZATION",
    "IDLE",
    "QUEUE",
    "TOTAL",
    "USAGE",
    "About",
    "Explicit",
    "Exponential",
    "Histogram",
    "LibtpuStandIn",
    "Linear",
    "Quantiles",
    "RefusalError",
    "TpuMachine",
    "TpuRuntime",
    "entry",
    "response",
    "supported",
]
